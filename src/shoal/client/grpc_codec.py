"""gRPC: calls encoded as messages with their headers, responses decoded. No sockets.

    InferenceCall --cached head--> b"…" + raw tensors      b"…" --split off tensors--> cached head

Inference messages are encoded and decoded by hand, so that tensors are not copied; protobuf does
the others and is imported on first use.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

from shoal.client.address import Address
from shoal.client.codec import (
    CallOptions,
    Headers,
    InferenceCall,
    PreparedCall,
    RawRequest,
    RawResponse,
)
from shoal.client.errors import (
    GRPC_STATUS,
    ClientError,
    InvalidInput,
    ProtocolError,
    Timeout,
    server_error,
)
from shoal.client.grpc_infer import (
    ResponseHead,
    encoded_parameters,
    request_head,
    response_head,
    with_contents,
)
from shoal.client.grpc_messages import array_of_contents, plain
from shoal.client.region import fill_from_places
from shoal.client.result import Output, Result
from shoal.core.tensor import Buffer
from shoal.errors import ShoalError
from shoal.wire.http2_frames import literal
from shoal.wire.protobuf_wire import delimited, prefix, tag, take_out

SERVICE = "/inference.GRPCInferenceService/"
_CACHED = 256
_KEY = re.compile(r"[0-9a-z_.\-]+")
_RAW_OUTPUTS = tag(6)
_RAW_INPUTS = 7
_MOST_DIGITS = 99_999_999


class GrpcCodec:
    """The protocol over gRPC, for one server."""

    def __init__(self, address: Address, headers: Headers) -> None:
        """`headers` are sent with every call. Raises InvalidInput for an invalid one."""
        scheme = b"\x87" if address.encrypted else b"\x86"
        authority = address.authority.encode()
        # Entries of HPACK's static table: 3 is POST, 6 and 7 the schemes, 1 :authority, 31
        # content-type. Nothing is added to the dynamic table, so blocks can be reused.
        self._start = b"\x83" + scheme + _named(1, authority)
        self._end = _named(31, b"application/grpc") + literal(b"te", b"trailers")
        self._end += _metadata(headers)
        self._blocks: dict[tuple[str, float | None], bytes] = {}
        self._heads: dict[Any, bytes] = {}
        self._answers: dict[bytes, ResponseHead] = {}

    # ---- inference

    def infer(self, infer_call: InferenceCall, options: CallOptions) -> PreparedCall[Result]:
        """ModelInfer."""
        parts, size = self.infer_message(infer_call)
        request = RawRequest(parts, size, self.block("ModelInfer", options))
        read: Callable[[RawResponse], Result] = self.read_result
        if infer_call.places:

            def read(response: RawResponse) -> Result:
                result = self.read_result(response)
                fill_from_places(result, infer_call.places)
                return result

        return PreparedCall(request, read, "sequence_id" not in infer_call.parameters)

    def infer_message(self, infer_call: InferenceCall) -> tuple[list[Buffer], int]:
        """A ModelInferRequest, in parts, and its size."""
        if not infer_call.binary:
            return with_contents(infer_call)
        tensors = infer_call.tensors
        if infer_call.places or any(each.placed is not None for each in tensors):
            head = request_head(infer_call)
        else:
            key = (
                infer_call.model,
                infer_call.version,
                tuple([(each.name, each.datatype, each.shape) for each in tensors]),
                infer_call.outputs,
                tuple(infer_call.classes.items()) if infer_call.classes else None,
            )
            known = self._heads.get(key)
            if known is None:
                known = request_head(infer_call)
                if len(self._heads) >= _CACHED:
                    self._heads.clear()
                self._heads[key] = known
            head = known
        if infer_call.id:
            head += delimited(3, infer_call.id.encode())
        if infer_call.parameters:
            head += encoded_parameters(4, infer_call.parameters)
        parts: list[Buffer] = []
        size = 0
        for each in tensors:
            if each.placed is not None:
                continue
            head += prefix(_RAW_INPUTS, each.nbytes)
            parts.append(head)
            parts.append(each.raw)
            size += len(head) + each.nbytes
            head = b""
        if head:
            parts.append(head)
            size += len(head)
        return parts, size

    def read_result(self, response: RawResponse) -> Result:
        """The result of ModelInfer."""
        if response.status:
            raise refusal(response)
        return self.result(response.body)

    def result(self, body: Buffer) -> Result:
        """The result in a ModelInferResponse."""
        spans: list[tuple[int, int]] = []
        try:
            rest = take_out(body, {_RAW_OUTPUTS: spans})
        except ShoalError as error:
            raise ProtocolError(f"the server's response is malformed: {error}") from None
        head = self._answers.get(rest)
        if head is None:
            head = response_head(rest)
            if not head.id:
                if len(self._answers) >= _CACHED:
                    self._answers.clear()
                self._answers[rest] = head
        view = memoryview(body)
        outputs: dict[str, Output] = {}
        for index, (name, datatype, shape, parameters, contents) in enumerate(head.outputs):
            output = Output(name, datatype, shape, None, None, parameters)
            if contents is not None:
                output.array = array_of_contents(contents, datatype, shape)
            elif index < len(spans):
                start, end = spans[index]
                output.raw = view[start:end]
            outputs[name] = output
        return Result(
            head.model_name,
            head.model_version,
            outputs,
            id=head.id,
            parameters=head.parameters,
            raw=body,
        )

    def stream(self, model: str, options: CallOptions) -> RawRequest:
        """The beginning of ModelStreamInfer; its messages name their models themselves."""
        del model
        return RawRequest([], 0, self.block("ModelStreamInfer", options))

    def stream_response(self, body: Buffer) -> tuple[Result | None, ClientError | None]:
        """The result in a ModelStreamInferResponse, and the error it comes with."""
        errors: list[tuple[int, int]] = []
        results: list[tuple[int, int]] = []
        try:
            take_out(body, {tag(1): errors, tag(2): results})
        except ShoalError as error:
            raise ProtocolError(f"the server's response is malformed: {error}") from None
        view = memoryview(body)
        result = self.result(view[slice(*results[-1])]) if results else None
        if errors:
            text = bytes(view[slice(*errors[-1])]).decode("utf-8", "replace")
            return result, server_error(text, "UNKNOWN", 2, "" if result is None else result.id)
        return result, None

    # ---- status

    def live(self, options: CallOptions) -> PreparedCall[bool]:
        """ServerLive."""
        return self._yes("ServerLive", {}, options, "live")

    def ready(self, options: CallOptions) -> PreparedCall[bool]:
        """ServerReady."""
        return self._yes("ServerReady", {}, options, "ready")

    def model_ready(self, model: str, version: str, options: CallOptions) -> PreparedCall[bool]:
        """ModelReady; false for an unknown model, for which the server returns an error."""
        fields = {"name": model, "version": version}
        return self._yes("ModelReady", fields, options, "ready", no=("NOT_FOUND", "UNAVAILABLE"))

    def server_metadata(self, options: CallOptions) -> PreparedCall[dict[str, Any]]:
        """ServerMetadata."""
        return self._call("ServerMetadata", {}, options, plain)

    def metadata(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """ModelMetadata."""
        return self._call("ModelMetadata", {"name": model, "version": version}, options, plain)

    def config(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """ModelConfig."""
        fields = {"name": model, "version": version}
        return self._call("ModelConfig", fields, options, lambda found: plain(found.config))

    def statistics(
        self, model: str, version: str, options: CallOptions
    ) -> PreparedCall[list[dict[str, Any]]]:
        """ModelStatistics."""
        fields = {"name": model, "version": version}
        return self._call(
            "ModelStatistics", fields, options, lambda found: list(map(plain, found.model_stats))
        )

    # ---- the repository

    def index(self, ready: bool, options: CallOptions) -> PreparedCall[list[dict[str, Any]]]:
        """RepositoryIndex."""

        def read(found: Any) -> list[dict[str, Any]]:
            rows = map(plain, found.models)
            return [{key: value for key, value in row.items() if value} for row in rows]

        return self._call("RepositoryIndex", {"ready": ready}, options, read)

    def load(
        self, model: str, config: str, files: Mapping[str, bytes], options: CallOptions
    ) -> PreparedCall[None]:
        """RepositoryModelLoad."""
        parameters: dict[str, Any] = {"config": {"string_param": config}} if config else {}
        parameters.update({name: {"bytes_param": data} for name, data in files.items()})
        fields = {"model_name": model, "parameters": parameters}
        return self._do("RepositoryModelLoad", fields, options)

    def unload(self, model: str, dependents: bool, options: CallOptions) -> PreparedCall[None]:
        """RepositoryModelUnload."""
        parameters = {"unload_dependents": {"bool_param": True}} if dependents else {}
        fields = {"model_name": model, "parameters": parameters}
        return self._do("RepositoryModelUnload", fields, options)

    # ---- settings

    def trace_settings(
        self, model: str, change: Mapping[str, Any], options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """TraceSetting; values are lists of strings."""
        settings = {name: {"value": _texts(value)} for name, value in change.items()}

        def read(found: Any) -> dict[str, Any]:
            values = {name: list(entry.value) for name, entry in sorted(found.settings.items())}
            return {
                name: value if name == "trace_level" else "".join(value)
                for name, value in values.items()
            }

        fields = {"model_name": model, "settings": settings}
        return self._call("TraceSetting", fields, options, read)

    def log_settings(
        self, change: Mapping[str, Any], options: CallOptions
    ) -> PreparedCall[dict[str, Any]]:
        """LogSettings."""
        kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
        settings = {}
        for name, value in change.items():
            if type(value) not in kinds:
                raise InvalidInput(f"log setting '{name}' is true, false, a number or text")
            settings[name] = {kinds[type(value)]: value}

        def read(found: Any) -> dict[str, Any]:
            return {
                name: getattr(entry, entry.WhichOneof("parameter_choice"))
                for name, entry in sorted(found.settings.items())
            }

        return self._call("LogSettings", {"settings": settings}, options, read)

    # ---- shared memory

    def register(
        self, name: str, key: str, byte_size: int, options: CallOptions
    ) -> PreparedCall[None]:
        """SystemSharedMemoryRegister."""
        fields = {"name": name, "key": key, "offset": 0, "byte_size": byte_size}
        return self._do("SystemSharedMemoryRegister", fields, options)

    def unregister(self, name: str, options: CallOptions) -> PreparedCall[None]:
        """SystemSharedMemoryUnregister."""
        return self._do("SystemSharedMemoryUnregister", {"name": name}, options)

    def regions(self, options: CallOptions) -> PreparedCall[list[dict[str, Any]]]:
        """SystemSharedMemoryStatus."""
        return self._call(
            "SystemSharedMemoryStatus",
            {"name": ""},
            options,
            lambda found: [plain(region) for _, region in sorted(found.regions.items())],
        )

    # ---- requests

    def block(self, method: str, options: CallOptions) -> bytes:
        """The headers of a call, as HPACK."""
        key = (method, options.timeout_secs)
        block = self._blocks.get(key)
        if block is None:
            block = self._start + _named(4, f"{SERVICE}{method}".encode()) + self._end
            if options.timeout_secs is not None:
                block += literal(b"grpc-timeout", _timeout(options.timeout_secs))
            if len(self._blocks) >= _CACHED:
                self._blocks.clear()
            self._blocks[key] = block
        return block + _metadata(options.headers) if options.headers else block

    def _call(
        self,
        method: str,
        fields: Mapping[str, Any],
        options: CallOptions,
        read: Callable[[Any], Any],
        repeatable: bool = True,
    ) -> PreparedCall[Any]:
        from google.protobuf.message import DecodeError

        from shoal.wire.proto import messages

        try:
            body = getattr(messages, f"{method}Request")(**fields).SerializeToString()
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"this cannot be sent as {method}: {error}") from None

        def reader(response: RawResponse) -> Any:
            if response.status:
                raise refusal(response)
            kind = getattr(messages, f"{method}Response")
            try:
                return read(kind.FromString(bytes(response.body)))
            except DecodeError as error:
                raise ProtocolError(f"the server's response is malformed: {error}") from None

        return PreparedCall(
            RawRequest([body], len(body), self.block(method, options)), reader, repeatable
        )

    def _do(
        self, method: str, fields: Mapping[str, Any], options: CallOptions
    ) -> PreparedCall[None]:
        return self._call(method, fields, options, lambda _: None, repeatable=False)

    def _yes(
        self,
        method: str,
        fields: Mapping[str, Any],
        options: CallOptions,
        field: str,
        no: tuple[str, ...] = ("UNAVAILABLE",),
    ) -> PreparedCall[bool]:
        call = self._call(method, fields, options, lambda found: bool(getattr(found, field)))
        read = call.read

        def reader(response: RawResponse) -> bool:
            if response.status and GRPC_STATUS[response.status] in no:
                return False
            return bool(read(response))

        return PreparedCall(call.request, reader)


def refusal(response: RawResponse) -> ClientError:
    """The exception for a call's status."""
    status = GRPC_STATUS[response.status]
    if status == "DEADLINE_EXCEEDED":
        return Timeout(response.message or "the server did not respond in time")
    text = response.message or f"the server responded with {status}"
    return server_error(text, status, response.status, retry_after=response.retry_after)


def _named(index: int, value: bytes) -> bytes:
    """A header whose name is in HPACK's static table, without indexing."""
    first = bytes((index,)) if index < 15 else b"\x0f" + bytes((index - 15,))
    return first + literal(b"", value)[2:]


def _metadata(headers: Headers) -> bytes:
    block = b""
    for name, value in headers.items():
        key = name.lower()
        if not _KEY.fullmatch(key) or key.startswith("grpc-"):
            raise InvalidInput(f"{name!r} cannot be the name of gRPC metadata")
        if key.endswith("-bin"):
            block += literal(key.encode(), base64.b64encode(value.encode()).rstrip(b"="))
        elif not (value.isascii() and value.isprintable()):
            raise InvalidInput(
                f"the value of {name!r} is not printable ASCII; use a name that ends in -bin"
            )
        else:
            block += literal(key.encode(), value.strip().encode())
    return block


def _timeout(secs: float) -> bytes:
    millis = max(1, round(secs * 1000))
    if millis <= _MOST_DIGITS:
        return b"%dm" % millis
    return b"%dS" % min(_MOST_DIGITS, round(secs))


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [str(each) for each in value]
    return [str(value)]
