"""Conceptual_Guide of tutorials: text in photos, pipelines, generation, semantic caching."""

from __future__ import annotations

import json
import shlex

from upstream import onnx_files, transformers_files
from upstream.example import Client, Edited, Example, OtherClone, Place, Source, StandIn
from upstream.stand_ins import hugging_face, library

_ONE = "Conceptual_Guide/Part_1-model_deployment"
_TWO = "Conceptual_Guide/Part_2-improving_resource_utilization"
_FOUR = "Conceptual_Guide/Part_4-inference_acceleration"
_FIVE = "Conceptual_Guide/Part_5-Model_Ensembles"
_SIX = "Conceptual_Guide/Part_6-building_complex_pipelines"
_SEVEN = "Conceptual_Guide/Part_7-iterative_scheduling"
_EIGHT = "Conceptual_Guide/Part_8-semantic_caching"
_CONFIG = "models/text_recognition/config.pbtxt"
_RECOGNITION = "model_repository/text_recognition/config.pbtxt"


def _detection(place: Place) -> None:
    onnx_files.text_detection(place.root / "models/text_detection/1/model.onnx")


def _recognition(batch: int | str, models: str = "models") -> StandIn:
    """The network of which the guide exports batches of one, later of any size."""

    def make(place: Place) -> None:
        file = place.root / models / "text_recognition/1/model.onnx"
        onnx_files.text_recognition(file, batch)

    return StandIn("sums of pixels for the network that recognizes text", make, ("onnx",))


_DETECTION = StandIn("one fixed box for EAST", _detection, ("onnx",))
_ANY_BATCH = _recognition("batch")

# The commands of the guide, with shorter windows: a busy machine is never stable.
_WINDOWS = "--measurement-interval=500 --stability-percentage=999"
_SHORTER = "With shorter windows than in the page"
_SIZES = "--shape input.1:1,32,100 --concurrency-range"
_BATCHES_OF_2 = Client(
    f"perf_analyzer -m text_recognition -b 2 {_SIZES} 2:16:2 --percentile=95 {_WINDOWS}",
    ("Concurrency: 2, throughput: [1-9]", "Concurrency: 16, throughput: [1-9]"),
)
_BATCHES_OF_16 = Client(
    f"perf_analyzer -m text_recognition -b 16 {_SIZES} 2 {_WINDOWS}",
    ("Concurrency: 2, throughput: [1-9]",),
)


def _utilization(name: str, remark: str = "", **replacements: str) -> Example:
    """Part 2, whose page measures the same model with parts of its configuration left out."""
    config = f"{_TWO}/{_RECOGNITION}"
    return Example(
        name=f"tutorials/Conceptual_Guide/Part_2/{name}",
        clone="tutorials",
        files={_CONFIG: Edited(config, replacements) if replacements else config},
        clients=(_BATCHES_OF_2,),
        stand_ins=(_ANY_BATCH,),
        needs=("perf_analyzer",),
        remark=f"{remark}. {_SHORTER}" if remark else _SHORTER,
    )


def _acceleration(name: str, *needs: str, remark: str) -> Example:
    """Part 4: one of its sample configurations."""
    return Example(
        name=f"tutorials/Conceptual_Guide/Part_4/{name}",
        clone="tutorials",
        files={_CONFIG: f"{_FOUR}/sample_configs/{name}_config.pbtxt"},
        clients=(_BATCHES_OF_16,),
        stand_ins=(_ANY_BATCH,),
        needs=("perf_analyzer", *needs),
        remark=f"{remark}. {_SHORTER}",
    )


def _perf_yaml(place: Place) -> None:
    settings = "perf_analyzer_flags:\n  shape: input.1:1,32,100\n"
    (place.root / "perf.yaml").write_text(settings, "utf-8")
    # Without a GPU too, the configurations of Model Analyzer have KIND_GPU.
    place.environment["SHOAL_GPU_FALLBACK"] = "cpu"


def _analyzed(mode: str, remark: str) -> Example:
    """Part 3: the search of the page, among few configurations."""
    profile = Client(
        "model-analyzer profile --model-repository=model_repository"
        f" --profile-models text_recognition --triton-launch-mode={mode}"
        " --output-model-repository-path=models -f perf.yaml --override-output-model-repository"
        " --latency-budget 10 --run-config-search-mode quick --concurrency-sweep-disable"
        " --run-config-search-max-concurrency 1 --run-config-search-max-instance-count 1"
        # It counts instances on the GPUs that it finds; with none there is nothing to draw.
        " --run-config-search-max-model-batch-size 2 --skip-detailed-reports",
        (r"Profile complete\. Profiled \d+ configurations", "Exporting Summary Report"),
    )
    return Example(
        name=f"tutorials/Conceptual_Guide/Part_3/{mode}",
        clone="tutorials",
        files={_RECOGNITION: f"{_TWO}/{_RECOGNITION}"},
        before=(profile,) if mode == "local" else (),
        clients=() if mode == "local" else (profile,),
        stand_ins=(
            _recognition("batch", "model_repository"),
            StandIn("a perf.yaml, which the page does not show", _perf_yaml),
        ),
        needs=("model-analyzer", "perf_analyzer", "tritonserver"),
        # Model Analyzer empties the repository `models`, and cannot read an empty index.
        serve=("--model-control-mode=explicit", "--model-repository=model_repository"),
        remark=f"{remark}. Without detailed reports, which need a GPU for this configuration",
    )


_VAE = json.dumps({"platform": "onnxruntime_onnx", "max_batch_size": 8})
_LOAD_VAE = shlex.join(
    (
        "curl",
        "--fail-with-body",
        "localhost:8000/v2/repository/models/vae/load",
        "--data",
        json.dumps({"parameters": {"config": _VAE}}),
    )
)


