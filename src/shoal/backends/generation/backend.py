"""Text generation on the server: a decoder with past states, and the loop around it.

    config.pbtxt  task.json  tokenizer.json  1/decoder.onnx  [1/encoder.onnx]

`shoal export` writes such folders. Models are decoupled: a request has one response for each token,
or with `stream` false a single one. On a CPU, decoder and encoder run on ONNX Runtime, with the
same settings for threads and providers as the `onnxruntime` backend; on a GPU the same files run on
PyTorch, with their states on the GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shoal.backends import onnx_session
from shoal.backends.base import Backend, LoadContext, LoadedModel, Placement
from shoal.backends.generation import request as requests
from shoal.backends.generation.counts import Counts
from shoal.backends.generation.executor import Encoder, GenerationExecutor
from shoal.backends.generation.files import ModelFiles, OnnxEncoder, OnnxRuntime
from shoal.backends.onnx_options import INSPECTION, session_settings
from shoal.backends.onnx_providers import CPU, providers
from shoal.config.model import ModelConfig, ModelInput, ModelOutput, ModelTransactionPolicy
from shoal.core import dtypes
from shoal.errors import ConfigError
from shoal.generation.decoder import RowsFactory
from shoal.tasks.images.preparation import ImagePreparation
from shoal.tasks.settings import TaskSettings
from shoal.tasks.text_settings import DEFAULT_SEQUENCES, MAX_SEQUENCES, TextSettings

Described = ModelInput | ModelOutput

ENCODER_BATCH = "encoder_batch"  # a parameter of config.pbtxt
# On a CPU a batch of photos saves no time, and texts in progress would wait longer.
_DEFAULT_ENCODER_BATCH = 1
# A GPU encodes as many in hardly more time.
_DEFAULT_GPU_ENCODER_BATCH = 8


class GenerationBackend(Backend):
    """Loads folders made by `shoal export`, and others with such files."""

    name = "generation"

    def why_not_on_gpus(self) -> str:
        """That there is no PyTorch with CUDA, if so."""
        try:
            from shoal.backends.pytorch.library import has_cuda
        except ImportError:
            return "generation on a GPU needs PyTorch; install it with pip install 'shoal[torch]'"
        return "" if has_cuda() else "the installed PyTorch cannot use GPUs"

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Fill in inputs and outputs; the model is decoupled. Raises a ShoalError."""
        del settings, model_folder
        if not config.input or not config.output:
            files = ModelFiles.of(config, version_folder)
            dims = None
            if files.encoder is not None:
                dims = OnnxEncoder(files.encoder, INSPECTION, [(CPU, {})]).dims
            config = dataclasses.replace(
                config,
                input=config.input or requests.inputs(dims),
                output=config.output or requests.outputs(),
            )
        return dataclasses.replace(
            config, model_transaction_policy=ModelTransactionPolicy(decoupled=True)
        )

    def load(self, context: LoadContext) -> LoadedModel:
        """Open both files and read the tokenizer and the settings. Raises a ShoalError."""
        return GenerationModel(context)


class Runtime(Protocol):
    """The files of a model, opened by the library that runs them."""

    dims: tuple[int, ...] | None  # of a photo or of sound; None: there is no encoder
    vocabulary: int

    def instance(self, placement: Placement) -> tuple[Encoder | None, RowsFactory]:
        """What an instance runs. Raises a ShoalError."""

    def ready(self) -> bool:
        """False if it cannot generate any more."""

    def gpu_memory(self) -> Mapping[int, int]:
        """Bytes on each GPU."""

    def close(self) -> None:
        """Free the memory."""


