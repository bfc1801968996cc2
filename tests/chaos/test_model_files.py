"""Model files that are truncated or garbage: they are refused, and what was loaded serves on."""

from __future__ import annotations

import pytest

from tests.chaos.checker import WIDTH, Checker
from tests.chaos.models import BATCHED, PYTHON_MODEL
from tests.chaos.schedule import long_run, rounds
from tests.support import onnx_models
from tests.support.repositories import touch

ONNX = onnx_models.plus(1, WIDTH).SerializeToString()
CONFIG = BATCHED.encode()


def truncated(content, chance):
    return content[: chance.randrange(len(content))]


def garbage(content, chance):
    return chance.randbytes(len(content))


def empty(content, chance):
    return b""


def zeros(content, chance):
    """As after a crash of the machine: the size is there, the content is not."""
    return bytes(len(content))


def broken_in_the_middle(content, chance):
    place = chance.randrange(len(content) // 2)
    return content[:place] + chance.randbytes(len(content) // 2) + content[place:]


CORRUPTIONS = (truncated, garbage, empty, zeros, broken_in_the_middle)
FILES = {
    "onnx": ("1/model.onnx", ONNX),
    "python": ("1/model.py", PYTHON_MODEL.encode()),
    "thread": ("1/model.py", PYTHON_MODEL.encode()),
    "config": ("config.pbtxt", CONFIG),
}


@pytest.mark.parametrize(
    "kind", ["onnx", "config", "python", pytest.param("thread", marks=long_run)]
)
def test_a_reload_of_a_corrupt_file_keeps_the_old_model(serve, repository, chance, kind):
    name = "onnx" if kind == "config" else kind
    server = serve(name)
    place, content = FILES[kind]
    file = repository / name / place
    old = file.read_bytes()
    refused = 0
    with Checker(server, name) as checker:
        for _ in rounds():
            for corrupt in CORRUPTIONS:
                # The beginning of a program can be one, too: let it end in the middle of a line.
                half_a_line = b"\n(" if file.suffix == ".py" else b""
                file.write_bytes(corrupt(content, chance) + half_a_line)
                touch(file)
                answer = server.load(name)
                if answer.status != 200:  # half a config can be a whole one
                    assert answer.error
                    refused += 1
                    assert reason(server, name)
                checker.wait_for_answers(1)
    assert refused >= 3
    assert not checker.faults()
    file.write_bytes(old)
    touch(file)
    assert server.load(name).status == 200
    with Checker(server, name) as checker:
        pass
    checker.check()
    server.checked_stop()


def reason(server, name):
    """Why the last load failed, by the index."""
    rows = server.call("POST", "/v2/repository/index").json
    return " ".join(row.get("reason", "") for row in rows if row["name"] == name)


@pytest.mark.parametrize(
    "corrupt", [truncated, *(pytest.param(each, marks=long_run) for each in CORRUPTIONS[1:])]
)
def test_a_corrupt_model_beside_others_at_the_start(serve, repository, chance, corrupt):
    folder = repository / "broken" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(corrupt(ONNX, chance))
    server = serve("onnx", options=["--exit-on-error=false", "--strict-readiness=false"])
    with Checker(server, "onnx") as checker:
        assert reason(server, "broken")
        assert server.get("/v2/models/broken/ready").status in (400, 404)
        checker.wait_for_answers(2)
    checker.check()
    server.checked_stop()
