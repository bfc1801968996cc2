"""The workloads: model, request, concurrency and expected response.

    W1       add_sub, 2 x INT32[1,16]      the cost of a request itself
    W2       a JPEG of 100 KB, ResNet-18   photos at 100 connections
    W3       BERT-base at 128 tokens       compute-bound, 8 clients
    W4       600 KB in, 64 bytes out       what a large request costs
    W4-echo  600 KB in, 600 KB out         the same with a large response
    JSON...  tensors as JSON numbers       16, 1,000 and 100,000 of them, other numbers every time
    MLP      FP32[512], four layers of 512 a network of middle size
    models-N copies of add_sub             requests go to N models in turn
    models-1-alone                         one model without batching, to compare these with
    changing W1 in four kinds of requests  the load changes every two seconds
    tails    W1 for half a minute          the slowest requests, also at 70 % of the peak rate

Every peer gets the same tensors, in its own encoding (`forms`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.places import MODELS
from benchmarks.shapes import FEATURES, LARGE, ROW, TOKENS

Array = np.ndarray[Any, Any]

SEED = 11
BINARY, JSON = "binary", "json"
LOADS, CHANGING, TAILS = "loads", "changing", "tails"  # methods
V2_PEERS = ("shoal", "triton-onnx", "triton")
HTTP_PEERS = (*V2_PEERS, "mosec", "fastapi")


@dataclass(frozen=True)
class Workload:
    """One model under one kind of request."""

    name: str
    title: str
    model: str
    concurrencies: tuple[int, ...]
    compute_bound: bool = False  # one worker per core pays; loads count requests, not seconds
    picture: bool = False  # requests carry a JPEG, not tensors
    perf_analyzer: bool = False  # also driven by perf_analyzer, where the peer speaks its protocol
    tolerance: float = 0.0
    batches: tuple[int, ...] = (1,)  # what the plain loop tries; empty: no limit is measured
    usual_peers: tuple[str, ...] = ()  # who takes part unless others are named; empty: everybody
    encoding: str = BINARY  # how tensors are sent: BINARY or, over HTTP only, JSON
    numbers: int = LARGE[0]  # in the input of a model that takes any number of them
    variants: int = 1  # requests with different numbers, sent in turn
    copies: int = 0  # if any: so many such models, requested in turn over HTTP
    batched: bool = True  # whether the server may execute several requests at once
    rows: int = 1  # of each request to add_sub or mlp
    method: str = LOADS  # how it is measured

    @property
    def model_path(self) -> Path:
        """The ONNX file; created if it is missing."""
        from benchmarks import models

        return models.make(self.model, MODELS)

    @property
    def model_names(self) -> list[str]:
        """All models that are served: the model and its copies."""
        return [self.model, *(f"{self.model}_{place}" for place in range(1, self.copies))]

    @property
    def inputs(self) -> dict[str, Array]:
        """The tensors of the request, whose response is checked."""
        return self.requests[0]

    @functools.cached_property
    def requests(self) -> list[dict[str, Array]]:
        """The tensors of all requests, which are sent in turn, repeatedly."""
        random = np.random.default_rng(SEED)
        return [self._draw(random) for _ in range(self.variants)]

    def _draw(self, random: np.random.Generator) -> dict[str, Array]:
        if self.model == "add_sub":
            names = ("INPUT0", "INPUT1")
            shape = (self.rows, *ROW)
            return {name: random.integers(-999, 999, shape, np.int32) for name in names}
        if self.model == "encoder":
            ids = random.integers(1, 30_000, (1, *TOKENS), np.int64)
            return {"input_ids": ids, "attention_mask": np.ones((1, *TOKENS), np.int64)}
        if self.picture:
            return {"image": np.array([[self.photo]], np.object_)}
        shape = (self.rows, *FEATURES) if self.model == "mlp" else (1, self.numbers)
        return {"INPUT": random.standard_normal(shape, np.float32)}

    @functools.cached_property
    def photo(self) -> bytes:
        """The JPEG of a workload with photos."""
        from benchmarks import models

        return models.photo()

    @functools.cached_property
    def outputs(self) -> dict[str, Array]:
        """The expected outputs: computed by numpy, or by ONNX Runtime for large models."""
        if self.model == "add_sub":
            first, second = self.inputs["INPUT0"], self.inputs["INPUT1"]
            return {"OUTPUT0": first + second, "OUTPUT1": first - second}
        if self.model in {"echo", "double"}:
            return {"OUTPUT": self.inputs["INPUT"] * np.float32(2)}
        if self.model == "pool":
            return {"OUTPUT": self.inputs["INPUT"].reshape(1, 16, -1).sum(axis=2)}
        from benchmarks.peers.services.inference import Model, picture

        model = Model(str(self.model_path), threads=1, pictures=False)
        feeds = {"image": picture(self.photo)} if self.picture else self.inputs
        return dict(zip(model.outputs, model.run(feeds), strict=True))

    def fault(self, answer: dict[str, Array]) -> str:
        """What is wrong with a response; empty if nothing is."""
        for name, right in self.outputs.items():
            given = answer.get(name)
            if given is None:
                return f"no output {name!r}"
            if given.size != right.size:
                return f"{name!r} has {given.size} numbers instead of {right.size}"
            if not np.allclose(given.reshape(right.shape), right, 0.0, self.tolerance):
                return f"{name!r} is not what the model computes"
        return ""


WORKLOADS = {
    one.name: one
    for one in (
        Workload(
            "W1",
            "tiny model: add/sub of two INT32[1,16]",
            "add_sub",
            (1, 16, 64),
            perf_analyzer=True,
            batches=(1, 64),
        ),
        Workload(
            "W2",
            "JPEG of 100 KB to a ResNet-18-sized classifier",
            "classifier",
            (100,),
            compute_bound=True,
            picture=True,
            tolerance=0.01,
            batches=(1, 8),
        ),
        Workload(
            "W3",
            "BERT-base-sized encoder, 128 tokens",
            "encoder",
            (8,),
            compute_bound=True,
            tolerance=0.005,
            batches=(1, 4),
        ),
        Workload(
            "W4",
            "600 KB of FP32 in, 64 bytes out",
            "pool",
            (16,),
            perf_analyzer=True,
            tolerance=0.01,
        ),
        Workload(
            "W4-echo",
            "600 KB of FP32 in and out",
            "echo",
            (16,),
            perf_analyzer=True,
            usual_peers=HTTP_PEERS,
        ),
        Workload(
            "JSON",
            "tiny model: two INT32[1,16] as JSON, other numbers in every request",
            "add_sub",
            (1, 16, 64),
            batches=(),
            encoding=JSON,
            variants=64,
            usual_peers=HTTP_PEERS,
        ),
        Workload(
            "JSON-1k",
            "1,000 FP32 numbers as JSON, in and out",
            "double",
            (16,),
            tolerance=1e-5,
            batches=(),
            encoding=JSON,
            numbers=1_000,
            variants=16,
            usual_peers=HTTP_PEERS,
        ),
        Workload(
            "JSON-100k",
            "100,000 FP32 numbers as JSON, in and out",
            "double",
            (16,),
            tolerance=1e-5,
            batches=(),
            encoding=JSON,
            numbers=100_000,
            variants=4,
            usual_peers=HTTP_PEERS,
        ),
        Workload(
            "MLP",
            "a network of middle size: four layers of 512, FP32[512] in and out",
            "mlp",
            (1, 16, 64),
            perf_analyzer=True,
            tolerance=0.001,
            batches=(1, 16, 64),
            usual_peers=V2_PEERS,
        ),
        Workload(
            "models-1-alone",
            "1 model like W1's without batching: an execution for each request",
            "add_sub",
            (64,),
            usual_peers=("shoal", "triton-onnx"),
            copies=1,
            batched=False,
        ),
        *(
            Workload(
                f"models-{copies}",
                f"{copies:,} model{'s' * (copies > 1)} like W1's, a request to each in turn",
                "add_sub",
                (64,),
                usual_peers=V2_PEERS,
                copies=copies,
            )
            for copies in (1, 10, 100, 1_000)
        ),
        Workload(
            "changing",
            "the tiny model under a load that changes every two seconds",
            "add_sub",
            (64,),
            batches=(),
            usual_peers=V2_PEERS,
            method=CHANGING,
        ),
        Workload(
            "tails",
            "the tiny model's slowest requests",
            "add_sub",
            (64,),
            batches=(),
            usual_peers=("shoal", "triton-onnx"),
            method=TAILS,
        ),
    )
}
