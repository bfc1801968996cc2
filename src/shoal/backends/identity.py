"""A backend that echoes: every output is a copy of an input. It needs no model file.

    input INPUT0 --> output OUTPUT0       otherwise by position: the first to the first, ...

For tests and demonstrations. The parameter `execute_delay_ms` makes each execution take that long,
to simulate a slow model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shoal.backends.base import Backend, Executor, LoadContext, LoadedModel, Placement
from shoal.backends.files import config_file
from shoal.config.model import ModelConfig, ModelInput, ModelOutput
from shoal.errors import BackendFailure, ConfigError


class IdentityBackend(Backend):
    """Echoes inputs."""

    name = "identity"
    stateless = True

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Add an output for each input if the config lists none."""
        del version_folder, settings
        if not config.input:
            raise ConfigError(
                "the identity backend has no model file to read inputs from",
                file=config_file(model_folder),
                field="input",
                fix='Write: input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }',
            )
        if config.output:
            return config
        return replace(config, output=tuple(_output(tensor) for tensor in config.input))

    def load(self, context: LoadContext) -> LoadedModel:
        """Check that every output has an input of its datatype, and the delay."""
        delay_ms = context.parameters(self.name).count("execute_delay_ms")
        return IdentityModel(_sources(context.config, context.file), delay_ms / 1000)


class IdentityModel(LoadedModel):
    """Which input each output repeats."""

    def __init__(self, sources: Mapping[str, str], delay_secs: float) -> None:
        self._sources = sources
        self._delay_secs = delay_secs
        self.may_run_on_loop = delay_secs == 0

    def executor(self, placement: Placement) -> Executor:
        """Any placement will do."""
        del placement
        return IdentityExecutor(self._sources, self._delay_secs)


class IdentityExecutor(Executor):
    """One instance."""

    def __init__(self, sources: Mapping[str, str], delay_secs: float) -> None:
        self._sources = sources
        self._delay_secs = delay_secs

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Sequence[np.ndarray]:
        """Copy the inputs. Raises BackendFailure when an output's input was left out."""
        if self._delay_secs:
            time.sleep(self._delay_secs)
        results: list[np.ndarray] = []
        for name in outputs:
            source = self._sources[name]
            if source not in inputs:
                raise BackendFailure(f"output '{name}' repeats the input '{source}': send it too")
            results.append(inputs[source].copy())  # the input's buffer may be reused
        return results


def _output(tensor: ModelInput) -> ModelOutput:
    name = tensor.name.replace("INPUT", "OUTPUT").replace("input", "output")
    return ModelOutput(
        name=name if name != tensor.name else f"{name}_output",
        data_type=tensor.data_type,
        dims=tensor.dims,
        reshape=tensor.reshape,
    )


def _sources(config: ModelConfig, file: str) -> dict[str, str]:
    """Output name to input name: by name if possible, else by position."""
    by_name = {_output(tensor).name: tensor for tensor in config.input}
    sources: dict[str, str] = {}
    for index, output in enumerate(config.output):
        source = by_name.get(output.name)
        if source is None and index < len(config.input):
            source = config.input[index]
        if source is None:
            raise ConfigError(
                f"there is no input for output '{output.name}' to repeat",
                file=file,
                field=f"output[{index}]",
                fix=f"Remove it: the model has {len(config.input)} inputs",
            )
        if source.data_type != output.data_type:
            raise ConfigError(
                f"output '{output.name}' repeats input '{source.name}', which is "
                f"{source.data_type}, not {output.data_type}",
                file=file,
                field=f"output[{index}].data_type",
                fix=f"Write data_type: {source.data_type}",
            )
        sources[output.name] = source.name
    return sources
