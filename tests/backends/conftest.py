"""Real models on disk, loaded by the real runtime."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.backends.base import LoadContext, Placement
from shoal.backends.onnxruntime import OnnxRuntimeBackend
from shoal.config.model import ModelConfig, ModelParameter
from tests.support import onnx_models

ON_CPU = Placement("KIND_CPU", name="m_0_0")


class Loader:
    """Lays a model out in a repository, completes its config and loads it."""

    def __init__(self, folder):
        self.folder = folder / "m"
        self.version_folder = self.folder / "1"
        self.backend = OnnxRuntimeBackend()
        self._loaded = []

    def save(self, built, filename="model.onnx"):
        return onnx_models.save(built, self.version_folder / filename)

    def complete(self, config=None, settings=None):
        config = config or ModelConfig()
        config = replace(config, name="m")
        return self.backend.complete(config, self.folder, self.version_folder, settings or {})

    def load(self, config=None, placements=(ON_CPU,), cores=2, settings=None, parameters=None):
        config = self.complete(config, settings)
        if parameters:
            wrapped = {key: ModelParameter(text) for key, text in parameters.items()}
            config = replace(config, parameters=wrapped)
        loaded = self.backend.load(
            LoadContext(
                model_folder=self.folder,
                version_folder=self.version_folder,
                version=1,
                config=config,
                placements=placements,
                settings=settings or {},
                cores=cores,
            )
        )
        self._loaded.append(loaded)
        return loaded

    def executor(self, built, config=None, **more):
        self.save(built)
        return self.load(config, **more).executor(ON_CPU)

    def close(self):
        for loaded in self._loaded:
            loaded.close()


@pytest.fixture
def loader(tmp_path):
    made = Loader(tmp_path)
    yield made
    made.close()
