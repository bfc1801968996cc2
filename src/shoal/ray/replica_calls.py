"""Calls of the ingress to single replicas, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import grpc  # type: ignore[import-untyped]

from shoal.ray.directory import Directory, ReplicaAddress
from shoal.ray.haproxy import endpoint_of

_CALL_SECS = 600.0  # loads may take long
_CONNECT_SECS = 5.0
_KEPT_HEADERS = ("Content-Type", "WWW-Authenticate", "Retry-After")


class Answer(NamedTuple):
    """What one replica answered over HTTP."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class ReplicaCalls:
    """Connections to the replicas of a directory. For one event loop."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._channels: dict[str, Any] = {}  # of gRPC, by address
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """On the event loop, before the first call."""
        self._session = aiohttp.ClientSession(
            auto_decompress=False, skip_auto_headers=("Accept-Encoding",)
        )

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            await channel.close()
        if self._session is not None:
            await self._session.close()

    async def ask(
        self,
        replica: ReplicaAddress,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        secs: float = _CALL_SECS,
    ) -> Answer:
        """One replica's answer; 503 if it cannot be reached."""
        assert self._session is not None
        url = f"http://{endpoint_of(replica).http}{path}"
        try:
            async with self._session.request(
                method, url, data=body or None, headers=headers, timeout=_limits(secs)
            ) as answer:
                content = await answer.read()
                found = {
                    name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers
                }
                return Answer(answer.status, content, found)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            text = json.dumps({"error": f"the replica cannot be reached: {error}"})
            return Answer(503, text.encode(), {"Content-Type": "application/json"})

    async def call(
        self,
        replica: ReplicaAddress,
        path: str,
        body: bytes,
        metadata: Sequence[tuple[str, str]],
    ) -> bytes:
        """One replica's answer to a gRPC call. Raises AioRpcError."""
        address = endpoint_of(replica).grpc
        channel = self._channels.get(address)
        if channel is None:
            await self._close_unused()
            limit = [("grpc.max_receive_message_length", -1)]
            channel = self._channels[address] = grpc.aio.insecure_channel(address, options=limit)
        answer: bytes = await channel.unary_unary(path)(
            body, metadata=tuple(metadata), timeout=_CALL_SECS
        )
        return answer

    async def _close_unused(self) -> None:
        """Close those to replicas that are not there any more."""
        used = {endpoint_of(entry.address).grpc for entry in self._directory}
        for address in [one for one in self._channels if one not in used]:
            await self._channels.pop(address).close()


def _limits(secs: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=secs, sock_connect=_CONNECT_SECS)
