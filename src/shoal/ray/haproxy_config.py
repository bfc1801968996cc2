"""The text of HAProxy's config: which requests go to which replicas.

    frontend http, grpc --control calls--> backend ingress.http, ingress.grpc
                        --others--> backend http.GROUP, grpc.GROUP, by the model of the request

Each backend has more slots for servers than its group can have replicas; `shoal.ray.haproxy` fills
and empties them while HAProxy runs. The health of a replica is checked in one backend; the others
follow it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from shoal.ray.config import ClusterConfig

_HARD_STOP_SECS = 30
_CHECK = (
    "check inter 1s fastinter 200ms downinter 500ms fall 2 rise 1 "
    "observe layer4 error-limit 1 on-error mark-down"
)
_BIND = re.compile(r"^ +bind \S+:(\d+)", re.MULTILINE)
_EMPTY = "127.0.0.1:1"  # the address of a slot without a replica
# Methods of the gRPC service that all replicas must get, or that are answered from all of them.
CONTROL_METHODS = (
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "ModelStatistics",
    "TraceSetting",
    "LogSettings",
)
FRONTENDS = ("http", "grpc", "metrics")
SERVICE = "/inference.GRPCInferenceService/"
# The same for HTTP: regular expressions of paths.
CONTROL_PATHS = (
    r"^/v2/repository/",
    r"^/v2/logging$",
    r"^/v2/trace/setting$",
    r"^/v2/models/.+/trace/setting$",
    r"^/v2/models/(.+/)?stats$",
    r"^/v2/replicas$",
    r"^/v2/console$",
    r"^/metrics/?$",
)
_ERRORS = {
    502: "the replica that had the request has ended; send the request again",
    503: "no replica is ready; send the request again later",
    504: "the replica did not answer in time",
}


class Endpoint(NamedTuple):
    """Where the server of a replica listens."""

    host: str
    http_port: int
    grpc_port: int

    @property
    def http(self) -> str:
        """For a URL."""
        return f"{bracketed(self.host)}:{self.http_port}"

    @property
    def grpc(self) -> str:
        """For a channel."""
        return f"{bracketed(self.host)}:{self.grpc_port}"


class Layout(NamedTuple):
    """What the config is made from."""

    config: ClusterConfig
    control_http: str  # addresses of the ingress's own service
    control_grpc: str
    socket_path: str
    pem_path: str = ""  # certificate and key in one file, for TLS


def bracketed(host: str) -> str:
    """A host as it is written before a port."""
    return f"[{host}]" if ":" in host else host


def slots_of(config: ClusterConfig) -> dict[str, int]:
    """The number of slots of each group: twice its replicas, for updates and those that leave."""
    return {group.name: 2 * group.max_replicas + 2 for group in config.groups}


def backends_of(group: str) -> tuple[tuple[str, str], ...]:
    """The backends of a group with their protocols; the first one checks the health."""
    return (
        (f"http.{group}", "http"),
        (f"http.{group}.sequences", "http"),
        (f"grpc.{group}", "grpc"),
        (f"grpc.{group}.sequences", "grpc"),
    )


def fingerprint(layout: Layout) -> str:
    """What two configs have in common that differ in the replicas of their slots only."""
    return hashlib.sha256(_text(layout, {}, "").encode()).hexdigest()[:16]


def config_text(layout: Layout, filled: Mapping[str, Mapping[int, Endpoint]]) -> str:
    """The whole config file, with the replicas that are known, by group and slot."""
    return _text(layout, filled, fingerprint(layout))


def ports_of(text: str) -> set[int]:
    """The ports of clients in a config file."""
    return {int(port) for port in _BIND.findall(text)}


def _text(layout: Layout, filled: Mapping[str, Mapping[int, Endpoint]], mark: str) -> str:
    config, ingress = layout.config, layout.config.ingress
    lines = [
        "global",
        f"    description {mark}",
        f"    stats socket {layout.socket_path} mode 600 level admin expose-fd listeners",
        f"    hard-stop-after {_HARD_STOP_SECS}s",
        "    noreuseport",  # another program at the same port is an error, not a second choice
        "defaults",
        "    mode http",
        "    timeout connect 2s",
        "    timeout client 1h",
        "    timeout server 1h",
        "    timeout http-request 30s",
        "    timeout http-keep-alive 1h",
        "    timeout queue 30s",
        # Nothing was sent to a replica that could not be connected to, so another one may have it.
        "    retries 3",
        "    option redispatch 1",
        "    retry-on conn-failure",
        "    option http-keep-alive",
        # When another process takes over, clients may send one more request at their connections.
        "    option idle-close-on-response",
        "    http-reuse always",
    ]
    lines += [
        f"    http-error status {status} content-type application/json string "
        f"'{json.dumps({'error': text})}'"
        for status, text in _ERRORS.items()
    ]
    lines += _frontend(layout, "http", ingress.http_port)
    lines += _frontend(layout, "grpc", ingress.grpc_port)
    if ingress.metrics_port:
        lines += [
            "frontend metrics",
            f"    bind {ingress.host}:{ingress.metrics_port}",
            "    default_backend ingress.http",
        ]
    for protocol, address in (("http", layout.control_http), ("grpc", layout.control_grpc)):
        h2 = " proto h2" if protocol == "grpc" else ""
        # A replica lets only clients on the same machine send model files, if they need no key.
        lines += [
            f"backend ingress.{protocol}",
            "    option forwardfor",
            f"    server ingress {address}{h2}",
        ]
    for group, slots in slots_of(config).items():
        lines += _backends(layout, group, slots, filled.get(group, {}))
    return "\n".join(lines) + "\n"


def _frontend(layout: Layout, protocol: str, port: int) -> list[str]:
    if not port:
        return []
    config, ingress = layout.config, layout.config.ingress
    tls = f" ssl crt {layout.pem_path}" if layout.pem_path else ""
    if protocol == "http":
        bind = f"{tls} alpn h2,http/1.1" if tls else ""
    else:
        bind = f"{tls} alpn h2" if tls else " proto h2"
    lines = [f"frontend {protocol}", f"    bind {ingress.host}:{port}{bind}"]
    if protocol == "http":
        lines += [f"    acl control path_reg {path}" for path in CONTROL_PATHS]
    else:
        lines += [f"    acl control path {SERVICE}{name}" for name in CONTROL_METHODS]
    if len(config.groups) > 1 or ingress.balance == "model":
        lines += _find_model(protocol)
    lines.append(f"    use_backend ingress.{protocol} if control")
    lines.append(f"    acl sequence req.hdr({ingress.sequence_header}) -m found")
    for group in config.groups:
        if group.models:
            names = " ".join(group.models)
            lines += [
                f"    acl group.{group.name} var(txn.model) -m str -- {names}",
                f"    use_backend {protocol}.{group.name}.sequences if group.{group.name} sequence",
                f"    use_backend {protocol}.{group.name} if group.{group.name}",
            ]
    others = next((group for group in config.groups if not group.models), config.groups[0])
    lines.append(f"    use_backend {protocol}.{others.name}.sequences if sequence")
    lines.append(f"    default_backend {protocol}.{others.name}")
    return lines


def _find_model(protocol: str) -> list[str]:
    """Note the model of a request: a part of the path, or the first field of the message."""
    if protocol == "http":
        return ["    http-request set-var(txn.model) path,url_dec,field(4,/)"]
    # After five bytes of gRPC, the field's number and its length, the name goes on until the number
    # of another field. HAProxy's own converter needs the whole message in its buffer.
    return [
        f"    acl stream path {SERVICE}ModelStreamInfer",
        "    http-request wait-for-body time 30s at-least 300 if !control !stream",
        "    http-request wait-for-body time 1h at-least 8 if stream",
        r"""    http-request set-var(txn.model) req.body,bytes(7,256),word(1,\x12\x1a*\'\"\')""",
    ]


def _backends(layout: Layout, group: str, slots: int, filled: Mapping[int, Endpoint]) -> list[str]:
    ingress = layout.config.ingress
    lines = []
    checked = f"http.{group}"
    for name, protocol in backends_of(group):
        lines.append(f"backend {name}")
        if name.endswith(".sequences"):
            lines += [f"    balance hdr({ingress.sequence_header})", "    hash-type consistent"]
        elif ingress.balance == "model":
            # A model with more than its share of requests has those of its neighbours' replicas.
            lines += [
                "    balance hash var(txn.model)",
                "    hash-type consistent",
                "    hash-balance-factor 150",
            ]
        else:
            lines.append("    balance leastconn")
        if name == checked:
            lines += ["    option httpchk GET /v2/health/ready", "    http-check expect status 200"]
        h2 = " proto h2" if protocol == "grpc" else ""
        for slot in range(1, slots + 1):
            endpoint = filled.get(slot)
            address = getattr(endpoint, protocol) if endpoint else _EMPTY
            state = "" if endpoint else " disabled"
            follow = f" {_CHECK}{state}" if name == checked else f" track {checked}/r{slot}"
            lines.append(f"    server r{slot} {address}{h2}{follow}")
    return lines
