"""gRPC: HTTP/2 frames, header blocks, and inference messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError

from fuzz.outcomes import Outcome, outcome, pieces
from shoal.core.buffers import BufferPool
from shoal.errors import ShoalError
from shoal.frontends.grpc import compression
from shoal.frontends.grpc.compression import CompressionError, TooLarge
from shoal.frontends.grpc.dispatch import Dispatcher
from shoal.frontends.grpc.h2 import Connection
from shoal.frontends.grpc.headers import HeaderDecoder, MalformedHeaders, UnusableHeaders
from shoal.frontends.grpc.service import GrpcService
from shoal.frontends.grpc.settings import GrpcLimits, GrpcSettings
from shoal.wire.grpc_request import InferDecoder
from shoal.wire.http2_frames import PREFACE, ConnectionFault
from shoal.wire.proto import messages
from tests.support.grpc_calls import DirectInbox
from tests.support.scripted_engine import ScriptedEngine

_SETTINGS = GrpcSettings(GrpcLimits(max_receive_message_bytes=1 << 16))
_MOST_BYTES = 1 << 16
_CACHING = InferDecoder()  # kept: what it has read before must not change what it reads
_PLAIN = InferDecoder(caches=False)


def grpc_frames(data: bytes) -> None:
    """No bytes make a connection raise, and a closed connection holds no memory.

    Whether it ends does not depend on how the bytes are cut.
    """
    assert _converse(pieces(data)) == _converse([data[1:]])


def _converse(stream: Iterable[bytes]) -> bool:
    """Send a preface and then `stream`; returns whether the server ended the connection."""
    service = GrpcService(ScriptedEngine(), DirectInbox())
    dispatcher = Dispatcher(service, _SETTINGS, lambda _: None, lambda: 10**9, BufferPool())
    connection = Connection(
        dispatcher.settings,
        dispatcher.accept,
        lambda: None,
        lambda: 10**9,
        dispatcher.shared,
        dispatcher.fast_path,
    )
    connection.peer = "ipv4:127.0.0.1:1"
    rest = PREFACE + bytes.fromhex("000000040000000000")
    for piece in stream:
        rest = _feed(connection, dispatcher, rest + piece)
    ended = connection.closed
    connection.close()
    service.close()
    assert dispatcher.memory.unfinished_bytes == 0
    assert not connection.streams
    return ended


def _feed(connection: Connection, dispatcher: Dispatcher, data: bytes) -> bytes:
    """Pass bytes on as the transport does; returns those that were not used."""
    while data:
        direct = connection.direct
        if direct is not None:
            count = min(len(direct), len(data))
            direct[:count] = data[:count]
            connection.direct_filled(count)
            data = data[count:]
            continue
        used = connection.receive(data)
        data = data[used:]
        if not connection.interrupted and connection.direct is None:
            break
    for fast_path in dispatcher._fast_paths:
        fast_path.inbox.end_iteration()
    sender = connection.sender
    while sender.sendable or sender.out:
        if sender.sendable:
            sender.pump()
        if not sender.out:
            break
        sender.out = []
    sender.awake = False
    return data


def header_blocks(data: bytes) -> None:
    """Blocks of one connection, each with its length before it: read, or refused."""
    decoder = HeaderDecoder(8192, 8192)
    position = 0
    while position < len(data):
        length = data[position]
        block = data[position + 1 : position + 1 + length]
        position += 1 + length
        kind, _ = outcome(
            lambda: decoder.request(block),  # noqa: B023 - called at once
            MalformedHeaders,
            UnusableHeaders,
            ConnectionFault,
        )
        if kind == "ConnectionFault":
            return


def infer_message(data: bytes) -> None:
    """What is accepted is a message of protobuf's, too, and reads the same from the cache."""
    expected = _decoded(_PLAIN, data)
    for _ in range(2):
        assert _decoded(_CACHING, data) == expected
    if expected[0] == "returned":
        kind, _ = outcome(lambda: messages.ModelInferRequest.FromString(data), DecodeError)
        assert kind == "returned", "protobuf refuses what we accept"


def _decoded(decoder: InferDecoder, data: bytes) -> Outcome:
    def decode() -> Any:
        found = decoder.decode(data)
        head = found.head
        inputs = {
            name: (tensor.datatype, tensor.shape, bytes(tensor.raw) if tensor.has_raw else None)
            for name, tensor in found.inputs.items()
        }
        return (
            found.id, found.sequence_id, head.model_name, head.model_version, inputs, head.outputs,
            repr(head.parameters), head.sequence_start, head.sequence_end, head.priority,
            head.timeout_us,
        )  # fmt: skip

    return outcome(decode, ShoalError)


def compressed_message(data: bytes) -> None:
    """What is inflated stays within its limit, and both functions agree."""
    for encoding in ("gzip", "deflate"):
        kind, plain = outcome(
            lambda: compression.decompress(data, encoding, _MOST_BYTES),  # noqa: B023
            CompressionError,
            TooLarge,
        )
        quick = compression.decompress_quickly(memoryview(data), encoding, _MOST_BYTES)
        if kind == "returned":
            assert len(plain) <= _MOST_BYTES
        assert quick is None or bytes(quick) == plain
