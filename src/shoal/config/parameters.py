"""The parameters that Shoal and its backends read, declared once; see `TABLE`.

    parameters { key: "execution" value: { string_value: "threads" } }     in config.pbtxt
    --backend-config=pytorch,INFERENCE_MODE=false                          for all models

From the table come the reader (`Parameters`), the rule that checks configs, the hint of
`shoal check` about misspelt names, and the tables in the documentation.

To add a parameter: a row here, and the line that reads it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config.backends import BACKEND_NAMES, BACKENDS
from shoal.config.model import ModelConfig
from shoal.errors import ConfigError

DEFAULT_MAX_BATCH_SIZE = 4  # Triton's default for models that can batch
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_ANY = "…"  # at the end of a name: all parameters that begin so
_NEAR = 0.85  # how similar a misspelt name is to the one that was meant


@dataclass(frozen=True, slots=True)
class ValueType:
    """The values a parameter takes: what an error recommends, and how a text is read."""

    expected: str  # completes "Write …"
    parse: Callable[[str], Any]  # raises ValueError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the table."""

    name: str
    type: ValueType
    help: str
    default: str = ""  # for the documentation
    backends: tuple[str, ...] = ()  # the backends that read it; none: it is for all models
    ignored_by: tuple[str, ...] = ()  # backends whose models may use the name themselves
    schedulers: tuple[str, ...] = ()  # "default", "dynamic", "sequence"; none: all of them
    aliases: tuple[str, ...] = ()
    in_config: bool = True  # false: only the operator may set it, with --backend-config
    in_settings: bool = True  # whether --backend-config may set it; only where it has backends
    wrong: str = "found '{text}'"  # the message about a value that cannot be

    def concerns(self, config: ModelConfig) -> bool:
        """Whether the parameter has this meaning in `config`."""
        backend = BACKEND_NAMES.get(config.backend, config.backend)
        return (
            self.in_config
            and (not self.backends or backend in self.backends)
            and backend not in self.ignored_by
            and (not self.schedulers or _scheduler(config) in self.schedulers)
        )


def _whole(text: str, minimum: int = 0) -> int:
    if not text.isdecimal() or int(text) < minimum:
        raise ValueError(text)
    return int(text)


