"""What the console shows, and that it shows it to a browser with scripts, policy and all."""

import io
import re
import shutil
import threading

import numpy as np
import pytest
from PIL import Image

from shoal.client import Client
from shoal.config.options import NamedSetting
from shoal.testing.server import running_server
from tests.support.client import Infer
from tests.support.fakes import WAIT_SECS, FakeBackend
from tests.support.keys import key_of, write_keys
from tests.support.repositories import add_fake, parameter

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MARKUP = "<img src=x onerror=document.title='hacked'>"
LOST = "The server does not respond."


@pytest.fixture(scope="module")
def address(running):
    return f"http://{running.http_address}/"


def row(page, name):
    return page.locator(".model-row").filter(has=page.get_by_role("link", name=name, exact=True))


# ---- the page of routes


def test_routes_can_be_tried(page, address, expect):
    def opened(path):
        found = page.locator(".operation").filter(has_text=path).first
        found.locator("summary").click()
        return found

    page.goto(f"{address}docs")
    expect(page.locator("#state")).to_contain_text("Open a route to try it")
    greet = opened("/greet")
    greet.get_by_label("name").fill("Ada")
    expect(greet.locator("form > .snippet")).to_contain_text("""-d '{"name":"Ada"}'""")
    greet.get_by_role("button", name="Send").click()
    expect(greet.locator(".reply .snippet")).to_have_text('"Hello, Ada!"')
    flip = opened("/flip")
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(picture, "PNG")
    file = {"name": "red.png", "mimeType": "image/png", "buffer": picture.getvalue()}
    flip.locator("input[type=file]").set_input_files(file)
    flip.get_by_role("button", name="Send").click()
    expect(flip.locator(".reply img")).to_be_visible()
    stream = opened("/v2/models/count_down/generate_stream")
    stream.get_by_label("start").fill("1")
    stream.get_by_role("button", name="Send").click()
    expect(stream.locator(".reply .snippet")).to_contain_text("lift-off")
    page.locator("#tag-model-config > summary").click()
    server = opened("/v2/models/{model}/config")
    server.get_by_label("model").fill("nobody")
    server.get_by_role("button", name="Send").click()
    expect(server.locator(".notice.bad")).to_contain_text("unknown model: 'nobody'")


# ---- the overview


def test_models_with_states_and_reasons(page, address, expect):
    page.goto(address)
    expect(row(page, "add_sub").locator(".pill:visible")).to_have_text("Ready")
    expect(row(page, "add_sub").locator(".versions")).to_have_text("version 1")
    broken = row(page, "broken")
    expect(broken.locator(".pill:visible")).to_have_text("Unavailable")
    expect(broken.locator(".reason")).to_contain_text(MARKUP)
    expect(page.locator("#link-text")).to_have_text("Live, not ready")
    problems = page.get_by_role("status", name="Problems").locator(".notice.bad")
    expect(problems).to_contain_text("Not ready: model 'broken'")
    expect(problems).to_contain_text(MARKUP)
    expect(page.locator("#server-words")).to_contain_text("triton · Shoal")


def test_names_and_errors_are_text_and_nothing_else(page, running, address, expect):
    page.goto(address)
    running.post("/v2/models/%3Cscript%3Ealert(1)%3C%2Fscript%3E/infer", b"{}")
    link = page.get_by_role("link", name=MARKUP, exact=True).first
    expect(link).to_be_visible()
    link.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(MARKUP)
    assert page.title() == f"{MARKUP} · Shoal"
    for tab in ("Try it", "Batches", "Config"):
        page.get_by_role("link", name=tab, exact=True).click()
        expect(page.locator("main .card").first).to_be_visible()
    page.get_by_role("link", name="Errors").click()
    expect(page.locator(".error-list")).to_contain_text("'<script>alert(1)</script>' is not found")
    assert page.locator("main img, main script, main b:has-text('eel')").count() == 0


