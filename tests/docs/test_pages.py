"""Every page is run from its first command to its last; see pages.py for the rules."""

from __future__ import annotations

import re
import shutil
import sys

import pytest
from packages import check_install
from pages import ROOT, all_pages, blocks, unmarked_commands, weight

PAGES = [path.as_posix() for path in all_pages()]
# The share of blocks that may be skipped with a reason. Most of them need what only a reader has: a
# bucket, a checkpoint, a GPU.
NOT_RUN_SHARE = 0.13


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def to_run(page):
    return any(block.is_run for block in blocks(page, read(page)))


@pytest.mark.skipif(sys.platform == "win32", reason="pages are written for bash")
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.timeout(600)  # a page may start five servers, one after another
@pytest.mark.parametrize(
    # In the order in which pages are run, so that a test waits for its own page only.
    "page",
    sorted(filter(to_run, PAGES), key=weight, reverse=True),
)
def test_page_can_be_followed(page, followed):
    left_out = followed(page)
    if left_out:
        pytest.skip(f"all but {'; '.join(left_out)}")


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_in_a_block_that_is_not_run(page):
    assert [f"{page}:{line}" for line in unmarked_commands(read(page))] == []


@pytest.mark.parametrize("page", PAGES)
def test_pip_lines_within_sentences_name_what_there_is(page):
    for line in re.findall(r"`(pip install [^`]+)`", read(page)):
        done = check_install(line)
        assert done.status == 0, f"{page}: {line}: {done.error}"


def test_few_blocks_are_not_run():
    """Pages about deployments are left out: their commands need root, clusters and registries."""
    here = [page for page in PAGES if not page.startswith("docs/deploy/")]
    found = [block for page in here for block in blocks(page, read(page))]
    run = [block for block in found if block.is_run and block.language != "setup"]
    rest = [block for block in found if "no" in block.run]
    print(f"{len(run)} blocks are run, {len(rest)} are not:")
    for block in rest:
        print(f"  {block.where}: {block.run['reason']}")
    assert len(rest) <= NOT_RUN_SHARE * (len(run) + len(rest))
