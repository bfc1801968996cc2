"""A backend with its real runtime and no server: a model on disk is completed and loaded."""

from __future__ import annotations

from dataclasses import replace

from shoal.backends.base import LoadContext, Placement
from shoal.config.model import ModelConfig, ModelParameter

ON_CPU = Placement("KIND_CPU", name="m_0_0")


class BackendLoader:
    """The model "m" in a folder of the test's; what was loaded is closed by `close`."""

    def __init__(self, backend, folder):
        self.backend = backend
        self.folder = folder / "m"
        self.version_folder = self.folder / "1"
        self._loaded = []

    def complete(self, config=None, settings=None):
        """The config as the backend completes it."""
        config = replace(config or ModelConfig(), name="m")
        return self.backend.complete(config, self.folder, self.version_folder, settings or {})

    def load(self, config=None, placements=(ON_CPU,), cores=2, settings=None, parameters=None):
        """The loaded model; `parameters` replace those of the config."""
        config = config or ModelConfig()
        if parameters:
            wrapped = {key: ModelParameter(text) for key, text in parameters.items()}
            config = replace(config, parameters=wrapped)
        context = LoadContext(
            model_folder=self.folder,
            version_folder=self.version_folder,
            version=1,
            config=self.complete(config, settings),
            placements=placements,
            settings=settings or {},
            cores=cores,
        )
        self._loaded.append(self.backend.load(context))
        return self._loaded[-1]

    def executor(self, config=None, **more):
        """One instance of the loaded model."""
        return self.load(config, **more).executor(ON_CPU)

    def close(self):
        for loaded in self._loaded:
            loaded.close()
