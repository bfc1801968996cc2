"""Status, repository, settings and shared memory, on Shoal and on Triton, over both protocols."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shoal.client import Client, ClientError, InvalidInput, ServerError
from shoal.testing.server import wait_until

ONE = np.arange(16, dtype=np.int32).reshape(1, 16)


def test_health(client):
    assert client.live() is True
    assert client.ready() is True
    assert client.model_ready("add_sub") is True
    assert client.model_ready("add_sub", 1) is True
    assert client.model_ready("add_sub", 9) is False
    assert client.model_ready("nope") is False


def test_metadata(client):
    assert "statistics" in client.server_metadata()["extensions"]
    found = client.metadata("add_sub")
    assert found["versions"] == ["1"]
    assert found["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    with pytest.raises(ServerError, match="nope") as caught:
        client.metadata("nope")
    assert caught.value.status == "NOT_FOUND"


def test_both_protocols_say_the_same(server):
    with Client(server.http) as http, Client(server.grpc) as grpc:
        assert http.server_metadata() == grpc.server_metadata()
        for model in ("add_sub", "words", "counter"):
            assert http.metadata(model) == grpc.metadata(model)
            left, right = http.config(model), grpc.config(model)
            assert {key: right[key] for key in left} == left
        assert http.index() == grpc.index()
        assert http.log_settings() == grpc.log_settings()
        assert http.trace_settings() == grpc.trace_settings()
        left, right = http.statistics("scores")[0], grpc.statistics("scores")[0]
        assert set(right) <= set(left)
        assert left["inference_stats"] == right["inference_stats"]


def test_config_and_statistics(client):
    assert client.config("add_sub")["max_batch_size"] == 8
    assert client.config("scores")["output"][0]["label_filename"] == "labels.txt"

    def counted():
        return client.statistics("add_sub", 1)[0]["inference_count"]

    before = counted()
    client.infer("add_sub", {"INPUT0": ONE, "INPUT1": ONE})
    # A Python model's execution is counted when it has been answered.
    wait_until(lambda: counted() > before, "the inference is counted")
    assert len(client.statistics()) >= 5


def test_the_repository(client):
    names = {row["name"] for row in client.index()}
    assert {"add_sub", "words"} <= names
    client.unload("add_sub")
    assert client.model_ready("add_sub") is False
    assert "add_sub" not in {row["name"] for row in client.index(ready=True)}
    with pytest.raises(ServerError):
        client.infer("add_sub", {"INPUT0": [[0] * 16], "INPUT1": ONE})
    client.load("add_sub")
    assert client.infer("add_sub", {"INPUT0": ONE, "INPUT1": ONE})
    with pytest.raises(ServerError, match="nope"):
        client.load("nope")


def test_loading_from_a_config_and_files(client, repository):
    config = {
        "backend": "python",
        "max_batch_size": 2,
        "input": [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [4]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    }
    code = Path(repository, "scores", "1", "model.py").read_bytes()
    client.load("sent", config=config, files={"1/model.py": code})
    given = np.ones((1, 4), np.float32)
    assert client.infer("sent", {"INPUT": given})["OUTPUT"].tolist() == [[1, 1, 1, 1]]
    assert client.config("sent")["max_batch_size"] == 2
    client.load(
        "sent", config=json.dumps({**config, "max_batch_size": 3}), files={"1/model.py": code}
    )
    assert client.config("sent")["max_batch_size"] == 3
    client.unload("sent", unload_dependents=True)
    with pytest.raises(InvalidInput, match="give config= too"):
        client.load("sent", files={"1/model.py": code})


def test_settings(client):
    before = client.log_settings()["log_verbose_level"]
    assert client.log_settings({"log_verbose_level": before + 1})["log_verbose_level"] == before + 1
    client.log_settings({"log_verbose_level": before})
    changed = client.trace_settings({"trace_rate": "17"})
    assert changed["trace_rate"] == "17"
    assert changed["trace_level"] == ["OFF"]
    assert client.trace_settings({"trace_rate": "5"}, model="add_sub")["trace_rate"] == "5"
    assert client.trace_settings({"trace_rate": None}, model="add_sub")["trace_rate"] == "17"
    client.trace_settings({"trace_rate": "1000"})


def test_shared_memory(client):
    with client.shared_memory("ours", 4096) as region:
        assert [row["name"] for row in client.shared_memory_regions()] == ["ours"]
        one, two = region.put(ONE), region.put(ONE * 3)
        place = region.place(ONE.nbytes)
        result = client.infer(
            "add_sub", {"INPUT0": one, "INPUT1": two}, outputs={"OUTPUT0": place, "OUTPUT1": None}
        )
        np.testing.assert_array_equal(result["OUTPUT0"], ONE * 4)
        np.testing.assert_array_equal(result["OUTPUT1"], ONE * -2)
        mixed = client.infer("add_sub", {"INPUT0": ONE, "INPUT1": two})
        np.testing.assert_array_equal(mixed["OUTPUT0"], ONE * 4)
        region.clear()
        text = region.put(np.array([b"one", b"three"], dtype=object))
        assert client.infer("echo", {"STRING": text})["OUT_STRING"].tolist() == [b"one", b"three"]
        with pytest.raises(InvalidInput, match=r"region 'ours' has .* bytes left, this takes 8192"):
            region.place(8192)
    assert client.shared_memory_regions() == []
    assert not list(Path("/dev/shm").glob(f"*{region.key.strip('/')}*"))
    np.testing.assert_array_equal(result["OUTPUT0"], ONE * 4)  # a copy, so it stays


def test_shared_memory_is_freed_when_the_block_fails(client):
    with pytest.raises(ServerError, match="nope"), client.shared_memory("ours", 64) as region:
        client.infer("nope", {"INPUT0": region.put(np.zeros(16, np.int32))})
    assert client.shared_memory_regions() == []
    with client.shared_memory("ours", 64):
        with pytest.raises(ClientError), client.shared_memory("ours", 128):
            raise AssertionError("two regions of one name")
        assert len(client.shared_memory_regions()) == 1
    assert client.shared_memory_regions() == []
