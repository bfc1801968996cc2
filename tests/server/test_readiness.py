"""Why the server is or is not ready: `/v2/health/ready?verbose`, from the start to the end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.backends.registry import BackendRegistry
from shoal.config.options import NamedSetting
from shoal.errors import Internal
from shoal.testing.server import HttpCall, running_server, wait_until
from tests.support.fakes import WAIT_SECS, FakeBackend, HeldLoads
from tests.support.keys import bearer, write_keys
from tests.support.repositories import add_fake, add_model

VERBOSE = "/v2/health/ready?verbose"
STARTING = "the server is starting: its models are loading"
EXITING = "the server is shutting down: it will close its ports"


def report(running, headers=None):
    answer = running.get(VERBOSE, headers)
    assert answer.headers["content-type"] == "application/json"
    return answer.status, answer.json["reasons"], answer.json["warnings"]


def fakes(backend):
    return BackendRegistry({"fake": lambda: backend})


def test_from_the_first_moment_to_the_last(tmp_path):
    add_fake(tmp_path, "slow")
    backend = HeldLoads()
    backend.load_gate.clear()
    with (
        ThreadPoolExecutor() as threads,
        running_server(tmp_path, backends=fakes(backend), start=False) as running,
    ):
        running.run(running.server.listen())
        assert report(running) == (400, [STARTING], [])
        loading = threads.submit(running.run, running.server.load())
        assert backend.loading.acquire(timeout=WAIT_SECS)
        assert report(running) == (400, [STARTING, "model 'slow' version 1 is loading"], [])
        backend.load_gate.set()
        loading.result(WAIT_SECS)
        assert report(running) == (200, [], [])
        running.server.engine.begin_exit()
        assert report(running) == (503, [EXITING], [])


def test_a_model_that_fails_keeps_the_server_from_being_ready_only_if_readiness_is_strict(tmp_path):
    add_fake(tmp_path, "good")
    add_model(tmp_path, "bad", 'backend: "none of ours"', versions=())
    for strict in (True, False):
        with running_server(
            tmp_path,
            backends=fakes(FakeBackend()),
            exit_on_error=False,
            strict_readiness=strict,
        ) as running:
            status, reasons, warnings = report(running)
            (text,) = reasons if strict else warnings
            assert text.startswith("model 'bad' is not loaded: ")
            assert (status, len(reasons), len(warnings)) == ((400, 1, 0) if strict else (200, 0, 1))
            assert running.get("/v2/health/ready").status == status


def test_a_reload_that_failed_is_a_warning_and_an_unload_is_none(tmp_path):
    folder = add_fake(tmp_path, "m")
    backend = HeldLoads()
    with running_server(
        tmp_path,
        backends=fakes(backend),
        model_control_mode="explicit",
        load_model=("*",),
    ) as running:
        backend.failure = Internal("no memory left")
        (folder / "1" / "weights").write_bytes(b"changed")
        assert running.post("/v2/repository/models/m/load").status == 400
        status, reasons, (warning,) = report(running)
        assert (status, reasons) == (200, [])
        assert warning.startswith("model 'm' version 1: the last load failed and the previous one")
        assert warning.endswith("no memory left")
        assert running.post("/v2/repository/models/m/unload").status == 200
        wait_until(lambda: report(running) == (200, [], []))


def test_a_model_that_loads_on_demand_never_keeps_the_server_from_being_ready(tmp_path):
    add_fake(tmp_path, "m")
    backend = HeldLoads()
    backend.failure = Internal("no memory left")
    with running_server(tmp_path, backends=fakes(backend), model_control_mode="lazy") as running:
        assert report(running) == (200, [], [])
        body = (
            b'{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}'
        )
        assert running.post("/v2/models/m/infer", body).status != 200
        status, reasons, (warning,) = report(running)
        assert (status, reasons) == (200, [])
        assert "model 'm' version 1 is not available" in warning


def test_the_port_for_probes_reports_it_too(tmp_path):
    add_model(tmp_path, "bad", 'backend: "none of ours"', versions=())
    with running_server(tmp_path, exit_on_error=False, health_port=0) as running:
        answer = HttpCall(running.server.health_port, "GET", VERBOSE).response()
        assert answer.status == 400
        assert answer.json == running.get(VERBOSE).json
        assert answer.json["reasons"]


@pytest.mark.parametrize("keyless", ["health", "none"])
def test_a_client_reads_only_what_its_key_permits(tmp_path, keyless):
    for name in ("mine", "other"):
        add_model(tmp_path / "models", name, 'backend: "none of ours"', versions=())
    keys = write_keys(
        tmp_path / "keys.jsonl",
        all={},
        some={"models": ("m*",)},
        scraper={"apis": ("metrics",)},
    )
    with running_server(
        tmp_path / "models", exit_on_error=False, api_keys=keys, keyless_api=keyless
    ) as running:

        def reasons(*names):
            answer = running.get(VERBOSE, *map(bearer, names))
            assert answer.status == 400
            return answer.json["reasons"]

        assert sorted(text.split("'")[1] for text in reasons("all")) == ["mine", "other"]
        mine, more = reasons("some")
        assert mine.startswith("model 'mine' ")
        assert more == "1 more; send a key that permits 'health' and the models to read them"
        if keyless == "none":
            assert running.get(VERBOSE).status == 401
            assert running.get(VERBOSE, bearer("scraper")).status == 403
        else:
            hidden = ["2 more; send a key that permits 'health' and the models to read them"]
            assert reasons() == reasons("scraper") == hidden
            wrong = running.get(VERBOSE, {"authorization": "Bearer shoal_wrong"})
            assert (wrong.status, wrong.json["reasons"]) == (400, hidden)


def test_restricted_health_needs_its_header(tmp_path):
    restricted = (NamedSetting("health", "probe-key", "secret"),)
    with running_server(tmp_path, http_restricted_api=restricted) as running:
        assert running.get(VERBOSE).status == 403
        assert running.get(VERBOSE, {"probe-key": "secret"}).json["ready"] is True
