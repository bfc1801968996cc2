"""The gRPC services, whatever carries them: one table from path to method.

transport --method(path)--> restriction --> key --> handler --> engine
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from shoal.access.access import Access
from shoal.core.inbox import LoopInbox
from shoal.core.model_loading import ModelLoading
from shoal.core.tensor import Buffer
from shoal.engine import Engine
from shoal.errors import ShoalError
from shoal.frontends.forwarding import HeaderForwarding
from shoal.frontends.grpc import reflection
from shoal.frontends.grpc.access import RESTRICTED
from shoal.frontends.grpc.call import Call, Kind, Method
from shoal.frontends.grpc.dispatch import Dispatcher
from shoal.frontends.grpc.errors import fail, note_error, status_of
from shoal.frontends.grpc.fast_path import GrpcFastPath
from shoal.frontends.grpc.health import HealthMethods
from shoal.frontends.grpc.infer import InferMethod
from shoal.frontends.grpc.inference import GrpcInference
from shoal.frontends.grpc.keyed_fast_path import KeyedGrpcFastPath
from shoal.frontends.grpc.keys import Check, GrpcKeys, check_trace, names_model
from shoal.frontends.grpc.memory import MemoryMethods
from shoal.frontends.grpc.message import MessageFault
from shoal.frontends.grpc.metadata import MetadataMethods
from shoal.frontends.grpc.repository import RepositoryMethods
from shoal.frontends.grpc.runtime_settings import RuntimeSettingMethods
from shoal.frontends.grpc.status import StatusCode
from shoal.frontends.grpc.stream import StreamInferMethod
from shoal.frontends.shared_memory import SharedMemory
from shoal.frontends.threads import without_frames
from shoal.frontends.uploads import UploadRule
from shoal.frontends.waiting import when_loaded
from shoal.wire.grpc_request import check_inflated
from shoal.wire.proto import messages

Answer = Callable[[Buffer], bytes]
Start = Callable[[Call], None]

INFERENCE = "/inference.GRPCInferenceService/"
RESTRICTION_PREFIX = "triton-grpc-protocol-"
_SMALL_REQUEST_BYTES = 1 << 20  # more than any request has that brings no tensors and no files
_THREADS = 16


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """What can be set about the services. Set once, when the server starts."""

    header_forward_pattern: str = ""
    # Category -> (key, value): such calls must bring the metadata triton-grpc-protocol-<key>.
    restricted_protocols: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    plans: bool = True  # whether repeated requests may take the fast path
    model_upload: str = "auto"  # whose model files are accepted: auto, true or false
    max_request_bytes: int = 64 << 20  # of inference requests, besides raw tensors


class GrpcService:
    """Everything above the transport. Its methods belong to the thread of one event loop."""

    def __init__(
        self,
        engine: Engine,
        inbox: LoopInbox,
        options: GrpcOptions | None = None,
        memory: SharedMemory | None = None,
        access: Access | None = None,
    ) -> None:
        """Raises InvalidArgument for a forward pattern that is no regular expression.

        `memory` is shared with the other frontends: a region is registered for all of them. With
        `access`, calls need a key.
        """
        self._keys = GrpcKeys(access) if access is not None else None
        hidden = access.secret_headers if access is not None else frozenset[str]()
        options = options or GrpcOptions()
        memory = memory or SharedMemory(allowed=False)
        pattern = options.header_forward_pattern
        self._restrictions = options.restricted_protocols
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shoal-grpc-control")
        forwarding = HeaderForwarding(pattern, hidden) if pattern else None
        self._matches_templates = options.plans and forwarding is None
        self._inference = GrpcInference(
            engine,
            inbox,
            forwarding,
            plans=options.plans,
            regions=memory,
            max_typed_bytes=options.max_request_bytes,
        )
        self._stream = StreamInferMethod(self._inference)
        self._health = HealthMethods(engine)
        self._methods: dict[str, Method] = {}
        self._add_inference()
        self._add_metadata(MetadataMethods(engine))
        self._add_repository(RepositoryMethods(engine), UploadRule(options.model_upload))
        self._add_memory(MemoryMethods(memory))
        self._add_settings(RuntimeSettingMethods(engine))
        self._add_standard()

    def method(self, path: str) -> Method | None:
        """The method behind '/package.Service/Method'."""
        return self._methods.get(path)

    def drain(self) -> None:
        """End streams as soon as their requests are answered; they get no new ones."""
        self._stream.drain()
        self._health.drain()

    def close(self) -> None:
        """Stop the threads. Calls in progress are still answered."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- the table

    def _add_inference(self) -> None:
        infer = InferMethod(self._inference)
        # The fast path knows no forwarded headers.
        fast_path: Callable[[Dispatcher, int], GrpcFastPath] | None = None
        if self._matches_templates and self._keys is None:
            fast_path = partial(GrpcFastPath, infer)
        elif self._matches_templates and self._keys is not None:
            fast_path = partial(KeyedGrpcFastPath, infer, self._keys)
        unary = Method(Kind.UNARY, infer.start, check_inflated=_check_inflated, fast_path=fast_path)
        self._add("inference", "ModelInfer", unary)
        stream = Method(Kind.STREAM, self._stream.start, check_inflated=_check_inflated)
        self._add("inference", "ModelStreamInfer", stream)

    def _add_metadata(self, metadata: MetadataMethods) -> None:
        self._add_small("health", "ServerLive", metadata.server_live)
        self._add_small("health", "ServerReady", metadata.server_ready, asks=metadata.asks_process)
        ready = _respond_off_loop(metadata.model_ready, metadata.asks_readiness, self._threads)
        method = Method(Kind.UNARY, ready, _SMALL_REQUEST_BYTES, compress=False)
        self._add(
            "health", "ModelReady", method, check=names_model(messages.ModelReadyRequest, "name")
        )
        self._add_small("metadata", "ServerMetadata", metadata.server_metadata)
        for category, name, answer, request in (
            ("metadata", "ModelMetadata", metadata.model_metadata, messages.ModelMetadataRequest),
            ("model-config", "ModelConfig", metadata.model_config, messages.ModelConfigRequest),
        ):
            start = _respond_when_loaded(answer)
            method = Method(Kind.UNARY, start, _SMALL_REQUEST_BYTES, compress=False)
            self._add(category, name, method, check=names_model(request, "name"))

        def statistics(call: Call) -> None:
            answer = partial(metadata.model_statistics, _permits(call))
            _respond_off_loop(answer, metadata.counts_all_models, self._threads)(call)

        self._add(
            "statistics",
            "ModelStatistics",
            Method(Kind.UNARY, statistics, _SMALL_REQUEST_BYTES, compress=False),
            check=names_model(messages.ModelStatisticsRequest, "name"),
        )

    def _add_repository(self, repository: RepositoryMethods, uploads: UploadRule) -> None:
        def index(call: Call) -> None:
            _respond_on_thread(partial(repository.index, _permits(call)), self._threads)(call)

        def load(call: Call) -> None:
            headers = [key for key, _ in call.metadata]
            has_key = None if call.caller is None else call.caller.upload
            upload = partial(uploads.check, call.peer, headers, has_key=has_key)
            model = _check_nothing if call.caller is None else call.caller.check_model
            _respond_on_thread(partial(repository.load, upload, model), self._threads)(call)

        unload = _respond_on_thread(repository.unload, self._threads)
        unload_name = names_model(messages.RepositoryModelUnloadRequest, "model_name")
        small = partial(Method, Kind.UNARY, max_receive_bytes=_SMALL_REQUEST_BYTES, compress=False)
        for name, method, check in (
            ("RepositoryIndex", small(index), None),
            ("RepositoryModelUnload", small(unload), unload_name),
            ("RepositoryModelLoad", Method(Kind.UNARY, load, compress=False), None),
        ):
            self._add("model-repository", name, method, check=check)

    def _add_memory(self, memory: MemoryMethods) -> None:
        category = "shared-memory"
        for name, answer in (
            ("SystemSharedMemoryStatus", memory.system_status),
            ("CudaSharedMemoryStatus", memory.cuda_status),
            ("SystemSharedMemoryRegister", memory.system_register),
            ("SystemSharedMemoryUnregister", memory.system_unregister),
            ("CudaSharedMemoryUnregister", memory.cuda_unregister),
        ):
            self._add_small(category, name, answer, asks=memory.asks_process)
        # To wake a GPU takes a while.
        register = _respond_on_thread(memory.cuda_register, self._threads)
        method = Method(Kind.UNARY, register, _SMALL_REQUEST_BYTES, compress=False)
        self._add(category, "CudaSharedMemoryRegister", method)

    def _add_settings(self, settings: RuntimeSettingMethods) -> None:
        asks = settings.asks_process
        self._add_small("trace", "TraceSetting", settings.trace, check=check_trace, asks=asks)
        self._add_small("logging", "LogSettings", settings.logging, asks=asks)

    def _add_standard(self) -> None:
        """The services that are not Triton's."""
        health = "/grpc.health.v1.Health/"
        asks = self._health.asks_process
        self._add_small("health", "Check", self._health.check, health, asks=asks)
        watch = Method(Kind.STREAM, self._health.watch, _SMALL_REQUEST_BYTES, compress=False)
        self._add("health", "Watch", watch, health)
        reflect = Method(Kind.STREAM, reflection.reflect, _SMALL_REQUEST_BYTES, compress=False)
        for version in ("v1", "v1alpha"):
            service = f"/grpc.reflection.{version}.ServerReflection/"
            self._add("metadata", "ServerReflectionInfo", reflect, service)

    def _add_small(
        self,
        category: str,
        name: str,
        answer: Answer,
        service: str = INFERENCE,
        check: Check | None = None,
        asks: Callable[[Buffer], bool] | None = None,
    ) -> None:
        """A method that responds immediately, without tensors, unless it `asks` another process."""
        start = _respond_at_once(answer)
        if asks is not None:
            start = _respond_off_loop(answer, asks, self._threads)
        method = Method(Kind.UNARY, start, _SMALL_REQUEST_BYTES, compress=False)
        self._add(category, name, method, service, check)

    def _add(
        self,
        category: str,
        name: str,
        method: Method,
        service: str = INFERENCE,
        check: Check | None = None,
    ) -> None:
        """`check` is whether the caller's key permits what the message asks for."""
        if self._keys is not None:
            method = self._keys.guard(method, category, check)
        restriction = self._restrictions.get(category)
        if restriction is not None:
            method = _restricted(method, *restriction)
        self._methods[service + name] = method


