"""Runs pages two at a time, ahead of the tests that check the results; pages share one demo server."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the modules of the harness are in this folder

from pages import ROOT, blocks, weight
from reader import Reader, make_tools
from samples import make
from servers import DEMO, Shoal

AT_A_TIME = 2  # a page mostly waits for processes to start


@pytest.fixture(scope="session")
def tools(tmp_path_factory):
    return make_tools(tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    return make(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="session")
def demo(tools, tmp_path_factory):
    """Return the demo server, started when the first page needs it."""
    started = []
    starting = threading.Lock()  # guards started

    def ask():
        with starting:
            if not started:
                path = f"{tools}{os.pathsep}{os.environ['PATH']}"
                env = {**os.environ, "PATH": path, "SHOAL_ROOT": str(ROOT)}
                started.append(Shoal(DEMO[-1], tmp_path_factory.mktemp("demo"), env))
            return started[0]

    yield ask
    for server in started:
        assert server.stop() == 0, server.log


@pytest.fixture(scope="session")
def followed(request, demo, tools, samples, tmp_path_factory):
    """Run a page and return the blocks that were skipped. Raises PageFailed."""

    def follow(page, folder):
        reader = Reader(folder, tools, samples, demo)
        try:
            reader.follow(blocks(page, (ROOT / page).read_text(encoding="utf-8")))
        finally:
            reader.close()
        return reader.left_out

    chosen = [
        item.callspec.params["page"]
        for item in request.session.items
        if "followed" in getattr(item, "fixturenames", ())
    ]
    chosen.sort(key=weight, reverse=True)  # start the longest first
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        outcomes = {
            page: pool.submit(follow, page, tmp_path_factory.mktemp("page")) for page in chosen
        }
        yield lambda page: outcomes[page].result()
        pool.shutdown(cancel_futures=True)
