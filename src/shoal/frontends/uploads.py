"""Who may upload model files. A model is a program that the server runs, so this is a privilege.

load request with files --check(peer, headers)--> Override --> repository
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import unquote

from shoal.errors import Forbidden

_ADDRESS = re.compile(r"(?:ipv[46]:)?(?:\[(?P<six>[^\]]*)\]|(?P<four>[0-9.]+)):[0-9]+")
# What proxies add: the client is somewhere else then, wherever the connection comes from.
_FORWARDED = frozenset(
    (
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-real-ip",
        "x-envoy-peer-metadata",
    )
)


class UploadRule:
    """--allow-model-upload."""

    def __init__(self, setting: str = "auto") -> None:
        """`setting` is `auto`, `true` or `false`."""
        self._setting = setting

    def check(self, peer: str, headers: Iterable[str] = (), *, has_key: bool | None = None) -> None:
        """Raise Forbidden if this client may not upload files.

        `peer` is its address as HTTP or gRPC write it, `headers` are the names (in lower case) of
        the headers or metadata that it sent. `has_key` is whether its key permits it, None where
        no keys are required.
        """
        if self._setting == "true" or (self._setting == "auto" and has_key):
            return
        if self._setting == "false":
            raise Forbidden(
                "this server takes no model files from clients (--allow-model-upload=false)"
            )
        if has_key is False:
            raise Forbidden(
                "the key does not permit to upload model files, which the server would run; use a "
                "key with 'upload', or start the server with --allow-model-upload=true to let all "
                "clients do it that may load models"
            )
        if not _is_local(peer) or not _FORWARDED.isdisjoint(headers):
            raise Forbidden(
                "this client may not upload model files, which the server would run: only clients "
                "on the same machine may; start the server with --allow-model-upload=true to let "
                "all clients do it"
            )


def _is_local(peer: str) -> bool:
    if peer.startswith("unix:"):
        return True
    match = _ADDRESS.fullmatch(unquote(peer))  # grpcio quotes the brackets
    try:
        address = ipaddress.ip_address(match["six"] or match["four"] if match else "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
