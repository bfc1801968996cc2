"""An application on a Ray cluster: start it, describe it, delete it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from shoal.errors import NotFound, Unavailable, Unsupported
from shoal.ray.application import app
from shoal.ray.config import from_dict
from shoal.ray.replica import INGRESS

_ANSWER_SECS = 10.0
_CONNECT_SECS = 5.0
_OWN_ERROR = re.compile(r"^shoal\.errors\.\w+: ", re.MULTILINE)


class Cluster:
    """A connection to a Ray cluster; `close` ends it."""

    def __init__(self, address: str) -> None:
        """Connects; without an address it starts Ray on this machine, until `close`.

        Raises Unavailable, and Unsupported where Ray is not installed.
        """
        try:
            import ray
            from ray import serve
        except ImportError:
            raise Unsupported("Ray is not installed: pip install 'shoal[ray]'") from None
        _check_reachable(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Without "local" Ray would look for a cluster that was started before.
        own = {"address": "local", "include_dashboard": False}
        options: dict[str, Any] = {"address": address} if address else own
        try:
            ray.init(logging_level="warning", log_to_driver=not address, **options)
        except Exception as error:  # noqa: BLE001 - of Ray, in many types
            text = str(error).partition("\n")[0]
            if not address:
                raise Unavailable(f"Ray cannot be started on this machine: {text}") from None
            raise Unavailable(
                f"the Ray cluster at '{address}' cannot be used: {text}. If none runs there, start "
                f"one with `ray start --head`, or leave out --address. If it asks for a token, set "
                f"RAY_AUTH_MODE=token here, too, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH unless "
                f"the token is in ~/.ray/auth_token"
            ) from None
        self._ray: Any = ray
        self._serve: Any = serve
        self._is_own = not address

    def start(self, document: Mapping[str, Any], name: str) -> None:
        """Start an application, or change the one of that name; returns when it serves.

        Raises InvalidArgument, and Unavailable if its replicas do not become ready.
        """
        from_dict(document)
        self._serve.start(proxy_location="Disabled")
        try:
            self._serve.run(app(document), name=name, route_prefix=None)
        except RuntimeError as error:
            raise Unavailable(f"'{name}' was not started: {self._reason(name) or error}") from None

    def _reason(self, name: str) -> str:
        """What Ray Serve says about the parts of an application that do not run."""
        found = self._serve.status().applications.get(name)
        parts = found.deployments.items() if found is not None else ()
        # Our own error is at the end of a long traceback.
        return "; ".join(
            f"{part}: {_OWN_ERROR.split(one.message)[-1].strip()}"
            for part, one in parts
            if one.status.value != "HEALTHY"
        )

    def delete(self, name: str) -> None:
        """Stop an application, after its requests are answered. Raises NotFound."""
        self._find(name)
        self._serve.delete(name)

    def describe(self, name: str) -> dict[str, Any]:
        """What Ray Serve and the ingress know of an application. Raises NotFound, Unavailable."""
        application = self._find(name)
        handle = self._serve.get_deployment_handle(INGRESS, name)
        try:
            replicas = handle.replicas.remote().result(timeout_s=_ANSWER_SECS)["replicas"]
        except Exception as error:  # noqa: BLE001 - Ray has many types
            raise Unavailable(f"the ingress of '{name}' does not answer: {error}") from None
        return {
            "name": name,
            "status": application.status.value,
            "message": application.message,
            "groups": {
                group: {
                    "status": one.status.value,
                    "message": one.message,
                    "states": {str(state): count for state, count in one.replica_states.items()},
                }
                for group, one in application.deployments.items()
            },
            "replicas": replicas,
        }

    def close(self) -> None:
        """End the connection, and the cluster if it was started here, after its requests."""
        if self._is_own:
            for name in self._serve.status().applications:
                self._serve.delete(name)
            self._serve.shutdown()
        self._ray.shutdown()

    def _find(self, name: str) -> Any:
        found = self._serve.status().applications
        if name not in found:
            others = ", ".join(sorted(found)) or "none"
            raise NotFound(f"no application '{name}' runs on the cluster; there are: {others}")
        return found[name]


def _check_reachable(address: str) -> None:
    """Raise Unavailable if nothing listens at `host:port`, which Ray tries for two minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECS).close()
    except OSError as error:
        raise Unavailable(
            f"no Ray cluster answers at '{address}': {error}; `ray start --head` starts one and "
            f"prints its address"
        ) from None
