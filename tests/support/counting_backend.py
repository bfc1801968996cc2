"""A backend that counts its executions in a metric of its own and in counters."""

from __future__ import annotations

from shoal.backends.base import Backend, Executor, LoadedModel


class CountingBackend(Backend):
    """Its outputs are its inputs."""

    name = "counting"

    def complete(self, config, model_folder, version_folder, settings):
        return config

    def load(self, context):
        return _CountingModel(context)


class _CountingModel(LoadedModel):
    def __init__(self, context):
        family = context.metrics.family("counted", "Executions", "counter")
        self.metric = family.metric({"model": context.config.name}, None)
        self.runs = 0

    def executor(self, placement):
        return _CountingExecutor(self)

    def counters(self):
        return {"counted": {"runs": self.runs, "sizes": [{"batch_size": 1, "count": self.runs}]}}


class _CountingExecutor(Executor):
    def __init__(self, model):
        self._model = model

    def run(self, inputs, outputs):
        self._model.runs += 1
        self._model.metric.increment(2)
        return list(inputs.values())
