"""A stand-in for vLLM, without a model: what Triton's vLLM backend imports of it, and no more.

Put the folder above on PYTHONPATH. The engine continues a prompt with the words `word0 word1 …`,
one for each token. What it does is written to the file `events` of the engine's arguments.

    a prompt with "endless"    words until the request is aborted
    a prompt with "broken"     an exception instead of the second word
"""

import asyncio
import itertools
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

__version__ = "0.0.stand-in"


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: Optional[int] = 16  # noqa: UP045 - the backend compares annotations
    logprobs: Optional[int] = None  # noqa: UP045
    ignore_eos: bool = False

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            if not hasattr(type(self), name):
                raise TypeError(f"Unexpected keyword argument '{name}'")
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"SamplingParams({vars(self)})"


class StructuredOutputsParams(SamplingParams):
    pass


@dataclass
class PoolingParams:
    dimensions: int | None = None
    task: str = ""


@dataclass
class TokensPrompt:
    prompt_token_ids: list[int]


# ---- results


@dataclass
class Logprob:
    logprob: float
    rank: int
    decoded_token: str


@dataclass
class CompletionOutput:
    text: str
    token_ids: list[int]
    cumulative_logprob: float
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool


class PoolingRequestOutput(list[Any]):
    """Generic, as the backend's annotations need."""

    prompt_token_ids: list[int]


@dataclass
class EmbeddingOutput:
    embedding: list[float]


@dataclass
class EmbeddingRequestOutput:
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True

    @staticmethod
    def from_base(base: PoolingRequestOutput) -> "EmbeddingRequestOutput":
        return EmbeddingRequestOutput(EmbeddingOutput(list(base)), base.prompt_token_ids)


# ---- the engine's arguments and statistics


@dataclass
class ModelSettings:
    max_model_len: int = 2048


@dataclass
class VllmConfig:
    args: "AsyncEngineArgs"
    model_config: ModelSettings = field(default_factory=ModelSettings)


@dataclass
class AsyncEngineArgs:
    model: str
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_lora: bool = False
    disable_log_stats: bool = False
    enable_log_requests: bool = False
    aggregate_engine_logging: bool = False
    events: str = ""  # of the stand-in
    tasks: list[str] = field(default_factory=lambda: ["generate"])  # of the stand-in
    pace_secs: float = 0.0  # of the stand-in, for each word
    healthy_checks: int = sys.maxsize  # of the stand-in: how often it is healthy

    def create_engine_config(self, usage_context: str) -> VllmConfig:
        assert usage_context == UsageContext.OPENAI_API_SERVER
        if self.model == "missing":
            raise ValueError("there is no model called 'missing'")
        return VllmConfig(self)


class UsageContext:
    OPENAI_API_SERVER = "OPENAI_API_SERVER"


@dataclass
class FinishedRequestStats:
    e2e_latency: float
    num_prompt_tokens: int
    num_generation_tokens: int


@dataclass
class IterationStats:
    num_prompt_tokens: int
    num_generation_tokens: int
    time_to_first_tokens_iter: list[float]
    inter_token_latencies_iter: list[float]
    n_params_iter: list[int]
    finished_requests: list[FinishedRequestStats]


class StatLoggerBase:
    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        pass


def build_1_2_5_buckets(most: int) -> list[int]:
    steps = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    return list(itertools.takewhile(lambda step: step <= most, steps))


# ---- the engine


