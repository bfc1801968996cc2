"""Past states on a device: memory for all texts, made once, and a CUDA graph for each batch size.

    tokens, lengths ==one copy==> [ decoder, new states to their rows, choice of tokens ] ==> tokens

Everything in a step happens on the device. A text has a place there from its first step to its
last; places without a text are computed, too, and ignored. The number of places in a step and the
length of the past are rounded up to the sizes that graphs exist for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from shoal.backends.generation.pytorch import choice
from shoal.backends.generation.pytorch.decoder import DeviceDecoder, EncodedRow, at_least
from shoal.backends.generation.pytorch.prefill import Prefill
from shoal.backends.pytorch.settings import graph_sizes
from shoal.backends.pytorch.staging import Block, Form
from shoal.errors import BackendFailure
from shoal.generation.beams import BeamSearch, BeamStep, candidate_count
from shoal.generation.choice import TokenSampler
from shoal.generation.decoder import Search

_SHORTEST_PAST = 32  # tokens; each next size is twice as long
_SHORTEST_PROMPT = 4
_ALIGNMENT = 8  # elements: matrix multiplications need rows that begin at multiples of 16 bytes


class TorchRows:
    """See `shoal.generation.decoder.DecoderRows`. Slots are numbers of texts, places are memory."""

    def __init__(self, decoder: DeviceDecoder, width: int) -> None:
        """Allocates the memory for all texts. Raises what PyTorch raises."""
        shape, device, dtype = decoder.ports.shape, decoder.device, decoder.graph.dtype
        self.width = width
        self._decoder = decoder
        self._most = max(1, decoder.max_rows // width)  # texts
        rows = self._most * width
        self._sizes = graph_sizes(self._most)
        self._spare_row = rows  # the states of places without a text are written there
        with decoder.active():
            self._past = torch.zeros(
                (shape.states, rows + 1, shape.heads, shape.max_length, shape.head_size),
                dtype=dtype,
                device=device,
            )
            self._context = [_aligned((self._most, *dims), dtype, device) for dims in shape.context]
            self._stop_ids = torch.tensor(decoder.stop_ids, dtype=torch.int64, device=device)
        self._inputs = Block(
            {
                "tokens": Form((rows,), torch.int64),
                "lengths": Form((rows,), torch.int64),
                "written_rows": Form((rows,), torch.int64),
                "top_k": Form((rows,), torch.int64),
                "temperature": Form((rows,), torch.float32),
                "top_p": Form((rows,), torch.float32),
                "uniform": Form((rows,), torch.float32),
                "excludes_stop": Form((rows,), torch.bool),
            },
            device,
            pinned=decoder.stream is not None,
        )
        count = candidate_count(width, len(decoder.stop_ids)) if width > 1 else 1
        self._count = min(count, shape.vocabulary)
        self._outputs = Block(
            {
                "tokens": Form((rows, self._count), torch.int64),
                "chances": Form((rows, self._count), torch.float32),
            },
            device,
            pinned=decoder.stream is not None,
        )
        self._chosen, self._chances = self._outputs.arrays.values()
        arrays = self._inputs.arrays
        self._tokens, self._lengths = arrays["tokens"], arrays["lengths"]
        self._written = arrays["written_rows"]
        self._written[:] = self._spare_row
        self._steps: dict[tuple[int, int, bool], Callable[[], None]] = {}
        self._prefills: dict[tuple[int, int], Prefill] = {}
        self._places: list[int] = []  # by slot
        self._free = list(range(self._most))  # a heap

    @property
    def rows(self) -> int:
        """Rows in use."""
        return len(self._places) * self.width

    @property
    def nbytes(self) -> int:
        """Bytes of the memory for all texts."""
        tensors = (self._past, *self._context)
        return sum(int(tensor.untyped_storage().nbytes()) for tensor in tensors)

    def reset(self) -> None:
        """Forget all texts."""
        self._places.clear()
        self._free = list(range(self._most))
        self._lengths[:] = 0

    def capture(self) -> None:
        """Make the graphs of short texts now, the largest first: the others reuse its memory."""
        with self._decoder.active():
            for texts in reversed(self._sizes):
                self._step(texts, self._rounded(0, _SHORTEST_PAST), sampling=False)
            self._decoder.wait()

    def join(self, contexts: Sequence[EncodedRow], tokens: Sequence[int]) -> int:
        """Add texts in the next slots; returns the first of these."""
        first = len(self._places)
        places = [heapq.heappop(self._free) for _ in contexts]
        if self._context:
            with self._decoder.active():
                self._take(contexts, self._decoder.uploaded(places))
        for place, token in zip(places, tokens, strict=True):
            rows = self._rows(place)
            self._tokens[rows] = token
            self._lengths[rows] = 0
        self._places += places
        return first

    def _take(self, contexts: Sequence[EncodedRow], places: torch.Tensor) -> None:
        """Copy what was encoded together: one copy for each input of the decoder."""
        numbers = [context.row for context in contexts]
        together = slice(numbers[0], numbers[-1] + 1)
        if numbers != list(range(together.start, together.stop)):  # some have other beams
            together = self._decoder.uploaded(numbers)
        for kept, encoded in zip(self._context, contexts[0].encoded, strict=True):
            kept.index_copy_(0, places, encoded[together])

    def begin(self, first: int, prompts: Sequence[Sequence[int]]) -> None:
        """Compute the first states of texts. Raises BackendFailure."""
        places = self._places[first : first + len(prompts)]
        texts = at_least(self._sizes, len(prompts))
        length = self._rounded(max(map(len, prompts)), _SHORTEST_PROMPT)
        try:
            with self._decoder.active():
                key = texts, length
                if key not in self._prefills:
                    self._prefills[key] = Prefill(
                        self._decoder, self._past, self._context, self.width, key
                    )
                self._prefills[key].run(places, prompts)
        except Exception as error:
            raise self._decoder.failure("decoder", error) from error
        for place, prompt in zip(places, prompts, strict=True):
            self._lengths[self._rows(place)] = len(prompt)

    def step(self, first: int, searches: Sequence[Search]) -> DeviceResults:
        """Run the decoder once, and choose tokens. Raises BackendFailure."""
        width = self.width
        with self._decoder.active():
            self._compact()
            places = self._places[first : first + len(searches)]
            rows = (np.array(places)[:, None] * width + np.arange(width)).reshape(-1)
            sampling = self._prepare(rows, searches)
            self._written[:] = self._spare_row
            self._written[rows] = rows
            texts = at_least(self._sizes, max(places) + 1)
            length = self._rounded(int(self._lengths[rows].max()), _SHORTEST_PAST)
            try:
                self._step(texts, length, sampling)()
                self._decoder.wait()
            except Exception as error:
                raise self._decoder.failure("decoder", error) from error
        self._lengths[rows] += 1
        return DeviceResults(self, places, self._chosen[:, 0].tolist())

    def follow(self, slot: int, chosen: int | BeamStep) -> None:
        """Continue a text with what was chosen for it."""
        place = self._places[slot]
        if not isinstance(chosen, BeamStep):
            self._tokens[place] = chosen
            return
        rows = self._rows(place)
        self._tokens[rows] = chosen.tokens
        if not np.array_equal(chosen.parents, np.arange(self.width)):
            used = int(self._lengths[rows.start])
            with self._decoder.active():
                parents = self._decoder.uploaded((rows.start + chosen.parents).tolist())
                self._past[:, rows, :, :used] = self._past[:, parents, :, :used]

    def leave(self, slot: int) -> None:
        """Remove a text; the last one gets its slot, and stays in its place."""
        place = self._places[slot]
        self._places[slot] = self._places[-1]
        self._places.pop()
        self._lengths[self._rows(place)] = 0
        heapq.heappush(self._free, place)

    def results(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and chances of a text's rows, after a step."""
        rows = self._rows(place)
        return self._chosen[rows], self._chances[rows]

    def clear(self, place: int) -> None:
        """Remove states that are not numbers: masked, they would spoil the next text there."""
        with self._decoder.active():
            self._past[:, self._rows(place)] = 0

    def _rows(self, place: int) -> slice:
        return slice(place * self.width, (place + 1) * self.width)

    def _rounded(self, length: int, shortest: int) -> int:
        """At least this many tokens: one of a few lengths, so that there are few graphs."""
        doubled = max(shortest, 1 << max(0, length - 1).bit_length())
        return min(doubled, self._decoder.ports.shape.max_length)

    def _prepare(self, rows: np.ndarray, searches: Sequence[Search]) -> bool:
        """Write what the choice of tokens needs; whether some are sampled."""
        arrays, sampling = self._inputs.arrays, False
        excludes_stop = [search.excludes_stop for search in searches]
        arrays["excludes_stop"][rows] = np.repeat(excludes_stop, self.width)
        for row, search in zip(rows, searches, strict=False):
            if isinstance(search, TokenSampler):
                options = search.options
                arrays["temperature"][row] = options.temperature
                if options.temperature > 0:
                    sampling = True
                    arrays["top_k"][row] = options.top_k
                    arrays["top_p"][row] = options.top_p
                    arrays["uniform"][row] = search.uniform()
        return sampling

    def _compact(self) -> None:
        """Move texts to the front if more than half of the places in a step would have none."""
        while self._free and self._free[0] < len(self._places):
            slot = max(range(len(self._places)), key=self._places.__getitem__)
            place = self._places[slot]
            if at_least(self._sizes, place + 1) < 2 * at_least(self._sizes, len(self._places)):
                return
            self._move(slot, heapq.heapreplace(self._free, place))

    def _move(self, slot: int, place: int) -> None:
        into, come = self._rows(place), self._rows(self._places[slot])
        used = int(self._lengths[come].max())
        self._past[:, into, :, :used] = self._past[:, come, :, :used]
        for tensor in self._context:
            tensor[place] = tensor[self._places[slot]]
        for array in (self._tokens, self._lengths):
            array[into] = array[come]
        self._lengths[come] = 0
        self._places[slot] = place

    def _step(self, texts: int, length: int, sampling: bool) -> Callable[[], None]:
        key = texts, length, sampling
        if key not in self._steps:
            self._steps[key] = self._decoder.repeatable(lambda: self._run(*key))
        return self._steps[key]

    def _run(self, texts: int, length: int, sampling: bool) -> None:
        """What a graph contains."""
        rows = texts * self.width
        self._inputs.to_device()
        given = {name: tensor[:rows] for name, tensor in self._inputs.tensors.items()}
        logits, states = self._decoder.run(
            given["tokens"][:, None],
            given["lengths"],
            [state[:rows, :, :length] for state in self._past],
            [tensor[:texts] for tensor in self._context],
        )
        # The indexed dimensions come first.
        new = states[:, :, :, 0].transpose(0, 1)
        self._past[:, given["written_rows"], :, given["lengths"]] = new
        logits = choice.without_stop(logits, self._stop_ids, given["excludes_stop"])
        self._choose(logits, given, sampling)
        self._outputs.to_host()

    def _choose(
        self, logits: torch.Tensor, given: Mapping[str, torch.Tensor], sampling: bool
    ) -> None:
        rows, outputs = len(logits), self._outputs.tensors
        if self.width > 1:
            tokens, chances = choice.candidates(logits, self._count)
            outputs["chances"][:rows].copy_(chances)
        elif sampling:
            options = (given[name] for name in ("temperature", "top_k", "top_p", "uniform"))
            tokens = choice.sampled(logits, *options)[:, None]
        else:
            tokens = choice.greedy(logits)[:, None]
        outputs["tokens"][:rows].copy_(tokens)


class DeviceResults:
    """See `shoal.generation.decoder.StepResults`. Valid until the next step."""

    def __init__(self, rows: TorchRows, places: Sequence[int], tokens: Sequence[int]) -> None:
        """`tokens` has the likeliest token of each row."""
        self._rows, self._places, self._tokens = rows, places, tokens

    def advance(self, index: int, search: Search) -> int | BeamStep:
        """Let a text take its next token, or its beams theirs."""
        place = self._places[index]
        if isinstance(search, BeamSearch):
            tokens, chances = self._rows.results(place)
            if np.isfinite(chances[:, 0]).all():
                return search.choose(tokens, chances)
        elif self._tokens[place] != choice.NOT_A_NUMBER:
            return search.accept(self._tokens[place])
        self._rows.clear(place)
        raise BackendFailure("the decoder computed logits that are not numbers")


def _aligned(dims: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose rows begin at multiples of some bytes."""
    padded = -(-dims[-1] // _ALIGNMENT) * _ALIGNMENT
    return torch.zeros((*dims[:-1], padded), dtype=dtype, device=device)[..., : dims[-1]]