def _diffusion(place: Place) -> None:
    onnx_files.clip_text_encoder(place.root / "models/text_encoder/1/model.onnx")
    onnx_files.image_decoder(place.root / "models/vae/1/model.onnx")


# The progress bars of both prompts, the second below the first.
_BOTH_BARS = (r"128/128[^\r\n]*?it/s\](?!\x1b)", r"128/128[^\r\n]*?it/s\]\x1b")

# The last commit to which the patch of the page applies.
_VLLM_COMMIT = "b71088af874878c2b734ca098422d8d48f502539"


def _vllm(path: str) -> Source:
    return OtherClone("vllm_backend", path, _VLLM_COMMIT)


def _question(start: str) -> Client:
    """A request that the page prints; all mean the same, so that the first is computed."""
    request = (
        """time curl -X POST localhost:8000/v2/models/vllm_model/generate -d '{"text_input": """
    )
    return Client(
        f'{request}"{start}', ('"text_output": ?"response number 1"',), f"{_EIGHT}/README.md"
    )


EXAMPLES = (
    Example(
        name="tutorials/Conceptual_Guide/Part_1",
        clone="tutorials",
        files={
            "models": f"{_ONE}/model_repository",
            "client.py": f"{_ONE}/client.py",
            "img1.jpg": f"{_ONE}/img1.jpg",
        },
        clients=(Client("python client.py", (r"(?m)^[0-9a-z]+$",)),),
        stand_ins=(_DETECTION, _recognition(1)),
        needs=("cv2",),
    ),
    _utilization(
        "no_batching",
        "Without `dynamic_batching` and with one instance, as the page says",
        **{"dynamic_batching { }": "", "count: 2": "count: 1"},
    ),
    _utilization(
        "dynamic_batching", "With one instance, as the page says", **{"count: 2": "count: 1"}
    ),
    _utilization("two_instances"),
    _analyzed("local", remark="Model Analyzer starts `tritonserver`, which is Shoal"),
    _analyzed("remote", remark="Model Analyzer uses a server that runs"),
    _acceleration("ORT_TRT", remark="Without a GPU a warning says that TensorRT has no effect"),
    _acceleration("ORT_cuda_ep", remark="On the CPU where there is no GPU"),
    _acceleration("ORT_openvino", "onnxruntime-openvino", remark="With OpenVINO's provider"),
    Example(
        name="tutorials/Conceptual_Guide/Part_5",
        clone="tutorials",
        files={
            "models": f"{_FIVE}/model_repository",
            "client.py": f"{_FIVE}/client.py",
            "img1.jpg": f"{_FIVE}/img1.jpg",
        },
        clients=(Client("python client.py", (r"\['[0-9a-z]+'\]",)),),
        stand_ins=(_DETECTION, _ANY_BATCH),
        needs=("cv2", "torchvision"),
    ),
    Example(
        name="tutorials/Conceptual_Guide/Part_6",
        clone="tutorials",
        files={"models": f"{_SIX}/model_repository", "client.py": f"{_SIX}/client.py"},
        clients=(Client(_LOAD_VAE, ()), Client("python client.py", ("Time taken:",))),
        stand_ins=(
            StandIn("small networks for CLIP and the VAE", _diffusion, ("onnx",)),
            hugging_face(
                "openai/clip-vit-large-patch14",
                "a tokenizer of bytes",
                transformers_files.clip_tokenizer,
            ),
            library("diffusers", "a module in place of diffusers"),
        ),
        serve=(
            "--model-control-mode=explicit",
            "--load-model=text_encoder",
            "--load-model=pipeline",
        ),
        remark="TensorRT plans cannot be served: the decoder is loaded as ONNX, with a config that "
        "is sent to the server",
    ),
    Example(
        name="tutorials/Conceptual_Guide/Part_6/gui",
        clone="tutorials",
        files={},
        clients=(),
        left_out="needs gradio 3 and a browser; it sends the request of Part_6 over gRPC",
    ),
    Example(
        name="tutorials/Conceptual_Guide/Part_7",
        clone="tutorials",
        files={"models": f"{_SEVEN}/model_repository", "client": f"{_SEVEN}/client"},
        clients=tuple(
            Client(f"python3 client/client.py --model {model}", _BOTH_BARS, endless=True)
            for model in ("simple-gpt2", "iterative-gpt2")
        ),
        stand_ins=(
            hugging_face("gpt2", "a random GPT-2 of two small layers", transformers_files.gpt2),
        ),
    ),
    Example(
        name="tutorials/Conceptual_Guide/Part_8",
        clone="tutorials",
        files={
            "models": _vllm("samples/model_repository"),
            "backends/vllm": _vllm("src"),
            "semantic_cache.patch": f"{_EIGHT}/artifacts/semantic_cache.patch",
        },
        before=(Client("git apply -p2 --directory=backends/vllm semantic_cache.patch", ()),),
        clients=(
            _question("Tell me, how do I"),
            _question("How do I set up"),
            _question("How model repository"),
        ),
        stand_ins=(
            library("vllm_0_5", "a module in place of vLLM that numbers its responses"),
            hugging_face(
                "sentence-transformers/all-MiniLM-L6-v2",
                "a random MiniLM of one layer",
                transformers_files.sentence_embedder,
            ),
        ),
        needs=("sentence_transformers", "faiss", "theine<1"),
        serve=("--backend-directory=backends",),
        remark=f"The patch does not apply to newer vllm_backend than {_VLLM_COMMIT[:7]}",
    ),
)
