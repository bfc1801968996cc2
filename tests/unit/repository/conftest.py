"""A model spec made of a fake backend, so that lifecycles can be lived without files."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config.model import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
)
from shoal.models.spec import ModelSpec
from tests.support.fakes import FakeBackend
from tests.support.s3_fixtures import s3, s3_server

__all__ = ["s3", "s3_server"]


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def make_spec(backend):
    def make(*versions, count=1, prints=None, **changes):
        options = {
            "name": "m",
            "backend": "fake",
            "max_batch_size": 4,
            "input": (ModelInput(name="x", data_type="TYPE_INT32", dims=(1,)),),
            "output": (ModelOutput(name="y", data_type="TYPE_INT32", dims=(1,)),),
            "dynamic_batching": ModelDynamicBatching(preferred_batch_size=(4,)),
            "instance_group": (ModelInstanceGroup(name="m_0", kind="KIND_CPU", count=count),),
        }
        return ModelSpec(
            name="m",
            folder=Path("m"),
            config=ModelConfig(**{**options, **changes}),
            backend=backend,
            version_folders={v: Path(f"m/{v}") for v in versions},
            fingerprints={v: (prints or {}).get(v, "same") for v in versions},
        )

    return make
