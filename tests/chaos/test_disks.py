"""Disks without space: logs lose lines, uploads are refused, and no request is harmed."""

from __future__ import annotations

import base64
import contextlib
import json
import os

import pytest

from shoal.testing.server import wait_until
from tests.chaos.checker import WIDTH, Checker
from tests.chaos.faults import full, small_disk
from tests.chaos.schedule import long_run, rounds
from tests.support import onnx_models

DISK_BYTES = 2 << 20
LARGE_BYTES = 4 << 20


def log_options(access, audit, log, traces):
    """Everything that a server writes while it runs."""
    return [
        *(f"--access-log={access}", "--access-log-format=json", f"--audit-log={audit}"),
        *(f"--log-file={log}", "--log-verbose=1", f"--trace-config=triton,file={traces}"),
        *("--trace-config=rate=1", "--trace-config=count=500", "--trace-config=level=TIMESTAMPS"),
    ]


@pytest.fixture
def disk(tmp_path):
    """A small file system."""
    with contextlib.ExitStack() as mounted:
        try:
            yield mounted.enter_context(small_disk(tmp_path / "disk", DISK_BYTES))
        except PermissionError as error:
            pytest.skip(str(error))


@long_run
def test_logs_that_can_never_be_written(serve, settled):
    server = serve("onnx", "python", options=log_options(*["/dev/full"] * 4))
    before = settled(server, "onnx", "python")
    with Checker(server, "onnx", "python") as checker:
        for _ in rounds():
            checker.wait_for_answers(20)
    checker.check()
    server.check_holds_no_more_than(before)
    server.checked_stop()
    assert server.log.count("lines of the log could not be written") <= 2  # not one for each line


def test_logs_continue_when_there_is_space_again(serve, disk):
    places = [disk / name for name in ("access", "audit", "log", "traces")]
    server = serve("onnx", options=log_options(*places))
    access = places[0]
    with Checker(server, "onnx") as checker:
        for _ in rounds():
            with full(disk):
                checker.wait_for_answers(50)
            size = access.stat().st_size
            wait_until(lambda size=size: access.stat().st_size > size, "the access log continues")
            checker.wait_for_answers(5)
            *lines, _ = access.read_bytes().split(b"\n")
            assert sum(not is_whole(line) for line in lines) <= 1  # the one that the disk cut
            for place in places[:3]:  # room for the next round
                os.truncate(place, 0)
    checker.check()
    server.checked_stop()


def is_whole(line):
    """Whether a line of the log is a JSON object."""
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict)
    return False


def test_an_upload_for_which_there_is_no_space(serve, disk):
    server = serve("onnx", environment={"TMPDIR": str(disk)})
    with Checker(server, "onnx") as checker:
        for _ in rounds():
            for number in range(2):
                with full(disk) if number else contextlib.nullcontext():
                    answer = upload(server, b"" if number else bytes(LARGE_BYTES))
                assert answer.status >= 400
                assert "space" in answer.error, answer
                assert not list(disk.glob("shoal-*"))  # nothing of it is left
            answer = upload(server)
            assert answer.status == 200, answer
            assert server.call("POST", "/v2/repository/models/uploaded/unload").status == 200
            wait_until(lambda: not list(disk.glob("shoal-*")), "the files are removed")
            checker.wait_for_answers(2)
    checker.check()
    server.checked_stop()


def upload(server, more=b""):
    """Load a model that is sent along, with one more file of these bytes."""
    model = onnx_models.plus(1, WIDTH).SerializeToString()
    files = {"file:1/model.onnx": model, "file:1/more.bin": more}
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
    encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
    return server.load("uploaded", config=config, **encoded)


def test_a_standard_error_that_no_process_reads_any_more(serve):
    reading, writing = os.pipe()
    server = serve("onnx", options=["--log-verbose=1"], stderr=writing)
    os.close(writing)
    with Checker(server, "onnx") as checker:
        checker.wait_for_answers(2)
        os.close(reading)  # further writes fail with EPIPE
        for _ in rounds():
            checker.wait_for_answers(20)
    checker.check()
    server.checked_stop()
