"""The backend's own tests: no server, no sockets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shoal_npz import NpzBackend

from shoal.errors import InvalidArgument, NotFound
from shoal.testing.backends import BackendRunner


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "prices"
    (folder / "1").mkdir(parents=True)
    np.savez(folder / "1" / "model.npz", weights=np.full((3, 2), 2.0), bias=np.array([0.0, 1.0]))
    return folder


def test_it_computes(model_folder: Path) -> None:
    with BackendRunner(NpzBackend(), model_folder) as model:
        outputs = model.run({"x": np.ones((2, 3), np.float32)})
    assert outputs["y"].tolist() == [[6, 7], [6, 7]]


def test_it_completes_its_config(model_folder: Path) -> None:
    with BackendRunner(NpzBackend(), model_folder) as model:
        assert model.config.max_batch_size == 4
        assert model.config.input[0].dims == (3,)


def test_a_file_that_is_no_model(model_folder: Path) -> None:
    (model_folder / "1" / "model.npz").write_bytes(b"rubbish")
    with pytest.raises(InvalidArgument, match=r"'prices/1/model\.npz' is no linear model"):
        BackendRunner(NpzBackend(), model_folder)


def test_no_file(model_folder: Path) -> None:
    (model_folder / "1" / "model.npz").unlink()
    with pytest.raises(NotFound, match=r"unable to find 'model\.npz'"):
        BackendRunner(NpzBackend(), model_folder)
