"""NVIDIA's tritonserver with its ONNX Runtime backend in C++, where one is installed.

    SHOAL_TRITON=/opt/tritonserver/bin/tritonserver SHOAL_TRITON_BACKENDS=/opt/tritonserver/backends

No package of pip's contains this backend. The executable can be a script that sets the
library path. It decodes no photos: for W2 an ensemble sends them through the Python backend of the
wheel `nvidia-pytriton`, which has to be of the same version.
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
from benchmarks.peers.triton import Triton
from benchmarks.places import ROOT, SERVICES
from benchmarks.shapes import CLASSES, PICTURE
from benchmarks.workloads import Workload

SERVER, BACKENDS = "SHOAL_TRITON", "SHOAL_TRITON_BACKENDS"
DECODER, NETWORK = "decode", "network"  # the models of W2's ensemble


class TritonOnnx(Peer):
    """`tritonserver`, which computes in its own process as Shoal does."""

    name = "triton-onnx"
    title = "Triton (ONNX Runtime backend, C++)"
    settings = (
        "max_batch_size 64, dynamic batching without a wait; W2 and W3: one instance of one thread "
        "per core; W2: an ensemble, in which the Python backend decodes, one process per core"
    )
    takes_json = True
    speaks_v2 = True
    most_copies = 1_000

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._wheel = Triton()

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

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:
        """The same repository as Shoal's, or the ensemble for photos."""
        models, backends = folder / "models", Path(self._backends)
        source, more = workload.model_path, _instances(self.workers(workload))
        if workload.picture:
            self._wheel.install()
            backends = folder / "backends"
            backends.mkdir()
            (backends / "onnxruntime").symlink_to(Path(self._backends) / "onnxruntime")
            (backends / "python").symlink_to(self._wheel.backends / "python")
            most_rows = max(workload.batches)  # as Shoal's
            for name, text, file, path in (
                (DECODER, _decoder(most_rows, more), "model.py", SERVICES / "triton_decode.py"),
                (NETWORK, _network(most_rows, more), "model.onnx", source),
                (workload.model, _ensemble(workload, most_rows), "", None),
            ):
                repository.write(models, name, text, file, path)
        else:
            repository.write_all(models, workload, "onnxruntime", "model.onnx", source, more)
        return [
            self._server,
            f"--model-repository={models}",
            f"--backend-directory={backends}",
            *addresses(ports),
        ]

    def start(self, workload: Workload) -> Running:
        """Serve, and keep the version that the server prints."""
        running = super().start(workload)
        text = running.family.log.read_text(encoding="utf-8", errors="replace")
        version = re.search(r"server_version\s*\|\s*([\d.]+)", text)
        self._found = {"tritonserver": version.group(1)} if version else {}
        return running

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:
        """Those of the Python backend; the rest is in the repository."""
        if not workload.picture:
            return {}
        packages = f"{ROOT}{os.pathsep}{self._wheel.packages_folder}"
        return {**self._wheel.variables(workload, ports), "BENCH_PACKAGES": packages}

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """Both protocols."""
        return v2_targets(workload, ports)


def _instances(count: int) -> str:
    """One instance with the backend's defaults; more with one thread each."""
    text = f"instance_group {{ count: {count} kind: KIND_CPU }}\n"
    if count > 1:
        text += 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'
    return text


def _decoder(most_rows: int, more: str) -> str:
    return (
        f'name: "{DECODER}"\nbackend: "python"\nmax_batch_size: {most_rows}\n'
        'input { name: "image" data_type: TYPE_STRING dims: [1] }\n'
        f'output {{ name: "pixels" data_type: TYPE_FP32 dims: {list(PICTURE)} }}\n{more}'
    )


def _network(most_rows: int, more: str) -> str:
    return (
        f'name: "{NETWORK}"\nbackend: "onnxruntime"\nmax_batch_size: {most_rows}\n'
        f'input {{ name: "image" data_type: TYPE_FP32 dims: {list(PICTURE)} }}\n'
        f'output {{ name: "scores" data_type: TYPE_FP32 dims: {list(CLASSES)} }}\n'
        f"dynamic_batching {{ }}\n{more}"
    )


def _ensemble(workload: Workload, most_rows: int) -> str:
    """The model that is asked: from the decoder to the network."""
    steps = ((DECODER, "image", "image", "pixels"), (NETWORK, "image", "pixels", "scores"))
    return (
        f'name: "{workload.model}"\nplatform: "ensemble"\nmax_batch_size: {most_rows}\n'
        'input { name: "image" data_type: TYPE_STRING dims: [1] }\n'
        f'output {{ name: "scores" data_type: TYPE_FP32 dims: {list(CLASSES)} }}\n'
        "ensemble_scheduling {\n"
        + "".join(
            f'step {{ model_name: "{model}" model_version: -1\n'
            f'input_map {{ key: "{key}" value: "{given}" }}\n'
            f'output_map {{ key: "{made}" value: "{made}" }} }}\n'
            for model, key, given, made in steps
        )
        + "}\n"
    )
