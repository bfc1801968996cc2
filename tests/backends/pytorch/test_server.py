"""PyTorch models behind a real server, asked by real clients."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import psutil  # noqa: E402
import tritonclient.grpc as grpc_client  # noqa: E402
import tritonclient.http as http_client  # noqa: E402

from shoal.testing.server import running_server, wait_until  # noqa: E402
from tests.support import torch_models  # noqa: E402
from tests.support.client import Infer, outputs  # noqa: E402
from tests.support.repositories import add_model, parameter, touch  # noqa: E402

SLOW = """
import threading, torch

class Meet(torch.nn.Module):
    # Answers once two instances are inside at the same time.
    barrier = threading.Barrier(2)

    def forward(self, x):
        Meet.barrier.wait(20)
        return x
"""
PICKY = """
import torch

class Picky(torch.nn.Module):
    def forward(self, x):
        if (x < 0).any():
            raise ValueError("I do not like negative numbers")
        return x * 2
"""
ONE = 'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }\n'
ONE += 'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }\n'


class Big(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(25_000_000))  # 100 MB

    def forward(self, x):
        return x + self.weight[:2]


def write(repository, name, config, **files):
    content = {f"1/{file.replace('_', '.')}": text.encode() for file, text in files.items()}
    return add_model(repository, name, config, content)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    torch_models.add_sub_script(folder / "script" / "1" / "model.pt")
    (folder / "script" / "config.pbtxt").write_text(
        torch_models.add_sub_config().replace('backend: "pytorch"', 'platform: "pytorch_libtorch"')
    )
    torch_models.add_sub_exported(folder / "exported" / "1" / "model.pt2")  # no config at all
    for version in (1, 2):
        torch_models.add_sub_exported(
            folder / "versions" / str(version) / "model.pt2", "FP32", (2,)
        )
    (folder / "versions" / "config.pbtxt").write_text("version_policy { all { } }")
    count = "instance_group { kind: KIND_CPU count: 2 }"
    count += parameter("ENABLE_WEIGHT_SHARING", "true")  # or each would have its own barrier
    write(folder, "meet", 'backend: "pytorch" runtime: "model.py"\n' + ONE + count, model_py=SLOW)
    write(
        folder,
        "picky",
        # Three leave at once, and on the busiest machine no sooner than the third is there.
        'backend: "pytorch" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: '
        "15000000 preferred_batch_size: [ 3 ] }\n" + ONE,
        model_py=PICKY,
    )
    return folder


@pytest.fixture(scope="module")
def server(repository):
    with running_server(
        repository, model_control_mode="explicit", load_model=("*",), exit_timeout_secs=20
    ) as running:
        yield running


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(server, request):
    """A function that infers with NVIDIA's client."""
    module = http_client if request.param == "http" else grpc_client
    address = server.http_address if request.param == "http" else server.grpc_address
    connection = module.InferenceServerClient(address)

    def infer(model, version="", **arrays):
        inputs = []
        for name, array in arrays.items():
            entry = module.InferInput(name, list(array.shape), _datatype(array))
            entry.set_data_from_numpy(array)
            inputs.append(entry)
        return connection.infer(model, inputs, model_version=version)

    yield infer
    connection.close()


def _datatype(array):
    return {"i": "INT32", "f": "FP32"}[array.dtype.kind]


def test_torchscript(client):
    left = np.arange(32, dtype=np.int32).reshape(2, 16)
    result = client("script", INPUT__0=left, INPUT__1=left)
    assert np.array_equal(result.as_numpy("OUTPUT__0"), left + left)
    assert np.array_equal(result.as_numpy("OUTPUT__1"), left - left)


def test_an_export_without_a_config(client):
    left = np.arange(32, dtype=np.int32).reshape(2, 16)
    result = client("exported", left=left, right=left + 1)
    assert np.array_equal(result.as_numpy("OUTPUT__1"), np.full((2, 16), -1))


@pytest.mark.parametrize("version", ["1", "2"])
def test_versions(client, version):
    row = np.float32([[1, 2]])
    result = client("versions", version, left=row, right=row)
    assert (
        result.get_response()["model_version"] == version
        if isinstance(result.get_response(), dict)
        else result.get_response().model_version == version
    )


def test_their_metadata(server):
    metadata = server.get("/v2/models/script").json
    assert metadata["platform"] == "pytorch_libtorch"
    completed = server.get("/v2/models/exported/config").json
    assert (completed["backend"], completed["max_batch_size"]) == ("pytorch", 4)
    assert server.get("/v2/models/exported/ready").status == 200