def test_traffic_is_drawn(page, running, address, expect, send):
    page.goto(address)
    expect(row(page, "add_sub")).to_be_visible()
    thread = send(running, 60)
    figure = row(page, "add_sub").locator(".figure-value").first
    expect(figure).to_have_text(re.compile(r"[1-9]"))
    thread.join()
    tile = page.locator(".tile", has_text="Requests per second").locator(".tile-value")
    expect(tile).to_have_text(re.compile(r"\d"))
    latency = page.locator("svg.chart").nth(1)
    expect(latency).to_have_attribute("aria-label", re.compile(r"p50: [\d.]+ (µs|ms|s)"))
    expect(page.locator(".meter", has_text="CPU").first).to_contain_text("%")
    expect(page.locator(".meter", has_text="Memory").first).to_contain_text("GiB")


def test_errors_appear_with_their_count(page, running, address, expect):
    page.goto(address)
    request = Infer().add("image", np.zeros((1, 61), np.float32))  # nobody else's mistake
    for _ in range(3):
        assert request.send(running, "digits").status == 400
    page.get_by_role("link", name="Errors").click()
    found = page.locator(".error-item", has_text="got [1,61]")
    expect(found).to_contain_text("400")
    expect(found).to_contain_text("3 times")
    found.get_by_role("link", name="digits").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("digits")


def test_gpus_and_machine(page, address, expect):
    def state(route):
        answer = route.fetch()
        gpu = {"uuid": "GPU-1", "utilization": 0.37, "power_usage_watts": 301.4}
        gpu |= {"memory_used_bytes": 3 << 30, "memory_total_bytes": 24 << 30}
        machine = {"cpu_utilization": 0.25, "cores": 8, "process_cpu_secs": 1.0}
        machine |= {"memory_total_bytes": 16 << 30, "memory_used_bytes": 4 << 30}
        machine |= {"process_resident_bytes": 1 << 30}
        usage = {"pid": 7, "cpu_secs": 1.0, "resident_bytes": 5 << 20, "connections": None}
        frontend = {"name": "frontend-0", "pid": 8, "connections": 42}
        machine["processes"] = [usage | frontend, usage | {"name": "engine"}]
        route.fulfill(response=answer, json=answer.json() | {"gpus": [gpu], "machine": machine})

    page.route("**/v2/console*", state)
    page.goto(address)
    meters = page.locator(".meters")
    expect(meters).to_contain_text("37 %, 301 W")
    expect(meters).to_contain_text("3 GiB of 24 GiB")
    expect(meters).to_contain_text("25 % of 8 cores")
    expect(meters).to_contain_text("4 GiB of 16 GiB")
    chart = page.get_by_role("img", name=re.compile("^Machine"))
    expect(chart).to_have_attribute("aria-label", re.compile("GPU: 37 %"))
    processes = page.get_by_role("table").locator("tbody tr")
    expect(processes).to_have_text([re.compile("engine7.*5 MiB$"), re.compile("front end 08.*42$")])
    page.unroute_all(behavior="ignoreErrors")


def test_a_long_list_is_complete_only_near_the_window(page, running, address, expect):
    rows = running.post("/v2/repository/index", b"{}").json
    rows += [{"name": f"m{number:03}", "version": "1", "state": "READY"} for number in range(200)]
    page.route("**/v2/repository/index", lambda route: route.fulfill(json=rows))
    page.goto(address)
    names = {each["name"] for each in rows}
    expect(page.locator(".model-row")).to_have_count(len(names))
    expect(page.locator(".model-section")).to_contain_text(f"Models ({len(names)})")
    charts = page.get_by_role("region", name="Over time").bounding_box()
    assert charts["y"] < page.locator(".model-section").bounding_box()["y"]
    last = row(page, "m199")
    expect(last.locator(".pill")).to_have_count(0)
    last.scroll_into_view_if_needed()
    expect(last.locator(".pill:visible")).to_have_text("Ready")
    expect(row(page, "m000").locator(".pill")).to_have_count(0)
    page.get_by_label("Find a model").fill("m00")
    expect(page.locator(".model-section")).to_contain_text(f"Models (10 of {len(names)})")
    expect(page.locator(".model-row .pill:visible")).to_have_count(10)
    page.unroute_all(behavior="ignoreErrors")


