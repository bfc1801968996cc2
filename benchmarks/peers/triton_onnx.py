"""NVIDIA's tritonserver with its ONNX Runtime backend in C++, where one is installed.

    SHOAL_TRITON=/opt/tritonserver/bin/tritonserver SHOAL_TRITON_BACKENDS=/opt/tritonserver/backends

No package of pip's contains this backend. The executable can be a script that sets the
library path.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from benchmarks.environments import Unavailable
from benchmarks.peers import repository
from benchmarks.peers.base import Peer, Running, Target
from benchmarks.peers.shoal import addresses, v2_targets
from benchmarks.workloads import Workload

SERVER, BACKENDS = "SHOAL_TRITON", "SHOAL_TRITON_BACKENDS"


class TritonOnnx(Peer):
    """`tritonserver`, which computes in its own process as Shoal does."""

    name = "triton-onnx"
    title = "Triton (ONNX Runtime backend, C++)"
    settings = (
        "max_batch_size 64, dynamic batching without a wait; "
        "W3: one instance of one thread per core"
    )
    takes_json = True
    speaks_v2 = True
    most_copies = 1_000

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def install(self) -> None:
        """Find what the environment variables name."""
        server, backends = os.environ.get(SERVER, ""), os.environ.get(BACKENDS, "")
        if not server or not backends:
            raise Unavailable(
                f"set {SERVER} to a tritonserver and {BACKENDS} to its folder of backends"
            )
        if shutil.which(server) is None:
            raise Unavailable(f"{SERVER}={server} is not an executable file")
        if not (Path(backends) / "onnxruntime" / "libtriton_onnxruntime.so").exists():
            raise Unavailable(f"{BACKENDS}={backends} contains no ONNX Runtime backend")
        self._server, self._backends = server, backends

    def versions(self) -> dict[str, str]:
        """What the server printed when it started."""
        return self._found

    def leaves_out(self, workload: Workload) -> str:
        """It has no decoder for JPEG."""
        if workload.picture:
            return "the backend takes tensors only, and decoding needs another backend"
        return super().leaves_out(workload)

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:
        """The same repository as Shoal's."""
        models = folder / "models"
        source, more = workload.model_path, _instances(self.workers(workload))
        repository.write_all(models, workload, "onnxruntime", "model.onnx", source, more)
        return [
            self._server,
            f"--model-repository={models}",
            f"--backend-directory={self._backends}",
            *addresses(ports),
        ]

    def start(self, workload: Workload) -> Running:
        """Serve, and keep the version that the server prints."""
        running = super().start(workload)
        text = running.family.log.read_text(encoding="utf-8", errors="replace")
        version = re.search(r"server_version\s*\|\s*([\d.]+)", text)
        self._found = {"tritonserver": version.group(1)} if version else {}
        return running

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:  # noqa: ARG002
        """Nothing: it takes its settings from the repository."""
        return {}

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """Both protocols."""
        return v2_targets(workload, ports)


def _instances(count: int) -> str:
    """One instance with the backend's defaults; more with one thread each."""
    text = f"instance_group {{ count: {count} kind: KIND_CPU }}\n"
    if count > 1:
        text += 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'
    return text