class GenerationModel(LoadedModel):
    """One version of a model: weights that its instances share."""

    def __init__(self, context: LoadContext) -> None:
        config, file = context.config, context.file
        if config.max_batch_size:
            raise ConfigError(
                f"found {config.max_batch_size}: a request is one text, and texts are batched "
                "automatically",
                file=file,
                field="max_batch_size",
                fix=f"Leave it out, and set parameters['{MAX_SEQUENCES}'] to the number of "
                "texts to generate at once",
            )
        parameters = context.parameters("generation")
        self._max_rows = parameters.count(MAX_SEQUENCES) or DEFAULT_SEQUENCES
        files = ModelFiles.of(config, context.version_folder)
        task = TaskSettings.of(context.model_folder)
        writing = TextSettings.of(task, self._max_rows)
        self._runtimes: dict[bool, Runtime] = {}  # by whether it is for GPUs
        placements = context.placements or [Placement("KIND_CPU")]
        on_gpu = [placement for placement in placements if _is_gpu(placement)]
        on_cpu = [placement for placement in placements if not _is_gpu(placement)]
        encoder_batch = parameters.count(ENCODER_BATCH)
        self._encoder_batch = {
            False: encoder_batch or _DEFAULT_ENCODER_BATCH,
            True: encoder_batch or _DEFAULT_GPU_ENCODER_BATCH,
        }
        if on_cpu:
            settings = session_settings(
                config, context.settings, len(context.placements), context.cores, file
            )
            chosen = providers(config, on_cpu[0], onnx_session.available_providers(), file)
            self._runtimes[False] = OnnxRuntime(files, settings, chosen, writing.max_length)
        if on_gpu:
            self._runtimes[True] = _torch_runtime(file)(
                files,
                on_gpu,
                half=parameters.text("HALF_PRECISION"),
                max_length=writing.max_length,
                max_rows=self._max_rows,
                encoder_batch=self._encoder_batch[True],
                stop_ids=writing.stop_ids,
                file=file,
            )
        runtime = next(iter(self._runtimes.values()))
        if writing.tokenizer.get_vocab_size() > runtime.vocabulary:
            raise ConfigError(
                f"has {writing.tokenizer.get_vocab_size()} tokens, the decoder knows "
                f"{runtime.vocabulary}",
                file=f"{context.model_folder.name}/tokenizer.json",
                fix="Put the tokenizer there that the model was trained with",
            )
        preparation = None
        if runtime.dims is not None and len(runtime.dims) == 3:  # photos, not sound
            preparation = ImagePreparation.of(task, runtime.dims, dtypes.FP32)
        _check(config, runtime.dims, file)
        self._name = config.name
        self._reader = requests.GenerationRequestReader(
            writing, preparation, sound=runtime.dims is not None and preparation is None
        )
        labels = {"model": config.name, "version": str(context.version)}
        self._counts = Counts(labels, context.metrics)
        self._counts.texts = self.owed
        self._executors: list[GenerationExecutor] = []

    def executor(self, placement: Placement) -> GenerationExecutor:
        """Create an instance with its own batch of texts."""
        on_gpu = _is_gpu(placement)
        encoder, make_rows = self._runtimes[on_gpu].instance(placement)
        made = GenerationExecutor(
            placement.name or self._name,
            self._reader,
            encoder,
            make_rows,
            self._max_rows,
            self._encoder_batch[on_gpu],
            self._counts,
        )
        self._executors.append(made)
        return made

    def ready(self) -> bool:
        """False if a GPU has failed and the server must be restarted."""
        return all(runtime.ready() for runtime in self._runtimes.values())

    def owed(self) -> int:
        """How many texts are in progress."""
        return sum(executor.texts for executor in self._executors)

    def counters(self) -> Mapping[str, object]:
        """Runs of the decoder and the encoder, by batch size."""
        return {"generation": self._counts.snapshot()}

    def gpu_memory(self) -> Mapping[int, int]:
        """Weights and states on each GPU."""
        found = self._runtimes.get(True)
        return {} if found is None else found.gpu_memory()

    def close(self) -> None:
        """Release the weights."""
        self._executors.clear()
        self._counts.close()
        for runtime in self._runtimes.values():
            runtime.close()


def _is_gpu(placement: Placement) -> bool:
    return placement.kind == "KIND_GPU"


def _torch_runtime(file: str) -> Callable[..., Runtime]:
    """PyTorch is imported only where a model needs it."""
    try:
        from shoal.backends.generation.pytorch.runtime import TorchRuntime
    except ImportError as error:
        raise ConfigError(
            f"generation on a GPU needs PyTorch, which cannot be imported: {error}",
            file=file,
            field="instance_group.kind",
            fix="Install it with pip install 'shoal[torch]', or write KIND_CPU",
        ) from error
    return TorchRuntime


def _check(config: ModelConfig, encoder_dims: tuple[int, ...] | None, file: str) -> None:
    """A config may list some of the tensors, but no others. Raises ConfigError."""
    sides: tuple[tuple[str, Sequence[Described], Sequence[Described]], ...] = (
        ("input", config.input, requests.inputs(encoder_dims)),
        ("output", config.output, requests.outputs()),
    )
    for kind, written, offered in sides:
        known = {tensor.name: tensor.data_type for tensor in offered}
        for index, tensor in enumerate(written):
            if known.get(tensor.name) != tensor.data_type:
                there = ", ".join(f"{name} ({data_type})" for name, data_type in known.items())
                raise ConfigError(
                    f"there is no '{tensor.name}' of {tensor.data_type}: the {kind}s are {there}",
                    file=file,
                    field=f"{kind}[{index}]",
                    fix=f"Leave {kind} out of the config to have all of them",
                )
