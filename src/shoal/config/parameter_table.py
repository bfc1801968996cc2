"""The parameters of config.pbtxt that Shoal and its backends read, declared once.

    parameters { key: "execution" value: { string_value: "threads" } }     in config.pbtxt
    --backend-config=pytorch,INFERENCE_MODE=false                          for all models

From this table come the reader (`parameters`), the rule that checks configs, the hint of
`shoal check` about misspelt names, and the tables in the documentation.

To add a parameter: a row here, and the line that reads it.
"""

from __future__ import annotations

from functools import partial

from shoal.config.parameter import (
    ANY,
    COUNT,
    FILE,
    FLAG,
    LIMIT,
    MILLISECONDS,
    NUMBER,
    POSITIVE,
    SECONDS,
    SIZE,
    TENSOR,
    TEXT,
    TIME_LIMIT,
    WHOLE,
    Parameter,
    ValueType,
    numbered,
    one_of,
)

_TREES = ("xgboost", "lightgbm", "fil")
_TABULAR = ("sklearn", *_TREES)

_onnx = partial(Parameter, backends=("onnxruntime", "generation"))
_generation = partial(Parameter, backends=("generation",))
_python = partial(Parameter, backends=("python",))
_pytorch = partial(Parameter, backends=("pytorch",))
_openvino = partial(Parameter, backends=("openvino",))
_tabular = partial(Parameter, backends=_TABULAR)
_trees = partial(Parameter, backends=_TREES)
_fil = partial(Parameter, backends=("fil",))
_sklearn = partial(Parameter, backends=("sklearn",))
_tflite = partial(Parameter, backends=("tflite",))