# ---- one model


def test_opening_a_failed_model_is_no_error(page, models, expect):
    with running_server(models, exit_on_error=False) as running:
        before = running.get("/v2/console").json[
            "errors"
        ]  # of this process, so of other tests, too
        page.goto(f"http://{running.http_address}/#/models/broken")
        for tab in ("Try it", "Batches", "Config", "Live"):
            page.get_by_role("link", name=tab, exact=True).click()
            expect(page.locator(".empty-title")).to_have_text("No version is ready.")
        assert running.get("/v2/console").json["errors"] == before

        def state(route):
            answer = route.fetch()
            route.fulfill(response=answer, json=answer.json() | {"errors": []})

        page.route("**/v2/console*", state)
        page.goto(f"http://{running.http_address}/#/errors")
        page.reload()
        expect(page.locator(".empty")).to_contain_text("A model is unavailable: broken.")
        page.unroute_all(behavior="ignoreErrors")


def test_where_time_goes(page, running, address, expect, send):
    send(running, 20).join()
    page.goto(f"{address}#/models/add_sub")
    shares = page.locator(".share-box").nth(1)
    for part in ("Queue", "Input", "Compute", "Output"):
        expect(shares).to_contain_text(part)
    expect(shares.locator(".shares")).to_have_attribute(
        "aria-label", re.compile(r"Compute [\d.]+ (µs|ms|s), [\d.]+ %")
    )
    expect(page.locator(".facts")).to_contain_text("Executions")
    expect(page.locator(".columns")).to_contain_text("Executions by rows")


def test_batches_are_explained(page, running, address, expect, send):
    send(running, 5).join()
    page.goto(f"{address}#/models/add_sub/batches")
    told = running.get("/v2/models/add_sub/explain").json
    expect(page.locator(".advice")).to_have_text(told["advice"])
    expect(page.locator(".prose").first).to_contain_text("batches had")
    expect(page.locator(".reasons")).to_contain_text("no queue delay is configured")


def test_the_way_of_a_request_is_drawn(page, running, address, expect, send):
    page.goto(f"{address}#/models/add_sub/traces")
    expect(page.locator(".empty-title")).to_have_text("No request has been recorded.")
    page.get_by_role("button", name="Record the next 20 requests").click()
    expect(page.get_by_role("button", name="Waiting for 20 more requests")).to_be_visible()
    send(running, 20).join()
    expect(page.locator(".trace")).to_have_count(20)
    expect(page.get_by_role("button", name="Record the next 20 requests")).to_be_visible()
    bars = page.locator(".trace").first.get_by_role("img").nth(1)
    expect(bars).to_have_attribute(
        "aria-label", re.compile(r"^Queue [\d.]+ .s, Input .*, Compute .*, Output .*")
    )
    expect(page.locator(".trace").first).to_contain_text("add_sub, version 1")


def test_the_config_as_it_runs(page, address, expect):
    page.goto(f"{address}#/models/digits/config")
    code = page.locator(".snippet")
    expect(code).to_contain_text('"label_filename": "labels.txt"')
    expect(code).not_to_contain_text("FORMAT_NONE")
    page.get_by_label("Show all defaults").check()
    expect(code).to_contain_text("FORMAT_NONE")


def test_a_version_can_be_chosen(page, expect, tmp_path, models):
    shutil.copytree(models / "upper", tmp_path / "upper")
    shutil.copytree(models / "upper" / "1", tmp_path / "upper" / "2")
    with (tmp_path / "upper" / "config.pbtxt").open("a") as config:
        config.write("version_policy { all { } }")
    with running_server(tmp_path) as running:
        page.goto(f"http://{running.http_address}/#/models/upper/try")
        page.get_by_label("Version").select_option("1")
        expect(page.locator(".snippet").first).to_contain_text("/versions/1/infer")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".took")).to_contain_text("Response of version 1")


# ---- control


