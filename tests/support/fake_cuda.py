"""Streams and events of CUDA for tests without a GPU: the CPU computes at once.

fake_cuda.replace(monkeypatch)    and let the device be torch.device("cpu")
"""

from __future__ import annotations

import contextlib

import torch


class Stream:
    """Counts how often something waits for it, or it for something."""

    cuda_stream = 7  # its address

    def __init__(self, device=None, priority=0):
        self.waits = 0

    def wait_stream(self, other):
        self.waits += 1

    def wait_event(self, event):
        self.waits += 1

    def synchronize(self):
        self.waits += 1


class Event:
    """Counts all waits."""

    waited = 0

    def __init__(self, blocking=False):
        self.blocking = blocking

    def record(self, stream):
        pass

    def synchronize(self):
        Event.waited += 1


def replace(monkeypatch):
    """Have PyTorch use these."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