TABLE = (
    # ---- all models
    Parameter(
        "execution",
        one_of("auto", "loop", "threads"),
        "Whether batches of this model may run on the event loop, which saves quick models two "
        "thread switches. `auto` measures the model first.",
        "`auto`",
    ),
    Parameter(
        "execution_timeout_ms",
        TIME_LIMIT,
        "How long an execution may take. When one takes longer, its requests get DEADLINE_EXCEEDED "
        "(504) and [the instance is replaced](operation.md#models-that-hang). Such a model runs on "
        "threads.",
        "no limit",
    ),
    Parameter(
        "execution_timeout_replacements",
        WHOLE,
        "With `execution_timeout_ms`: how many threads of the model may hang at a time until its "
        "instances are no longer replaced.",
        "4",
    ),
    Parameter(
        "isolation",
        one_of("none", "process"),
        "`process`: each instance runs in [a process of its own](isolation.md), so that a crash of "
        "native code costs this model only.",
        "`--default-isolation`",
    ),
    Parameter(
        "run_in_frontends",
        FLAG,
        "With `--frontend-processes`: [each front end runs the model itself]"
        "(processes.md#models-that-front-ends-run-themselves). For quick models on the CPU.",
        "`false`",
    ),
    Parameter("task", TEXT, "The [task](tasks.md) of the model, such as `image-classification`."),
    Parameter(
        "max_queue_size",
        LIMIT,
        "Requests that may wait in the queue of a model without `dynamic_batching`.",
        "no limit",
        schedulers=("default",),
    ),
    Parameter(
        "default_timeout_microseconds",
        LIMIT,
        "How long a request may wait in the queue of a model without `dynamic_batching`.",
        "no limit",
        schedulers=("default",),
    ),
    Parameter(
        "target_latency_ms",
        MILLISECONDS,
        "[Refuses requests](overload.md) that the model could not answer within this time; 0: "
        "none.",
        "`--target-latency-ms`",
    ),
    Parameter(
        "padding",
        ValueType("true, false or inputs with their fillers: input_ids=0", str),
        "[Pads](batching.md) requests of different shapes to one batch: every input with a "
        "variable dimension, or those that are listed.",
        "`false`",
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
        "1",
        ignored_by=("python",),
    ),
    Parameter(
        "batch_by_shape",
        FLAG,
        "[Batches requests of equal shape](batching.md) from the whole queue.",
        "`false`",
    ),
    Parameter(
        "batch_by_shape_bucket",
        ValueType("how wide buckets are (32), or where each of them ends (16, 64, 256)", str),
        "With padding: which lengths share a batch.",
        "a bucket for each power of two",
    ),
    Parameter(
        "batch_by_shape_window",
        POSITIVE,
        "How many requests, from the oldest on, are considered for a batch.",
        "256",
    ),
    Parameter(
        "openai_input",
        TENSOR,
        "The input for the prompt of [/v1/completions](openai.md).",
        "by its name",
    ),
    Parameter(
        "openai_output", TENSOR, "The output with the generated text.", default="by its name"
    ),
    Parameter(
        "openai_max_tokens",
        POSITIVE,
        "The length of texts where a client does not specify one.",
        "the model decides",
    ),
    Parameter("openai_chat_template", FILE, "The chat template.", "`chat_template.jinja`"),
    Parameter("openai_tokenizer", FILE, "The tokenizer.", default="`tokenizer.json`"),
    # ---- ONNX Runtime
    _onnx(
        "intra_op_thread_count",
        COUNT,
        "Threads within an operator. If set, there is no second session for executions that run "
        "alone.",
        "cores / instances; all cores for an execution that runs alone",
    ),
    _onnx("inter_op_thread_count", COUNT, "Threads between operators, with `execution_mode`.", "1"),
    _onnx("execution_mode", FLAG, "`1` runs independent operators in parallel.", "`0`"),
    _onnx("share_session", FLAG, "`0` gives every instance a session of its own.", "`1`"),
    _onnx("enable_mem_arena", FLAG, "ONNX Runtime's memory arena.", "ONNX Runtime's"),
    _onnx("enable_mem_pattern", FLAG, "ONNX Runtime's memory patterns.", "ONNX Runtime's"),
    *(
        _onnx(
            f"{prefix}{ANY}",
            TEXT,
            f"Session options of ONNX Runtime that begin with `{prefix}`, passed as they are.",
            in_settings=False,
        )
        for prefix in ("session.", "optimization.", "ep.", "mlas.")
    ),
    _onnx(
        "memory.enable_memory_arena_shrinkage",
        TEXT,
        "A run option of ONNX Runtime, such as `cpu:0`.",
        in_settings=False,
    ),
    _onnx(
        "cudnn_conv_algo_search",
        numbered(_0="EXHAUSTIVE", _1="HEURISTIC", _2="DEFAULT"),
        "How cuDNN chooses convolution algorithms.",
        in_settings=False,
        wrong="unsupported cudnn_conv_algo_search value '{text}' is requested",
    ),
    _onnx("gpu_mem_limit", TEXT, "Bytes of GPU memory for the CUDA provider.", in_settings=False),
    _onnx(
        "arena_extend_strategy",
        numbered(_0="kNextPowerOfTwo", _1="kSameAsRequested"),
        "How the memory arena of the CUDA provider grows.",
        in_settings=False,
        wrong="unsupported arena_extend_strategy value '{text}' is requested",
    ),
    _onnx(
        "do_copy_in_default_stream",
        TEXT,
        "Whether the CUDA provider copies in the default stream.",
        in_settings=False,
    ),
    _onnx(
        "enable-global-threadpool",
        FLAG,
        "One thread pool for the sessions of all models.",
        "`false`",
        in_config=False,
    ),
    # ---- text generation
    _generation(
        "max_sequences",
        COUNT,
        "Texts that are generated at the same time; each beam counts as one.",
        "16",
    ),
    _generation(
        "encoder_batch",
        COUNT,
        "Photos that are encoded together between two steps of the decoder.",
        "1; 8 on a GPU",
    ),
    _generation(
        "HALF_PRECISION",
        one_of("fp16", "bf16"),
        "On a GPU: weights, states and computations in this precision.",
        "FP32",
    ),
    # ---- Python models
    _python(
        "python_execution",
        one_of("thread", "process", "auto"),
        "[Where instances run](python_models.md). `auto`: a thread for a "
        "single instance, processes for several and for Python-based backends.",
        "`auto`",
        in_settings=False,
    ),
    _python(
        "EXECUTION_ENV_PATH",
        ValueType("the path of a Python environment, or of an archive made by conda-pack", str),
        "The model's own Python environment.",
        in_settings=False,
    ),
    _python(
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        ValueType(
            "yes or no; inputs are in the CPU's memory either way", one_of("yes", "no").parse
        ),
        "Accepted for Triton's sake: inputs are always in the CPU's memory.",
        in_settings=False,
        wrong="Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: '{text}'",
    ),
    _python(
        "execution",
        one_of("thread", "process", "auto"),
        "As `python_execution`, for all models.",
        "`auto`",
        in_config=False,
    ),
    _python(
        "stub-timeout-seconds",
        SECONDS,
        "How long a model's process may take to start.",
        "30",
        in_config=False,
    ),
    _python(
        "environment-folder",
        ValueType("the path of a folder", str),
        "Where Python environments are stored.",
        "`~/.cache/shoal/environments`",
        in_config=False,
    ),
    # ---- PyTorch
    _pytorch("INFERENCE_MODE", FLAG, "`false`: only `no_grad`.", "`true`"),
    _pytorch(
        "INTRA_OP_THREAD_COUNT",
        COUNT,
        "Threads of each instance.",
        "cores / instances",
        aliases=("NUM_THREADS", "intra_op_thread_count"),
    ),
    _pytorch(
        "INTER_OP_THREAD_COUNT",
        COUNT,
        "Threads for parallel operators. PyTorch has one number for the process; the first model "
        "that sets it decides.",
        "PyTorch's",
        aliases=("NUM_INTEROP_THREADS", "inter_op_thread_count"),
    ),
    _pytorch(
        "ENABLE_WEIGHT_SHARING",
        FLAG,
        "Instances on one device share the weights.",
        "where it is safe",
    ),
    _pytorch(
        "ENABLE_CACHE_CLEANING",
        FLAG,
        "Gives GPU memory back after each execution; slow.",
        "`false`",
        aliases=("CACHE_CLEANING_ENABLED",),
    ),
    _pytorch(
        "DISABLE_OPTIMIZED_EXECUTION",
        FLAG,
        "TorchScript runs without optimisations, whose first runs take long.",
        "`false`",
    ),
    *(
        _pytorch(name, FLAG, f"{part} of TorchScript.", default)
        for name, part, default in (
            ("ENABLE_JIT_EXECUTOR", "The graph executor", "PyTorch's"),
            ("ENABLE_JIT_PROFILING", "The profiling mode", "PyTorch's"),
            ("ENABLE_TENSOR_FUSER", "The tensor expression fuser", "PyTorch's; `false` on GPUs"),
        )
    ),
    _pytorch("DISABLE_CUDNN", FLAG, "Convolutions without cuDNN.", "`false`"),
    _pytorch(
        "HALF_PRECISION",
        one_of("fp16", "bf16"),
        "Computes in this precision; inputs and outputs keep the datatypes of the config. Weights "
        "are converted; a torch.export program on a CPU, or with variable `dims`, runs in autocast "
        "instead.",
    ),
    _pytorch(
        "CHANNELS_LAST",
        FLAG,
        "Weights and images in this layout, which is fastest for convolutions in half precision.",
        "`true` for these on a GPU",
    ),
    _pytorch(
        "OPTIMIZE_FOR_INFERENCE",
        FLAG,
        "On a GPU, TorchScript is frozen and optimised, and graphs of torch.export programs are "
        "rewritten, when the model is loaded with fixed `dims`, if its results stay the same.",
        "`true`",
    ),
    _pytorch(
        "ENABLE_TORCH_COMPILE",
        FLAG,
        "Compiles Python modules and torch.export programs when they are loaded (with fixed "
        "`dims`) or first run.",
        "`false`",
    ),
    _pytorch(
        "TORCH_COMPILE_OPTIONAL_PARAMETERS",
        ValueType('a JSON object like {"dynamic": true}', str),
        'Options of `torch.compile`, such as `{"mode": "max-autotune"}`; they enable it, '
        '`{"disable": true}` disables it. For CUDA graphs use `CUDA_GRAPHS`, not the mode '
        "`reduce-overhead`, which works on one thread only.",
    ),
    _pytorch(
        "CUDA_GRAPHS",
        ValueType("true, false or batch sizes like 1,2,4,8", str),
        "Batch sizes to capture; `true` for 1, 2, 4, 8, 16, 20, 24, 28, 32, 40 … `max_batch_size`. "
        "A batch is padded to the next of them.",
        "`false`",
    ),
    _pytorch(
        "KEEP_ON_GPU",
        FLAG,
        "`false`: tensors between the steps of an ensemble go through the CPU.",
        "`true`",
    ),
    _pytorch(
        "MODEL_CLASS",
        ValueType("the name of a class", str),
        "The class in `model.py`.",
        "the first by name",
    ),
    # ---- OpenVINO
    _openvino(
        "TARGET_DEVICE",
        ValueType("a device of OpenVINO", str),
        "The device: `CPU`, `GPU`, `NPU`, `AUTO`.",
        "`CPU`",
    ),
    _openvino(
        "INFERENCE_NUM_THREADS",
        COUNT,
        "Threads of all instances together.",
        "the cores",
        aliases=("CPU_THREADS_NUM",),
    ),
    _openvino(
        "NUM_STREAMS",
        ValueType("a whole number, 0 for the default, or auto", str),
        "Executions at the same time.",
        "the instances",
        aliases=("CPU_THROUGHPUT_STREAMS",),
    ),
    _openvino(
        "PERFORMANCE_HINT",
        one_of("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"),
        "Lets OpenVINO choose threads and streams.",
    ),
    _openvino(
        "INFERENCE_PRECISION_HINT",
        TEXT,
        "The type FP32 is computed in: `f32`, `bf16` …",
        "OpenVINO's choice",
    ),
    _openvino(
        "HINT_BF16",
        FLAG,
        "As `INFERENCE_PRECISION_HINT` `bf16`.",
        "`NO`",
        aliases=("ENFORCE_BF16",),
    ),
    _openvino(
        "CPU_BIND_THREAD", one_of("YES", "NO", "NUMA"), "`YES`: threads keep their cores.", "`NO`"
    ),
    _openvino("COMPILATION_NUM_THREADS", COUNT, "Threads that compile the model.", "OpenVINO's"),
    _openvino("CPU_EXTENSION_PATH", FILE, "A library of custom operators."),
    _openvino(
        "SKIP_DYNAMIC_BATCHSIZE",
        FLAG,
        "`YES`: every execution has exactly `max_batch_size` rows.",
        "`NO`",
        aliases=("SKIP_OV_DYNAMIC_BATCHSIZE",),
    ),
    _openvino(
        "ENABLE_BATCH_PADDING",
        FLAG,
        "`YES`: smaller batches are padded to `max_batch_size`.",
        "`NO`",
    ),
    _openvino(
        "RESHAPE_IO_LAYOUTS", FLAG, "`YES`: the dims of the config replace the model's.", "`NO`"
    ),
    # ---- models of rows
    _tabular(
        "threads",
        COUNT,
        "Threads of one prediction; for scikit-learn the jobs of estimators with `n_jobs`.",
        "cores / instances",
    ),
    _trees(
        "threshold",
        NUMBER,
        "The probability above which a classifier of two classes answers 1.",
        "0.5",
    ),
    _fil(
        "model_type",
        one_of("xgboost_ubj", "xgboost_json", "xgboost", "lightgbm", "treelite_checkpoint"),
        "The format of the model file.",
        "by the file's name",
    ),
    _fil(
        "output_class",
        FLAG,
        "Whether the output is a class.",
        "by the model",
        aliases=("is_classifier",),
    ),
    _fil("predict_proba", FLAG, "Whether the output is a probability for each class.", "`false`"),
    _sklearn(
        "allow_pickle",
        FLAG,
        "Whether pickles are loaded, which run the code of their author.",
        "`false`",
        in_config=False,
    ),
    _sklearn(
        "trusted_types",
        ValueType("the names of types: a.B,c.D", str),
        "Types of other packages that skops files may contain.",
        in_config=False,
    ),
    # ---- TensorFlow Lite
    _tflite("num_threads", COUNT, "Threads of each instance.", "cores / instances"),
    _tflite("signature", TEXT, "The signature to serve.", "`serving_default`"),
    # ---- the identity backend
    Parameter(
        "execute_delay_ms",
        MILLISECONDS,
        "How long each execution takes, to stand for a slow model.",
        "0",
        backends=("identity",),
    ),
    # ---- all backends that read the batch dimension from the model file
    Parameter(
        "default-max-batch-size",
        SIZE,
        "`max_batch_size` of models that can batch and whose config does not set it.",
        "4; 1024 for models of rows",
        backends=("onnxruntime", "openvino", "pytorch", "jax", "tflite", *_TABULAR),
        in_config=False,
    ),
)
