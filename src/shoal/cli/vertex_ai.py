"""Vertex AI: the defaults of options in a container that the platform starts.

AIP_MODE=PREDICTION, AIP_HTTP_PORT, AIP_STORAGE_URI --> --allow-vertex-ai, --vertex-ai-port, PATH
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.config.options import BY_FLAG
from shoal.config.options.values import convert


def defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    """The defaults that the platform's variables set, by attribute of `Options`.

    Raises OptionError for a port that is none.
    """
    changed: dict[str, Any] = {}
    if environ.get("AIP_MODE") == "PREDICTION":
        changed.update(allow_vertex_ai=True, allow_http=False, allow_grpc=False)
    if environ.get("AIP_HTTP_PORT"):
        port = convert(BY_FLAG["--vertex-ai-port"], "AIP_HTTP_PORT", environ["AIP_HTTP_PORT"])
        changed["vertex_ai_port"] = port
    if environ.get("AIP_STORAGE_URI"):
        changed["model_repository"] = (environ["AIP_STORAGE_URI"],)
    return changed