def test_unload_and_load(page, running, address, expect):
    page.goto(address)
    upper = row(page, "upper")
    upper.get_by_role("button", name="Unload").click()
    upper.get_by_role("button", name="Cancel").click()
    assert running.states("upper") == {"1": "READY"}
    upper.get_by_role("button", name="Unload").click()
    upper.locator(".sure").get_by_role("button", name="Unload").click()
    expect(upper.locator(".pill:visible")).to_have_text("Not loaded")
    expect(upper.get_by_role("link", name="Try it")).to_be_hidden()
    assert running.states("upper") == {"1": "UNAVAILABLE"}
    upper.get_by_role("button", name="Load").click()
    expect(upper.locator(".pill:visible")).to_have_text("Ready")


def test_a_load_that_fails_reports_why(page, address, expect):
    page.goto(address)
    row(page, "broken").get_by_role("button", name="Load").click()
    message = row(page, "broken").locator(".control-message")
    expect(message).to_contain_text("load failed for model 'broken'")
    expect(message).to_contain_text(MARKUP)


def test_a_model_that_loads_at_its_first_request(page, models, expect):
    with running_server(models, model_control_mode="lazy") as running:
        page.goto(f"http://{running.http_address}/")
        upper = row(page, "upper")
        expect(upper.locator(".pill:visible")).to_have_text("Not loaded")
        upper.get_by_role("link", name="Try it").click()
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".output")).to_contain_text("A SHOAL OF FISH")
        expect(page.locator(".model-head .pill")).to_have_text("Ready")


def test_a_server_that_looks_after_its_models_itself(page, models, expect):
    with running_server(models, exit_on_error=False) as running:
        page.goto(f"http://{running.http_address}/")
        expect(page.locator(".model-section")).to_contain_text("--model-control-mode=explicit")
        expect(row(page, "add_sub").locator(".pill:visible")).to_have_text("Ready")
        expect(row(page, "add_sub").get_by_role("button")).to_have_count(0)


def test_a_server_without_models(page, tmp_path, expect):
    with running_server(tmp_path) as running:
        page.goto(f"http://{running.http_address}/")
        expect(page.locator("main")).to_contain_text("There are no models yet.")
        expect(page.locator("main")).to_contain_text("shoal serve --demo")
        expect(page.locator(".errors-lately")).to_be_visible()


# ---- the connection


def test_a_lost_connection_is_shown_and_recovered_from(page, models, expect, port):
    options = {"model_control_mode": "explicit", "load_model": ("add_sub",), "http_port": port}
    page.clock.install()
    with running_server(models, **options) as running:
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#link-text")).to_have_text("Live")
    expect(page.locator("#banner")).to_contain_text(LOST)
    expect(page.locator("#link-text")).to_have_text("Connection lost")
    expect(row(page, "add_sub")).to_be_visible()  # as it was
    # No more tries of its own: one that found the server would take the button away.
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 60)
    button = page.get_by_role("button", name="Retry now").element_handle()
    with running_server(models, **options) as running:
        button.evaluate("(button) => button.click()")
        page.clock.resume()
        expect(page.locator("#link-text")).to_have_text("Live")
        expect(page.locator("#banner")).to_be_hidden()
        with Client(running.http_address) as client:
            rows = np.ones((1, 16), np.int32)
            client.infer("add_sub", {"INPUT0": rows, "INPUT1": rows})
        expect(row(page, "add_sub").locator(".figure-value").first).to_have_text(
            re.compile("[1-9]")
        )


def test_a_lost_repository_is_shown(page, models, expect, tmp_path):
    repository = tmp_path / "models"
    shutil.copytree(models / "add_sub", repository / "add_sub")
    with running_server(repository, model_control_mode="poll", repository_poll_secs=0.1) as running:
        page.goto(f"http://{running.http_address}/")
        expect(page.locator("#link-text")).to_have_text("Live")
        expect(page.get_by_label("Problems")).to_have_text("")
        repository.rename(tmp_path / "away")
        expect(page.get_by_label("Problems")).to_contain_text("cannot be read: No such file")
        expect(row(page, "add_sub").locator(".pill:visible")).to_have_text("Ready")
        (tmp_path / "away").rename(repository)
        expect(page.get_by_label("Problems")).to_have_text("")


