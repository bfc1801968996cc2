"""The base of backends whose model files declare their inputs and outputs.

    model file --describe--> Graph --graph_config.complete--> the config, completed

`describe` is all that a backend adds; when a config is completed, and how, is the same for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from shoal.backends import graph_config
from shoal.backends.base import Backend, LoadContext
from shoal.backends.graph import Graph
from shoal.config.model import ModelConfig
from shoal.config.parameters import DEFAULT_MAX_BATCH_SIZE


class FileBackend(Backend):
    """Completes configs from model files. Subclasses describe a file, and load it."""

    stateless = True
    default_max_batch_size = DEFAULT_MAX_BATCH_SIZE  # of a model that can batch

    @abstractmethod
    def describe(self, context: LoadContext) -> Graph:
        """Read inputs and outputs from the model file; `context` has one core and no placements.

        Raises a ShoalError that names the file. Nothing may stay allocated.
        """

    def complete(
        self,
        config: ModelConfig,
        model_folder: Path,
        version_folder: Path,
        settings: Mapping[str, str],
    ) -> ModelConfig:
        """Fill in what the config leaves out; with inputs and outputs it is returned unchanged."""
        if graph_config.is_complete(config):
            return config
        context = LoadContext(model_folder, version_folder, 0, config, (), settings)
        parameters = context.parameters(self.name)
        limit = parameters.default_max_batch_size(self.default_max_batch_size)
        return graph_config.complete(config, self.describe(context), limit, context.file)