def _permits(call: Call) -> Callable[[str], bool]:
    """Whether the caller's key permits a model."""
    return _every if call.caller is None else call.caller.may_use


def _every(_: str) -> bool:
    return True


def _check_nothing(_: str) -> None:
    return


def _check_inflated(message: Buffer) -> None:
    try:
        check_inflated(message, _SMALL_REQUEST_BYTES)
    except ShoalError as error:
        raise MessageFault(status_of(error), error.message) from None


def _respond_at_once(answer: Answer) -> Start:
    def start(call: Call) -> None:
        def on_message(message: Buffer) -> None:
            try:
                call.reply([answer(message)])
            except Exception as error:  # noqa: BLE001 - becomes the response
                fail(call, error)

        call.on_message = on_message

    return start


def _respond_when_loaded(answer: Answer) -> Start:
    """For what a model has to be loaded for, where it loads on demand."""

    def start(call: Call) -> None:
        def on_message(message: Buffer) -> None:
            attempt(message, None)

        def attempt(message: Buffer, failure: ShoalError | None) -> None:
            try:
                if failure is not None:
                    raise failure
                call.reply([answer(message)])
            except ModelLoading as pending:
                call.on_cancel = when_loaded(pending, partial(attempt, message))
            except Exception as error:  # noqa: BLE001 - becomes the response
                fail(call, error)

        call.on_message = on_message

    return start


