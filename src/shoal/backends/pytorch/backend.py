"""The backend `pytorch`: completes configs and loads models. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal.backends import graph_config
from shoal.backends.base import Backend, LoadContext, LoadedModel
from shoal.backends.files import config_file
from shoal.backends.pytorch import archive, completion
from shoal.backends.pytorch.model import PyTorchModel, open_program
from shoal.backends.pytorch.settings import BACKEND, MODEL_CLASS
from shoal.config.model import ModelConfig
from shoal.config.parameters import Parameters


class PyTorchBackend(Backend):
    """Serves TorchScript, torch.export programs, AOTInductor packages and modules in Python."""

    name = BACKEND

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Fill in what the config leaves out; a config with inputs and outputs stays as it is.

        Loads the model on the CPU, and runs those that do not say what they give. Raises a
        ShoalError that says what to write where that is not enough.
        """
        if graph_config.is_complete(config):
            return config
        file = config_file(model_folder)
        parameters = Parameters(self.name, config, settings, file)
        limit = parameters.default_max_batch_size()
        found = archive.find(config, version_folder, file)
        on_gpu = found.kind is archive.Kind.COMPILED  # it has one device, whichever that is
        program = open_program(
            found,
            None if on_gpu else completion.CPU,
            model_class=parameters.text(MODEL_CLASS),
            file=file,
        )
        try:
            return completion.complete(config, program, limit, file)
        finally:
            program.close()

    def load(self, context: LoadContext) -> LoadedModel:
        """Load the model onto the first device it is wanted on, and check the config against it."""
        return PyTorchModel(context)