def test_instances_run_side_by_side(server):
    request = Infer().add("x", np.float32([1, 2]))
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: request.send(server, "meet"), range(2)))
    assert [answer.status for answer in answers] == [200, 200]


def test_an_error_reaches_only_its_client(server):
    numbers = (1, -1, 3)
    with ThreadPoolExecutor(3) as pool:
        answers = list(
            pool.map(
                lambda n: Infer().add("x", np.float32([[n, n]])).send(server, "picky"), numbers
            )
        )
    assert [answer.status for answer in answers] == [200, 500, 200]
    assert answers[1].error == (
        "PyTorch execute failure: model 'picky' failed: I do not like negative numbers"
    )
    assert outputs(answers[2])["y"].tolist() == [[6, 6]]


def test_requests_are_batched(server):
    before = server.statistics("picky")["execution_count"]
    barrier = threading.Barrier(3)

    def ask(_):
        barrier.wait(20)
        return Infer().add("x", np.float32([[1, 1]])).send(server, "picky")

    with ThreadPoolExecutor(3) as pool:
        assert {answer.status for answer in pool.map(ask, range(3))} == {200}
    after = server.statistics("picky")
    assert after["execution_count"] - before == 1


def test_reload(server, repository):
    add_model(repository, "changes", 'backend: "pytorch"\n' + ONE)
    file = repository / "changes" / "1" / "model.py"
    request = Infer().add("x", np.float32([1, 2]))
    for factor in (2, 3):
        file.write_text(
            "import torch\nclass M(torch.nn.Module):\n"
            f"    def forward(self, x):\n        return x * {factor}\n"
        )
        touch(file)
        assert server.load("changes").status == 200
        assert outputs(request.send(server, "changes"))["y"].tolist() == [factor, 2 * factor]
    file.write_text("import torch\nraise RuntimeError('broken')\n")
    touch(file)
    answer = server.load("changes")
    assert answer.status == 400
    assert "'changes/1/model.py' cannot be imported: RuntimeError: broken" in answer.error
    assert outputs(request.send(server, "changes"))["y"].tolist() == [3, 6]  # the old one serves on


@pytest.mark.parametrize("form", ["script", "exported", "eager"])
def test_unloading_gives_the_memory_back(server, repository, form):
    folder = repository / f"big-{form}"
    add_model(repository, folder.name, 'backend: "pytorch"\n' + ONE)
    model = Big()
    if form == "script":
        torch_models.script(model, folder / "1" / "model.pt")
    elif form == "exported":
        torch_models.export(model, (torch.zeros(2),), folder / "1" / "model.pt2", batch=False)
    else:
        (folder / "1" / "model.py").write_text(
            "import torch\nclass Big(torch.nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.weight = torch.nn.Parameter(torch.ones(25_000_000))\n"
            "    def forward(self, x):\n        return x + self.weight[:2]\n"
        )
    del model
    gc.collect()  # what others left behind must not go while we measure
    resident = psutil.Process(server.engine_pid).memory_info
    before = resident().rss
    assert server.load(folder.name).status == 200
    answer = Infer().add("x", np.float32([1, 2])).send(server, folder.name)
    assert outputs(answer)["y"].tolist() == [2, 3]
    assert resident().rss - before > 60e6
    assert server.unload(folder.name).status == 200
    wait_until(lambda: server.states(folder.name) == {"1": "UNAVAILABLE"}, "it is unloaded")
    wait_until(lambda: resident().rss - before < 40e6, "the memory is given back")


def test_a_wrong_model_does_not_affect_the_others(server, repository):
    write(repository, "wrong", 'backend: "pytorch"\n' + ONE, model_pt="rubbish")
    answer = server.load("wrong")
    assert answer.status == 400
    assert "'wrong/1/model.pt' is not a PyTorch model" in answer.error
    assert server.get("/v2/models/script/ready").status == 200


def test_execution_modes(server, repository):
    """On the event loop and on threads the same model gives the same answers."""
    for mode in ("loop", "threads"):
        folder = repository / f"add-{mode}"
        torch_models.add_sub_script(folder / "1" / "model.pt")
        config = torch_models.add_sub_config() + parameter("execution", mode)
        (folder / "config.pbtxt").write_text(config)
        assert server.load(folder.name).status == 200
        row = np.arange(16, dtype=np.int32).reshape(1, 16)
        request = Infer().add("INPUT__0", row, binary=True).add("INPUT__1", row, binary=True)
        for _ in range(3):
            found = outputs(request.send(server, folder.name))
            assert np.array_equal(found["OUTPUT__0"], row * 2)
        assert server.statistics(folder.name)["execution"]["mode"] == mode
