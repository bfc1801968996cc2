"""Real models on disk, loaded by the real runtime."""

from __future__ import annotations

import pytest

from shoal.backends.onnxruntime import OnnxRuntimeBackend
from tests.support import onnx_models
from tests.support.backend_loader import BackendLoader


class Loader(BackendLoader):
    """Loads ONNX models."""

    def save(self, built, filename="model.onnx"):
        return onnx_models.save(built, self.version_folder / filename)

    def executor(self, built, config=None, **more):
        self.save(built)
        return super().executor(config, **more)


@pytest.fixture
def loader(tmp_path):
    made = Loader(OnnxRuntimeBackend(), tmp_path)
    yield made
    made.close()
