"""How a model is run, by its config and --backend-config=pytorch,…

The upper-case parameters are Triton's, except HALF_PRECISION, CHANNELS_LAST, CUDA_GRAPHS,
KEEP_ON_GPU, OPTIMIZE_FOR_INFERENCE, ENABLE_TORCH_COMPILE and MODEL_CLASS, which are ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.config.model import ModelConfig, ModelOptimizationPolicy
from shoal.config.parameter import FLAG
from shoal.config.parameters import Parameters

BACKEND = "pytorch"
HALF = "HALF_PRECISION"
COMPILE = "ENABLE_TORCH_COMPILE"
COMPILE_OPTIONS = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
GRAPHS = "CUDA_GRAPHS"
KEEP = "KEEP_ON_GPU"
OPTIMIZE = "OPTIMIZE_FOR_INFERENCE"
MODEL_CLASS = "MODEL_CLASS"
_OPTIONS_OF_COMPILE = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")


@dataclass(frozen=True, slots=True)
class Switches:
    """Settings that PyTorch has for a thread or the whole process. None: PyTorch's own default."""

    optimized: bool = True
    cudnn: bool = True
    jit_executor: bool | None = None
    jit_profiling: bool | None = None
    tensor_fuser: bool | None = None


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """What to capture a CUDA graph for."""

    rows: int
    least_rows: int = 0  # of a batch that it may run
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of inputs, without the rows


@dataclass(frozen=True, slots=True)
class PyTorchSettings:
    """How one model is run."""

    intra_op_threads: int  # per instance, on the CPU
    inter_op_threads: int = 0  # 0: not set
    inference_mode: bool = True
    switches: Switches = Switches()
    share_weights: bool | None = None  # None: if the model keeps no state
    clean_cache: bool = False
    compile: Mapping[str, Any] | None = None  # options of torch.compile; None: do not compile
    half: str = ""  # "fp16", "bf16"
    channels_last: bool | None = None  # None: for convolutions in half precision on a GPU
    optimize: bool = True  # on a GPU, at load
    graphs: tuple[GraphSpec, ...] = ()
    pin_inputs: bool = True
    pin_outputs: bool = True
    busy_wait: bool = False  # for the GPU
    output_copy_stream: bool = False  # results are copied on a stream of their own
    keep_on_gpu: bool = True  # tensors between the steps of an ensemble
    model_class: str = ""


