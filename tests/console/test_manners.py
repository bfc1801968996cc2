"""Good manners: for keyboards and screen readers (axe-core), phones and wide screens, in both
colours; and forms of tasks, with made-up answers."""

import json
import shutil
import subprocess
import sys
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.cli.demo import photo as demo_photo
from shoal.cli.demo import repository as demo_repository
from shoal.testing.server import running_server
from tests.support.client import Infer

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PHONE = {"width": 375, "height": 700}
WIDE = {"width": 1440, "height": 900}
MARKUP = "<img src=x onerror=document.title='hacked'>"
PAGES = [
    "#/",
    "#/errors",
    "#/models/add_sub",
    "#/models/add_sub/try",
    "#/models/digits/try",
    "#/models/greet/try",
    "#/models/count_down/try",
    "#/models/add_sub/batches",
    "#/models/add_sub/traces",
    "#/models/digits/config",
    "#/models/broken",
    "#/models/nobody/try",
]

# Ends when the page has gone there: until then it shows the place before.
TRAVEL = """(place) => new Promise((resolve) => {
  addEventListener("hashchange", resolve, { once: true });
  location.hash = place;
}).then(() => null)"""


@pytest.fixture(scope="module")
def running(running, send):
    """The server of all pages, which has served requests and refused one."""
    send(running, 20).join()
    Infer().add("image", np.zeros((1, 63), np.float32)).send(running, "digits")
    return running


@pytest.fixture(scope="module")
def axe():
    package = pytest.importorskip("axe_playwright_python.sync_playwright")
    return package.Axe()


def check(axe, page):
    found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
    told = [
        f"{each['id']} ({each['impact']}): {each['help']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found
        for node in each["nodes"][:3]
    ]
    assert not told, "\n".join(told)


@pytest.mark.parametrize(
    ("scheme", "size"), [("light", WIDE), ("dark", PHONE)], ids=["light-wide", "dark-phone"]
)
def test_axe_finds_nothing(open_page, running, expect, axe, scheme, size):
    with open_page(color_scheme=scheme, viewport=size, reduced_motion="reduce") as page:
        page.goto(f"http://{running.http_address}/")
        expect(page.locator("#link-text")).to_contain_text("Live")
        for place in PAGES:
            page.evaluate(TRAVEL, place)
            expect(page.locator("main h1")).to_be_attached()
            expect(page.get_by_text("Asking …")).to_have_count(0)
            if place.endswith("/try") and "nobody" not in place:
                page.get_by_role("button", name="Send").click()
                expect(page.locator(".took")).to_be_visible()
                expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")
            elif place.endswith("/try"):
                expect(page.locator(".empty")).to_be_visible()
            check(axe, page)
            check_width(page, place)
        page.goto(f"http://{running.http_address}/docs")
        page.locator(".operation").filter(has_text="/greet").locator("summary").click()
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".reply .pill")).to_be_visible()
        check(axe, page)
        check_width(page, "docs")


def check_width(page, place):
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0, f"{place} is {overflow} pixels too wide"


def test_everything_works_with_the_keyboard(page, running, expect):
    page.goto(f"http://{running.http_address}/")
    upper = page.locator(".models").get_by_role("link", name="upper", exact=True)  # not of an error
    expect(upper).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    upper.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("upper")
    page.get_by_role("link", name="Try it").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Values of text").focus()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("typed")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Send")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".output")).to_contain_text("TYPED")
    expect(page.locator("#announcer")).to_contain_text("Response in")


# ---- tasks of the demo's models


@pytest.fixture(scope="module")
def demo():
    pytest.importorskip("tokenizers")
    with running_server(
        Path(demo_repository()),
        model_control_mode="explicit",
        load_model=("photos", "questions"),
    ) as server:
        yield server


