"""Calls to the replicas of an application, on an event loop; see `replica_transport`.

The list of replicas is read by the first call, then by a task at most every second while calls are
made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import TypeAlias

from shoal.client.address import GRPC, Address
from shoal.client.async_grpc_transport import AsyncDuplex, AsyncGrpcTransport
from shoal.client.async_http_transport import AsyncHttpTransport
from shoal.client.codec import RawRequest, RawResponse
from shoal.client.connecting import Limits
from shoal.client.errors import ClientError, Unavailable
from shoal.client.replicas import (
    LIST_SECS,
    Attempt,
    Balancer,
    Replica,
    as_response,
    ingress_of,
    limits_of_replicas,
    read_list,
)
from shoal.client.steps import RoundTrip

_Transport: TypeAlias = AsyncGrpcTransport | AsyncHttpTransport


class AsyncReplicaTransport:
    """Calls to one application, on the event loop of the first of them."""

    def __init__(self, address: Address, limits: Limits, list_request: RawRequest) -> None:
        self._address = address
        self._ingress = AsyncHttpTransport(ingress_of(address), None, limits)
        kind = AsyncGrpcTransport if address.protocol == GRPC else AsyncHttpTransport
        limits = limits_of_replicas(limits)
        self._balancer: Balancer[_Transport] = Balancer(
            address, lambda replica: kind(replica, None, limits)
        )
        self._list_request = RoundTrip(list_request, LIST_SECS, repeatable=True)
        self._listing = asyncio.Lock()  # held while a list is read
        self._tasks: set[asyncio.Task[None]] = set()  # in the background
        self._beside: asyncio.Task[None] | None = None  # the one that reads the list

    async def exchange(self, step: RoundTrip) -> RawResponse:
        """Send a request to a replica, or to the ingress, and wait for its response."""
        target = step.request.target
        if target is None:
            return await self._ingress.exchange(step)
        attempt = Attempt(self._balancer, target)
        while True:
            step = attempt.limited(step)
            try:
                replica = await self._next(attempt)
            except Unavailable as error:
                return as_response(self._address.protocol, error)
            try:
                response = await replica.transport.exchange(step)
                attempt.answered(replica, response.status)
                return response
            except ClientError as error:
                attempt.failed(replica, error)
            finally:
                self._release(replica)

    async def events(
        self, request: RawRequest, timeout_secs: float | None
    ) -> AsyncIterator[RawResponse]:
        """As `AsyncHttpTransport.events`, from one replica."""
        assert request.target is not None
        attempt = Attempt(self._balancer, request.target)
        while True:
            try:
                replica = await self._next(attempt)
            except Unavailable as error:
                yield as_response(self._address.protocol, error)
                return
            transport = replica.transport
            assert isinstance(transport, AsyncHttpTransport)
            pieces = transport.events(request, timeout_secs)
            try:
                async for piece in pieces:
                    yield piece
                return
            except ClientError as error:
                attempt.failed(replica, error)
            finally:
                await pieces.aclose()  # type: ignore[attr-defined]
                self._release(replica)

    async def duplex(self, request: RawRequest) -> AsyncDuplex:
        """A call of many messages in both directions, with one replica."""
        assert request.target is not None
        attempt = Attempt(self._balancer, request.target)
        while True:
            replica = await self._next(attempt)
            transport = replica.transport
            assert isinstance(transport, AsyncGrpcTransport)
            try:
                return await transport.duplex(request, lambda: self._release(replica))  # noqa: B023
            except ClientError as error:
                self._release(replica)
                attempt.failed(replica, error)
            except BaseException:
                self._release(replica)
                raise

    async def close(self) -> None:
        """Close all connections, as the transports of single servers do."""
        for task in list(self._tasks):
            task.cancel()
        for transport in (self._ingress, *self._balancer.transports()):
            await transport.close()

    async def _next(self, attempt: Attempt[_Transport]) -> Replica[_Transport]:
        """The next replica for a call. Raises Unavailable and ConnectionFailed."""
        if self._balancer.must_wait:
            await self._read_list()
        elif self._balancer.due and (self._beside is None or self._beside.done()):
            self._beside = self._begin(self._read_list())
        replica = attempt.take()
        if replica is None:  # perhaps there are others by now
            await self._read_list()
            replica = attempt.take()
        if replica is None:
            raise attempt.nothing()
        return replica

    def _release(self, replica: Replica[_Transport]) -> None:
        closed = self._balancer.release(replica)
        if closed is not None:
            self._begin(closed.close())

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- the list

    async def _read_list(self) -> None:
        """Read the list, or wait for another task that does. Raises if there is none at all."""
        lists = self._balancer.lists
        async with self._listing:
            if self._balancer.lists == lists:
                await self._fetch()
        self._balancer.check()

    async def _fetch(self) -> None:
        try:
            response = await self._ingress.exchange(self._list_request)
            closed = self._balancer.update(read_list(response, self._address))
        except ClientError as error:
            self._balancer.list_failed(error)
            return
        for transport in closed:
            await transport.close()
