"""Triton's trace files: a JSON array of small objects, which belong together by their `id`.

    [{"id":1,"model_name":"simple","model_version":1},
     {"id":1,"timestamps":[{"name":"REQUEST_START","ns":2356425054785863}]}, ...]

    Trace --> collector --> one thread --> trace.json, or trace.json.0, trace.json.1, ...

A collector holds traces until its file is due: every `log_frequency` traces and when the last one
of a limited number has come, each time a new numbered file. Without either, traces go to the main
file one by one. That file is a complete JSON array after every write.
"""

from __future__ import annotations

import csv
import io
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shoal.core import bytes_tensor
from shoal.core.dtypes import BF16, BOOL, BYTES, FP32
from shoal.statistics.trace import FinishedTrace, TracedTensor
from shoal.wire import json_text

_logger = logging.getLogger(__name__)

_MOST_WAITING = 100_000  # traces that may wait for a slow disk
_CLOSE_SECS = 10.0
_REPORT_SECS = 60.0  # between two reports of traces that could not be written


class TraceFile:
    """Writes traces to `path` and to numbered files beside it, on a thread of its own."""

    def __init__(self, path: str) -> None:
        """Nothing is opened before the first trace."""
        self.path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._starting = threading.Lock()  # guards _thread
        self._thread: threading.Thread | None = None
        self._main: BinaryIO | None = None
        self._index = 0
        self._dropping = False
        self._lost = 0  # traces
        self._reported = -_REPORT_SECS

    def write(self, traces: Sequence[FinishedTrace], *, numbered: bool) -> None:
        """Have the traces written: added to the main file, or to the next numbered one."""
        if not traces:
            return
        if self._jobs.qsize() > _MOST_WAITING:
            if not self._dropping:
                self._dropping = True
                _logger.warning(
                    "traces come faster than '%s' can be written: dropping some", self.path
                )
            return
        self._jobs.put((traces, numbered))
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._work, name="shoal-trace-file", daemon=True
                    )
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Wait until everything is written, within reason."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            self._jobs.put(None)
            thread.join(_CLOSE_SECS)
            if thread.is_alive():
                _logger.warning("not all traces could be written to '%s' in time", self.path)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            traces, numbered = job
            try:
                text = b",".join([json_text.dumps(item) for item in _items(traces)])
                if numbered:
                    self._write_numbered(text)
                else:
                    self._append(text)
            except OSError as error:
                self._report_lost(len(traces), error)
            except Exception:  # one odd trace must not end the others
                _logger.exception("a trace could not be written")
        if self._main is not None:
            try:
                self._main.close()
            except OSError as error:  # it writes what could not be written before
                self._report_lost(0, error)

    def _report_lost(self, count: int, error: OSError) -> None:
        """Log that traces were lost, at most once a minute: a disk may be full for long."""
        self._lost += count
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECS:
            self._reported = now
            reason = error.strerror or error
            text = "cannot write traces to '%s': %s; %d were lost so far"
            _logger.error(text, self.path, reason, self._lost)

    def _write_numbered(self, text: bytes) -> None:
        index, self._index = self._index, self._index + 1
        Path(f"{self.path}.{index}").write_bytes(b"[" + text + b"]")

    def _append(self, text: bytes) -> None:
        if self._main is None:
            self._main = Path(self.path).open("wb")  # noqa: SIM115 - it stays open until the end
            self._main.write(b"[" + text + b"]")
        else:
            self._main.seek(-1, io.SEEK_END)  # over the bracket that ends the array
            self._main.write(b"," + text + b"]")
        self._main.flush()


_Job = tuple[Sequence[FinishedTrace], bool]


class FileCollector:
    """The traces sampled under one setting, until they are due in a file."""

    def __init__(self, file: TraceFile, log_frequency: int, *, limited: bool) -> None:
        """`limited`: the number of traces is limited, and `take` marks the last one."""
        self._file = file
        self._log_frequency = log_frequency
        self._at_once = not log_frequency and not limited
        self._lock = threading.Lock()  # guards _held and _retired
        self._held: list[FinishedTrace] = []
        self._retired = False

    def take(self, trace: FinishedTrace, *, last: bool) -> None:
        """Store a trace; `last` if no other will come."""
        if self._at_once:
            self._file.write([trace], numbered=False)
            return
        with self._lock:
            self._held.append(trace)
            full = self._log_frequency and len(self._held) >= self._log_frequency
            if not (full or last or self._retired):
                return
            due, self._held = self._held, []
            numbered = bool(full or last or self._log_frequency)
        self._file.write(due, numbered=numbered)

    def retire(self) -> None:
        """The setting is no longer in force: write what is left, and what still comes at once."""
        with self._lock:
            due, self._held = self._held, []
            self._retired = True
        self._file.write(due, numbered=bool(self._log_frequency))


def _items(traces: Sequence[FinishedTrace]) -> Iterator[dict[str, Any]]:
    """The objects of the array: for each id one that names it, then its moments and tensors."""
    for trace in traces:
        frontend = list(trace.events)
        for request in trace.requests:
            named: dict[str, Any] = {
                "id": request.id,
                "model_name": request.model_name,
                "model_version": request.model_version,
            }
            if request.request_id:
                named["request_id"] = request.request_id
            if request.parent_id:
                named["parent_id"] = request.parent_id
            yield named
            events = [*request.events, *request.compute]
            if request.id == trace.id:
                events += frontend
                frontend = []
            for name, moment_ns in sorted(events, key=lambda event: event[1]):
                yield _timestamp(request.id, name, moment_ns)
            for tensor in request.tensors:
                yield {"id": request.id, "activity": tensor.activity, "tensor": _tensor(tensor)}
        for name, moment_ns in frontend:  # of a request that failed validation
            yield _timestamp(trace.id, name, moment_ns)


def _timestamp(trace_id: int, name: str, moment_ns: int) -> dict[str, Any]:
    return {"id": trace_id, "timestamps": [{"name": name, "ns": moment_ns}]}


def _tensor(tensor: TracedTensor) -> dict[str, str]:
    return {
        "name": tensor.name,
        "data": _data(tensor),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype.name,
    }


def _data(tensor: TracedTensor) -> str:
    """All elements as one line of comma-separated values."""
    datatype = tensor.datatype
    if datatype is BYTES:
        count = int(np.prod(tensor.shape))
        elements = bytes_tensor.decode(tensor.raw, count, f"tensor '{tensor.name}'")
        line = io.StringIO()
        texts = [bytes(element).decode("utf-8", "backslashreplace") for element in elements]
        csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="").writerow(texts)
        return line.getvalue()
    array = np.frombuffer(tensor.raw, datatype.numpy)
    if datatype is BF16:  # the upper half of an FP32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    if datatype is BOOL:
        array = array.astype(np.uint8)
    digits = ".8g" if array.dtype == FP32.numpy else ""
    return ",".join([format(element, digits) for element in array.tolist()])
