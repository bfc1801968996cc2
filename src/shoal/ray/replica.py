"""A replica of a group: the class that Ray Serve places, watches and replaces.

    __init__      start the server and wait until it is ready; only then Serve counts the replica
    heartbeat     every second or so: tell the ingress the address, the state and the load
    check_health  the server answers; Serve replaces the replica if it does not
    __del__       leave: the ingress sends nothing new; the server drains, answers and ends

A replica whose server ends by itself ends, too, so that Serve replaces it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from typing import Any

from shoal.access.entry import digest_of
from shoal.access.files import PARENT_KEY
from shoal.errors import Unavailable
from shoal.ray import readings
from shoal.ray.config import GroupConfig, from_dict
from shoal.ray.directory import ReplicaAddress
from shoal.ray.server import ServerProcess

INGRESS = "Ingress"  # the name of its deployment
_CALL_SECS = 2.0
_LEAVE_SECS = 5.0
_RETRY_SECS = 0.2

logger = logging.getLogger("ray.serve")  # whose lines Serve stores with the replica's


class Replica:
    """One server of a group, on a node that Ray has chosen."""

    def __init__(self, document: dict[str, Any], group: str) -> None:
        """Blocks until the server is ready. Raises Unavailable if it does not become ready."""
        import ray
        from ray import serve

        config = from_dict(document)
        self._group = next(one for one in config.groups if one.name == group)
        context = serve.get_replica_context()
        self._id: str = context.replica_id.unique_id
        node_address: Any = ray.util.get_node_ip_address
        self._host: str = node_address()
        self._app = context.app_name
        self._ingress: Any = None
        self._left = threading.Event()
        self._reading = readings.IDLE
        self._sample: readings.Sample | None = None
        self._calls = 0  # the number of the last control call that the server has had
        self._key = secrets.token_urlsafe()  # with which the ingress repeats control calls
        self._server = ServerProcess(
            config.repository,
            options_of(self._group),
            {PARENT_KEY: digest_of(self._key.encode()).hex()},
            exit_timeout_secs=self._group.exit_timeout_secs,
            drain_secs=self._group.drain_secs,
        )
        self._server.start(self._group.start_timeout_secs)
        self._server.on_end = self._end_with_server
        if not self._server.alive:  # it has ended before that was said
            raise Unavailable("the server of this replica ended when it was ready")
        logger.info(
            "server of replica %s at %s:%d (HTTP) and :%d (gRPC)",
            self._id,
            self._host,
            self._server.http_port,
            self._server.grpc_port,
        )
        self._heart = threading.Thread(target=self._beat, name="shoal-heartbeat", daemon=True)
        self._heart.start()

    # ---- called by Serve

    def check_health(self) -> None:
        """Raise if the server does not answer."""
        if not self._server.is_live():
            raise RuntimeError("the server of this replica does not answer")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The last reading, for the policy."""
        return self._reading.as_metrics()

    async def __del__(self) -> None:
        if hasattr(self, "_heart"):  # otherwise the server never became ready
            await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        self._left.set()
        self._heart.join(_CALL_SECS)
        deadline = time.monotonic() + _LEAVE_SECS
        try:
            # With the whole application the ingress ends, too; no call reaches it any more.
            while not self._application_ends() and not self._call(
                "leave", self._id, secs=deadline - time.monotonic()
            ):
                time.sleep(_RETRY_SECS)  # another ingress takes over
        except Exception as error:  # noqa: BLE001 - of Ray, in many types; it may be gone already
            logger.warning("the ingress does not know that replica %s leaves: %s", self._id, error)
        self._server.stop()

    def _application_ends(self) -> bool:
        from ray import serve

        found = serve.status().applications.get(self._app)
        return found is None or found.status.value == "DELETING"

    # ---- for people and tests

    def address(self) -> dict[str, Any]:
        """Where its server is."""
        return self._address()._asdict()

    def server_pid(self) -> int:
        """The process of its server."""
        return self._server.pid

    # ---- heartbeat

    def _address(self) -> ReplicaAddress:
        server = self._server
        return ReplicaAddress(
            self._id,
            self._group.name,
            self._host,
            server.http_port,
            server.grpc_port,
            server.metrics_port,
        )

    def _beat(self) -> None:
        reading_secs = self._group.scaling.interval_secs
        next_reading = next_call = time.monotonic()
        while not self._left.wait(max(0.0, min(next_reading, next_call) - time.monotonic())):
            now = time.monotonic()
            if now >= next_reading:
                self._read()
                next_reading = now + reading_secs
            if now >= next_call:
                next_call = now + self._tell()

    def _tell(self) -> float:
        """Call the ingress; returns the seconds after which to do it again."""
        address, metrics = self._address()._asdict(), self._reading.as_metrics()
        try:
            words = address, metrics, self._calls, self._key
            answer = self._call("heartbeat", *words, secs=_CALL_SECS)
        except Exception as error:  # noqa: BLE001 - it starts, or is being replaced
            logger.debug("the ingress does not answer: %s", error)
            return _RETRY_SECS
        self._calls = answer["calls"]
        return float(answer["next_secs"])

    def _read(self) -> None:
        try:
            sample = readings.parse(self._server.metrics(), time.monotonic())
        except OSError:
            return
        if self._sample is not None:
            self._reading = readings.reading(self._sample, sample, self._group.cpus)
        self._sample = sample

    def _call(self, method: str, *arguments: Any, secs: float) -> Any:
        from ray import serve

        if self._ingress is None:
            self._ingress = serve.get_deployment_handle(INGRESS, self._app)
        return getattr(self._ingress, method).remote(*arguments).result(timeout_s=secs)

    def _end_with_server(self) -> None:
        if not self._left.is_set():
            logger.error("the server of replica %s has ended; so does the replica", self._id)
            os._exit(1)


def options_of(group: GroupConfig) -> list[str]:
    """The options of `shoal serve` for a replica of a group."""
    options = list(group.options)
    names = {option.partition("=")[0] for option in options}
    if group.models and "--model-control-mode" not in names:
        options.append("--model-control-mode=explicit")
        options += [f"--load-model={name}" for name in group.models]
    return options
