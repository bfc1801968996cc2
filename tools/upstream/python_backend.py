"""`examples/` of python_backend, in the order of the alphabet."""

from __future__ import annotations

from upstream.example import Client, Edited, Example, Source
from upstream.stand_ins import nvidia_torch_hub, picture, torchvision_weights


def _model(name: str, folder: str, prefix: str = "") -> dict[str, Source]:
    """A Python model and its configuration."""
    return {
        f"models/{name}/1/model.py": f"examples/{folder}/{prefix}model.py",
        f"models/{name}/config.pbtxt": f"examples/{folder}/{prefix}config.pbtxt",
    }


def _example(
    name: str, models: dict[str, Source], client: str, passed: str, needs: tuple[str, ...] = ()
) -> Example:
    """An example that downloads nothing and whose client says that it passed."""
    return Example(
        name=f"python_backend/{name}",
        clone="python_backend",
        files={**models, "client.py": f"examples/{client}"},
        clients=(Client("python client.py", (f"PASS: {passed}\n",)),),
        needs=needs,
    )


_ADD_SUB = _model("add_sub", "add_sub")
_PYTORCH = _model("pytorch", "pytorch")
_SQUARE = _model("square_int32", "decoupled", "square_")
_PREPROCESSING = "examples/preprocessing"

EXAMPLES = (
    _example("add_sub", _ADD_SUB, "add_sub/client.py", "add_sub"),
    _example(
        "auto_complete",
        {
            f"models/{kind}_auto_complete/1/model.py": f"examples/auto_complete/{kind}_model.py"
            for kind in ("nobatch", "batch")
        },
        "auto_complete/client.py",
        "auto_complete",
    ),
    _example(
        "bls/sync",
        {**_ADD_SUB, **_PYTORCH, **_model("bls_sync", "bls", "sync_")},
        "bls/sync_client.py",
        "BLS Sync",
        ("torch",),
    ),
    _example(
        "bls/async",
        {**_ADD_SUB, **_PYTORCH, **_model("bls_async", "bls", "async_")},
        "bls/async_client.py",
        "BLS Async",
        ("torch",),
    ),
    _example(
        "bls_decoupled/sync",
        {**_SQUARE, **_model("bls_decoupled_sync", "bls_decoupled", "sync_")},
        "bls_decoupled/sync_client.py",
        "BLS Decoupled Sync",
    ),
    _example(
        "bls_decoupled/async",
        {**_SQUARE, **_model("bls_decoupled_async", "bls_decoupled", "async_")},
        "bls_decoupled/async_client.py",
        "BLS Decoupled Async",
    ),
    _example(
        "custom_metrics",
        _model("custom_metrics", "custom_metrics"),
        "custom_metrics/client.py",
        "custom_metrics",
    ),
    Example(
        name="python_backend/decoupled",
        clone="python_backend",
        files={
            **_model("repeat_int32", "decoupled", "repeat_"),
            **_SQUARE,
            "repeat_client.py": "examples/decoupled/repeat_client.py",
            "square_client.py": "examples/decoupled/square_client.py",
        },
        clients=(
            Client("python repeat_client.py", ("PASS: repeat_int32\n",)),
            Client("python square_client.py", ("PASS: square_int32\n",)),
        ),
    ),
    Example(
        name="python_backend/instance_kind",
        clone="python_backend",
        files={
            **_model("resnet50", "instance_kind"),
            "client.py": "examples/instance_kind/client.py",
            "resnet50_labels.txt": "examples/instance_kind/resnet50_labels.txt",
        },
        clients=(
            Client("python client.py", ("Results is class: [A-Z]", "PASS: ResNet50 instance kind")),
            Client("python client.py -v", ('"kind": "KIND_CPU"', "PASS: ResNet50 instance kind")),
        ),
        stand_ins=(torchvision_weights("resnet50", "IMAGENET1K_V2"), nvidia_torch_hub()),
    ),
    _example("jax", _model("jax", "jax"), "jax/client.py", "jax", ("jax",)),
    Example(
        name="python_backend/preprocessing",
        clone="python_backend",
        files={
            "models": f"{_PREPROCESSING}/model_repository",
            "models/preprocess/1/model.py": f"{_PREPROCESSING}/model.py",
            "models/ensemble_python_resnet50/1/.keep": "LICENSE",
            "models/resnet50_trt/config.pbtxt": Edited(
                f"{_PREPROCESSING}/model_repository/resnet50_trt/config.pbtxt",
                {"tensorrt_plan": "onnxruntime_onnx"},
            ),
            "models/resnet50_trt/1/.keep": "LICENSE",
            "onnx_exporter.py": f"{_PREPROCESSING}/onnx_exporter.py",
            "client.py": f"{_PREPROCESSING}/client.py",
        },
        before=(
            Client("python onnx_exporter.py --save models/resnet50_trt/1/model.onnx", ("Saved",)),
        ),
        clients=(
            Client(
                "python client.py --image mug.jpg --label_file models/resnet50_trt/labels.txt",
                ("Result is class: [A-Z]",),
            ),
        ),
        stand_ins=(torchvision_weights("resnet50", "IMAGENET1K_V1"), picture("mug.jpg")),
        needs=("onnxscript",),
        remark="The exported ONNX file itself is served: TensorRT plans are not (one word of a"
        " configuration differs)",
    ),
    _example("pytorch", _PYTORCH, "pytorch/client.py", "pytorch", ("torch",)),
)
