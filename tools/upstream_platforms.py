"""Run Triton's tests of its SageMaker and Vertex AI ports against Shoal, unmodified.

    sudo -E .venv/bin/python tools/upstream_platforms.py path/to/server [L0_vertex_ai L0_sagemaker]

It needs a git clone of triton-inference-server/server, root, and the packages that the tests import
(tritonclient[http], requests, psutil, ml_dtypes, sseclient-py). The tests' `test.sh` names paths
and ports: /opt/tritonserver, /opt/ml, /data, 8000 to 8080. They get these in a network, mounts and
processes of their own (`unshare`); only an empty /data is made where there is none. ONNX models
take the place of those that NVIDIA generates. `--serve=shoal` starts `shoal sagemaker` where the
tests call `serve`; otherwise that is Triton's own script, which starts `tritonserver`, our alias.

L0_sagemaker takes about ten minutes, most of it for a test that sends a hundred million chunks.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parent))

from upstream.clone import Clone

SUITES = ("L0_vertex_ai", "L0_sagemaker")
PACKAGES = ("tritonclient", "requests", "psutil", "ml_dtypes", "sseclient")
FOLDERS = ("qa/common", "qa/python_models", "docker/sagemaker")
VERSION = "0"  # of NVIDIA's models; any word will do
SERVER = Path("/opt/tritonserver/bin")
ENV = ("/usr/bin/env",)  # finds programs by PATH
INSIDE = "SHOAL_UPSTREAM_INSIDE"

CONFIG = """name: "%s"
platform: "onnxruntime_onnx"
max_batch_size: %d
"""


def main() -> int:
    """Run the suites; the exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("suites", nargs="*", choices=(*SUITES, []), default=[])
    parser.add_argument("--serve", choices=("triton", "shoal"), default="triton")
    arguments = parser.parse_args()
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"these packages are missing: {', '.join(missing)}")
    if not os.environ.get(INSIDE):
        Path("/data").mkdir(exist_ok=True)
        command = [
            *ENV,
            "unshare",
            "-mnp",
            "--fork",
            "--mount-proc",
            "--kill-child",
            sys.executable,
        ]
        environ = {**os.environ, INSIDE: "1"}
        return subprocess.run([*command, *sys.argv], env=environ, check=False).returncode
    clone = Clone(arguments.clone)
    with tempfile.TemporaryDirectory() as folder:
        lay_out(clone, Path(folder), arguments.serve)
        results = [run(clone, Path(folder), suite) for suite in arguments.suites or SUITES]
    return int(any(results))


def lay_out(clone: Clone, folder: Path, serve: str) -> None:
    """Everything that the tests expect at paths of their own."""
    subprocess.run([*ENV, "ip", "link", "set", "lo", "up"], check=True)
    for mount in ("/opt", "/data"):
        subprocess.run([*ENV, "mount", "-t", "tmpfs", "tmpfs", mount], check=True)
    for name in FOLDERS:
        clone.copy(name, folder / name)
    SERVER.mkdir(parents=True)
    python = sys.executable
    start = "import sys\nfrom shoal.cli import main\n"
    _program("tritonserver", f"#!{python}\n{start}sys.exit(main.tritonserver())\n")
    _program("python", f'#!/bin/sh\nexec {python} "$@"\n')
    _program("pip", "#!/bin/sh\n")  # the packages are there
    script = (folder / "docker/sagemaker/serve").read_text()
    if serve == "shoal":  # under the name by which the tests find the server's process
        name = 'import ctypes\nctypes.CDLL(None).prctl(15, b"tritonserver")\n'
        script = f'#!{python}\n{name}{start}sys.exit(main.main(["sagemaker", "serve"]))\n'
    _program("serve", script)
    models = Path("/data/inferenceserver") / VERSION
    add_sub(models / "qa_model_repository/onnx_int32_int32_int32")
    identity(models / "qa_identity_model_repository/onnx_zero_1_float32", 1)
    identity(models / "qa_ensemble_model_repository/qa_model_repository/nop_TYPE_FP32_-1", 2)


def run(clone: Clone, folder: Path, suite: str) -> int:
    """Run one suite, and print what its script and its tests found."""
    clone.copy(f"qa/{suite}", folder / "qa" / suite)
    environ = {**os.environ, "PATH": f"{SERVER}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*ENV, "bash", "test.sh", VERSION],
        check=False,
        cwd=folder / "qa" / suite,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("*** ")]
    for log in sorted((folder / "qa" / suite).glob("client*.log")):
        lines += [
            line for line in log.read_text().splitlines() if line.startswith(("Ran ", "FAIL"))
        ]
    print(f"{suite}: exit status {done.returncode}", *lines, sep="\n  ", flush=True)
    return done.returncode


def add_sub(folder: Path) -> None:
    """OUTPUT0 is the sum and OUTPUT1 the difference; in version 3 they have changed places."""
    for version in (1, 2, 3):
        names = ("OUTPUT0", "OUTPUT1") if version < 3 else ("OUTPUT1", "OUTPUT0")
        nodes = [
            helper.make_node(operator, ["INPUT0", "INPUT1"], [name])
            for operator, name in zip(("Add", "Sub"), names, strict=True)
        ]
        _save(folder, version, nodes, 2, TensorProto.INT32, 16)
    config = CONFIG % (folder.name, 8) + "version_policy: { latest { num_versions: 1 }}\n"
    (folder / "config.pbtxt").write_text(config)


def identity(folder: Path, count: int) -> None:
    """Each output is the input of its number."""
    nodes = [helper.make_node("Identity", [f"INPUT{i}"], [f"OUTPUT{i}"]) for i in range(count)]
    _save(folder, 1, nodes, count, TensorProto.FLOAT, "n")
    (folder / "config.pbtxt").write_text(CONFIG % (folder.name, 64))


def _save(
    folder: Path,
    version: int,
    nodes: list[onnx.NodeProto],
    count: int,
    datatype: int,
    size: int | str,
) -> None:
    tensors = [
        [
            helper.make_tensor_value_info(f"{name}{i}", datatype, ["batch", size])
            for i in range(count)
        ]
        for name in ("INPUT", "OUTPUT")
    ]
    graph = helper.make_graph(nodes, "graph", *tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    file = folder / str(version) / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(model.SerializeToString())


def _program(name: str, text: str) -> None:
    file = SERVER / name
    file.write_text(text)
    file.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
