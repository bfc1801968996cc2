"""Forms made from metadata, answers drawn, and lines for a terminal that work when pasted."""

import json
import re
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest

from shoal.testing.server import running_server
from tests.support import onnx_models
from tests.support.repositories import add_onnx

pytestmark = [pytest.mark.browser, pytest.mark.curl, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running(models, functions, tmp_path_factory):
    more = tmp_path_factory.mktemp("more")
    add_onnx(more, "bf16", onnx_models.identity("BF16", (2,)), "max_batch_size: 2")
    add_onnx(more, "int64", onnx_models.identity("INT64", (2,), batch=False))
    add_onnx(
        more,
        "pets",
        onnx_models.identity("FP32", (3,)),
        """max_batch_size: 4
        input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 3 ] }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }
        """,
        files={"labels.txt": b"cat\n<b>it's a dog</b>\neel\n"},
    )
    with running_server(models, more, functions=functions, exit_on_error=False) as server:
        yield server


@pytest.fixture
def form(page, running, expect):
    """Opens the form of a model."""

    def opener(name):
        page.goto(f"http://{running.http_address}/#/models/{name}/try")
        expect(page.locator(".try-form")).to_be_visible()
        return page

    return opener


def send(page):
    page.get_by_role("button", name=re.compile("^Send")).click()


def lines(page, which):
    return page.locator(f".snippet[data-language={which}]").inner_text()


def paste(text, folder=None):
    """What a shell makes of it."""
    done = subprocess.run(
        ["sh", "-c", text], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, (text, done.stderr)
    return done.stdout


def python(text, folder=None):
    done = subprocess.run(
        [sys.executable, "-"], input=text, capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, (text, done.stderr)
    return done.stdout


def test_numbers(form, expect):
    page = form("add_sub")
    for name, value in (("INPUT0", 5), ("INPUT1", 3)):
        page.get_by_label(f"Values of {name}").fill(" ".join([str(value)] * 16))
    send(page)
    expect(page.locator(".output")).to_have_count(2)
    first, second = page.locator(".output").all()
    expect(first).to_contain_text("OUTPUT0")
    expect(first.locator(".cell")).to_have_text(["8"] * 16)
    expect(second.locator(".cell")).to_have_text(["2"] * 16)
    answer = json.loads(paste(lines(page, "sh")))
    assert answer["outputs"][0]["data"] == [8] * 16
    assert python(lines(page, "python")).split() == [
        "[[" + "8",
        *["8"] * 14,
        "8]]",
        "[[2",
        *["2"] * 14,
        "2]]",
    ]


def test_wrong_values_are_refused_in_the_form(form, expect):
    page = form("add_sub")
    page.get_by_label("Values of INPUT1").fill("1 2 x")
    field = page.locator("fieldset", has_text="INPUT1")
    expect(field.get_by_role("alert")).to_have_text("INPUT1 is INT32; “x” is not a whole number.")
    send(page)
    expect(page.get_by_label("Values of INPUT1")).to_be_focused()
    expect(page.locator(".answer")).to_be_empty()
    field.get_by_label("Shape").fill("1, 15")
    expect(field.get_by_role("alert")).to_have_text("Dimension 2 of INPUT1 must be 16; found 15.")


def test_text_with_everything_that_shells_dislike(form, expect):
    text = """it's "quoted" $HOME `id` \\n é 🐟 <b>&amp;"""
    page = form("upper")
    page.get_by_label("Values of text").fill(text)
    send(page)
    shown = "".join(letter.upper() if letter.isascii() else letter for letter in text)
    expect(page.locator(".output .text")).to_have_text(shown)
    assert json.loads(paste(lines(page, "sh")))["outputs"][0]["data"] == [shown]
    assert repr(shown.encode()) in python(lines(page, "python"))


def test_labels_are_bars(form, expect):
    page = form("pets")
    page.get_by_label("Values of INPUT0").fill("0.1, 0.7, 0.2")
    send(page)
    rows = page.locator(".bars li")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("<b>it's a dog</b>")
    expect(rows.first).to_contain_text("70.0 %")
    width = "(bar) => bar.getBoundingClientRect().width / bar.parentElement.clientWidth"
    assert rows.first.locator(".bar").evaluate(width) == pytest.approx(0.7, abs=0.01)
    assert "0.700000:1:<b>it's a dog</b>" in paste(lines(page, "sh"))
    assert "it's a dog" in python(lines(page, "python"))


def test_a_digit_is_drawn(form, expect):
    page = form("digits")
    box = page.locator(".pad").bounding_box()
    for step in range(33):  # once around
        turn = step * np.pi / 16
        across, down = 0.5 + 0.2 * np.cos(turn), 0.5 + 0.38 * np.sin(turn)
        page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down)
        if not step:
            page.mouse.down()
    page.mouse.up()  # which sends it
    expect(page.locator(".bars li").first).to_contain_text("zero")
    expect(page.locator(".bars li")).to_have_count(10)
    page.locator(".pad").press("ArrowLeft")
    page.locator(".pad").press("Space")
    page.get_by_role("button", name="Clear").click()
    send(page)
    expect(page.locator(".took")).to_be_visible()
    assert "data" in paste(lines(page, "sh"))


def test_half_floats_go_in_binary(form, expect, tmp_path):
    page = form("halves")
    page.get_by_label("Values of INPUT0").fill("0.5 -2 65504 0.25")
    page.get_by_label("Values of INPUT1").fill("1 2 3 nan")
    send(page)
    expect(page.locator(".output").first).to_contain_text("FP16 [1, 2, 2]")
    cells = page.locator(".output").first.locator("tbody td")
    expect(cells).to_have_text(["0.5", "-2", "65504", "0.25"])
    expect(page.locator(".output").nth(1).locator("tbody td").last).to_have_text("NaN")
    paste(lines(page, "sh"), tmp_path)
    answer = (tmp_path / "answer.bin").read_bytes()
    assert np.frombuffer(answer[-16:-8], np.float16).tolist() == [0.5, -2, 65504, 0.25]
    assert "6.55e+04" in python(lines(page, "python"))


def test_bfloat16(form, expect):
    page = form("bf16")
    page.get_by_label("Values of INPUT0").fill("1.5 -3")
    send(page)
    expect(page.locator(".cell")).to_have_text(["1.5", "-3"])
    assert "[[ 1.5 -3. ]]" in python(lines(page, "python"))


def test_large_whole_numbers_stay_exact(form, expect):
    page = form("int64")
    page.get_by_label("Values of INPUT0").fill("9223372036854775807 -9007199254740993")
    send(page)
    expect(page.locator(".cell")).to_have_text(["9223372036854775807", "-9007199254740993"])
    assert "9223372036854775807" in paste(lines(page, "sh"))
    assert "-9007199254740993" in python(lines(page, "python"))


def test_a_matrix_is_a_heat_map(form, expect):
    page = form("matrix")
    page.get_by_label("Shape").fill("1, 40, 50")
    page.get_by_label("Filled with").select_option("random")
    send(page)
    drawn = page.locator("canvas.pixels").first
    expect(drawn).to_have_attribute(
        "aria-label", re.compile(r"Heat map of OUTPUT0, 40 by 50, from 0.* to 1")
    )
    page.get_by_text("As numbers").click()
    expect(page.locator(".as-table")).to_contain_text("The first 24 of 40 rows")
    assert "head -c 8000 /dev/zero" in lines(page, "sh")
    assert json.loads(paste(lines(page, "sh")))["outputs"][0]["shape"] == [1, 40, 50]
    assert "[[[" in python(lines(page, "python"))


def test_a_photo_becomes_a_tensor(form, expect):
    image = pytest.importorskip("PIL.Image")
    drawn = BytesIO()
    image.fromarray(np.full((30, 20), 255, np.uint8)).save(drawn, "PNG")
    page = form("picture")
    page.get_by_label("Filled with").select_option("image")
    page.locator("input[type=file]").set_input_files(
        {"name": "white.png", "mimeType": "image/png", "buffer": drawn.getvalue()}
    )
    expect(page.get_by_alt_text("Chosen file: white.png")).to_be_visible()
    # It is shown before it is read; what can be sent has lines for a terminal.
    expect(page.locator(".snippet").first).to_contain_text("curl http")
    send(page)
    expect(page.locator("canvas.pixels").first).to_have_attribute(
        "aria-label", "Heat map of OUTPUT0, 12 by 12, from 1 to 1"
    )
    page.locator("input[type=file]").set_input_files(
        {"name": "no.png", "mimeType": "image/png", "buffer": b"nothing"}
    )
    expect(page.locator(".preview")).to_contain_text("no.png is not an image, or it is damaged")
    send(page)
    expect(page.get_by_text("Choose an image for INPUT0.").first).to_be_visible()


def test_optional_inputs(form, expect):
    page = form("greet")
    page.get_by_label("Values of name").fill("Ada")
    send(page)
    expect(page.locator(".text")).to_have_text("Hello, Ada!")
    assert "greeting" not in lines(page, "sh")
    page.get_by_label("Send this input").check()
    page.get_by_label("Values of greeting").fill("Ahoy")
    send(page)
    expect(page.locator(".text")).to_have_text("Ahoy, Ada!")
    assert "Ahoy, Ada!" in paste(lines(page, "sh"))


def test_a_stream(form, expect):
    page = form("count_down")
    page.get_by_label("Values of start").fill("3")
    send(page)
    expect(page.locator(".streamed")).to_have_text("3 ... 2 ... 1 ... lift-off")
    expect(page.locator(".events li")).to_have_count(4)
    expect(page.locator(".took")).to_contain_text("4 responses")
    assert paste(lines(page, "sh")).count("data: ") == 4
    assert "lift-off" in python(lines(page, "python"))


def test_what_a_model_refuses_is_shown(form, expect, running):
    page = form("upper")
    page.get_by_label("Shape").fill("65, 1")
    page.get_by_label("Filled with").select_option("random")
    send(page)
    expect(page.locator(".answer")).to_contain_text("400")
    expect(page.locator(".answer")).to_contain_text("64")


def test_copying(open_page, running, expect):
    with open_page(permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"http://{running.http_address}/#/models/upper/try")
        button = page.get_by_role("button", name="Copy").first
        # It says so for two seconds, which are over before a slow machine looks.
        button.evaluate(
            """(button) => {
              window.said = new Promise((resolve) => {
                new MutationObserver(() => resolve(button.textContent)).observe(button, { childList: true });
              });
            }"""
        )
        button.click()
        assert page.evaluate("window.said") == "Copied"
        expect(page.locator("#announcer")).to_have_text("curl copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == lines(page, "sh")
