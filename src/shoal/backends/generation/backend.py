"""Text generation on the server: a decoder with past states, and the loop around it.

    config.pbtxt  task.json  tokenizer.json  1/decoder.onnx  [1/encoder.onnx]

`shoal export` writes such folders. Models are decoupled: a request has one response for each token,
or with `stream` false a single one. Decoder and encoder run on ONNX Runtime, with the same
settings for threads and providers as the `onnxruntime` backend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.backends import onnx_session
from shoal.backends.base import Backend, LoadContext, LoadedModel, Placement
from shoal.backends.generation import request as requests
from shoal.backends.generation.counts import Counts
from shoal.backends.generation.executor import GenerationExecutor
from shoal.backends.generation.files import ModelFiles, OnnxDecoder, OnnxEncoder
from shoal.backends.onnx_options import INSPECTION, session_settings
from shoal.backends.onnx_providers import CPU, providers
from shoal.config.model import ModelConfig, ModelInput, ModelOutput, ModelTransactionPolicy
from shoal.core import dtypes
from shoal.errors import ConfigError
from shoal.tasks.images.preparation import ImagePreparation
from shoal.tasks.settings import TaskSettings
from shoal.tasks.text_settings import DEFAULT_SEQUENCES, MAX_SEQUENCES, TextSettings

Described = ModelInput | ModelOutput

ENCODER_BATCH = "encoder_batch"  # a parameter of config.pbtxt
# On a CPU a batch of photos saves no time, and texts in progress would wait longer.
_DEFAULT_ENCODER_BATCH = 1


class GenerationBackend(Backend):
    """Loads folders made by `shoal export`, and others with such files."""

    name = "generation"
    uses_gpus = False  # past states are in the CPU's memory

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


class GenerationModel(LoadedModel):
    """One version of a model: sessions that its instances share."""

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
        if any(placement.kind == "KIND_GPU" for placement in context.placements):
            raise ConfigError(
                "models of the generation backend run on the CPU: their past states are in the "
                "CPU's memory and would be copied for every token",
                file=file,
                field="instance_group.kind",
                fix="Write KIND_CPU",
            )
        parameters = context.parameters("generation")
        self._max_rows = parameters.count(MAX_SEQUENCES) or DEFAULT_SEQUENCES
        self._encoder_batch = parameters.count(ENCODER_BATCH) or _DEFAULT_ENCODER_BATCH
        files = ModelFiles.of(config, context.version_folder)
        settings = session_settings(
            config, context.settings, len(context.placements), context.cores, file
        )
        placement = next(iter(context.placements), Placement("KIND_CPU"))
        chosen = providers(config, placement, onnx_session.available_providers(), file)
        task = TaskSettings.of(context.model_folder)
        writing = TextSettings.of(task, self._max_rows)
        encoder = None if files.encoder is None else OnnxEncoder(files.encoder, settings, chosen)
        decoder = OnnxDecoder(files.decoder, settings, chosen, encoder, writing.max_length)
        if writing.tokenizer.get_vocab_size() > decoder.shape.vocabulary:
            raise ConfigError(
                f"has {writing.tokenizer.get_vocab_size()} tokens, the decoder knows "
                f"{decoder.shape.vocabulary}",
                file=f"{context.model_folder.name}/tokenizer.json",
                fix="Put the tokenizer there that the model was trained with",
            )
        preparation = None
        if encoder is not None and len(encoder.dims) == 3:  # photos, not sound
            preparation = ImagePreparation.of(task, encoder.dims, dtypes.FP32)
        _check(config, None if encoder is None else encoder.dims, file)
        self._name = config.name
        self._encoder, self._decoder = encoder, decoder
        self._reader = requests.GenerationRequestReader(
            writing, preparation, sound=encoder is not None and preparation is None
        )
        labels = {"model": config.name, "version": str(context.version)}
        self._counts = Counts(labels, context.metrics)
        self._counts.texts = self.owed
        self._executors: list[GenerationExecutor] = []

    def executor(self, placement: Placement) -> GenerationExecutor:
        """Create an instance with its own batch of texts."""
        made = GenerationExecutor(
            placement.name or self._name,
            self._reader,
            self._encoder,
            self._decoder,
            self._max_rows,
            self._encoder_batch,
            self._counts,
        )
        self._executors.append(made)
        return made

    def owed(self) -> int:
        """How many texts are in progress."""
        return sum(executor.texts for executor in self._executors)

    def counters(self) -> Mapping[str, object]:
        """Runs of the decoder and the encoder, by batch size."""
        return {"generation": self._counts.snapshot()}

    def close(self) -> None:
        """Release the sessions."""
        self._executors.clear()
        self._counts.close()


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
