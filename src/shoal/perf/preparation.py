"""From options to a job: read the model's metadata, load the data, encode the requests.

options --Server.facts--> ModelFacts --data--> streams --requests--> LoadJob
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.client import Client, ServerError
from shoal.client.address import parse
from shoal.client.region import ALIGNMENT
from shoal.core.dtypes import from_name
from shoal.errors import InvalidArgument, NotFound, Unavailable
from shoal.perf import data, model_facts, requests, server_side
from shoal.perf.connection import Endpoint, Tls, tls_context
from shoal.perf.data import DataOptions, InputData
from shoal.perf.messages import LoadJob
from shoal.perf.model_facts import ModelFacts
from shoal.perf.options import PerfOptions
from shoal.perf.requests import Content, RegionReference, Replay, RequestLayout
from shoal.perf.sequences import SequencePlan
from shoal.perf.server_side import Key, ServerSide, Snapshot

_DEFAULT_URLS = {"http": "localhost:8000", "grpc": "localhost:8001"}
_USUAL_LENGTH = 20


def endpoint(options: PerfOptions) -> Endpoint:
    """The address of the server. Raises ClientError for an invalid one."""
    grpc = options.protocol == "grpc"
    url = options.url or _DEFAULT_URLS[options.protocol]
    address = parse(url, options.protocol, encrypted=grpc and options.ssl_grpc_use_ssl)
    tls = None
    if address.encrypted and grpc:
        tls = Tls(
            options.ssl_grpc_root_certifications_file,
            options.ssl_grpc_certificate_chain_file,
            options.ssl_grpc_private_key_file,
        )
    elif address.encrypted:
        tls = Tls(
            options.ssl_https_ca_certificates_file,
            options.ssl_https_client_certificate_file,
            options.ssl_https_private_key_file,
            options.ssl_https_verify_peer,
            options.ssl_https_verify_host,
        )
    return Endpoint(
        options.protocol,
        address.host,
        address.port,
        address.encrypted,
        address.prefix,
        address.socket,
        tls=tls,
    )


class MeasuredServer:
    """The server under load: its metadata and statistics. Close it at the end."""

    def __init__(self, where: Endpoint, headers: Sequence[tuple[str, str]] = ()) -> None:
        """No connection is opened yet."""
        encryption = None
        scheme = where.protocol
        if where.tls is not None:
            encryption = tls_context(where.tls, h2=scheme == "grpc")
            scheme += "s"
        url = where.shown if where.socket else f"{scheme}://{where.authority}{where.prefix}"
        self.client = Client(url, protocol=where.protocol, headers=dict(headers), ssl=encryption)
        self._where = where
        self._statistics: bool | None = None

    def facts(self, options: PerfOptions) -> ModelFacts:
        """The facts of the model. Raises NotFound, or Unavailable when it is not ready."""
        name, version = options.model_name, options.model_version
        try:
            metadata = self.client.metadata(name, version=version)
            config = self.client.config(name, version=version)
        except ServerError as error:
            raise self._explained(name, version, error) from None
        known: dict[Key, Mapping[str, Any]] = {}

        def config_of(model: str, version: str) -> Mapping[str, Any]:
            if (model, version) not in known:
                known[model, version] = self.client.config(model, version=version)
            return known[model, version]

        return model_facts.read(metadata, config, version, config_of, options.composing())

    def snapshot(self, facts: ModelFacts) -> Snapshot | None:
        """The statistics of the model and its composing models; None when the server has none."""
        if self._statistics is None:
            extensions = self.client.server_metadata().get("extensions", ())
            self._statistics = "statistics" in extensions
        if not self._statistics:
            return None
        found: Snapshot = {}
        for name, version in [(facts.name, facts.version), *facts.composing]:
            found.update(server_side.read(self.client.statistics(name, version=version)))
        return found

    def compare(self, facts: ModelFacts, before: Snapshot, after: Snapshot) -> ServerSide:
        """The difference of two snapshots."""
        key = (facts.name, facts.version)
        return server_side.difference(before, after, key, facts.composing)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def _explained(self, name: str, version: str, error: ServerError) -> Exception:
        """The error for missing metadata, with the models that are ready."""
        what = f"model '{name}'" + (f" version {version}" if version else "")
        message = f"{self._where.shown} has no {what} to measure: {error.message}"
        try:
            rows = self.client.index()
        except ServerError:  # not every server lists its models
            return NotFound(message)
        ready = sorted({str(row["name"]) for row in rows if row.get("state") == "READY"})
        if not ready:
            return Unavailable(f"{message}; no model is ready there")
        return NotFound(f"{message}; models that are ready: {', '.join(ready)}")


def load_data(options: PerfOptions, facts: ModelFacts) -> InputData:
    """The data of a run. Raises InvalidArgument."""
    facts.check_batch(options.batch_size)
    if facts.decoupled and not options.streaming:
        raise InvalidArgument(
            f"model '{facts.name}' is decoupled (it sends any number of responses), which needs a "
            f"stream: add -i grpc --streaming"
        )
    given = "string_data" in options.given
    return data.load(
        facts,
        DataOptions(
            options.sources,
            options.shapes(),
            options.string_length,
            options.string_data if given else None,
        ),
    )


def sequence_plan(
    options: PerfOptions, facts: ModelFacts, found: InputData, concurrency: float
) -> SequencePlan | None:
    """The settings of sequences; None for models without them. Raises InvalidArgument when there
    are fewer ids than concurrent sequences."""
    if not facts.sequences:
        return None
    first, count = options.sequence_ids()
    at_once = options.num_of_sequences if options.by_rate else concurrency
    if count and count < at_once:
        raise InvalidArgument(
            f"--sequence-id-range has {count} ids for {at_once:g} concurrent sequences; widen it"
        )
    return SequencePlan(
        first,
        count,
        options.sequence_length or _USUAL_LENGTH,
        options.sequence_length_variation,
        whole_streams=found.given and not options.sequence_length,
    )


@contextlib.contextmanager
def job(
    options: PerfOptions,
    server: MeasuredServer,
    where: Endpoint,
    facts: ModelFacts,
    found: InputData,
) -> Iterator[LoadJob]:
    """The job of the workers; shared memory, if any, is registered during this block."""
    batch = options.batch_size
    contents = [
        [data.rows(facts, stream, first, batch) for first in range(len(stream))]
        for stream in found.streams
    ]
    outputs = tuple(tensor.name for tensor in facts.outputs)
    with contextlib.ExitStack() as stack:
        regions: dict[str, RegionReference] = {}
        if options.shared_memory == "system":
            contents, regions = _shared(options, server, facts, contents, stack)
        layout = RequestLayout(
            facts.name,
            options.model_version,
            outputs,
            regions,
            options.parameters(),
            binary_inputs=options.input_tensor_format == "binary",
            binary_outputs=options.output_tensor_format == "binary",
            empty_final=facts.decoupled,
        )
        levels = options.levels()
        yield LoadJob(
            endpoint=where,
            streams=_replays(options, where, layout, contents),
            sequences=sequence_plan(options, facts, found, levels.end or levels.start),
            slots_for_sequences=options.num_of_sequences,
            streaming=options.streaming,
            decoupled=facts.decoupled,
            metadata=options.headers(),
            compression=_compression(options),
            keep_details=bool(options.profile_export_file),
        )


def check_responses(
    options: PerfOptions, server: MeasuredServer, facts: ModelFacts, found: InputData
) -> None:
    """Send every step with expected outputs once, and compare. Raises InvalidArgument."""
    for stream, expected in zip(found.streams, found.expected, strict=False):
        for number, (step, outputs) in enumerate(zip(stream, expected, strict=False)):
            _check_step(options, server, facts, step, outputs, number)


def _check_step(
    options: PerfOptions,
    server: MeasuredServer,
    facts: ModelFacts,
    step: data.Step,
    outputs: data.Step,
    number: int,
) -> None:
    from shoal.client import Input

    inputs: dict[str, Any] = {
        each.name: Input(each.raw, each.datatype, each.shape)
        for each in data.rows(facts, [step], 0, 1)
    }
    result = server.client.infer(facts.name, inputs, version=options.model_version)
    for name, value in outputs.items():
        datatype = next(tensor.datatype for tensor in facts.outputs if tensor.name == name)
        right: Any = np.frombuffer(value.raw, from_name(datatype).numpy)
        if datatype == "BYTES":
            from shoal.core import bytes_tensor

            right = bytes_tensor.decode(value.raw, math.prod(value.shape), name)
        answer = np.asarray(result[name]).reshape(-1)
        if answer.shape != right.shape or not np.array_equal(answer, right):
            raise InvalidArgument(
                f"step {number}: output '{name}' differs from validation_data; the server "
                f"returned {answer[:8].tolist()}{' …' if len(answer) > 8 else ''}"
            )


def _replays(
    options: PerfOptions,
    where: Endpoint,
    layout: RequestLayout,
    contents: list[list[list[Content]]],
) -> list[list[Replay]]:
    if where.protocol == "http":
        head = requests.http_head(
            where.authority, layout, prefix=where.prefix, headers=options.headers()
        )
        return [
            [requests.http_request(head, layout, each) for each in stream] for stream in contents
        ]
    compression = _compression(options)
    return [
        [requests.grpc_request(layout, each, compression) for each in stream] for stream in contents
    ]


def _compression(options: PerfOptions) -> str:
    chosen = options.grpc_compression_algorithm
    return "" if chosen == "none" else chosen


def _shared(
    options: PerfOptions,
    server: MeasuredServer,
    facts: ModelFacts,
    contents: list[list[list[Content]]],
    stack: contextlib.ExitStack,
) -> tuple[list[list[list[Content]]], dict[str, RegionReference]]:
    """Copy the inputs to shared memory and reserve space for the outputs."""
    sizes = [len(each.raw) for stream in contents for step in stream for each in step]
    room = {
        tensor.name: _output_bytes(tensor, options.batch_size, options.output_shared_memory_size)
        for tensor in facts.outputs
    }
    total = sum(_aligned(size) for size in [*sizes, *room.values()])
    name = f"shoal-perf-{os.getpid()}"
    region = stack.enter_context(server.client.shared_memory(name, max(1, total)))
    at = 0
    placed: list[list[list[Content]]] = []
    for stream in contents:
        steps = []
        for step in stream:
            inputs = []
            for each in step:
                region.memory[at : at + len(each.raw)] = each.raw
                where = RegionReference(name, at, len(each.raw))
                inputs.append(Content(each.name, each.datatype, each.shape, b"", where))
                at += _aligned(len(each.raw))
            steps.append(inputs)
        placed.append(steps)
    regions = {}
    for output, size in room.items():
        regions[output] = RegionReference(name, at, size)
        at += _aligned(size)
    return placed, regions


def _output_bytes(tensor: model_facts.TensorFacts, batch: int, unknown: int) -> int:
    if tensor.dynamic or tensor.datatype == "BYTES":
        return unknown * batch
    return max(1, math.prod(tensor.shape)) * from_name(tensor.datatype).itemsize * batch


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