class AsyncLLM:
    @classmethod
    def from_vllm_config(
        cls, vllm_config: VllmConfig, stat_loggers: list[Any], **_options: Any
    ) -> "AsyncLLM":
        return cls(vllm_config, stat_loggers)

    def __init__(self, config: VllmConfig, stat_loggers: list[Any]) -> None:
        self._args = config.args
        self._loggers = [make(config, 0) for make in stat_loggers]
        self._running: dict[str, asyncio.Event] = {}
        self._note(f"started {self._args.model}")

    def _note(self, event: str) -> None:
        if self._args.events:
            with Path(self._args.events).open("a") as file:
                file.write(f"{event}\n")

    async def reset_mm_cache(self) -> None:
        pass

    async def get_supported_tasks(self) -> list[str]:
        return self._args.tasks

    async def check_health(self) -> None:
        self._args.healthy_checks -= 1
        if self._args.healthy_checks < 0:
            raise RuntimeError("the engine is dead")

    async def generate(
        self,
        prompt: str | dict[str, Any],
        sampling_params: SamplingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
    ) -> Any:
        text = prompt["prompt"] if isinstance(prompt, dict) else prompt
        aborted = self._running[request_id] = asyncio.Event()
        self._note(f"generate {text.strip()} {lora_request.lora_path if lora_request else ''}")
        most = sys.maxsize if "endless" in text else sampling_params.max_tokens or 16
        try:
            for count in range(1, most + 1):
                await asyncio.sleep(self._args.pace_secs)
                if aborted.is_set():
                    return
                if "broken" in text and count > 1:
                    raise RuntimeError("the engine failed")
                yield self._output(request_id, text, sampling_params, count, done=count == most)
            self._record(text, most, sampling_params)
        finally:
            self._running.pop(request_id, None)

    @staticmethod
    def _output(
        request_id: str, text: str, params: SamplingParams, count: int, *, done: bool
    ) -> RequestOutput:
        words = [f" word{index}" for index in range(count)]
        logprobs = [{index: Logprob(-0.5, 1, word)} for index, word in enumerate(words)]
        output = CompletionOutput(
            text="".join(words),
            token_ids=list(range(count)),
            cumulative_logprob=-0.5 * count,
            logprobs=None if params.logprobs is None else logprobs,
            finish_reason="length" if done else None,
        )
        return RequestOutput(request_id, text, _tokens(text), [output] * params.n, done)

    def _record(self, text: str, count: int, params: SamplingParams) -> None:
        tokens, intervals = len(_tokens(text)), [0.01] * (count - 1)
        finished = [FinishedRequestStats(0.25, tokens, count)]
        stats = IterationStats(tokens, count, [0.015], intervals, [params.n], finished)
        for logger in self._loggers:
            logger.record(scheduler_stats=None, iteration_stats=stats)

    async def encode(self, prompt: Any, params: PoolingParams, _request_id: str) -> Any:
        found = PoolingRequestOutput([0.5] * (params.dimensions or 4))
        found.prompt_token_ids = _tokens(prompt)
        yield found

    async def abort(self, request_id: str) -> None:
        self._running[request_id].set()
        self._note("aborted")

    def shutdown(self) -> None:
        self._note("stopped")


def _tokens(text: str) -> list[int]:
    """A token for each word, and one for the beginning."""
    return list(range(1 + len(text.split())))


# ---- the modules in which the backend looks for all this

_MODULES = {
    "config": (VllmConfig,),
    "engine.arg_utils": (AsyncEngineArgs,),
    "engine.protocol": (type("EngineClient", (), {}),),
    "inputs.data": (TokensPrompt,),
    "lora.request": (LoRARequest,),
    "outputs": (EmbeddingOutput, EmbeddingRequestOutput, PoolingRequestOutput, RequestOutput),
    "pooling_params": (PoolingParams,),
    "sampling_params": (SamplingParams, StructuredOutputsParams),
    "usage.usage_lib": (UsageContext,),
    "utils": (),
    "v1.engine.async_llm": (AsyncLLM,),
    "v1.metrics.loggers": (
        StatLoggerBase,
        build_1_2_5_buckets,
        type("StatLoggerFactory", (), {}),
    ),
    "v1.metrics.stats": (
        IterationStats,
        type("SchedulerStats", (), {}),
        type("MultiModalCacheStats", (), {}),
    ),
}
for _name, _contents in _MODULES.items():
    _path = __name__
    for _part in _name.split("."):
        _path = f"{_path}.{_part}"
        sys.modules.setdefault(_path, ModuleType(_path))
    for _item in _contents:
        setattr(sys.modules[_path], _item.__name__, _item)
sys.modules[f"{__name__}.utils"].random_uuid = lambda: uuid.uuid4().hex  # type: ignore[attr-defined]