def _respond_on_thread(answer: Answer, threads: ThreadPoolExecutor) -> Start:
    """For what blocks. The client may leave meanwhile; the work is done all the same."""

    def start(call: Call) -> None:
        def on_message(message: Buffer) -> None:
            loop = asyncio.get_running_loop()
            work = without_frames(partial(answer, message))
            loop.run_in_executor(threads, work).add_done_callback(settle)

        def settle(future: asyncio.Future[bytes]) -> None:
            try:
                call.reply([future.result()])
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
                fail(call, error)

        call.on_message = on_message

    return start


def _respond_off_loop(
    answer: Answer, is_slow: Callable[[Buffer], bool], threads: ThreadPoolExecutor
) -> Start:
    """For what blocks only sometimes."""
    at_once = _respond_at_once(answer)
    on_thread = _respond_on_thread(answer, threads)

    def start(call: Call) -> None:
        def on_message(message: Buffer) -> None:
            try:
                (on_thread if is_slow(message) else at_once)(call)
            except Exception as error:  # noqa: BLE001 - becomes the response
                fail(call, error)
                return
            assert call.on_message is not None
            call.on_message(message)

        call.on_message = on_message

    return start


def _restricted(method: Method, key: str, value: str) -> Method:
    """The same method for clients that send the right metadata."""
    header = RESTRICTION_PREFIX + key
    name, secret = header.lower(), value.encode()  # keys arrive in lower case

    def start(call: Call) -> None:
        given = [text for field, text in call.metadata if field == name and isinstance(text, str)]
        if any(hmac.compare_digest(text.encode(), secret) for text in given):
            method.start(call)
            return
        text = f"{RESTRICTED} '{header}'"
        note_error(call, StatusCode.UNAVAILABLE, text)
        call.finish(StatusCode.UNAVAILABLE, text)

    return replace(method, start=start, fast_path=None)