def _flag(text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise ValueError(text)
    return seconds


def one_of(*choices: str) -> ValueType:
    """One of these words, in any case of letters."""

    def parse(text: str) -> str:
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise ValueError(text)

    return ValueType(f"{', '.join(choices[:-1])} or {choices[-1]}", parse)


def _numbered(**words: str) -> ValueType:
    """A number that stands for a word."""
    by_number = {number.removeprefix("_"): word for number, word in words.items()}

    def parse(text: str) -> str:
        if text not in by_number:
            raise ValueError(text)
        return by_number[text]

    listed = ", ".join(f"{number} ({word})" for number, word in by_number.items())
    return ValueType(f"one of {listed}", parse)


TEXT = ValueType("a text", str)
FLAG = ValueType("true or false", _flag)
COUNT = ValueType("a whole number, 0 for the default", _whole)
POSITIVE = ValueType("a whole number, at least 1", lambda text: _whole(text, 1))
NUMBER = ValueType("a number", float)
_LIMIT = ValueType("a whole number, 0 for no limit", _whole)
_SIZE = ValueType("a whole number", int)
_MILLISECONDS = ValueType("a whole number of milliseconds", _whole)
_SECONDS = ValueType("a number of seconds greater than 0", _seconds)
_FILE = ValueType("the name of a file", str)
_TENSOR = ValueType("the name of a tensor", str)

_ONNX = ("onnxruntime", "generation")
_TREES = ("xgboost", "lightgbm", "fil")
_TABULAR = ("sklearn", *_TREES)

TABLE = (
    # ---- all models
    Parameter(
        "execution",
        one_of("auto", "loop", "threads"),
        "Whether batches of this model may run on the event loop, which saves quick models two "
        "thread switches. `auto` measures the model first.",
        default="`auto`",
    ),
    Parameter("task", TEXT, "The [task](tasks.md) of the model, such as `image-classification`."),
    Parameter(
        "max_queue_size",
        _LIMIT,
        "Requests that may wait in the queue of a model without `dynamic_batching`.",
        default="no limit",
        schedulers=("default",),
    ),
    Parameter(
        "default_timeout_microseconds",
        _LIMIT,
        "How long a request may wait in the queue of a model without `dynamic_batching`.",
        default="no limit",
        schedulers=("default",),
    ),
    Parameter(
        "padding",
        ValueType("true, false or inputs with their fillers: input_ids=0", str),
        "[Pads](batching.md) requests of different shapes to one batch: every input with a "
        "variable dimension, or those that are listed.",
        default="`false`",
        ignored_by=("python",),
    ),
    Parameter(
        "padding_axes",
        ValueType("the lengths of each tensor in order: input_ids[n], scores[n, n]", str),
        "Which dimensions have the same length, where that is not clear.",
        ignored_by=("python",),
    ),
    Parameter(
        "padding_mask",
        ValueType("the names of inputs", str),
        "Inputs that clients may leave out: the server fills in ones for each request's elements.",
        ignored_by=("python",),
    ),
    Parameter(
        "padding_multiple",
        POSITIVE,
        "Lengths are rounded up to a multiple of this.",
        default="1",
        ignored_by=("python",),
    ),
    Parameter(
        "batch_by_shape",
        FLAG,
        "[Batches requests of equal shape](batching.md) from the whole queue.",
        default="`false`",
    ),
    Parameter(
        "batch_by_shape_bucket",
        ValueType("how wide buckets are (32), or where each of them ends (16, 64, 256)", str),
        "With padding: which lengths share a batch.",
        default="a bucket for each power of two",
    ),
    Parameter(
        "batch_by_shape_window",
        POSITIVE,
        "How many requests, from the oldest on, are considered for a batch.",
        default="256",
    ),
    Parameter(
        "openai_input",
        _TENSOR,
        "The input for the prompt of [/v1/completions](openai.md).",
        default="by its name",
    ),
    Parameter(
        "openai_output", _TENSOR, "The output with the generated text.", default="by its name"
    ),
    Parameter(
        "openai_max_tokens",
        POSITIVE,
        "The length of texts where a client does not specify one.",
        default="the model decides",
    ),
    Parameter(
        "openai_chat_template",
        _FILE,
        "The chat template.",
        default="`chat_template.jinja`",
    ),
    Parameter("openai_tokenizer", _FILE, "The tokenizer.", default="`tokenizer.json`"),
    # ---- ONNX Runtime
    Parameter(
        "intra_op_thread_count",
        COUNT,
        "Threads within an operator.",
        default="cores / instances",
        backends=_ONNX,
    ),
    Parameter(
        "inter_op_thread_count",
        COUNT,
        "Threads between operators, with `execution_mode`.",
        default="1",
        backends=_ONNX,
    ),
    Parameter(
        "execution_mode",
        FLAG,
        "`1` runs independent operators in parallel.",
        default="`0`",
        backends=_ONNX,
    ),
    Parameter(
        "share_session",
        FLAG,
        "`0` gives every instance a session of its own.",
        default="`1`",
        backends=_ONNX,
    ),
    Parameter(
        "enable_mem_arena",
        FLAG,
        "ONNX Runtime's memory arena.",
        default="ONNX Runtime's",
        backends=_ONNX,
    ),
    Parameter(
        "enable_mem_pattern",
        FLAG,
        "ONNX Runtime's memory patterns.",
        default="ONNX Runtime's",
        backends=_ONNX,
    ),
    *(
        Parameter(
            f"{prefix}{_ANY}",
            TEXT,
            f"Session options of ONNX Runtime that begin with `{prefix}`, passed as they are.",
            backends=_ONNX,
            in_settings=False,
        )
        for prefix in ("session.", "optimization.", "ep.", "mlas.")
    ),
    Parameter(
        "memory.enable_memory_arena_shrinkage",
        TEXT,
        "A run option of ONNX Runtime, such as `cpu:0`.",
        backends=_ONNX,
        in_settings=False,
    ),
    Parameter(
        "cudnn_conv_algo_search",
        _numbered(_0="EXHAUSTIVE", _1="HEURISTIC", _2="DEFAULT"),
        "How cuDNN chooses convolution algorithms.",
        backends=_ONNX,
        in_settings=False,
        wrong="unsupported cudnn_conv_algo_search value '{text}' is requested",
    ),
    Parameter(
        "gpu_mem_limit",
        TEXT,
        "Bytes of GPU memory for the CUDA provider.",
        backends=_ONNX,
        in_settings=False,
    ),
    Parameter(
        "arena_extend_strategy",
        _numbered(_0="kNextPowerOfTwo", _1="kSameAsRequested"),
        "How the memory arena of the CUDA provider grows.",
        backends=_ONNX,
        in_settings=False,
        wrong="unsupported arena_extend_strategy value '{text}' is requested",
    ),
    Parameter(
        "do_copy_in_default_stream",
        TEXT,
        "Whether the CUDA provider copies in the default stream.",
        backends=_ONNX,
        in_settings=False,
    ),
    Parameter(
        "enable-global-threadpool",
        FLAG,
        "One thread pool for the sessions of all models.",
        default="`false`",
        backends=_ONNX,
        in_config=False,
    ),
    # ---- text generation
    Parameter(
        "max_sequences",
        COUNT,
        "Texts that are generated at the same time; each beam counts as one.",
        default="16",
        backends=("generation",),
    ),
    Parameter(
        "encoder_batch",
        COUNT,
        "Photos that are encoded together between two steps of the decoder.",
        default="1",
        backends=("generation",),
    ),
    # ---- Python models
    Parameter(
        "python_execution",
        one_of("thread", "process", "auto"),
        "[Where instances run](python_models.md). `auto`: a thread for a "
        "single instance, processes for several.",
        default="`auto`",
        backends=("python",),
        in_settings=False,
    ),
    Parameter(
        "EXECUTION_ENV_PATH",
        ValueType("the path of a Python environment, or of an archive made by conda-pack", str),
        "The model's own Python environment.",
        backends=("python",),
        in_settings=False,
    ),
    Parameter(
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        ValueType(
            "yes or no; inputs are in the CPU's memory either way", one_of("yes", "no").parse
        ),
        "Accepted for Triton's sake: inputs are always in the CPU's memory.",
        backends=("python",),
        in_settings=False,
        wrong="Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: '{text}'",
    ),
    Parameter(
        "execution",
        one_of("thread", "process", "auto"),
        "As `python_execution`, for all models.",
        default="`auto`",
        backends=("python",),
        in_config=False,
    ),
    Parameter(
        "stub-timeout-seconds",
        _SECONDS,
        "How long a model's process may take to start.",
        default="30",
        backends=("python",),
        in_config=False,
    ),
    Parameter(
        "environment-folder",
        ValueType("the path of a folder", str),
        "Where Python environments are stored.",
        default="`~/.cache/shoal/environments`",
        backends=("python",),
        in_config=False,
    ),
    # ---- PyTorch
    Parameter(
        "INFERENCE_MODE",
        FLAG,
        "`false`: only `no_grad`.",
        default="`true`",
        backends=("pytorch",),
    ),
    Parameter(
        "INTRA_OP_THREAD_COUNT",
        COUNT,
        "Threads of each instance.",
        default="cores / instances",
        backends=("pytorch",),
        aliases=("NUM_THREADS", "intra_op_thread_count"),
    ),
    Parameter(
        "INTER_OP_THREAD_COUNT",
        COUNT,
        "Threads for parallel operators. PyTorch has one number for the process; the first model "
        "that sets it decides.",
        default="PyTorch's",
        backends=("pytorch",),
        aliases=("NUM_INTEROP_THREADS", "inter_op_thread_count"),
    ),
    Parameter(
        "ENABLE_WEIGHT_SHARING",
        FLAG,
        "Instances on one device share the weights.",
        default="where it is safe",
        backends=("pytorch",),
    ),
    Parameter(
        "ENABLE_CACHE_CLEANING",
        FLAG,
        "Gives GPU memory back after each execution; slow.",
        default="`false`",
        backends=("pytorch",),
        aliases=("CACHE_CLEANING_ENABLED",),
    ),
    Parameter(
        "DISABLE_OPTIMIZED_EXECUTION",
        FLAG,
        "TorchScript runs without optimisations, whose first runs take long.",
        default="`false`",
        backends=("pytorch",),
    ),
    *(
        Parameter(
            name,
            FLAG,
            f"{part} of TorchScript.",
            default="PyTorch's",
            backends=("pytorch",),
        )
        for name, part in (
            ("ENABLE_JIT_EXECUTOR", "The graph executor"),
            ("ENABLE_JIT_PROFILING", "The profiling mode"),
            ("ENABLE_TENSOR_FUSER", "The tensor expression fuser"),
        )
    ),
    Parameter(
        "DISABLE_CUDNN",
        FLAG,
        "Convolutions without cuDNN.",
        default="`false`",
        backends=("pytorch",),
    ),
    Parameter(
        "HALF_PRECISION",
        one_of("fp16", "bf16"),
        "Computes in this precision; inputs and outputs keep the datatypes of the config. Weights "
        "are converted; a torch.export program runs in autocast instead.",
        backends=("pytorch",),
    ),
    Parameter(
        "CHANNELS_LAST",
        FLAG,
        "Weights and images in this layout, which is fastest for convolutions in half precision.",
        default="`false`",
        backends=("pytorch",),
    ),
    Parameter(
        "ENABLE_TORCH_COMPILE",
        FLAG,
        "Compiles Python modules and torch.export programs when they are loaded (with fixed "
        "`dims`) or first run.",
        default="`false`",
        backends=("pytorch",),
    ),
    Parameter(
        "TORCH_COMPILE_OPTIONAL_PARAMETERS",
        ValueType('a JSON object like {"dynamic": true}', str),
        'Options of `torch.compile`, such as `{"mode": "max-autotune"}`; they enable it, '
        '`{"disable": true}` disables it. For CUDA graphs use `CUDA_GRAPHS`, not the mode '
        "`reduce-overhead`, which works on one thread only.",
        backends=("pytorch",),
    ),
    Parameter(
        "CUDA_GRAPHS",
        ValueType("true, false or batch sizes like 1,2,4,8", str),
        "Batch sizes to capture; `true` for 1, 2, 4 … `max_batch_size`. A batch is padded to the "
        "next of them.",
        default="`false`",
        backends=("pytorch",),
    ),
    Parameter(
        "KEEP_ON_GPU",
        FLAG,
        "`false`: tensors between the steps of an ensemble go through the CPU.",
        default="`true`",
        backends=("pytorch",),
    ),
    Parameter(
        "MODEL_CLASS",
        ValueType("the name of a class", str),
        "The class in `model.py`.",
        default="the first by name",
        backends=("pytorch",),
    ),
    # ---- OpenVINO
    Parameter(
        "TARGET_DEVICE",
        ValueType("a device of OpenVINO", str),
        "The device: `CPU`, `GPU`, `NPU`, `AUTO`.",
        default="`CPU`",
        backends=("openvino",),
    ),
    Parameter(
        "INFERENCE_NUM_THREADS",
        COUNT,
        "Threads of all instances together.",
        default="the cores",
        backends=("openvino",),
        aliases=("CPU_THREADS_NUM",),
    ),
    Parameter(
        "NUM_STREAMS",
        ValueType("a whole number, 0 for the default, or auto", str),
        "Executions at the same time.",
        default="the instances",
        backends=("openvino",),
        aliases=("CPU_THROUGHPUT_STREAMS",),
    ),
    Parameter(
        "PERFORMANCE_HINT",
        one_of("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"),
        "Lets OpenVINO choose threads and streams.",
        backends=("openvino",),
    ),
    Parameter(
        "INFERENCE_PRECISION_HINT",
        TEXT,
        "The type FP32 is computed in: `f32`, `bf16` …",
        default="OpenVINO's choice",
        backends=("openvino",),
    ),
    Parameter(
        "HINT_BF16",
        FLAG,
        "As `INFERENCE_PRECISION_HINT` `bf16`.",
        default="`NO`",
        backends=("openvino",),
        aliases=("ENFORCE_BF16",),
    ),
    Parameter(
        "CPU_BIND_THREAD",
        one_of("YES", "NO", "NUMA"),
        "`YES`: threads keep their cores.",
        default="`NO`",
        backends=("openvino",),
    ),
    Parameter(
        "COMPILATION_NUM_THREADS",
        COUNT,
        "Threads that compile the model.",
        default="OpenVINO's",
        backends=("openvino",),
    ),
    Parameter(
        "CPU_EXTENSION_PATH",
        _FILE,
        "A library of custom operators.",
        backends=("openvino",),
    ),
    Parameter(
        "SKIP_DYNAMIC_BATCHSIZE",
        FLAG,
        "`YES`: every execution has exactly `max_batch_size` rows.",
        default="`NO`",
        backends=("openvino",),
        aliases=("SKIP_OV_DYNAMIC_BATCHSIZE",),
    ),
    Parameter(
        "ENABLE_BATCH_PADDING",
        FLAG,
        "`YES`: smaller batches are padded to `max_batch_size`.",
        default="`NO`",
        backends=("openvino",),
    ),
    Parameter(
        "RESHAPE_IO_LAYOUTS",
        FLAG,
        "`YES`: the dims of the config replace the model's.",
        default="`NO`",
        backends=("openvino",),
    ),
    # ---- models of rows
    Parameter(
        "threads",
        COUNT,
        "Threads of one prediction; for scikit-learn the jobs of estimators with `n_jobs`.",
        default="cores / instances",
        backends=_TABULAR,
    ),
    Parameter(
        "threshold",
        NUMBER,
        "The probability above which a classifier of two classes answers 1.",
        default="0.5",
        backends=_TREES,
    ),
    Parameter(
        "model_type",
        one_of("xgboost_ubj", "xgboost_json", "xgboost", "lightgbm", "treelite_checkpoint"),
        "The format of the model file.",
        default="by the file's name",
        backends=("fil",),
    ),
    Parameter(
        "output_class",
        FLAG,
        "Whether the output is a class.",
        default="by the model",
        backends=("fil",),
        aliases=("is_classifier",),
    ),
    Parameter(
        "predict_proba",
        FLAG,
        "Whether the output is a probability for each class.",
        default="`false`",
        backends=("fil",),
    ),
    Parameter(
        "allow_pickle",
        FLAG,
        "Whether pickles are loaded, which run the code of whoever made them.",
        default="`false`",
        backends=("sklearn",),
        in_config=False,
    ),
    Parameter(
        "trusted_types",
        ValueType("the names of types: a.B,c.D", str),
        "Types of other packages that skops files may contain.",
        backends=("sklearn",),
        in_config=False,
    ),
    # ---- TensorFlow Lite
    Parameter(
        "num_threads",
        COUNT,
        "Threads of each instance.",
        default="cores / instances",
        backends=("tflite",),
    ),
    Parameter(
        "signature",
        TEXT,
        "The signature to serve.",
        default="`serving_default`",
        backends=("tflite",),
    ),
    # ---- the identity backend
    Parameter(
        "execute_delay_ms",
        _MILLISECONDS,
        "How long each execution takes, to stand for a slow model.",
        default="0",
        backends=("identity",),
    ),
    # ---- all backends that read the batch dimension from the model file
    Parameter(
        "default-max-batch-size",
        _SIZE,
        "`max_batch_size` of models that can batch and whose config does not set it.",
        default="4; 1024 for models of rows",
        backends=("onnxruntime", "openvino", "pytorch", "jax", "tflite", *_TABULAR),
        in_config=False,
    ),
)


def declared(name: str, backend: str = "") -> Parameter | None:
    """The row for a parameter of a backend; without one, that of all models."""
    for row in TABLE:
        if name in (row.name, *row.aliases) and (
            backend in row.backends if backend else not row.backends
        ):
            return row
    return None


def value_of(config: ModelConfig, name: str) -> Any:
    """The value of a parameter for all models; None where the config does not set it."""
    return Parameters("", config, {}, "config.pbtxt").value(name)


def misspelt(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Each parameter that nothing reads, with the similar one that was probably meant.

    None for Python models and functions, which have parameters of their own.
    """
    if config.backend in ("python", "function"):
        return
    known = {
        name.lower(): name
        for row in TABLE
        if row.concerns(config)
        for name in (row.name, *row.aliases)
    }
    prefixes = tuple(name.removesuffix(_ANY) for name in known.values() if name.endswith(_ANY))
    names = {*known.values()}
    for key in config.parameters:
        near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=_NEAR)
        if near and key not in names and not key.startswith(prefixes):
            yield key, known[near[0]]


class Parameters:
    """Reads the parameters of one model: its config first, then --backend-config.

    Wrong values raise ConfigError. A backend of another package, whose parameters are not in the
    table, passes a `Parameter` of its own or lets the method choose the type.
    """

    def __init__(
        self, backend: str, config: ModelConfig, settings: Mapping[str, str], file: str
    ) -> None:
        self._backend = backend
        self._values = {key: item.string_value for key, item in config.parameters.items()}
        self._settings = settings
        self._file = file

    def text(self, key: str | Parameter) -> str:
        """A text or one of the declared words; "" where there is none."""
        return self.value(key, TEXT) or ""

    def count(self, key: str | Parameter) -> int:
        """A number of something; 0 where there is none."""
        return self.value(key, COUNT) or 0

    def number(self, key: str | Parameter) -> float | None:
        """Any number, or None."""
        number: float | None = self.value(key, NUMBER)
        return number

    def flag(self, key: str | Parameter) -> bool | None:
        """True, false, or None where there is none."""
        flag: bool | None = self.value(key, FLAG)
        return flag

    def with_prefix(self, *prefixes: str) -> dict[str, str]:
        """The parameters of the config whose names begin so, as they are."""
        return {key: text for key, text in self._values.items() if key.startswith(prefixes)}

    def default_max_batch_size(self, default: int = DEFAULT_MAX_BATCH_SIZE) -> int:
        """What max_batch_size becomes where a model can batch and its config does not set it."""
        row = Parameter("default-max-batch-size", _SIZE, "", in_config=False)
        size: int | None = self.value(row)
        return default if size is None else size

    def value(self, key: str | Parameter, type: ValueType = TEXT) -> Any:
        """The value, by its declared type; None where there is none."""
        row = key if isinstance(key, Parameter) else declared(key, self._backend)
        if row is None:
            if self._backend in BACKENDS or not self._backend:
                raise KeyError(f"{key} is not in the table of parameters")
            assert isinstance(key, str)
            row = Parameter(key, type, "")
        sources = ([self._values] if row.in_config else []) + (
            [self._settings] if row.in_settings else []
        )
        found = None
        for source in sources:
            for name in (row.name, *row.aliases):
                text = source.get(name, "").strip()
                if text:
                    try:
                        found = row.type.parse(text)
                    except ValueError:
                        raise self.wrong(row, text, name=name) from None
                    if found or row.type is not COUNT:  # 0 stands for the next default
                        return found
        return found

    def wrong(
        self, key: str | Parameter, text: str, expected: str = "", *, name: str = ""
    ) -> ConfigError:
        """The error for a value that cannot be, with the place where it is written."""
        row = key if isinstance(key, Parameter) else declared(key, self._backend)
        if row is None:
            assert isinstance(key, str)
            row = Parameter(key, TEXT, "")
        names = (name,) if name else (row.name, *row.aliases)
        written = next((each for each in names if each in self._values), "")
        if row.in_config and written:
            file, field = self._file, f"parameters['{written}']"
        else:
            file, field = "", f"--backend-config={self._backend},{names[0]}"
        return ConfigError(
            row.wrong.format(text=text),
            file=file,
            field=field,
            fix=f"Write {expected or row.type.expected}",
        )


def _scheduler(config: ModelConfig) -> str:
    if config.sequence_batching is not None:
        return "sequence"
    return "default" if config.dynamic_batching is None else "dynamic"
