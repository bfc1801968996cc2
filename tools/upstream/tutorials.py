"""HuggingFace, Quick_Deploy and Feature_Guide of tutorials."""

from __future__ import annotations

from pathlib import Path

from upstream import onnx_files, transformers_files
from upstream.example import Block, Client, Edited, Example, Place, Source, StandIn
from upstream.stand_ins import (
    hugging_face,
    picture,
    torchvision_weights,
    traced_network,
    web_pictures,
)

_FEATURES = "Feature_Guide/Data_Pipelines"
_VIT = "google/vit-base-patch16-224-in21k"
_LANGUAGE = "Quick_Deploy/HuggingFaceTransformers"
_LANGUAGE_NEEDS = ("accelerate", "transformers>=5")  # 4 looks into the cache of their container
_OPENVINO = "Quick_Deploy/OpenVINO/README.md"
_VLLM = Path(__file__).resolve().parents[2] / "tests" / "support" / "vllm_stand_in"

_IMAGE = picture("img1.jpg")
_SCORE = r"-?\d+\.\d+:\d+"


def _empty(folder: str) -> dict[str, Source]:
    """A folder that a model without files must have; git keeps none that are empty."""
    return {f"{folder}/.keep": "LICENSE"}


def _onnx(file: str, words: str, write: onnx_files.Writer) -> StandIn:
    return StandIn(words, lambda place: write(place.root / file), ("onnx",))


_DENSENET = _onnx(
    "models/densenet_onnx/1/model.onnx",
    "a small convolution with the tensors of DenseNet-121",
    onnx_files.densenet,
)


def _generation(name: str, model: str, save: transformers_files.Saver) -> StandIn:
    return hugging_face(model, f"a random {name} of two small layers", save)


_FALCON = _generation("Falcon", "tiiuae/falcon-7b", transformers_files.falcon)
_PERSIMMON = _generation("Persimmon", "adept/persimmon-8b-base", transformers_files.persimmon)
_LLAMA = _generation("Llama", "meta-llama/Llama-2-7b-hf", transformers_files.llama)


def _curl(model: str, endpoint: str) -> Client:
    """A request that the page of the language models prints."""
    url = f"localhost:8000/v2/models/{model}/{endpoint}"
    prints = (f'"model_name": ?"{model}"', "text_output")
    return Client(f"curl -X POST {url}", prints, page=f"{_LANGUAGE}/README.md")


def _complete_ensemble(place: Place) -> None:
    """Write what the README of Data_Pipelines says about the ensemble above its steps."""
    types = {
        "string": ("STRING", "-1"),
        "UINT8_array": ("UINT8", "-1"),
        "INT8_array": ("INT8", "-1"),
        "FP32_image": ("FP32", "-1, -1, -1"),
        "bool": ("BOOL", "-1"),
    }
    lines = ['name: "ensemble_model"', 'platform: "ensemble"', "max_batch_size: 8"]
    for kind in ("input", "output"):
        for name, (datatype, dims) in types.items():
            tensor = f'name: "ensemble_{kind}_{name}" data_type: TYPE_{datatype} dims: [{dims}]'
            lines.append(f"{kind} {{ {tensor} }}")
    config = place.root / "models/ensemble_model/config.pbtxt"
    config.write_text("\n".join([*lines, config.read_text("utf-8")]), "utf-8")