def test_many_problems_leave_room_for_the_rest(page, expect, tmp_path):
    for number in range(6):
        (tmp_path / f"broken{number}" / "1").mkdir(parents=True)
    with running_server(tmp_path, exit_on_error=False) as running:
        page.goto(f"http://{running.http_address}/")
        problems = page.get_by_label("Problems")
        expect(problems.locator(".notice:visible")).to_have_count(3)
        problems.get_by_text("3 more problems").click()
        expect(problems.locator(".notice:visible")).to_have_count(6)


def test_a_model_without_a_healthy_instance(page, expect, tmp_path):
    returns = threading.Event()
    backend = FakeBackend(lambda inputs, _: [*inputs.values()] if returns.wait(WAIT_SECS) else [])
    limits = parameter("execution_timeout_ms", "50") + parameter(
        "execution_timeout_replacements", "0"
    )
    add_fake(tmp_path, "m", limits + "instance_group { count: 1 kind: KIND_CPU }")
    with running_server(tmp_path, backends=backend.registry()) as running:
        page.goto(f"http://{running.http_address}/")
        expect(row(page, "m").locator(".pill:visible")).to_have_text(["Ready"])
        hung = Infer().add("INPUT0", np.zeros((1, 1), np.int32)).send(running, "m")
        assert hung.status == 504
        expect(row(page, "m").locator(".pill:visible")).to_have_text(["Ready", "Unhealthy"])
        returns.set()
        expect(row(page, "m").locator(".pill:visible")).to_have_text(["Ready"])


