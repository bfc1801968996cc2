"""Clients in other languages, run for real: a browser, Node.js, and Java on generated stubs."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from shoal.cli.demo import repository
from shoal.testing.server import running_server

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "other_languages"
JARS = Path("/usr/share/java")
ENDS_WITHIN_MS = 120_000
SHOWN = [
    "infer: A SHOAL OF FISH",
    "binary: 10 probabilities, together 1.000",
    "generate: ONE EEL",
    "event: TWO EELS",
    "refused: Request for unknown model: 'nope' is not found",
]


# A third of the CPU time: no optimising compiler and no parallel collector for seconds of work.
SHORT_LIVED_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def run(*command):
    env = os.environ | SHORT_LIVED_JVM
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


class Pages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *arguments):
        """Log nothing."""


@pytest.fixture(scope="module")
def origin():
    """A web server for the page, on another origin than the inference server."""
    handler = functools.partial(Pages, directory=FOLDER)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def browse(url):
    """The text of the page after its script has ended."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        page = browser.new_page()
        page.set_default_timeout(ENDS_WITHIN_MS)
        page.goto(url)
        ended = page.locator("#output", has_text=re.compile(r"^(done|failed: .*)$", re.MULTILINE))
        ended.wait_for()
        shown = page.locator("#output").inner_text()
        browser.close()
    return shown.splitlines()


@pytest.mark.browser
@pytest.mark.timeout(180)
def test_a_web_page_with_cors(origin):
    with running_server(Path(repository()), cors=(origin,)) as running:
        page = f"{origin}/browser.html?server=http://{running.http_address}"
        assert browse(page) == [*SHOWN, "done"]


@pytest.mark.browser
@pytest.mark.timeout(180)
def test_a_web_page_of_another_origin(origin):
    with running_server(Path(repository()), cors=("http://example.com",)) as running:
        page = f"{origin}/browser.html?server=http://{running.http_address}"
        assert browse(page) == ["failed: Failed to fetch"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_node():
    with running_server(Path(repository())) as running:
        done = run("node", str(FOLDER / "infer.mjs"), f"http://{running.http_address}")
    assert done.stdout.splitlines() == SHOWN, done.stderr


@pytest.mark.java
@pytest.mark.timeout(300)
@pytest.mark.skipif(not (JARS / "grpc-netty.jar").exists(), reason="needs grpc-java's libraries")
def test_java():
    with running_server(Path(repository())) as running:
        done = run("sh", str(FOLDER / "java.sh"), running.http_address, running.grpc_address)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ready: true",
        f"OUTPUT0 = {[2 * number for number in range(16)]}",
        "streamed: one",
        "streamed: two",
        "streamed: three",
        "refused: NOT_FOUND",
    ]