def paste(page, language, folder):
    """What a terminal makes of the lines for it."""
    program = ["sh"] if language == "sh" else [sys.executable]
    text = page.locator(f".snippet[data-language={language}]").inner_text()
    done = subprocess.run(
        program, input=text, capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, (text, done.stderr)
    return done.stdout


@pytest.mark.curl
def test_a_cat(page, demo, expect, tmp_path):
    photo = demo_photo()
    shutil.copy(photo, tmp_path)
    page.goto(f"http://{demo.http_address}/#/models/photos/try")
    page.locator("input[type=file]").set_input_files(photo)
    expect(page.locator(".bars li")).to_have_count(5)
    best = page.locator(".bar-label").first.inner_text()
    assert "cat" in best or "tabby" in best, best
    answer = json.loads(paste(page, "sh", tmp_path))
    assert answer["images"][0]["labels"][0]["label"] == best
    assert best in paste(page, "python", tmp_path)


@pytest.mark.curl
def test_a_question(page, demo, expect, tmp_path):
    page.goto(f"http://{demo.http_address}/#/models/questions/try")
    page.get_by_label("Text").fill('Ada\'s cat is called "Pixel". It was born in Lisbon in 2019.')
    page.get_by_label("Question", exact=True).fill("Where was the cat born?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("mark")).to_have_text("Lisbon")
    assert json.loads(paste(page, "sh", tmp_path))["answer"]
    assert paste(page, "python", tmp_path)
    page.get_by_label("Question", exact=True).fill("")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer")).to_contain_text("400 the question is empty")


# ---- tasks, with answers that are made up here


def answering(answer):
    return lambda route: route.fulfill(**answer(route.request))


@pytest.fixture
def task_form(page, running, expect):
    """The form of a model that is told to have a task."""

    def opener(task, answers):
        def config(route):
            answer = route.fetch()
            told = answer.json() | {"parameters": {"task": {"string_value": task}}}
            route.fulfill(response=answer, json=told)

        page.route("**/v2/models/upper/config", config)
        for pattern, answer in answers.items():
            page.route(pattern, answering(answer))
        page.goto(f"http://{running.http_address}/#/models/upper/try")
        expect(page.locator(".task-line")).to_contain_text(task)
        return page

    return opener


@pytest.fixture(scope="module")
def photo():
    image = pytest.importorskip("PIL.Image")
    drawn = BytesIO()
    image.new("RGB", (64, 48), (20, 120, 150)).save(drawn, "PNG")
    return {"name": "it's a fish.png", "mimeType": "image/png", "buffer": drawn.getvalue()}


def test_a_photo_is_classified(task_form, photo, expect, axe):
    def classified(request):
        assert request.post_data_buffer == photo["buffer"]
        assert request.headers["content-type"] == "image/png"
        labels = [
            {"label": "<i>eel</i>", "score": 0.9, "index": 1},
            {"label": "cod", "score": 0.1, "index": 2},
        ]
        images = [{"file": "", "labels": labels}]
        return {"json": {"model_name": "upper", "model_version": "1", "images": images}}

    page = task_form("image-classification", {"**/classify": classified})
    page.locator("input[type=file]").set_input_files(photo)
    expect(page.get_by_alt_text("Chosen file: it's a fish.png")).to_be_visible()
    expect(page.locator(".bars li").first).to_contain_text("<i>eel</i>")
    expect(page.locator(".bars li").first).to_contain_text("90.0 %")
    expect(page.locator(".snippet").first).to_contain_text(r"--data-binary '@./it'\''s a fish.png'")
    check(axe, page)


def test_a_file_that_is_no_photo_is_not_sent(task_form, photo, expect):
    sent = []

    def classified(request):
        sent.append(request.post_data_buffer)
        return {"status": 400, "json": {"error": "no"}}

    page = task_form("image-classification", {"**/classify": classified})
    field = page.locator("input[type=file]")
    field.set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"a text"})
    expect(page.locator(".preview")).to_contain_text("notes.txt is not an image")
    expect(page.get_by_role("button", name="Classify")).to_be_disabled()
    field.set_input_files(photo)
    expect(page.locator(".answer")).to_contain_text("400 no")
    assert sent == [photo["buffer"]]


