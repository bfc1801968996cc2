"""A decoder on a device, with the stream that one instance uses it on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from shoal.backends.generation.files import IDS, LENGTHS, DecoderPorts
from shoal.backends.generation.pytorch.graph import TorchGraph
from shoal.backends.pytorch.graphs import captured
from shoal.backends.pytorch.library import breaks_gpu, clean_message
from shoal.errors import BackendFailure

logger = logging.getLogger(__name__)


class EncodedRow(NamedTuple):
    """The further inputs of one text: a row of what was encoded together."""

    encoded: Sequence[torch.Tensor]
    row: int


@dataclass(slots=True)
class DeviceDecoder:
    """A decoder on a device, and the stream of one instance."""

    graph: TorchGraph
    ports: DecoderPorts
    stop_ids: Sequence[int]
    max_rows: int
    stream: Any = None  # None: not a GPU
    pool: Any = field(default=None, init=False)  # of memory, for all CUDA graphs
    done: Any = field(default=None, init=False)  # an event that frees the CPU while it waits
    after_launch: Callable[[], None] | None = field(default=None, init=False)  # once
    broken: bool = field(default=False, init=False)  # whether the GPU rejects all further work

    def __post_init__(self) -> None:
        if self.stream is not None:
            with torch.cuda.device(self.device):
                self.done = torch.cuda.Event(blocking=True)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.graph.device

    def run(
        self,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        past: Sequence[torch.Tensor],
        context: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and states; see `shoal.generation.decoder.Decoder.run`."""
        feeds = {IDS: tokens, LENGTHS: lengths}
        feeds.update(zip(self.ports.past, past, strict=True))
        feeds.update(zip(self.ports.context, context, strict=True))
        found = self.graph(feeds)
        return found["logits"], found["states"]

    def repeatable(self, body: Callable[[], None]) -> Callable[[], None]:
        """`body` as a CUDA graph; on another device it stays a function."""
        if self.stream is None:
            return body
        graph = captured(body, self.stream, self.pool)
        self.pool = graph.pool()
        replay: Callable[[], None] = graph.replay
        return replay

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let this thread use the stream, and PyTorch record nothing."""
        with torch.inference_mode():
            if self.stream is None:
                yield
                return
            before = torch.cuda.current_stream()
            torch.cuda.set_stream(self.stream)
            try:
                yield
            finally:
                torch.cuda.set_stream(before)

    def wait(self) -> None:
        """Wait until everything on the stream is done; `after_launch` is called before that, and
        is not waited for."""
        if self.stream is not None:
            self.done.record(self.stream)
        following, self.after_launch = self.after_launch, None
        if following is not None:
            following()
        if self.stream is not None:
            self.done.synchronize()

    def failure(self, part: str, error: Exception) -> BackendFailure:
        """The error that texts end with."""
        if not self.broken and breaks_gpu(error):
            self.broken = True
            logger.critical(
                "generation has broken the GPU's connection with this process (%s): every model "
                "on it will fail until the server is restarted",
                clean_message(error),
            )
        return BackendFailure(f"the {part} failed: {clean_message(error)}")

    def uploaded(self, numbers: Sequence[int]) -> torch.Tensor:
        """Whole numbers on the device, without waiting for it."""
        made = torch.tensor(numbers)
        return made if self.stream is None else made.pin_memory().to(self.device, non_blocking=True)


def at_least(sizes: Sequence[int], count: int) -> int:
    """The first of ascending sizes that has room for `count`."""
    return next(size for size in sizes if size >= count)
