"""Which execution providers a session gets: the instance's device, then `execution_accelerators`.

    KIND_CPU   cpu_execution_accelerator...                                   CPU
    KIND_GPU   gpu_execution_accelerator... CUDA  cpu_execution_accelerator... CPU

The order is the runtime's priority. A provider that the installed build of ONNX Runtime lacks is
rejected here, with the name of its package: the runtime itself would continue without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from shoal.backends.base import Placement
from shoal.config.model import ModelConfig, ModelOptimizationPolicy
from shoal.config.parameters import Parameters
from shoal.errors import ConfigError

Accelerator = ModelOptimizationPolicy.ExecutionAccelerators.Accelerator
Provider = tuple[str, dict[str, str]]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

# Short names that configs use. Names that end in ExecutionProvider are used unchanged.
_NAMES = MappingProxyType(
    {
        "cuda": CUDA,
        "tensorrt": TENSORRT,
        "tensorrt_rtx": "NvTensorRTRTXExecutionProvider",
        "openvino": "OpenVINOExecutionProvider",
        "dnnl": "DnnlExecutionProvider",
        "xnnpack": "XnnpackExecutionProvider",
        "acl": "ACLExecutionProvider",
        "coreml": "CoreMLExecutionProvider",
        "directml": "DmlExecutionProvider",
        "migraphx": "MIGraphXExecutionProvider",
        "rocm": "ROCMExecutionProvider",
        "qnn": "QNNExecutionProvider",
        "webgpu": "WebGpuExecutionProvider",
    }
)
_PACKAGES = MappingProxyType(
    {
        CUDA: "onnxruntime-gpu",
        TENSORRT: "onnxruntime-gpu",
        "NvTensorRTRTXExecutionProvider": "onnxruntime-trt-rtx",
        "OpenVINOExecutionProvider": "onnxruntime-openvino",
        "DmlExecutionProvider": "onnxruntime-directml",
        "MIGraphXExecutionProvider": "onnxruntime-migraphx",
        "ROCMExecutionProvider": "onnxruntime-rocm",
        "QNNExecutionProvider": "onnxruntime-qnn",
        "WebGpuExecutionProvider": "onnxruntime-webgpu",
    }
)
_ON_A_GPU = frozenset(
    {
        CUDA,
        TENSORRT,
        "NvTensorRTRTXExecutionProvider",
        "DmlExecutionProvider",
        "MIGraphXExecutionProvider",
        "ROCMExecutionProvider",
    }
)

# TensorRT parameters that Triton names differently from the runtime; trt_* are the same in both.
_TENSORRT_NAMES = MappingProxyType(
    {
        "max_workspace_size_bytes": "trt_max_workspace_size",
        "int8_calibration_table_name": "trt_int8_calibration_table_name",
        "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
    }
)
_TENSORRT_PRECISIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "FP32": {},
        "FP16": {"trt_fp16_enable": "1"},
        "BF16": {"trt_bf16_enable": "1"},
        "INT8": {"trt_int8_enable": "1"},
    }
)
# CUDA options that older configs have in `parameters`.
_CUDA_PARAMETERS = (
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
)


def providers(
    config: ModelConfig, placement: Placement, available: Sequence[str], file: str
) -> list[Provider]:
    """The providers for one instance in order of priority, each with its options.

    `available` are those of the installed runtime. Raises ConfigError if a provider is not among
    them, or if one of its parameters is wrong. Instances on a CPU ignore accelerators for a GPU.
    """
    accelerators = config.optimization.execution_accelerators if config.optimization else None
    on_gpu = placement.kind == "KIND_GPU"
    chosen: dict[str, dict[str, str]] = {}
    where = "optimization.execution_accelerators"
    if on_gpu:
        listed = accelerators.gpu_execution_accelerator if accelerators else ()
        for index, accelerator in enumerate(listed):
            field = f"{where}.gpu_execution_accelerator[{index}]"
            _add(chosen, accelerator, placement, file, field)
        options = {**_cuda_parameters(config, file), **chosen.pop(CUDA, {})}
        chosen[CUDA] = {**options, "device_id": str(placement.device_id)}  # behind the others
    for index, accelerator in enumerate(
        accelerators.cpu_execution_accelerator if accelerators else ()
    ):
        field = f"{where}.cpu_execution_accelerator[{index}]"
        _add(chosen, accelerator, placement, file, field)
    chosen.setdefault(CPU, {})
    for name in chosen:
        if name not in available:
            listed_as = "instance_group.kind" if name == CUDA else where
            raise _missing(name, available, file, listed_as)
    return list(chosen.items())


def missing_after_start(wanted: Sequence[Provider], started: Sequence[str]) -> list[str]:
    """Providers of the build that did not start: their libraries did not load."""
    return [name for name, _ in wanted if name not in started]


def _add(
    chosen: dict[str, dict[str, str]],
    accelerator: Accelerator,
    placement: Placement,
    file: str,
    field: str,
) -> None:
    name = _provider_name(accelerator.name, file, field)
    if name == TENSORRT:
        options = _tensorrt_options(accelerator.parameters, file, field)
    else:
        options = dict(accelerator.parameters)
    if name == "OpenVINOExecutionProvider":
        options.setdefault("device_type", "CPU")
    if name in _ON_A_GPU and placement.kind == "KIND_GPU":
        options["device_id"] = str(placement.device_id)
    chosen.setdefault(name, options)


def _provider_name(name: str, file: str, field: str) -> str:
    if name.endswith("ExecutionProvider"):
        return name
    try:
        return _NAMES[name.lower()]
    except KeyError:
        raise ConfigError(
            f"unknown Execution Accelerator '{name}' is requested",
            file=file,
            field=f"{field}.name",
            fix=f"Write one of {', '.join(_NAMES)}, or the name of an ONNX Runtime execution "
            "provider such as CUDAExecutionProvider",
        ) from None


def _tensorrt_options(parameters: Mapping[str, str], file: str, field: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, text in parameters.items():
        if key == "precision_mode":
            if text not in _TENSORRT_PRECISIONS:
                raise ConfigError(
                    f"unsupported precision mode '{text}' is requested",
                    file=file,
                    field=f"{field}.parameters '{key}'",
                    fix=f"Write one of {', '.join(_TENSORRT_PRECISIONS)}",
                )
            options.update(_TENSORRT_PRECISIONS[text])
        elif key in _TENSORRT_NAMES or key.startswith("trt_"):
            options[_TENSORRT_NAMES.get(key, key)] = text
        else:
            known = ", ".join(("precision_mode", *_TENSORRT_NAMES))
            raise ConfigError(
                f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator",
                file=file,
                field=f"{field}.parameters",
                fix=f"Known are {known} and the runtime's own options, which begin with trt_",
            )
    return options


def _cuda_parameters(config: ModelConfig, file: str) -> dict[str, str]:
    parameters = Parameters("onnxruntime", config, {}, file)
    options = {key: parameters.text(key) for key in _CUDA_PARAMETERS}
    return {key: text for key, text in options.items() if text}


def _missing(name: str, available: Sequence[str], file: str, field: str) -> ConfigError:
    package = _PACKAGES.get(name)
    if package is None:
        remedy = "Install a build of ONNX Runtime that has it"
    else:
        remedy = (
            f"It comes with the package {package}; remove the onnxruntime that is installed "
            f"first, the two share their files: pip uninstall onnxruntime && pip install {package}"
        )
    if name == CUDA:
        remedy += ". To serve the model without a GPU write instance_group [ { kind: KIND_CPU } ]"
    return ConfigError(
        f"the installed ONNX Runtime has no {name} (it has {', '.join(available)})",
        file=file,
        field=field,
        fix=remedy,
    )