EXAMPLES = (
    Example(
        name="tutorials/HuggingFace/python",
        clone="tutorials",
        files={
            "models": "HuggingFace/python_model_repository",
            "client.py": "HuggingFace/client.py",
        },
        clients=(Client("python client.py --model_name python_vit", (r"\(1, 197, 768\)",)),),
        stand_ins=(
            hugging_face(_VIT, "a random ViT of one layer", transformers_files.vit),
            web_pictures(),
        ),
    ),
    Example(
        name="tutorials/HuggingFace/ensemble",
        clone="tutorials",
        files={
            "models": "HuggingFace/ensemble_model_repository",
            **_empty("models/ensemble_model/1"),
            "client.py": "HuggingFace/client.py",
        },
        clients=(Client("python client.py --model_name ensemble_model", (r"\(1, 197, 768\)",)),),
        stand_ins=(
            hugging_face(_VIT, "the configuration of ViT", transformers_files.vit),
            _onnx(
                "models/vit/1/model.onnx",
                "one layer with the tensors of the exported ViT",
                onnx_files.vit,
            ),
            web_pictures(),
        ),
        needs=("transformers<5",),  # ViTFeatureExtractor
    ),
    Example(
        name="tutorials/Quick_Deploy/HuggingFaceTransformers",
        clone="tutorials",
        files={f"models/{name}": f"{_LANGUAGE}/{name}" for name in ("falcon7b", "persimmon8b")},
        clients=(
            _curl("falcon7b", "infer"),
            _curl("persimmon8b", "infer"),
            _curl("falcon7b", "generate"),
        ),
        stand_ins=(_FALCON, _PERSIMMON),
        needs=_LANGUAGE_NEEDS,
    ),
    Example(
        name="tutorials/Quick_Deploy/HuggingFaceTransformers/llama",
        clone="tutorials",
        files={"models/llama7b": f"{_LANGUAGE}/llama7b"},
        clients=(
            Client(
                "curl -X POST localhost:8000/v2/models/llama7b/generate"
                """ -d '{"text_input": "How can you be"}'""",
                ('"model_name": ?"llama7b"', "text_output"),
            ),
        ),
        stand_ins=(
            _LLAMA,
            StandIn(
                "no token of the hub",
                lambda place: place.environment.update({"PRIVATE_REPO_TOKEN": "none"}),
            ),
        ),
        needs=_LANGUAGE_NEEDS,
    ),
    Example(
        name="tutorials/Quick_Deploy/ONNX",
        clone="tutorials",
        files={"client.py": "Quick_Deploy/ONNX/client.py"},
        clients=(Client("python client.py", (f"'{_SCORE}'",)),),
        stand_ins=(_DENSENET, _IMAGE),
        needs=("torchvision",),
    ),
    Example(
        name="tutorials/Quick_Deploy/OpenVINO/ONNX",
        clone="tutorials",
        files={
            "models/densenet_onnx/config.pbtxt": Block(_OPENVINO, 'name: "densenet_onnx"'),
            "client.py": "Quick_Deploy/ONNX/client.py",
        },
        clients=(Client("python client.py", (f"'{_SCORE}'",)),),
        stand_ins=(_DENSENET, _IMAGE),
        needs=("torchvision", "openvino"),
    ),
    Example(
        name="tutorials/Quick_Deploy/OpenVINO/PyTorch",
        clone="tutorials",
        files={
            "models/resnet50/config.pbtxt": Edited(
                Block(_OPENVINO, 'name: "resnet50 "'), {'"resnet50 "': '"resnet50"'}
            ),
            "convert.py": Block(_OPENVINO, "torchvision.models.resnet50"),
            "client.py": Edited(
                "Quick_Deploy/PyTorch/client.py", {"input__0": "x", "output__0": "x.45"}
            ),
        },
        before=(
            Client("python convert.py", ()),
            Client("mkdir models/resnet50/1", ()),
            Client("mv model.xml model.bin models/resnet50/1", ()),
        ),
        clients=(Client("python client.py", (f"b'{_SCORE}'",)),),
        stand_ins=(torchvision_weights("resnet50", "IMAGENET1K_V2"), _IMAGE),
        needs=("openvino",),
        remark="The client has the names of the tensors changed, as the README says. The name in"
        " the printed configuration ends with a space, which Triton refuses too; it is removed",
    ),
    Example(
        name="tutorials/Quick_Deploy/OpenVINO/TensorFlow",
        clone="tutorials",
        files={
            "models/resnet50/config.pbtxt": Block(_OPENVINO, 'name: "input_1"'),
            "client.py": "Quick_Deploy/TensorFlow/client.py",
        },
        clients=(Client("python client.py", (f"b'{_SCORE}'",)),),
        stand_ins=(
            StandIn(
                "a small convolution with the tensors of ResNet-50 of Keras",
                lambda place: onnx_files.keras_resnet50(place.root / "models/resnet50/1/model.xml"),
                ("onnx", "openvino"),
            ),
            _IMAGE,
        ),
        needs=("tensorflow",),
    ),
    Example(
        name="tutorials/Quick_Deploy/PyTorch",
        clone="tutorials",
        files={
            "models/resnet50/config.pbtxt": "Quick_Deploy/PyTorch/config.pbtxt",
            "client.py": "Quick_Deploy/PyTorch/client.py",
        },
        clients=(Client("python client.py", (f"b'{_SCORE}'",)),),
        stand_ins=(traced_network("resnet50", "models/resnet50/1/model.pt"), _IMAGE),
    ),
    Example(
        name="tutorials/Quick_Deploy/TensorFlow",
        clone="tutorials",
        files={},
        clients=(),
        left_out="needs a TensorFlow backend; see OpenVINO/TensorFlow for the converted model",
    ),
    Example(
        name="tutorials/Quick_Deploy/vLLM",
        clone="vllm_backend",  # its page takes everything from there
        files={
            "backends/vllm": "src",
            "models/vllm_model": "samples/model_repository/vllm_model",
            "client.py": "samples/client.py",
            "prompts.txt": "samples/prompts.txt",
        },
        serve=("--backend-directory=backends",),
        clients=(
            Client(
                "curl -X POST localhost:8000/v2/models/vllm_model/generate",
                ('"text_output": ?"What is Triton Inference Server',),
                page="README.md",
            ),
            Client("python client.py", ("PASS: vLLM example",)),
            Client(
                "python client.py --streaming-mode --exclude-inputs-in-outputs",
                ("PASS: vLLM example",),
            ),
        ),
        stand_ins=(
            StandIn(
                "a module in place of vLLM that answers with fixed words",
                lambda place: place.environment.update(PYTHONPATH=str(_VLLM)),
                ("PIL",),
            ),
        ),
    ),
    Example(
        name="tutorials/Feature_Guide/Data_Pipelines",
        clone="tutorials",
        files={
            "models/model1": f"{_FEATURES}/model_repository/model1",
            "models/model2": f"{_FEATURES}/model_repository/model2",
            **_empty("models/ensemble_model/1"),
            # in the folder of the version in the clone, one above in its README
            "models/ensemble_model/config.pbtxt": (
                f"{_FEATURES}/model_repository/ensemble_model/1/config.pbtxt"
            ),
            "client.py": f"{_FEATURES}/client.py",
        },
        clients=(
            Client(
                "python client.py", (r"\[\[b'This is a string'\]\]", r"\[\[1 2 3\]\]", r"\[-1 ")
            ),
        ),
        stand_ins=(
            web_pictures(),
            StandIn(
                "the platform, inputs and outputs that the published configuration of the ensemble"
                " lacks; Triton refuses it too",
                _complete_ensemble,
            ),
        ),
    ),
)
