"""A server in a notebook: its models as a table, and a progress bar while they load."""

from __future__ import annotations

import contextlib
import html
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_FIRST_LOOK_SECS = 0.5
_POLL_SECS = 0.2
_COLOURS = {"READY": "#17653a", "LOADING": "#7a4b00", "UNLOADING": "#7a4b00"}
_HEADS = ("model", "version", "state", "requests", "failed", "mean latency")


def table(title: str, links: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """HTML: a title, links, and a table of `model_rows`. Every text is escaped."""
    shown = " · ".join(f'<a href="{html.escape(url)}">{html.escape(url)}</a>' for url in links)
    heads = "".join(f'<th style="text-align:left">{head}</th>' for head in _HEADS)
    lines = "".join(f"<tr>{''.join(_cell(text) for text in row)}</tr>" for row in rows)
    body = f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>" if lines else ""
    return f"<div><b>{html.escape(title)}</b> {shown}</div>{body}"


def model_rows(
    index: Iterable[Mapping[str, str]], statistics: Iterable[Mapping[str, Any]]
) -> Iterator[Sequence[str]]:
    """A row for every version: its name, version, state with the reason, and figures."""
    counted = {(each["name"], each["version"]): each["inference_stats"] for each in statistics}
    for entry in index:
        state = entry.get("state", "") or "not loaded"
        reason = entry.get("reason", "")
        words = f"{state}: {reason}" if reason and state != "READY" else state
        row = [entry["name"], entry.get("version", ""), words]
        stats = counted.get((row[0], row[1]))
        if stats is None:
            yield [*row, "", "", ""]
            continue
        success = stats["success"]
        mean = f"{success['ns'] / success['count'] / 1e6:.2f} ms" if success["count"] else ""
        yield [*row, f"{success['count']:,}", f"{stats['fail']['count']:,}", mean]


def _cell(text: str) -> str:
    colour = _COLOURS.get(text)
    style = f' style="color:{colour};text-align:left"' if colour else ' style="text-align:left"'
    return f"<td{style}>{html.escape(text)}</td>"


@contextlib.contextmanager
def loading_progress(index: Callable[[], Iterable[Mapping[str, str]]]) -> Iterator[None]:
    """Show how many models are loaded, on a terminal or in a notebook that has tqdm.

    A load of less than half a second shows nothing. Never raises by itself.
    """
    make_bar = _bar_type()
    if make_bar is None:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(make_bar, index, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(
    make_bar: Callable[..., Any],
    index: Callable[[], Iterable[Mapping[str, str]]],
    done: threading.Event,
) -> None:
    if done.wait(_FIRST_LOOK_SECS):
        return
    bar = make_bar(total=0, desc="loading models", unit="model", leave=False)
    over = False
    while not over:
        with contextlib.suppress(Exception):  # it does not matter for the server
            entries = list(index())
            loading = [entry["name"] for entry in entries if entry.get("state") == "LOADING"]
            bar.total = len(entries)
            bar.n = len(entries) - len(loading)
            bar.set_postfix_str(loading[0] if loading else "", refresh=False)
            bar.refresh()
        over = done.wait(_POLL_SECS)
    bar.close()


def _bar_type() -> Callable[..., Any] | None:
    """The progress bar of tqdm; None where it would not be seen."""
    in_notebook = "ipykernel" in sys.modules
    if not in_notebook and not (sys.stderr is not None and sys.stderr.isatty()):
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    made: Callable[..., Any] = tqdm
    return made
