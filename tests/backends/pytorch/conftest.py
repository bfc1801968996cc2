"""PyTorch models on disk, loaded by the real library."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from shoal.backends.base import LoadContext, Placement  # noqa: E402
from shoal.backends.pytorch.backend import PyTorchBackend  # noqa: E402
from shoal.config.model import (  # noqa: E402
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelParameter,
)
from tests.support import torch_models  # noqa: E402

ON_CPU = Placement("KIND_CPU", name="m_0_0")


class Loader:
    """Lays a model out in a repository, completes its config and loads it."""

    def __init__(self, folder):
        self.folder = folder / "m"
        self.version_folder = self.folder / "1"
        self.version_folder.mkdir(parents=True)
        self.backend = PyTorchBackend()
        self._loaded = []

    @property
    def script_file(self):
        return self.version_folder / "model.pt"

    @property
    def exported_file(self):
        return self.version_folder / "model.pt2"

    def script(self, model):
        return torch_models.script(model, self.script_file)

    def trace(self, model, *example):
        return torch_models.trace(model, example, self.script_file)

    def export(self, model, *example, **more):
        return torch_models.export(model, example, self.exported_file, **more)

    def eager(self, text, model=None):
        """model.py with `text`, and model.pt with the weights of `model`."""
        (self.version_folder / "model.py").write_text("import torch\n" + text)
        if model is not None:
            torch.save(model.state_dict(), self.script_file)

    def complete(self, config=None, settings=None):
        config = replace(config or ModelConfig(), name="m")
        return self.backend.complete(config, self.folder, self.version_folder, settings or {})

    def load(self, config=None, placements=(ON_CPU,), cores=2, settings=None, parameters=None):
        wrapped = {key: ModelParameter(text) for key, text in (parameters or {}).items()}
        config = self.complete(replace(config or ModelConfig(), parameters=wrapped), settings)
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

    def executor(self, config=None, **more):
        return self.load(config, **more).executor(ON_CPU)

    def close(self):
        for loaded in self._loaded:
            loaded.close()


@pytest.fixture
def loader(tmp_path):
    made = Loader(tmp_path)
    yield made
    made.close()


def _config(inputs, outputs, batch=0, **fields):
    """A config of tensors written as (name, datatype, *dims)."""
    return ModelConfig(
        backend="pytorch",
        max_batch_size=batch,
        input=tuple(ModelInput(name=n, data_type="TYPE_" + t, dims=d) for n, t, *d in inputs),
        output=tuple(ModelOutput(name=n, data_type="TYPE_" + t, dims=d) for n, t, *d in outputs),
        **fields,
    )


@pytest.fixture(scope="session")
def config():
    """Makes a config of tensors written as (name, datatype, *dims)."""

    def make(inputs, outputs=(), batch=0, **fields):
        made = _config(inputs, outputs, batch, **fields)
        return replace(
            made,
            input=tuple(replace(t, dims=tuple(t.dims)) for t in made.input),
            output=tuple(replace(t, dims=tuple(t.dims)) for t in made.output),
        )

    return make
