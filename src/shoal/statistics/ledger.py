"""Executions of all models, counted a thousand at a time.

    add --> [ entries ] --fold: every thousand, or before a model is read--> accounts --take-->

What a model counts is some twenty objects. To change them takes as long as to run a small model,
and longer if requests go to many models in turn, because they are in no cache of the processor. So
an execution is only written down here, in one place for all models, and added to one of its model's
accounts with many others. The requests of an execution arrived and were queued together; there is
an account for each number of them.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

_MOST_ENTRIES = 1024  # about 100 KB, and 0.2 ms to fold
_FIRST_ACCOUNTS = 16
_FIELDS = 8  # of an entry: the account and seven moments
_SUMS = 7  # of an account, before its histograms

_pack = struct.Struct(f"={_FIELDS}q").pack


class Account:
    """A model's place in the ledger. It becomes another's once this object has been freed."""

    __slots__ = ("_freed", "number")

    def __init__(self, number: int, freed: list[int]) -> None:
        self.number = number
        self._freed = freed

    def __del__(self) -> None:
        self._freed.append(self.number)  # no lock: this may happen anywhere


class AccountSums(NamedTuple):
    """What was counted on an account, each execution once: times in nanoseconds, histograms as
    counts of buckets."""

    executions: int
    success_ns: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int
    last_end_ns: int
    request_buckets: list[int]
    queue_buckets: list[int]
    compute_buckets: list[int]


class ExecutionLedger:
    """Counts executions for any number of accounts. Any thread may call any method."""

    def __init__(self, edges: Sequence[int]) -> None:
        """`edges` are the upper bounds of the histograms' buckets."""
        self._edges = np.array(edges, np.int64)
        self._buckets = len(edges) + 1
        # Added to without the lock, which a list allows.
        self._entries: list[bytes] = []
        self._lock = threading.Lock()  # guards everything below
        self._table = np.zeros((_FIRST_ACCOUNTS, _SUMS + 3 * self._buckets), np.int64)
        self._unused = list(range(_FIRST_ACCOUNTS))
        self._freed: list[int] = []  # which entries may still name

    def open(self) -> Account:
        """A new account."""
        with self._lock:
            if self._freed:
                self._fold()
            if not self._unused:
                size = len(self._table)
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
                self._unused = list(range(size, 2 * size))
            return Account(self._unused.pop(), self._freed)

    def add(
        self,
        number: int,
        start_ns: int,
        queued_ns: int,
        moments: tuple[int, int, int, int],
        end_ns: int,
    ) -> None:
        """Count an execution on the account with this number. `moments` are those of `Moments`;
        requests with `queued_ns` 0 never waited."""
        entries = self._entries
        entries.append(_pack(number, start_ns, queued_ns, *moments, end_ns))
        if len(entries) >= _MOST_ENTRIES:
            with self._lock:
                self._fold()

    def take(self, accounts: Iterable[Account]) -> list[AccountSums | None]:
        """What was counted on each of these accounts, which are empty from then on; None if that is
        nothing."""
        sums: list[AccountSums | None] = []
        ends = [_SUMS + self._buckets * part for part in range(4)]
        with self._lock:
            self._fold()
            for account in accounts:
                row = self._table[account.number]
                if not row[0]:
                    sums.append(None)
                    continue
                values = row.tolist()
                row[:] = 0
                histograms = [values[start:end] for start, end in pairwise(ends)]
                sums.append(AccountSums(*values[:_SUMS], *histograms))
        return sums

    def _fold(self) -> None:
        """Add the entries to the accounts. The lock is held."""
        freed = self._freed[:]
        entries = self._entries[:]
        del self._entries[: len(entries)]  # others may have been added behind them
        if entries:
            self._add_all(np.frombuffer(b"".join(entries), np.int64).reshape(-1, _FIELDS))
        if freed:  # before the entries were read, so that none of theirs is left
            del self._freed[: len(freed)]
            self._table[freed] = 0
            self._unused += freed

    def _add_all(self, entries: np.ndarray) -> None:
        numbers, started, queued, compute_start, input_end, output_start, compute_end, end = (
            np.ascontiguousarray(entries.T)
        )
        waits = np.where(queued > 0, np.maximum(compute_start - queued, 0), 0)
        spans, computes = end - started, compute_end - compute_start
        width = self._table.shape[1]
        first = numbers * width  # of each account in the table, as one row of numbers
        sums = [
            np.ones_like(numbers),
            spans,
            waits,
            input_end - compute_start,
            output_start - input_end,
            compute_end - output_start,
        ]
        places = [first + place for place in range(len(sums))]
        for part, values in enumerate((spans, waits, computes)):
            bucket = np.searchsorted(self._edges, values)
            places.append(first + (_SUMS + self._buckets * part) + bucket)
            sums.append(sums[0])
        table = self._table.reshape(-1)
        np.add.at(table, np.concatenate(places), np.concatenate(sums))
        np.maximum.at(table, first + (_SUMS - 1), end)
