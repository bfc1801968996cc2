"""A backend whose results say in which process, and on which instance of it, a batch has run."""

from __future__ import annotations

import os
import threading

import numpy as np

from shoal.backends.base import Backend, Executor, LoadedModel

WAIT_SECS = 20.0
ALONE, TOGETHER, CRASH = 0, 1, 2  # a batch of the second kind waits for another in its process


class PidBackend(Backend):
    """The results are the process's number and the instance's."""

    name = "pids"

    def complete(self, config, model_folder, version_folder, settings):
        return config

    def load(self, context):
        return _PidModel()


class _PidModel(LoadedModel):
    def __init__(self):
        self._made = 0
        self._meeting = threading.Barrier(2)

    def executor(self, placement):
        self._made += 1
        return _PidExecutor(self._made, self._meeting)


class _PidExecutor(Executor):
    def __init__(self, number, meeting):
        self._number = number
        self._meeting = meeting

    def run(self, inputs, outputs):
        (kind,) = inputs["kind"]
        if kind == TOGETHER:
            self._meeting.wait(WAIT_SECS)
        if kind == CRASH:
            os._exit(3)
        return [np.array([os.getpid(), self._number], np.int64)]