def test_a_page_in_the_background_asks_for_nothing(page, address, expect):
    page.goto(address)
    expect(page.locator("#link-text")).to_contain_text("Live")
    page.evaluate(
        """() => {
          const ask = window.fetch;
          window.asked = 0;
          window.fetch = (...request) => ((window.asked += 1), ask(...request));
          window.seen = "hidden";
          window.looks = 0; // of the page at whether it is hidden
          Object.defineProperty(document, "visibilityState", { get: () => ((window.looks += 1), window.seen) });
          document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    page.wait_for_function("window.looks >= 2")  # what was under way is over, and it rests
    settled = page.evaluate("window.asked")
    page.wait_for_timeout(1400)  # nothing is to happen: there is no event for that
    assert page.evaluate("window.asked") == settled
    with page.expect_request("**/v2/console*"):
        page.evaluate(
            "window.seen = 'visible'; document.dispatchEvent(new Event('visibilitychange'))"
        )


# ---- restrictions


def test_restricted_apis_ask_for_their_header(page, models, expect):
    closed = (
        NamedSetting("statistics", "look-key", "one"),
        NamedSetting("model-repository", "admin-key", "two"),
        NamedSetting("inference", "infer-key", "three"),
    )
    with running_server(
        models, model_control_mode="explicit", load_model=("upper",), http_restricted_api=closed
    ) as running:
        page.goto(f"http://{running.http_address}/")
        banner = page.locator("#banner")
        expect(banner).to_contain_text("This API is restricted, expecting header 'look-key'")
        expect(page.locator("#link-text")).to_have_text("Restricted")
        banner.get_by_label("look-key").fill("wrong")
        banner.get_by_role("button", name="Apply").click()
        expect(banner.get_by_label("look-key")).to_have_value("")  # it was refused, and asks again
        banner.get_by_label("look-key").fill("one")
        banner.get_by_role("button", name="Apply").click()
        expect(banner).to_be_hidden()
        expect(page.locator("#link-text")).to_have_text("Live")

        # Models that serve are listed, whatever the index says.
        expect(row(page, "upper").locator(".pill:visible")).to_have_text("Ready")
        section = page.locator(".model-section")
        expect(section).to_contain_text("expecting header 'admin-key'")
        section.get_by_label("admin-key").fill("two")
        for _ in range(2):  # the second is asked when the first refusal has been shown
            with page.expect_response("**/v2/repository/index"):
                page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(section.get_by_label("admin-key")).to_have_value("two")  # nobody types it again
        section.get_by_role("button", name="Apply").click()
        expect(row(page, "digits").locator(".pill:visible")).to_have_text("Not loaded")

        page.goto(f"http://{running.http_address}/#/models/upper/try")
        page.get_by_role("button", name="Send").click()
        answer = page.locator(".answer")
        expect(answer).to_contain_text("expecting header 'infer-key'")
        answer.get_by_label("infer-key").fill("three")
        answer.get_by_role("button", name="Apply").click()
        expect(answer).to_contain_text("A SHOAL OF FISH")
        expect(page.locator(".snippet").first).to_contain_text('-H "infer-key: $INFER_KEY"')
        expect(page.locator("body")).not_to_contain_text("three")
        assert page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])") == (
            '[{},{},""]'
        )


def test_a_value_that_no_header_can_carry(page, models, expect):
    closed = (NamedSetting("statistics", "look-key", "one"),)
    with running_server(
        models, model_control_mode="explicit", load_model=("upper",), http_restricted_api=closed
    ) as running:
        page.goto(f"http://{running.http_address}/")
        banner = page.locator("#banner")
        banner.get_by_label("look-key").fill("🐟")
        banner.get_by_role("button", name="Apply").click()
        expect(banner).to_contain_text("characters that are not allowed in a header")


# ---- colours


def test_colours_follow_the_system_and_the_switch(open_page, address, expect):
    background = "getComputedStyle(document.documentElement).backgroundColor"
    with open_page(color_scheme="dark") as page:
        page.goto(address)
        dark = page.evaluate(background)
        page.get_by_label("Colours").select_option("light")
        light = page.evaluate(background)
        assert light != dark
        page.reload()
        expect(page.get_by_label("Colours")).to_have_value("light")
        assert page.evaluate(background) == light
    with open_page(color_scheme="light") as page:
        page.goto(address)
        assert page.evaluate(background) == light


def test_a_server_with_keys_asks_for_one(page, models, tmp_path, expect):
    keys = write_keys(
        tmp_path / "keys",
        admin={"apis": ("*",)},
        app={"apis": ("inference", "metadata", "model-config", "metrics"), "models": ("upper",)},
    )
    with running_server(
        models, model_control_mode="explicit", load_model=("upper",), api_keys=keys
    ) as running:
        page.goto(f"http://{running.http_address}/")
        banner = page.locator("#banner")
        expect(banner).to_contain_text("A key is required. Enter one")
        expect(page.locator("#link-text")).to_have_text("Key required")
        assert page.get_by_label("Key", exact=True).count() == 1  # one form, not one for each part
        banner.get_by_label("Key").fill("shoal_wrong")
        banner.get_by_role("button", name="Apply").click()
        expect(banner).to_contain_text("This server does not know the key")

        banner.get_by_label("Key").fill(key_of("app"))
        banner.get_by_role("button", name="Apply").click()
        expect(banner).to_contain_text("The key 'app' does not permit 'statistics' requests")
        page.goto(f"http://{running.http_address}/#/models/upper/try")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".answer")).to_contain_text("A SHOAL OF FISH")
        shown = page.locator(".snippet")
        expect(shown.first).to_contain_text('-H "Authorization: Bearer $SHOAL_API_KEY"')
        expect(shown.nth(1)).to_contain_text('api_key=os.environ["SHOAL_API_KEY"]')

        banner.get_by_label("Another key").fill(f" {key_of('admin')} ")
        banner.get_by_role("button", name="Apply").click()
        expect(banner).to_be_hidden()
        expect(page.locator("#link-text")).to_have_text("Live")
        with page.context.expect_page() as opened:
            page.get_by_role("link", name="Metrics").click()
        expect(opened.value.locator("body")).to_contain_text("shoal_key_requests_total")

        for name in ("admin", "app"):
            expect(page.locator("body")).not_to_contain_text(key_of(name))
        assert page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])") == (
            '[{},{},""]'
        )
        write_keys(tmp_path / "keys", other={})
        running.server.reloads.request()
        expect(banner).to_contain_text("This server does not know the key")
