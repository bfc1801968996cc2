"""Test a backend without a server: complete, check, load, run.

    with BackendRunner(NpzBackend(), repository / "prices") as model:
        assert model.config.max_batch_size == 4
        outputs = model.run({"x": np.ones((2, 3), np.float32)})

The steps are those of the server. Everything before and after the backend is left out: validation
of requests, queues, making and splitting batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from shoal.backends.base import Backend, Executor, LoadContext, Placement
from shoal.config import normalise, pbtxt, rules
from shoal.config.model import ModelConfig


class BackendRunner:
    """One instance of one version of a model, driven by a test."""

    def __init__(
        self,
        backend: Backend,
        model_folder: Path,
        *,
        version: int = 1,
        settings: Mapping[str, str] | None = None,
        cores: int = 1,
    ) -> None:
        """`settings` are those of --backend-config; config.pbtxt is read where there is one.

        Raises what the backend raises.
        """
        file = model_folder / "config.pbtxt"
        config = ModelConfig(backend=backend.name)
        if file.is_file():
            config = pbtxt.parse_pbtxt(file.read_text(encoding="utf-8"), str(file))
        given = dict(settings or {})
        folder = model_folder / str(version)
        config = normalise.normalise(config, directory_name=model_folder.name, file=str(file))
        config = backend.complete(config, model_folder, folder, given)
        config = normalise.normalise(config, directory_name=model_folder.name, file=str(file))
        rules.check(config, file=str(file))
        self.config = config
        placement = Placement("KIND_CPU", name=f"{config.name}_0_0")
        self._loaded = backend.load(
            LoadContext(
                model_folder=model_folder,
                version_folder=folder,
                version=version,
                config=config,
                placements=[placement],
                settings=given,
                cores=cores,
            )
        )
        made = self._loaded.executor(placement)
        if not isinstance(made, Executor):
            raise TypeError(f"{type(made).__name__} takes requests, not tensors")
        self._executor = made

    def __enter__(self) -> BackendRunner:  # noqa: PYI034 - typing.Self is newer than our oldest Python
        return self

    def run(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] = ()
    ) -> dict[str, np.ndarray]:
        """Execute one batch; without `outputs`, everything the config lists."""
        names = list(outputs) or [output.name for output in self.config.output]
        return dict(zip(names, self._executor.run(inputs, names), strict=True))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.close()
        self._loaded.close()
