"""A C program that answers every request at once, with the right response from a file.

It has the request rates of a server in the workload of the slowest requests. Its latencies are
those of the machine and the load generator: what no server can go below there.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import forms
from benchmarks.loads import program
from benchmarks.peers.base import Peer, Target
from benchmarks.peers.shoal import v2_targets
from benchmarks.places import HOME
from benchmarks.workloads import Workload

_SOURCE = Path(program.__file__).with_name("responder.c")


class Responder(Peer):
    """Neither a server nor a model."""

    name = "responder"
    title = "no server (a program that answers at once)"
    settings = (
        "one thread that polls without sleeping; gets Shoal's rate, then the rate that is equal "
        "for all"
    )
    computes = False

    def install(self) -> None:
        """Compile it. Raises Unavailable without a C compiler."""
        self._program = program.compiled(_SOURCE, HOME)

    def versions(self) -> dict[str, str]:
        """It is part of the benchmark."""
        return {}

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:
        """Serve the expected response."""
        file = folder / "response.bin"
        file.write_bytes(response(workload))
        return [self._program, str(ports[0]), str(file)]

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:  # noqa: ARG002
        """It needs none."""
        return {}

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """HTTP, with the requests that Shoal and Triton get."""
        return [one for one in v2_targets(workload, ports) if one.protocol == "http"]


def response(workload: Workload) -> bytes:
    """The whole response to the workload's request, as in KServe v2 with binary tensors."""
    outputs, contents = forms.described(workload.outputs)
    text = {"model_name": workload.model, "model_version": "1", "outputs": outputs}
    header = json.dumps(text, separators=(",", ":")).encode()
    body = header + contents
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
