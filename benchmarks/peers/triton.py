"""NVIDIA's tritonserver, from the wheel `nvidia-pytriton`, with its Python backend.

The wheel contains the server's binary, the Python backend and one stub per Python version, but no
ONNX Runtime backend: the model runs in `services/triton_model.py`. The stub needs numpy 1 and the
shared library of the Python it was built for.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from benchmarks.environments import Unavailable
from benchmarks.peers import repository
from benchmarks.peers.base import Peer, Target
from benchmarks.peers.shoal import addresses, v2_targets
from benchmarks.places import ROOT, SERVICES
from benchmarks.workloads import Workload

STUB = "triton_python_backend_stub"


class Triton(Peer):
    """`tritonserver` itself; PyTriton, for which the wheel is made, is not used."""

    name = "triton"
    title = "Triton (Python backend)"
    requirements = ("nvidia-pytriton>=0.7", "numpy<2")
    packages = ("nvidia-pytriton", "numpy")
    settings = "max_batch_size 64, dynamic batching without a wait, a batch is one execution"
    takes_json = True
    speaks_v2 = True
    most_copies = 10  # each is a process

    def install(self) -> None:
        """Put the stub of this Python next to the backend, where the server looks for it."""
        super().install()
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = self._home / "python_backend_stubs" / version / STUB
        if not stub.exists():
            raise Unavailable(f"the wheel has no Python backend for Python {version}")
        link = self.backends / "python" / STUB
        link.unlink(missing_ok=True)
        link.symlink_to(stub)
        for program in (stub, self._home / "bin" / "tritonserver"):
            program.chmod(0o755)
        # The stub's Python takes no PYTHONPATH, but knows the environment it finds on its PATH.
        (self.packages_folder / "benchmarks.pth").write_text(f"{ROOT}\n", encoding="utf-8")

    @property
    def packages_folder(self) -> Path:
        """Where its environment has its packages."""
        return next((self.python.parent.parent / "lib").glob("python3*")) / "site-packages"

    @property
    def _home(self) -> Path:
        return self.packages_folder / "pytriton" / "tritonserver"

    @property
    def backends(self) -> Path:
        """The folder of its backends."""
        return self._home / "backends"

    def launch(self, workload: Workload, ports: list[int], folder: Path) -> list[str]:
        """The same repository as Shoal's, with model.py instead of model.onnx."""
        instances = f"instance_group {{ count: {self.workers(workload)} kind: KIND_CPU }}\n"
        source = SERVICES / "triton_model.py"
        repository.write_all(folder / "models", workload, "python", "model.py", source, instances)
        return self.serve(folder / "models", ports)

    def serve(self, models: Path, ports: list[int]) -> list[str]:
        """The command that serves a repository."""
        return [
            str(self._home / "bin" / "tritonserver"),
            f"--model-repository={models}",
            f"--backend-directory={self.backends}",
            *addresses(ports),
        ]

    def variables(self, workload: Workload, ports: list[int]) -> dict[str, str]:
        """The stub embeds Python and has to find its shared library."""
        libraries = (
            self.packages_folder / "nvidia_pytriton.libs",
            sysconfig.get_config_var("LIBDIR"),
        )
        return {
            **super().variables(workload, ports),
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        }

    def targets(self, workload: Workload, ports: list[int]) -> list[Target]:
        """Both protocols."""
        return v2_targets(workload, ports)
