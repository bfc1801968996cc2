"""Control calls for all replicas: the ingress's own HTTP and gRPC service behind HAProxy.

    POST /v2/repository/models/m/load --> every replica that serves m --> one answer
    GET /v2/models/stats, /metrics, /v2/console --> every replica --> merged

A call that changes something has succeeded if it has on all replicas; it is kept and repeated for
replicas that join later. If it fails on some, the error names them, and nothing is kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from aiohttp import web
from google.protobuf.message import DecodeError

from shoal.access.access import AUTHORIZATION
from shoal.errors import Unavailable
from shoal.ray import merge
from shoal.ray.calls import CHANGES_MODEL, Call, Calls, grpc_subject, http_subject
from shoal.ray.config import ClusterConfig
from shoal.ray.directory import Directory, ReplicaAddress, State
from shoal.ray.haproxy import endpoint_of
from shoal.ray.haproxy_config import CONTROL_METHODS, SERVICE, bracketed
from shoal.ray.replica_calls import Answer, ReplicaCalls
from shoal.wire.proto import messages

_CHECK_SECS = 2.0  # for a question about keys
_MOST_BODY_BYTES = 1 << 30  # files of a load
_MODEL_PATH = re.compile(r"^/v2/(?:repository/)?models/([^/]+)/")
_DROPPED_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}
)
_METADATA = "/v2"  # who may read it may have the addresses
_NO_REPLICA = "no replica is ready; see /v2/replicas"

logger = logging.getLogger("ray.serve")


class Control:
    """Answers control calls from all replicas together."""

    def __init__(
        self,
        config: ClusterConfig,
        directory: Directory,
        store: Callable[[bytes], None] = lambda _dumped: None,
    ) -> None:
        """`store` keeps the calls where the next ingress finds them; it may block."""
        self._config = config
        self._directory = directory
        self._store = store
        named = (option.partition("=") for group in config.groups for option in group.options)
        own = {value.lower() for name, _, value in named if name == "--api-key-header"}
        self._secret_headers = {AUTHORIZATION, *own}
        self.calls = Calls()
        self._changing = asyncio.Lock()  # one change at a time, in the same order on all replicas
        self._calls = ReplicaCalls(directory)
        self._runner: web.AppRunner | None = None
        self._grpc: Any = None

    async def serve(self, http_path: Path, grpc_path: Path, owner: str) -> None:
        """Answer calls at two sockets, which replace those of an earlier owner in one step each.

        The paths are links to the owner's own sockets: a gRPC server removes its socket when it
        ends, which may be later.
        """
        self._calls.start()
        application = web.Application(client_max_size=_MOST_BODY_BYTES)
        application.router.add_route("*", "/{path:.*}", self._http)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(_own_path(http_path, owner))).start()
        limit = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._grpc = grpc.aio.server(options=limit)
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._grpc_method(name))
            for name in CONTROL_METHODS
        }
        service = SERVICE.strip("/")
        self._grpc.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, handlers)]
        )
        self._grpc.add_insecure_port(f"unix:{_own_path(grpc_path, owner)}")
        await self._grpc.start()
        for path in (http_path, grpc_path):
            link = path.with_suffix(f".{owner}.link")
            link.symlink_to(_own_path(path, owner))
            link.replace(path)

    async def close(self) -> None:
        """Answer no more calls."""
        if self._grpc is not None:
            await self._grpc.stop(0)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._calls.close()

    # ---- replicas

    def replicas(self) -> dict[str, Any]:
        """The document of GET /v2/replicas."""
        groups = {group.name: list(group.models) or None for group in self._config.groups}
        return {
            "version": self._directory.version,
            "replicas": [
                {
                    "id": entry.address.id,
                    "group": entry.address.group,
                    "http": endpoint_of(entry.address).http,
                    "grpc": endpoint_of(entry.address).grpc,
                    "metrics": f"{bracketed(entry.address.host)}:{entry.address.metrics_port}",
                    "state": entry.state.value,
                    "models": groups.get(entry.address.group),
                    **{name: round(value, 4) for name, value in entry.metrics.items()},
                }
                for entry in sorted(self._directory, key=lambda entry: entry.address)
            ],
        }

    async def join(self, replica: ReplicaAddress) -> None:
        """Make the kept calls on a replica that joins; it serves when it has had all of them.

        Raises Unavailable if one fails.
        """
        while True:
            entry = self._directory.find(replica.id)
            if entry is None or entry.address != replica:
                return
            answer = await self._calls.ask(replica, "GET", _METADATA, b"", {}, _CHECK_SECS)
            if answer.status >= 500:
                raise Unavailable(_error_text(answer.body))
            entry.open = answer.status < 400
            last = self.calls.last
            own = {} if entry.open else {AUTHORIZATION: f"Bearer {entry.key}"}
            for call in self.calls.since(entry.calls):
                if not call.model or self._group_of(call.model) == replica.group:
                    await self._repeat(call, replica, own)
            entry.calls = last
            async with self._changing:  # a call that is being made now reaches it or is repeated
                if self.calls.last == last:
                    self._directory.joined(replica.id, last)
                    return

    async def _repeat(self, call: Call, replica: ReplicaAddress, own: Mapping[str, str]) -> None:
        """Make a call again, with headers of our own: the key of its client may have ended."""
        headers = {**dict(call.headers), **own}
        if call.protocol == "http":
            answer = await self._calls.ask(replica, "POST", call.path, call.body, headers)
            if answer.status >= 400:
                raise Unavailable(f"{call.path} failed: {_error_text(answer.body)}")
            return
        try:
            await self._calls.call(replica, call.path, call.body, tuple(headers.items()))
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"{call.path} failed: {error.details()}") from None

    def _group_of(self, model: str) -> str:
        """The group that serves a model."""
        for group in self._config.groups:
            if model in group.models:
                return group.name
        return next((g.name for g in self._config.groups if not g.models), "")

    def _targets(self, model: str) -> list[ReplicaAddress]:
        """The replicas that a call is for. Raises Unavailable if there are none."""
        found = self._directory.serving(self._group_of(model) if model else None)
        if not found:
            raise Unavailable(_NO_REPLICA)
        return found

    async def _keep(self, call: Call, had: Sequence[ReplicaAddress]) -> None:
        """Note a call that these replicas have had, without its key."""
        headers = tuple(one for one in call.headers if one[0].lower() not in self._secret_headers)
        number = self.calls.add(call._replace(headers=headers))
        for address in had:
            entry = self._directory.find(address.id)
            if entry is not None and entry.address == address:
                entry.calls = number
        try:
            await asyncio.to_thread(self._store, self.calls.dump())
        except Exception as error:  # noqa: BLE001 - of Ray, in many types
            logger.warning("control calls are not stored for the next ingress: %s", error)

    # ---- HTTP

    async def _http(self, request: web.Request) -> web.Response:
        path = request.path
        body = await request.read()
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _DROPPED_HEADERS
        }
        if path == "/v2/replicas":
            return await self._list(headers)
        found = _MODEL_PATH.match(path)
        model = found[1] if found else ""
        try:
            if request.method == "POST" and path != "/v2/repository/index":
                return await self._change(request.path_qs, body, headers, model)
            return await self._read(request, body, headers, model)
        except Unavailable as error:
            return web.json_response({"error": str(error)}, status=503)

    async def _list(self, headers: Mapping[str, str]) -> web.Response:
        """The addresses of the groups whose servers let this client read metadata."""
        groups = sorted({entry.address.group for entry in self._directory})
        answers = await asyncio.gather(*(self._refusal(group, headers) for group in groups))
        refused = {
            group: answer
            for group, answer in zip(groups, answers, strict=True)
            if answer is not None
        }
        if refused and len(refused) == len(groups):
            return _response(refused[groups[0]])
        document = self.replicas()
        document["replicas"] = [row for row in document["replicas"] if row["group"] not in refused]
        return web.json_response(document)

    async def _refusal(self, group: str, headers: Mapping[str, str]) -> Answer | None:
        """What a replica of a group says to a client that may not read its metadata."""
        entries = [entry for entry in self._directory if entry.address.group == group]
        if all(entry.open for entry in entries):
            return None
        answer = None
        for entry in sorted(entries, key=lambda entry: entry.state is not State.SERVING):
            answer = await self._calls.ask(
                entry.address, "GET", _METADATA, b"", headers, _CHECK_SECS
            )
            if answer.status < 400:
                return None
            if answer.status != 503:
                break
        return answer

    async def _change(
        self, path: str, body: bytes, headers: dict[str, str], model: str
    ) -> web.Response:
        async with self._changing:
            targets = self._targets(model)
            answers = await asyncio.gather(
                *(self._calls.ask(one, "POST", path, body, headers) for one in targets)
            )
            failed = [
                (target, answer)
                for target, answer in zip(targets, answers, strict=True)
                if answer.status >= 400
            ]
            if not failed:
                subject = http_subject(path, body, model)
                call = Call("http", path, body, tuple(headers.items()), model, subject)
                await self._keep(call, targets)
                return _response(answers[0])
        return web.json_response(
            {"error": _failure([(t.id, _error_text(a.body)) for t, a in failed], len(targets))},
            status=failed[0][1].status,
        )

    async def _read(
        self, request: web.Request, body: bytes, headers: dict[str, str], model: str
    ) -> web.Response:
        path = request.path
        targets = self._targets(model)
        merged = _merged_as(path)
        if merged is None:  # settings, which are the same everywhere
            return _response(
                await self._calls.ask(targets[0], request.method, request.path_qs, body, headers)
            )
        headers = {**headers, "Accept-Encoding": "identity"}
        answers = await asyncio.gather(
            *(
                self._calls.ask(one, request.method, request.path_qs, body, headers)
                for one in targets
            )
        )
        good = {
            one.id: answer
            for one, answer in zip(targets, answers, strict=True)
            if answer.status == 200
        }
        if not good:
            return _response(answers[0])
        if merged == "metrics":
            texts = {id_: answer.body.decode("utf-8", "replace") for id_, answer in good.items()}
            return web.Response(text=merge.metrics(texts), content_type="text/plain")
        documents = {id_: json.loads(answer.body) for id_, answer in good.items()}
        if merged == "console":
            return web.json_response(merge.console(documents))
        if merged == "statistics":
            return web.json_response(merge.statistics(list(documents.values())))
        return web.json_response(merge.index(list(documents.values())))

    # ---- gRPC

    def _grpc_method(self, name: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def answer(body: bytes, context: Any) -> bytes:
            metadata = tuple(
                (key, value)
                for key, value in context.invocation_metadata()
                if not key.startswith(("grpc-", "user-agent", ":"))
            )
            try:
                request = getattr(messages, f"{name}Request").FromString(body)
            except DecodeError:
                await context.abort(grpc.StatusCode.INTERNAL, "failed to parse the request")
            model = str(getattr(request, "model_name", "") or getattr(request, "name", ""))
            try:
                if name in CHANGES_MODEL or getattr(request, "settings", None):
                    subject = grpc_subject(name, request, model)
                    call = Call("grpc", SERVICE + name, body, metadata, model, subject)
                    return await self._change_by_grpc(call)
                return await self._read_by_grpc(name, body, metadata, model)
            except Unavailable as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            except CallFailed as error:
                await context.abort(error.code, str(error))
            raise AssertionError  # abort raises

        return answer

    async def _read_by_grpc(
        self, name: str, body: bytes, metadata: Sequence[tuple[str, str]], model: str
    ) -> bytes:
        targets = self._targets(model)
        if name not in ("ModelStatistics", "RepositoryIndex"):
            targets = targets[:1]  # settings are the same everywhere
        answers, failed = await self._call_all(targets, SERVICE + name, body, metadata)
        if not answers:
            raise failed[0][1]
        return merge.grpc_response(name, answers)

    async def _change_by_grpc(self, call: Call) -> bytes:
        async with self._changing:
            targets = self._targets(call.model)
            answers, failed = await self._call_all(targets, call.path, call.body, call.headers)
            if not failed:
                await self._keep(call, targets)
                return answers[0]
        texts = [(id_, str(error)) for id_, error in failed]
        raise CallFailed(failed[0][1].code, _failure(texts, len(targets)))

    async def _call_all(
        self,
        targets: Sequence[ReplicaAddress],
        path: str,
        body: bytes,
        metadata: Sequence[tuple[str, str]],
    ) -> tuple[list[bytes], list[tuple[str, CallFailed]]]:
        """The answers of the replicas that gave one, and the errors of the others."""
        results = await asyncio.gather(
            *(self._calls.call(one, path, body, metadata) for one in targets),
            return_exceptions=True,
        )
        answers, failed = [], []
        for target, result in zip(targets, results, strict=True):
            if isinstance(result, bytes):
                answers.append(result)
            elif isinstance(result, grpc.aio.AioRpcError):
                failed.append((target.id, CallFailed(result.code(), result.details() or "")))
            elif isinstance(result, BaseException):
                raise result
        return answers, failed


def _own_path(path: Path, owner: str) -> Path:
    return path.with_suffix(f".{owner}")


class CallFailed(Exception):
    """A gRPC call failed with a status."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(text)
        self.code = code


def _merged_as(path: str) -> str | None:
    """How the answers of the replicas to a GET become one; None if one replica's is enough."""
    if path.rstrip("/") == "/metrics":
        return "metrics"
    if path == "/v2/console":
        return "console"
    if path.endswith("/stats"):
        return "statistics"
    return "index" if path == "/v2/repository/index" else None


def _failure(failed: Sequence[tuple[str, str]], count: int) -> str:
    """The error of a call that failed on some replicas."""
    texts = {text for _, text in failed}
    if len(failed) == count and len(texts) == 1:
        return texts.pop()
    reasons = "; ".join(f"{id_}: {text}" for id_, text in failed)
    return f"failed on {len(failed)} of {count} replicas; make the call again. {reasons}"


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")


def _response(answer: Answer) -> web.Response:
    return web.Response(body=answer.body, status=answer.status, headers=answer.headers)
