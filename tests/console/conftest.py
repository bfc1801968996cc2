"""A browser for the console: Debian's Chromium, driven by Playwright, one for each file of tests.

One at a time, and not for the whole session: while Playwright runs, its event loop is the running
one of this thread, and tests elsewhere have loops of their own.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.cli.demo import repository as demo_repository
from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.client import Infer
from tests.support.repositories import add_onnx

MARKUP = "<img src=x onerror=document.title='hacked'>"
WAIT_MS = 60_000  # for every wait there is: a machine may have much else to do
LABELS = b"cat\ndog\n<b>eel</b>\n"


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with driver.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=[
                *("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
                # A camera and a microphone, which are permitted.
                *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
            ],
        )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def expect():
    """Playwright's assertions, which wait; patiently, where the machine has much to do."""
    found = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
    found.set_options(timeout=WAIT_MS)
    return found


@contextmanager
def opened(browser, **settings):
    """A page of its own. What goes wrong on it (a script, the policy) fails the test."""
    context = browser.new_context(**settings)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console",
        lambda message: (
            faults.append(message.text)
            # The browser says so itself when a request is refused, which some tests want.
            if message.type == "error" and not message.text.startswith("Failed to load resource")
            else None
        ),
    )
    try:
        yield page
    finally:
        context.close()
    assert not faults, faults


@pytest.fixture(scope="module")
def open_page(browser):
    return lambda **settings: opened(browser, **settings)


@pytest.fixture
def page(browser):
    with opened(browser, viewport={"width": 1280, "height": 900}) as found:
        yield found


@shoal.model
def count_down(start: int) -> Iterator[str]:
    """A stream of texts."""
    for number in range(start, 0, -1):
        yield f"{number} ... "
    yield "lift-off"


@shoal.model(path="/greet")
def greet(name: str, greeting: str = "Hello") -> str:
    """An input that may be left out."""
    return f"{greeting}, {name}!"


@shoal.model(path="/flip")
def flip(image: Image.Image) -> Image.Image:
    return image.rotate(180)


@pytest.fixture(scope="session")
def functions():
    return [count_down, greet, flip]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The demo's small models, and some that are odd on purpose."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("add_sub", "digits", "upper"):
        shutil.copytree(Path(demo_repository()) / name, folder / name)
    add_onnx(folder, MARKUP, onnx_models.identity("FP32", (3,)), "max_batch_size: 4")
    add_onnx(
        folder,
        "halves",
        onnx_models.identity("FP16", (2, 2), count=2),
        "max_batch_size: 4",
    )
    add_onnx(folder, "picture", onnx_models.identity("FP32", (1, 12, 12)), "max_batch_size: 4")
    add_onnx(folder, "matrix", onnx_models.identity("FP32", (-1, -1)), "max_batch_size: 4")
    broken = folder / "broken"
    (broken / "1").mkdir(parents=True)
    (broken / "config.pbtxt").write_text(f'backend: "{MARKUP}"\nmax_batch_size: 1\n')
    return folder


@pytest.fixture(scope="session")
def send():
    """Requests enough for curves, from a thread."""

    def sender(running, count=40):
        request = Infer().add("INPUT0", np.zeros((1, 16), np.int32))
        request.add("INPUT1", np.ones((1, 16), np.int32))

        def work():
            for _ in range(count):
                assert request.send(running, "add_sub").status == 200

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    return sender


@pytest.fixture(scope="module")
def running(models, functions):
    with running_server(
        models,
        functions=functions,
        model_control_mode="explicit",
        load_model=("*",),
        exit_on_error=False,
    ) as server:
        yield server
