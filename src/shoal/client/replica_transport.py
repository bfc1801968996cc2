"""Calls to the replicas of an application, on blocking sockets.

    RoundTrip --target--> Balancer --> the transport of a replica
              --none----> the transport of the ingress

The list of replicas is read by the first call, then by a short-lived thread at most every second
while calls are made, so that no call waits for the ingress.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TypeAlias

from shoal.client.address import GRPC, Address
from shoal.client.codec import RawRequest, RawResponse
from shoal.client.connecting import Limits
from shoal.client.duplex import Duplex
from shoal.client.errors import ClientError, Unavailable
from shoal.client.grpc_transport import GrpcTransport
from shoal.client.http_transport import HttpTransport
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

_Transport: TypeAlias = GrpcTransport | HttpTransport


class ReplicaTransport:
    """Calls to one application. Thread-safe."""

    def __init__(self, address: Address, limits: Limits, list_request: RawRequest) -> None:
        self._address = address
        self._ingress = HttpTransport(ingress_of(address), None, limits)
        kind = GrpcTransport if address.protocol == GRPC else HttpTransport
        limits = limits_of_replicas(limits)
        self._balancer: Balancer[_Transport] = Balancer(
            address, lambda replica: kind(replica, None, limits)
        )
        self._list_request = RoundTrip(list_request, LIST_SECS, repeatable=True)
        self._listing = threading.Lock()  # held while a list is read

    def exchange(self, step: RoundTrip) -> RawResponse:
        """Send a request to a replica, or to the ingress, and wait for its response."""
        target = step.request.target
        if target is None:
            return self._ingress.exchange(step)
        attempt = Attempt(self._balancer, target)
        while True:
            step = attempt.limited(step)
            try:
                replica = self._next(attempt)
            except Unavailable as error:
                return as_response(self._address.protocol, error)
            try:
                response = replica.transport.exchange(step)
                attempt.answered(replica, response.status)
                return response
            except ClientError as error:
                attempt.failed(replica, error)
            finally:
                self._release(replica)

    def events(
        self, request: RawRequest, timeout_secs: float | None
    ) -> Generator[RawResponse, None, None]:
        """As `HttpTransport.events`, from one replica."""
        assert request.target is not None
        attempt = Attempt(self._balancer, request.target)
        while True:
            try:
                replica = self._next(attempt)
            except Unavailable as error:
                yield as_response(self._address.protocol, error)
                return
            transport = replica.transport
            assert isinstance(transport, HttpTransport)
            try:
                yield from transport.events(request, timeout_secs)
                return
            except ClientError as error:
                attempt.failed(replica, error)
            finally:
                self._release(replica)

    def duplex(self, request: RawRequest) -> Duplex:
        """A call of many messages in both directions, with one replica."""
        assert request.target is not None
        attempt = Attempt(self._balancer, request.target)
        while True:
            replica = self._next(attempt)
            transport = replica.transport
            assert isinstance(transport, GrpcTransport)
            try:
                return transport.duplex(request, lambda: self._release(replica))  # noqa: B023
            except ClientError as error:
                self._release(replica)
                attempt.failed(replica, error)
            except BaseException:
                self._release(replica)
                raise

    def close(self) -> None:
        """Close all connections; those in use are closed after their calls."""
        self._ingress.close()
        for transport in self._balancer.transports():
            transport.close()

    def _next(self, attempt: Attempt[_Transport]) -> Replica[_Transport]:
        """The next replica for a call. Raises Unavailable and ConnectionFailed."""
        if self._balancer.must_wait:
            self._read_list()
        elif self._balancer.due:
            self._read_list_beside()
        replica = attempt.take()
        if replica is None:  # perhaps there are others by now
            self._read_list()
            replica = attempt.take()
        if replica is None:
            raise attempt.nothing()
        return replica

    def _release(self, replica: Replica[_Transport]) -> None:
        closed = self._balancer.release(replica)
        if closed is not None:
            closed.close()

    # ---- the list

    def _read_list(self) -> None:
        """Read the list, or wait for another thread that does. Raises if there is none at all."""
        lists = self._balancer.lists
        with self._listing:
            if self._balancer.lists == lists:
                self._fetch()
        self._balancer.check()

    def _read_list_beside(self) -> None:
        """Read the list on another thread, unless one does already."""
        if not self._listing.acquire(blocking=False):
            return
        try:
            threading.Thread(target=self._fetch_beside, name="shoal-replicas", daemon=True).start()
        except RuntimeError:  # the interpreter ends
            self._listing.release()

    def _fetch_beside(self) -> None:
        try:
            self._fetch()
        finally:
            self._listing.release()

    def _fetch(self) -> None:
        try:
            response = self._ingress.exchange(self._list_request)
            closed = self._balancer.update(read_list(response, self._address))
        except ClientError as error:
            self._balancer.list_failed(error)
            return
        for transport in closed:
            transport.close()
