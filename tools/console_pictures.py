"""Takes the pictures of the console in docs/_static: the demo under a light load, in Chromium.

    python tools/console_pictures.py

Takes a minute and a half, because the charts show the last minute. Needs the extras `demo`, `tasks`
and `dev`, and the system's Chromium.
"""

from __future__ import annotations

import io
import multiprocessing
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

from shoal.cli.demo import repository
from shoal.client import Client
from shoal.testing.server import running_server

ROOT = Path(__file__).resolve().parents[1]
LOAD_SECS = 65
SIZE = {"width": 1280, "height": 860}
ROW = np.arange(16, dtype=np.int32)[None]
DIGITS = np.random.default_rng(0).random((3, 64), np.float32)
TEXT = np.array([["a shoal of fish"]], dtype=object)
PHOTO = ROOT / "demo" / "shoal_demo" / "cat.jpg"
FISH = "A shoal is a group of fish. Herrings swim in shoals of many thousands."

# Calls, and the mean seconds from one to the next.
CALLS: list[tuple[Callable[[Client], object], float]] = [
    (lambda client: client.infer("add_sub", {"INPUT0": ROW, "INPUT1": ROW}), 0.03),
    (lambda client: client.infer("add_sub", {"INPUT0": ROW, "INPUT1": ROW}), 0.03),
    (lambda client: client.infer("digits", {"image": DIGITS}), 0.02),
    (lambda client: client.infer("upper", {"text": TEXT}), 0.04),
    (lambda client: client.classify(PHOTO, model="photos"), 0.25),
    (lambda client: client.answer(FISH, "What is a shoal?", model="questions"), 0.2),
]


def send(address: str, call: Callable[[Client], object], secs: float) -> None:
    """Make a call again and again, at intervals that change at random."""
    pace = 1.0
    with Client(address) as client:
        while True:
            time.sleep(random.expovariate(pace / secs))
            pace = min(2.0, max(0.5, pace * random.uniform(0.92, 1.09)))  # noqa: S311
            call(client)


def send_all(address: str) -> None:
    """The load: a process of its own, so that it does not delay the server's threads."""
    for call, secs in CALLS:
        threading.Thread(target=send, args=(address, call, secs)).start()


def take(address: str) -> None:
    """Take the picture in both colours, after some load."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        pages = {
            colours: browser.new_page(
                viewport=SIZE, device_scale_factor=1.5, color_scheme=colours, locale="en-GB"
            )
            for colours in ("light", "dark")
        }
        for page in pages.values():
            page.goto(address)
        time.sleep(LOAD_SECS)
        for colours, page in pages.items():
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            file = ROOT / "docs" / "_static" / f"console-{colours}.png"
            most_frequent(picture).save(file, optimize=True)
            print(f"{file.relative_to(ROOT)}: {file.stat().st_size // 1024} KiB")
        browser.close()


def most_frequent(picture: Image.Image) -> Image.Image:
    """The picture in its 256 most frequent colours: a third of the size, and areas are exact."""
    found = sorted(picture.getcolors(1 << 24) or (), reverse=True)[:256]
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for _, colour in found for value in colour])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def main() -> None:
    """Serve the demo, send requests, take the pictures."""
    with running_server(
        Path(repository()), model_control_mode="explicit", load_model=("*",)
    ) as running:
        address = f"http://{running.http_address}"
        load = multiprocessing.get_context("spawn").Process(target=send_all, args=(address,))
        load.start()
        try:
            take(address)
        finally:
            load.kill()
            load.join()


if __name__ == "__main__":
    main()