def test_a_photo_is_dropped(task_form, photo, expect):
    page = task_form(
        "image-classification",
        {"**/classify": lambda _: {"status": 400, "json": {"error": f"no {MARKUP}"}}},
    )
    script = """(bytes) => {
      const carried = new DataTransfer();
      carried.items.add(new File([Uint8Array.from(bytes)], "drop.png", { type: "image/png" }));
      document.querySelector(".drop").dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(script, list(photo["buffer"]))
    expect(page.get_by_alt_text("Chosen file: drop.png")).to_be_visible()
    expect(page.locator(".answer")).to_contain_text(f"400 no {MARKUP}")


def test_a_photo_from_the_camera(task_form, expect, axe):
    def classified(request):
        assert request.post_data_buffer.startswith(b"\xff\xd8")
        return {"json": {"images": [{"labels": [{"label": "a pattern", "score": 1, "index": 0}]}]}}

    page = task_form("image-classification", {"**/classify": classified})
    page.get_by_role("button", name="Use the camera").click()
    shoot = page.get_by_role("button", name="Take the photo")
    expect(shoot).to_be_enabled()
    check(axe, page)
    shoot.click()
    expect(page.get_by_alt_text("Chosen file: camera.jpg")).to_be_visible()
    expect(page.locator(".bars li").first).to_contain_text("a pattern")
    expect(page.locator("video")).to_have_count(0)


def test_speech_from_the_microphone(task_form, expect, axe):
    sent = []

    def transcribed(request):
        sent.append(request.post_data_buffer)
        return {"json": {"text": "two fish", "language": "en", "duration": 1.0}}

    page = task_form("transcription", {"**/transcribe": transcribed})
    field = page.locator("input[type=file]")
    field.set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"a text"})
    expect(page.locator(".preview")).to_contain_text("notes.txt is not a sound")
    page.get_by_role("button", name="Record speech").click()
    expect(page.locator(".microphone .hint")).to_have_text("Recording … 1 s")
    page.get_by_role("button", name="Stop recording").click()
    expect(page.locator(".answer")).to_contain_text("two fish")
    check(axe, page)
    (recorded,) = sent
    with wave.open(BytesIO(recorded)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (16000, 1, 2)
        assert sound.getnframes() > 1600


def test_a_conversation(page, expect, axe, tmp_path):
    @shoal.model
    def teller(prompt: str) -> str:
        return prompt

    asked = []

    def answered(route):
        asked.append(route.request.post_data_json["messages"])
        if len(asked) == 3:
            route.fulfill(status=400, json={"error": {"message": f"no {MARKUP}"}})
            return
        pieces = [{"choices": [{"delta": {"content": word}}]} for word in ("two ", "<b>fish</b>")]
        lines = [*(json.dumps(piece) for piece in pieces), "[DONE]"]
        body = "".join(f"data: {line}\n\n" for line in lines)
        route.fulfill(body=body, content_type="text/event-stream")

    with running_server(tmp_path, functions=[teller]) as running:
        page.route("**/v1/chat/completions", answered)
        page.goto(f"http://{running.http_address}/#/models/teller/try")
        for words in ("How many?", "Really?", "And now?"):
            page.get_by_label("Message", exact=True).fill(words)
            page.keyboard.press("Enter")
            expect(page.get_by_role("button", name="Send")).to_be_enabled()
        expect(page.locator(".bubble.assistant .said")).to_have_text(["two <b>fish</b>"] * 2)
        expect(page.locator(".chat .notice")).to_contain_text(f"400 no {MARKUP}")
        first = {"role": "user", "content": "How many?"}
        reply = {"role": "assistant", "content": "two <b>fish</b>"}
        assert asked[:2] == [[first], [first, reply, {"role": "user", "content": "Really?"}]]
        expect(page.get_by_label("Message", exact=True)).to_have_value("And now?")
        check(axe, page)
        page.get_by_role("button", name="New conversation").click()
        expect(page.locator(".bubble")).to_have_count(0)


def test_a_caption_streams_in(task_form, photo, expect):
    events = [{"text": "two "}, {"text": "fish"}, {"caption": "two fish swim", "score": 0.5}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page = task_form(
        "image-to-text",
        {"**/caption?stream=true": lambda _: {"body": body, "content_type": "text/event-stream"}},
    )
    page.locator("input[type=file]").set_input_files(photo)
    expect(page.locator(".caption")).to_have_text("two fish swim")


def test_an_answer_is_marked_in_its_text(task_form, expect, axe):
    text = "🐟 One eel & <b>two</b> cods live here."

    def answered(request):
        asked = request.post_data_json
        assert asked == {"text": text, "question": "How many?"}
        start = text.index("two")
        return {"json": {"answer": "two", "score": 0.91, "start": start, "end": start + 3}}

    page = task_form("question-answering", {"**/answer": answered})
    page.get_by_label("Text").fill(text)
    page.get_by_label("Question", exact=True).fill("How many?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("mark")).to_have_text("two")
    expect(page.locator(".marked")).to_have_text(text)
    expect(page.locator(".headline")).to_have_text("two")
    check(axe, page)
    page.get_by_role("button", name="Tensors instead").click()
    expect(page.get_by_label("Values of text")).to_be_visible()


def test_an_answer_that_is_not_sure(task_form, expect):
    best = {"answer": "eel", "score": 0.25, "start": 4, "end": 7}
    told = {"answer": "Unknown", "score": 0.75, "start": None, "end": None, "best": best}
    page = task_form("question-answering", {"**/answer": lambda _: {"json": told}})
    page.get_by_label("Text").fill("One eel.")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".headline")).to_have_text("Unknown")
    expect(page.locator(".answer")).to_contain_text("“eel”, confidence 25 %")
    expect(page.locator("mark")).to_have_text("eel")


def test_sentences_are_compared(task_form, expect):
    vectors = [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    page = task_form(
        "sentence-embedding", {"**/embed": lambda _: {"json": {"embeddings": vectors}}}
    )
    page.get_by_role("button", name="Embed").click()
    expect(page.locator(".numbers tbody td")).to_have_text(
        ["1", "1", "0", "1", "1", "0", "0", "0", "1"]
    )
    expect(page.locator("canvas.pixels").first).to_be_visible()


def test_an_unknown_task(task_form, expect):
    page = task_form("fortune-telling", {"**/upper/tell": lambda _: {"json": {"luck": 7}}})
    page.get_by_label("Operation").fill("tell")
    page.get_by_label("JSON").fill('{"hand": "left"}')
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer")).to_contain_text('"luck": 7')
    page.get_by_label("JSON").fill("{")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer .notice")).to_be_visible()
