"""Shoal on many machines: Ray Serve places and scales, Shoal serves.

    clients --> HAProxy --> replicas: whole Shoal servers on ports of their own
                   |            |
                   +- Ingress <-+ heartbeats; Ray Serve starts, replaces and counts both

No request passes through Ray. `app` builds the application for `serve run` and `serve deploy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def app(args: Mapping[str, Any]) -> Any:
    """The Ray Serve application of a config; see `shoal.ray.application`."""
    from shoal.ray.application import app as build

    return build(args)
