"""The server as its operator meets it: commands, signals, exit codes, one line per mistake."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from functools import partial

import pytest

from shoal.config.options import Options
from shoal.errors import InvalidArgument, NotFound, Unavailable
from shoal.server import ModelsFailed, Server
from shoal.testing.server import wait_until
from shoal.wire.proto import messages
from tests.support.fakes import WAIT_SECS
from tests.support.repositories import parameter
from tests.support.stops import (
    GrpcMessages,
    StopCount,
    clients,
    grpc_client,
    http_client,
    to_port,
)

ANY_PORT = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]

ECHO = """
backend: "{backend}"
max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }}
parameters {{ key: "execute_delay_ms" value: {{ string_value: "{delay_ms}" }} }}
"""
ONE_ROW = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}
).encode()


def add_echo(repository, name="echo", backend="identity", delay_ms=0):
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.fake").touch()
    text = ECHO.format(backend=backend, delay_ms=delay_ms)
    (repository / name / "config.pbtxt").write_text(text)


def add_broken(repository, name="broken"):
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"this is no model")


def status(url, body=None):
    try:
        with urllib.request.urlopen(url, body, timeout=WAIT_SECS) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def text(url):
    with urllib.request.urlopen(url, timeout=WAIT_SECS) as answer:
        return answer.read()


class Command:
    """A running command whose log is read line by line, until the awaited line comes."""

    def __init__(self, *words, entry="main", before="pass"):
        program = f"import sys; {before}; from shoal.cli.main import {entry}; sys.exit({entry}())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = []

    def wait_for(self, pattern):
        """The match in the first line that has one."""
        for line in self.process.stderr:
            self.log.append(line)
            match = re.search(pattern, line)
            if match:
                return match
        raise AssertionError(f"no line matches {pattern!r} in:\n{''.join(self.log)}")

    def http(self):
        """The base URL, once the server is up."""
        port = self.wait_for(r"listening for http on \S+:(\d+)").group(1)
        self.wait_for("the server is")
        return f"http://127.0.0.1:{port}"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self):
        """Close its input, and return the exit code; all output is in `output` and `log` then."""
        self.output, rest = self.process.communicate(timeout=WAIT_SECS)
        self.log += rest.splitlines(keepends=True)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def failed(*words, **entry):
    """The exit code and the log of a command that ends by itself."""
    with Command(*words, **entry) as command:
        code = command.end()
        return code, command.log


# ---- mistakes: one line each, exit code 1


def test_a_missing_repository(tmp_path):
    missing = tmp_path / "nowhere"
    assert failed("serve", missing, *ANY_PORT) == (
        1,
        [f"error: the model repository '{missing}' does not exist\n"],
    )


@pytest.mark.parametrize("name", ["http", "metrics"])
def test_a_taken_port(repository, name):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, log = failed(
            "serve", repository, *ANY_PORT, f"--{name}-port={port}", f"--{name}-address=127.0.0.1"
        )
    assert code == 1
    assert log[-1] == (
        f"error: --{name}-port={port} is in use: another process listens on 127.0.0.1:{port}; "
        "stop it or choose another port\n"
    )
    assert not any("Traceback" in line for line in log)


def test_an_address_of_another_machine(repository):
    code, log = failed("serve", repository, *ANY_PORT, "--http-address=192.0.2.1")
    assert code == 1
    assert log[-1].startswith("error: --http-address=192.0.2.1 --http-port=0: cannot listen on")


def test_a_broken_model_ends_the_start(repository):
    add_echo(repository)
    add_broken(repository, "broken_a")
    add_broken(repository, "broken_b")
    code, log = failed("serve", repository, *ANY_PORT)
    errors = [line for line in log if line.startswith("error:")]
    assert code == 1
    assert errors[0] == "error: creating server: Internal - failed to load all models\n"
    assert len(errors) == 3
    assert "'broken_a'" in errors[1]
    assert "'broken_b'" in errors[2]
    assert not any("Traceback" in line for line in log)


def test_a_broken_model_may_be_skipped(repository):
    add_echo(repository)
    add_broken(repository)
    with Command("serve", repository, *ANY_PORT, "--exit-on-error=false") as command:
        url = command.http()
        assert status(f"{url}/v2/health/live") == 200
        assert status(f"{url}/v2/health/ready") == 400
        assert status(f"{url}/v2/models/echo/infer", ONE_ROW) == 200
        assert command.stop() == 0
    errors = [line for line in command.log if line.startswith("E")]
    assert len(errors) == 1
    assert "'broken'" in errors[0]
    assert not any("Traceback" in line for line in command.log)


def test_unknown_metrics_options(repository):
    code, log = failed("serve", repository, *ANY_PORT, "--metrics-config=colour=blue")
    assert code == 1
    assert log[-1].startswith("error: --metrics-config has no setting 'colour'")


def test_a_log_file_that_cannot_be_written(repository):
    assert failed("serve", repository, f"--log-file={repository}") == (
        1,
        [f"error: cannot write the log to --log-file={repository}: Is a directory\n"],
    )


# ---- serving


def test_tritonserver_is_the_same_server(repository):
    add_echo(repository)
    words = [f"--model-repository={repository}", *ANY_PORT, "--model-control-mode", "explicit"]
    with Command(
        *words, "--load-model", "echo", "--rate-limit", "execution_count", entry="tritonserver"
    ) as command:
        url = command.http()
        assert status(f"{url}/v2/health/ready") == 200
        assert status(f"{url}/v2/models/echo/infer", ONE_ROW) == 200
        assert command.stop() == 0
    warnings = [line for line in command.log if line.startswith("W")]
    assert len(warnings) <= 1  # that clients on other machines may load models
    assert all("can load and unload models" in line for line in warnings)


@pytest.mark.curl
def test_the_demo_prints_commands_that_work():
    with Command("serve", "--demo", *ANY_PORT) as command:
        command.http()
        lines = []
        for line in command.process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        commands = re.findall(
            r"^curl .*?(?=^curl|^#|^Ctrl)", "".join(lines), re.DOTALL | re.MULTILINE
        )
        answers = [
            subprocess.run(
                ["sh", "-c", text.strip() + " -sS --fail"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for text in commands
        ]
        assert command.stop() == 0
    assert len(answers) == 8
    assert "200 OK" in answers[0]
    names = {row["name"] for row in json.loads(answers[1])}
    assert names == {"add_sub", "digits", "upper", "photos", "questions"}
    assert json.loads(answers[2])["outputs"][0]["data"] == list(range(2, 18))
    assert json.loads(answers[3])["outputs"][0]["data"][0].endswith(":0:zero")
    assert json.loads(answers[4])["outputs"][0]["data"] == ["A SHOAL OF FISH"]
    assert json.loads(answers[5])["images"][0]["labels"][0]["label"].endswith(" cat")
    assert "plankton" in answers[6]
    assert 'nv_inference_request_success{model="upper",version="1"} 1' in answers[7]


def test_the_log_goes_to_the_given_file(repository, tmp_path):
    add_echo(repository)
    path = tmp_path / "log"
    words = [f"--log-file={path}", "--log-format=ISO8601", "--load-model=gone"]
    code, log = failed("serve", repository, *ANY_PORT, *words, "--model-control-mode=explicit")
    assert code == 1
    assert log[0] == "error: creating server: Internal - failed to load all models\n"
    assert len(log) == 2
    assert re.search(
        r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ \w+\.py:\d+\] \"listening",
        path.read_text(),
        re.MULTILINE,
    )


# ---- the end


# The grace lasts until `Command.end` closes the input, and not a second of any machine's.
GRACE = (
    "import asyncio; sleep = asyncio.sleep; asyncio.sleep = "
    "lambda secs: asyncio.to_thread(sys.stdin.read) if secs == 1 else sleep(secs)"
)


def test_sigterm_ends_the_server_with_grace(repository):
    add_echo(repository)
    with Command("serve", repository, *ANY_PORT, "--drain-secs=1", before=GRACE) as command:
        url = command.http()
        command.process.send_signal(signal.SIGTERM)
        command.wait_for("no longer ready; serving for 1 more seconds")
        assert status(f"{url}/v2/health/ready") == 503
        assert status(f"{url}/v2/health/live") == 200
        assert status(f"{url}/v2/models/echo/infer", ONE_ROW) == 200
        command.process.send_signal(signal.SIGTERM)
        command.wait_for("SIGTERM: already stopping")
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 0
        with pytest.raises(urllib.error.URLError):
            status(f"{url}/v2/health/live")


def test_a_stop_does_not_wait_for_executions_that_hang(repository):
    add_echo(repository, delay_ms=600_000)
    with (repository / "echo" / "config.pbtxt").open("a") as config:
        config.write(parameter("execution_timeout_ms", "100"))
    with Command("serve", repository, *ANY_PORT) as command:
        assert status(f"{command.http()}/v2/models/echo/infer", ONE_ROW) == 504
        assert command.stop() == 0
        assert "exiting without waiting for executions that hang: echo_0" in "".join(command.log)


@pytest.mark.parametrize("before", ["pass", "sys.modules['uvloop'] = None"])
def test_sigterm_loses_no_request_of_64_clients(repository, before):
    add_echo(repository)
    count = StopCount()
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    request = messages.ModelInferRequest(model_name="echo")
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1])
    request.raw_input_contents.append(bytes(4))
    calls = GrpcMessages("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString())
    with Command("serve", repository, *ANY_PORT, before=before) as command:
        http, grpc = (
            to_port(int(command.wait_for(rf"listening for {name} on \S+:(\d+)").group(1)))
            for name in ("http", "grpc")
        )
        command.wait_for("the server is")
        kinds = [
            kind
            for fresh in (False, True)
            for kind in (
                partial(http_client, http, head % len(ONE_ROW) + ONE_ROW, fresh=fresh),
                partial(grpc_client, grpc, calls, fresh=fresh),
            )
        ]
        with clients(count, kinds * 16):
            count.wait_for_answers(1000)
            assert command.stop() == 0
    assert count.lost == count.failed == []


@pytest.mark.parametrize("before", ["pass", "sys.modules['uvloop'] = None"])
def test_sigint_ends_the_server_with_and_without_uvloop(repository, before):
    with Command("serve", repository, *ANY_PORT, before=before) as command:
        url = command.http()
        assert status(f"{url}/v2/health/ready") == 200
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 0


@pytest.mark.parametrize("before", ["pass", "sys.modules['uvloop'] = None"])
def test_sighup_reloads_and_does_not_end_the_server(repository, before):
    with Command("serve", repository, *ANY_PORT, before=before) as command:
        url = command.http()
        command.process.send_signal(signal.SIGHUP)
        command.wait_for("SIGHUP: reloading")
        assert status(f"{url}/v2/health/ready") == 200
        assert command.stop() == 0


def test_a_model_that_does_not_stop_changes_the_exit_code(repository):
    add_echo(repository, delay_ms=60_000)
    with Command("serve", repository, *ANY_PORT, "--exit-timeout-secs=1") as command:
        url = command.http()
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        with socket.create_connection(place) as first, socket.create_connection(place) as second:
            for client in (first, second):
                client.sendall(head % len(ONE_ROW) + ONE_ROW)
            while b'pending_request_count{model="echo",version="1"} 1' not in text(
                f"{url}/metrics"
            ):
                pass  # the second waits once the first is being executed
            command.process.send_signal(signal.SIGTERM)
            command.wait_for("for 2 inferences in flight and 2 open connections")
            assert command.end() == 1
    assert command.log[-1].endswith('] "the exit timeout of 1 s has passed"\n')


# ---- the same within this process, where tests can hold a model or a load


@asynccontextmanager
async def serving(repository, backends=None, **values):
    free = {"model_repository": (str(repository),), "http_port": 0, "grpc_port": 0}
    options = Options(**free | values)
    server = Server(options, backends=backends)
    try:
        yield server
    finally:
        assert await server.stop()


def in_process(scenario):
    return asyncio.run(asyncio.wait_for(scenario, WAIT_SECS))


async def get(server, path, body=None):
    return await asyncio.to_thread(status, f"http://127.0.0.1:{server.http_port}{path}", body)


def test_the_port_listens_while_models_load(repository):
    add_echo(repository)
    may_load = threading.Event()

    async def scenario():
        async with serving(repository, metrics_port=0) as server:
            load = server.repository.start
            server.repository.start = lambda: may_load.wait(WAIT_SECS) and load()
            await server.listen()
            loading = asyncio.ensure_future(server.load())
            assert await get(server, "/v2/health/live") == 200
            assert await get(server, "/v2/health/ready") == 400
            assert not loading.done()
            may_load.set()
            await loading
            assert await get(server, "/v2/health/ready") == 200
            assert await get(server, "/v2/models/echo/infer", ONE_ROW) == 200

    in_process(scenario())


def test_requests_in_flight_get_responses_before_the_server_stops(repository, fake):
    add_echo(repository, backend="fake")

    async def scenario():
        backends = fake.registry()
        async with serving(repository, backends, allow_metrics=False) as server:
            await server.start()
            fake.gate.clear()
            answer = asyncio.ensure_future(get(server, "/v2/models/echo/infer", ONE_ROW))
            assert await asyncio.to_thread(fake.started.acquire, timeout=WAIT_SECS)
            stopping = asyncio.ensure_future(server.stop())
            await asyncio.to_thread(wait_until, lambda: not server.ports.http._accepting)
            with pytest.raises(urllib.error.URLError):
                await get(server, "/v2/health/live")
            assert not stopping.done()
            fake.gate.set()
            assert await answer == 200
            assert await stopping
            assert not server.left_behind
            assert fake.open_executors == 0

    in_process(scenario())


def test_the_grace_is_for_every_server_that_has_started(repository, caplog):
    add_broken(repository)

    async def scenario():
        values = {"exit_on_error": False, "drain_secs": 0.01, "allow_metrics": False}
        async with serving(repository, **values) as server:
            await server.start()
            assert not server.engine.ready()

    with caplog.at_level("INFO", "shoal"):
        in_process(scenario())
    assert "no longer ready; serving for 0.01 more seconds" in caplog.text


def test_a_server_that_still_loads_can_be_stopped(repository):
    may_load = threading.Event()

    async def scenario():
        free = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        server = Server(Options(model_repository=(str(repository),), **free))
        server.repository.start = lambda: may_load.wait(WAIT_SECS) and {}
        await server.listen()
        loading = asyncio.ensure_future(server.load())
        await asyncio.sleep(0)  # until it waits for the load
        loading.cancel()
        assert await server.stop()
        assert server.left_behind
        may_load.set()

    in_process(scenario())


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("nowhere", NotFound, "does not exist"),
        ("file", NotFound, "is a file; name a folder of models"),
        ("file/models", NotFound, "cannot be read: Not a directory"),
        ("models/one", InvalidArgument, "serve its parent: .*/models, or the model alone: shoal"),
        ("models/one/1", InvalidArgument, "only files; a file can be served alone: shoal serve"),
        ("apps", InvalidArgument, "a file can be served alone: shoal serve apps/app.py"),
    ],
)
def test_repositories_that_cannot_be_served(tmp_path, monkeypatch, path, error, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name in ("models/one/1/model.onnx", "apps/app.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()

    async def scenario():
        async with serving(path) as server:
            with pytest.raises(error, match=words):
                await server.start()
            assert server.http_port == 0

    in_process(scenario())


def test_a_failed_start_releases_everything(repository):
    add_echo(repository)
    add_broken(repository)

    async def scenario():
        async with serving(repository, metrics_port=0) as server:
            with pytest.raises(ModelsFailed) as caught:
                await server.start()
            assert len(caught.value.reasons) == 1
            port = server.http_port
        with socket.create_server(("127.0.0.1", port)):
            pass  # free again

    in_process(scenario())


def test_two_servers_share_no_port(repository):
    async def scenario():
        async with serving(repository, metrics_port=0) as first:
            await first.start()
            async with serving(repository, http_port=first.http_port) as second:
                with pytest.raises(Unavailable, match="is in use"):
                    await second.start()

    in_process(scenario())
