"""PyTorch models on disk, loaded by the real library."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shoal.backends.pytorch.backend import PyTorchBackend  # noqa: E402
from shoal.config.model import (  # noqa: E402
    ModelConfig,
    ModelInput,
    ModelOutput,
)
from tests.support import torch_models  # noqa: E402
from tests.support.backend_loader import BackendLoader  # noqa: E402


class Loader(BackendLoader):
    """Writes PyTorch models in each of their formats and loads them."""

    def __init__(self, backend, folder):
        super().__init__(backend, folder)
        self.version_folder.mkdir(parents=True)

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


@pytest.fixture
def loader(tmp_path):
    made = Loader(PyTorchBackend(), tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def config():
    """Makes a config of tensors written as (name, datatype, *dims)."""

    def make(inputs, outputs=(), batch=0, **fields):
        return ModelConfig(
            backend="pytorch",
            max_batch_size=batch,
            input=tuple(
                ModelInput(name=n, data_type=f"TYPE_{t}", dims=tuple(d)) for n, t, *d in inputs
            ),
            output=tuple(
                ModelOutput(name=n, data_type=f"TYPE_{t}", dims=tuple(d)) for n, t, *d in outputs
            ),
            **fields,
        )

    return make