def read(
    config: ModelConfig, settings: Mapping[str, str], instances: int, cores: int, file: str
) -> PyTorchSettings:
    """The settings from `config` and the backend's `settings`; ConfigError for a wrong value.

    By default each instance gets its share of the cores.
    """
    parameters = Parameters(BACKEND, config, settings, file)
    cuda = config.optimization.cuda if config.optimization is not None else None
    flag = parameters.flag
    on_gpu = any(group.kind == "KIND_GPU" for group in config.instance_group)
    fuser = flag("ENABLE_TENSOR_FUSER")
    return PyTorchSettings(
        intra_op_threads=parameters.count("INTRA_OP_THREAD_COUNT")
        or max(1, cores // max(1, instances)),
        inter_op_threads=parameters.count("INTER_OP_THREAD_COUNT"),
        inference_mode=flag("INFERENCE_MODE") is not False,
        switches=Switches(
            optimized=flag("DISABLE_OPTIMIZED_EXECUTION") is not True,
            cudnn=flag("DISABLE_CUDNN") is not True,
            jit_executor=flag("ENABLE_JIT_EXECUTOR"),
            jit_profiling=flag("ENABLE_JIT_PROFILING"),
            # On a GPU it compiles for each size of a batch, for seconds, and gains little.
            tensor_fuser=False if fuser is None and on_gpu else fuser,
        ),
        share_weights=flag("ENABLE_WEIGHT_SHARING"),
        clean_cache=flag("ENABLE_CACHE_CLEANING") is True,
        compile=_compile_options(config, parameters),
        half=parameters.text(HALF),
        channels_last=flag("CHANNELS_LAST"),
        optimize=flag(OPTIMIZE) is not False and flag("DISABLE_OPTIMIZED_EXECUTION") is not True,
        graphs=_graphs(config, parameters),
        pin_inputs=_pinned(config, "input"),
        pin_outputs=_pinned(config, "output"),
        busy_wait=cuda is not None and cuda.busy_wait_events,
        output_copy_stream=cuda is not None and cuda.output_copy_stream,
        keep_on_gpu=flag(KEEP) is not False,
        model_class=parameters.text(MODEL_CLASS),
    )


def _compile_options(config: ModelConfig, parameters: Parameters) -> dict[str, Any] | None:
    text = parameters.text(COMPILE_OPTIONS)
    wanted = parameters.flag(COMPILE)
    if wanted is False or (wanted is None and not text):
        return None
    # Batches have many sizes: compiling for each would take longer than running them.
    options: dict[str, Any] = {"dynamic": True} if config.max_batch_size > 1 else {}
    if text:
        try:
            written = json.loads(text)
        except ValueError:
            written = None
        if not isinstance(written, dict):
            raise parameters.wrong(COMPILE_OPTIONS, text)
        for key in written:
            if key not in _OPTIONS_OF_COMPILE:
                expected = f"the options {', '.join(_OPTIONS_OF_COMPILE)}"
                raise parameters.wrong(COMPILE_OPTIONS, key, expected)
        options.update(written)
    return None if options.pop("disable", False) else options


def _graphs(config: ModelConfig, parameters: Parameters) -> tuple[GraphSpec, ...]:
    """The batch sizes of `CUDA_GRAPHS`, or what `optimization.cuda` has."""
    largest = max(1, config.max_batch_size)
    text = parameters.text(GRAPHS).strip()
    words = text.replace(",", " ").split()
    if text and all(word.isdecimal() for word in words) and text not in ("0", "1"):
        sizes = {int(word) for word in words}
        if not all(1 <= size <= largest for size in sizes):
            expected = f"batch sizes from 1 to max_batch_size, which is {config.max_batch_size}"
            raise parameters.wrong(GRAPHS, text, expected)
        return tuple(map(GraphSpec, sorted(sizes)))
    try:
        wanted = FLAG.parse(text) if text else None
    except ValueError:
        raise parameters.wrong(GRAPHS, text) from None
    cuda = config.optimization.cuda if config.optimization is not None else None
    if wanted is False or (wanted is None and (cuda is None or not cuda.graphs)):
        return ()
    listed = [_graph(spec) for spec in cuda.graph_spec] if cuda is not None else []
    if listed:
        fitting = [spec for spec in listed if spec.rows <= largest]
        return tuple(sorted(fitting, key=lambda spec: spec.rows))
    return tuple(map(GraphSpec, graph_sizes(largest)))


def graph_sizes(largest: int) -> list[int]:
    """Batch sizes up to `largest`: doubled up to 16, where a row more costs little, and then so
    close that a batch is filled up by at most a quarter."""
    sizes = [1]
    while sizes[-1] < largest:
        last = sizes[-1]
        sizes.append(last * 2 if last < 16 else last + (1 << last.bit_length() - 1) // 4)
    return [*sizes[:-1], largest]


def _graph(spec: ModelOptimizationPolicy.Cuda.GraphSpec) -> GraphSpec:
    lowest = spec.graph_lower_bound
    return GraphSpec(
        max(1, spec.batch_size),
        lowest.batch_size if lowest is not None else 0,
        {name: tuple(shape.dim) for name, shape in spec.input.items()},
    )


def _pinned(config: ModelConfig, side: str) -> bool:
    optimization = config.optimization
    if optimization is None:
        return True
    buffer = getattr(optimization, f"{side}_pinned_memory")
    return buffer is None or buffer.enable is not False
