"""The ingress of an application: knows the replicas and keeps HAProxy up to date.

    replicas --heartbeat, leave--> Ingress --> Directory --> HAProxy, the file of addresses
    clients --> HAProxy --control calls--> Ingress --> every replica

Ray Serve runs one of it. If it is replaced, HAProxy goes on meanwhile, and the new ingress takes it
over: replicas tell it who they are within a second. While two of them run, as in an update, the
last one that has started owns HAProxy, and the other one sends replicas on to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, Unavailable
from shoal.ray.config import from_dict
from shoal.ray.control import Control
from shoal.ray.directory import Directory, ReplicaAddress, State
from shoal.ray.haproxy import HAProxy, find_program
from shoal.ray.haproxy_config import Layout

_LOOK_SECS = 0.5  # between looks for replicas that are not heard of any more
_JOIN_RETRY_SECS = 0.5
_GRACE_INTERVALS = 3  # of heartbeats, in which a new ingress hears of all replicas
_MOVED_SECS = 0.1  # after which a replica calls again that has called the wrong ingress
_STORE = "shoal"  # the namespace in Ray's store

logger = logging.getLogger("ray.serve")


class Ingress:
    """The root of the application."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, document: dict[str, Any], *_groups: Any
    ) -> None:
        """Starts HAProxy on this node, or takes over the one that runs. Raises Unavailable."""
        import ray
        from ray import serve

        self._config = from_dict(document)
        context = serve.get_replica_context()
        self._id: str = context.replica_id.unique_id
        runtime: Any = ray.get_runtime_context()
        self._folder = _own_folder(runtime.get_session_name(), context.app_name)
        self._store_key = f"calls/{context.app_name}"
        self._directory = Directory(time.monotonic)
        self._control = Control(self._config, self._directory, self._store)
        self._started_secs = time.monotonic()
        sockets = self._folder / "control.sock", self._folder / "control-grpc.sock"
        layout = Layout(
            self._config,
            control_http=f"unix@{sockets[0]}",
            control_grpc=f"unix@{sockets[1]}",
            socket_path=str(self._folder / "haproxy.sock"),
            pem_path=self._write_pem(),
        )
        program = find_program(self._config.ingress.haproxy)
        self._haproxy = HAProxy(layout, program, self._folder, ends_with=os.getppid())
        self._changing = asyncio.Lock()  # one change of HAProxy at a time
        self._applied: tuple[int, bool] | None = None  # the directory's version, and `_is_settled`
        self._tasks: set[asyncio.Task[None]] = set()
        stored = await asyncio.to_thread(self._stored)
        if stored:
            self._control.calls.load(stored)
        try:
            await asyncio.to_thread(self._haproxy.start)
        except Unavailable:
            if not self._owner_path.exists():
                shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._owner_path.write_text(self._id)
        await self._control.serve(*sockets, owner=self._id)
        self._watch = asyncio.ensure_future(self._look())

    # ---- called by replicas

    async def heartbeat(
        self, address: dict[str, Any], metrics: dict[str, float], calls: int, key: str = ""
    ) -> dict[str, Any]:
        """Note a replica, the number of the last control call that it has had, and its key.

        Returns that number as it is now, and the seconds after which to call again.
        """
        if not self._is_owner():
            return {"next_secs": _MOVED_SECS, "calls": calls}
        replica = ReplicaAddress(**address)
        if self._directory.heartbeat(replica, metrics, calls, key):
            task = asyncio.ensure_future(self._join(replica))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        entry = self._directory.find(replica.id)
        known = entry.calls if entry is not None else calls
        return {"next_secs": self._directory.interval_secs, "calls": known}

    async def leave(self, id_: str) -> bool:
        """Returns when the replica gets no new requests; False if another ingress is to be told."""
        if not self._is_owner():
            return False
        self._directory.leave(id_)
        await self._apply()
        return True

    # ---- called by Serve

    async def check_health(self) -> None:
        """Raise if HAProxy does not answer."""
        await asyncio.to_thread(self._haproxy.command, "show info")

    async def __del__(self) -> None:
        if not hasattr(self, "_watch"):
            return
        self._watch.cancel()
        await self._control.close()
        if self._is_owner():  # otherwise another ingress has taken over
            await asyncio.to_thread(self._haproxy.stop)
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(Exception):
                self._store(b"")

    # ---- for people

    async def replicas(self) -> dict[str, Any]:
        """As GET /v2/replicas."""
        return self._control.replicas()

    # ---- keeping HAProxy up to date

    async def _join(self, replica: ReplicaAddress) -> None:
        """Repeat the control calls for a new replica, then let it have requests."""
        while True:
            entry = self._directory.find(replica.id)
            if entry is None or entry.state is not State.JOINING or entry.address != replica:
                return
            try:
                await self._control.join(replica)
                await self._apply()
            except (ShoalError, OSError) as error:
                logger.warning("replica %s cannot join yet: %s", replica.id, error)
                await asyncio.sleep(_JOIN_RETRY_SECS)

    async def _apply(self) -> None:
        """Let HAProxy have the replicas of the directory. Raises Unavailable."""
        async with self._changing:
            now = (self._directory.version, self._is_settled())
            if now == self._applied or not self._is_owner():
                return
            # Health checks decide about replicas that are not heard of; those that join anew keep
            # the requests that they have had.
            serving = self._directory.in_state(State.SERVING, State.LOST)
            leaving = self._directory.in_state(State.LEAVING)
            joining = self._directory.in_state(State.JOINING) if now[1] else None
            without = await asyncio.to_thread(self._haproxy.apply, serving, leaving, keep=joining)
            if without:
                logger.warning("HAProxy has no slot for the replicas %s", ", ".join(without))
            await asyncio.to_thread(self._write_addresses)
            self._applied = None if without else now

    def _is_settled(self) -> bool:
        """Whether all replicas have been heard of that a replaced ingress knew."""
        heard_secs = _GRACE_INTERVALS * self._directory.interval_secs
        return time.monotonic() > self._started_secs + heard_secs

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECS)
            try:
                if not self._is_owner():
                    continue
                for id_ in self._directory.find_lost():
                    logger.warning("replica %s is not heard of any more", id_)
                await asyncio.to_thread(self._haproxy.keep_alive)
                if not await asyncio.to_thread(lambda: self._haproxy.pid):
                    await self._restart()
                await self._apply()
            except Exception as error:  # noqa: BLE001 - the watch must go on
                logger.warning("HAProxy is not up to date: %s", error)

    async def _restart(self) -> None:
        logger.warning("HAProxy has ended; it is started again")
        async with self._changing:
            known = self._directory.in_state(State.SERVING, State.LOST)
            await asyncio.to_thread(self._haproxy.start, known)
            self._applied = None

    # ---- files

    @property
    def _owner_path(self) -> Path:
        return self._folder / "owner"

    def _is_owner(self) -> bool:
        """Whether no other ingress on this node has taken HAProxy over."""
        try:
            return self._owner_path.read_text() == self._id
        except OSError:
            return False

    def _write_addresses(self) -> None:
        """Replace the file of addresses, for other load balancers, in one step."""
        path = self._config.ingress.addresses_file
        if not path:
            return
        temporary = Path(f"{path}.new")
        temporary.write_text(json.dumps(self._control.replicas(), indent=1))
        temporary.replace(path)

    def _write_pem(self) -> str:
        """One file with certificate and key, as HAProxy reads them; empty without TLS."""
        ingress = self._config.ingress
        if not ingress.tls_certificate:
            return ""
        try:
            parts = [Path(ingress.tls_certificate).read_text(), Path(ingress.tls_key).read_text()]
        except OSError as error:
            raise Unavailable(f"the files for TLS cannot be read: {error}") from error
        text = "\n".join(parts)
        # The contents are a part of the name, so that HAProxy is started anew with other ones.
        path = self._folder / f"tls-{hashlib.sha256(text.encode()).hexdigest()[:16]}.pem"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        return str(path)

    # ---- Ray's store, in which the next ingress finds the control calls, on whatever node it is

    def _stored(self) -> bytes:
        from ray.experimental import internal_kv

        get: Any = internal_kv._internal_kv_get
        found: bytes | None = get(self._store_key, namespace=_STORE)
        return found or b""

    def _store(self, dumped: bytes) -> None:
        from ray.experimental import internal_kv

        put: Any = internal_kv._internal_kv_put
        put(self._store_key, dumped, overwrite=True, namespace=_STORE)


def _own_folder(session: str, app: str) -> Path:
    """A folder for sockets and the config, which only this user can read.

    Its name is short: the path of a socket has at most 108 bytes.
    """
    mark = hashlib.sha256(f"{session}/{app}".encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"shoal-ray-{os.getuid()}-{mark}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Unavailable(f"{folder} belongs to another user, or others can write to it; remove it")
    return folder
