"""One answer from the answers of many replicas.

Counters are added, gauges of time and lists kept; a model is ready if it is ready everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from shoal.wire.proto import messages

_LATEST = frozenset({"last_inference", "last_inference_ms", "loaded_ms", "load_secs", "time_ns"})
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (.+)$")
_SUFFIXES = ("_bucket", "_sum", "_count", "_total")


def add(first: Any, second: Any, name: str = "") -> Any:
    """Two values of the same field of two documents as one."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, bool) or isinstance(second, bool):
        return first or second
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return max(first, second) if name in _LATEST else first + second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {
            key: add(first[key], second[key], key)
            if key in first and key in second
            else first.get(key, second.get(key))
            for key in [*first, *(key for key in second if key not in first)]
        }
    if isinstance(first, list) and isinstance(second, list):
        return _add_lists(first, second)
    return first


def _add_lists(first: list[Any], second: list[Any]) -> list[Any]:
    if all(isinstance(value, (int, float)) for value in [*first, *second]):
        if len(first) == len(second):  # a histogram
            return [a + b for a, b in zip(first, second, strict=True)]
        return max(first, second, key=len)
    merged: dict[Any, Any] = {}
    for entry in [*first, *second]:
        key = _identity(entry)
        merged[key] = add(merged[key], entry) | _names(entry) if key in merged else entry
    return list(merged.values())


def _identity(entry: Any) -> Any:
    """What an entry of a list is about: a model's version, a batch size, a kind of memory."""
    if not isinstance(entry, Mapping):
        return repr(entry)
    names = _names(entry)
    return tuple(sorted(names.items())) if names else repr(entry)


def _names(entry: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("name", "version", "batch_size", "type", "id", "uuid")
    return {name: entry[name] for name in fields if name in entry}


def statistics(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of models on all replicas together."""
    models: list[Any] = []
    for document in documents:
        models = _add_lists(models, list(document.get("model_stats", ())))
    return {"model_stats": models}


def index(documents: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The repository index; a version is READY if it is on every replica that knows it."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for document in documents:
        for entry in document:
            key = (entry.get("name", ""), entry.get("version", ""))
            found.setdefault(key, []).append(entry)
    merged = []
    for entries in found.values():
        ready = [entry for entry in entries if entry.get("state") == "READY"]
        others = [entry for entry in entries if entry.get("state") != "READY"]
        if ready and others:
            reason = f"ready on {len(ready)} of {len(entries)} replicas"
            merged.append({**others[0], "reason": others[0].get("reason") or reason})
        else:
            merged.append(dict(entries[0]))
    return merged


def grpc_response(name: str, answers: Sequence[bytes]) -> bytes:
    """The answers of replicas to a gRPC call as one."""
    if len(answers) == 1:
        return answers[0]
    kind = getattr(messages, f"{name}Response")
    parsed = [
        json_format.MessageToDict(kind.FromString(answer), preserving_proto_field_name=True)
        for answer in answers
    ]
    if name == "RepositoryIndex":
        document: Any = {"models": index([one.get("models", []) for one in parsed])}
    else:
        document = statistics([_numbers(one) for one in parsed])
    message = json_format.ParseDict(document, kind(), ignore_unknown_fields=True)
    merged: bytes = message.SerializeToString()
    return merged


def _numbers(value: Any, name: str = "") -> Any:
    """JSON of protobuf has 64-bit numbers as texts."""
    if isinstance(value, dict):
        return {key: _numbers(entry, key) for key, entry in value.items()}
    if isinstance(value, list):
        return [_numbers(entry, name) for entry in value]
    if isinstance(value, str) and name not in ("name", "version", "type") and value.isdigit():
        return int(value)
    return value


def metrics(texts: Mapping[str, str]) -> str:
    """The metrics of all replicas, with their ids as the label `replica`."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        described = ""
        for line in text.splitlines():
            if line.startswith("# "):
                described = line.split(" ", 3)[2]
                lines = heads.setdefault(described, [])
                if line not in lines and len(lines) < 2:
                    lines.append(line)
                continue
            found = _SAMPLE.match(line)
            if found is None:
                continue
            name, labels, value = found.groups()
            family = described if _belongs(name, described) else name
            label = f'replica="{replica}"' + (f",{labels}" if labels else "")
            samples.setdefault(family, []).append(f"{name}{{{label}}} {value}")
    lines = []
    for family, found_lines in samples.items():
        lines += [*heads.get(family, ()), *found_lines]
    return "\n".join(lines) + "\n" if lines else ""


def _belongs(name: str, family: str) -> bool:
    return name == family or any(name == family + suffix for suffix in _SUFFIXES)


def console(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The console's state of all replicas; each is a row of its table of processes."""
    merged: dict[str, Any] = {}
    processes = []
    for replica, document in documents.items():
        machine = document.get("machine") or {}
        processes.append(_process(f"replica-{replica}", machine, document))
        merged = add(merged, document) if merged else dict(document)
    if not merged:
        return {}
    first = next(iter(documents.values()))
    for name in ("duration_edges_ns", "batch_size_edges", "time_ns", "time_ms"):
        merged[name] = first.get(name)
    servers = [document.get("server", {}) for document in documents.values()]
    merged["server"] = {
        **first.get("server", {}),
        "started_ms": min(server.get("started_ms", 0) for server in servers),
        "ready": all(server.get("ready") for server in servers),
        "in_flight": sum(server.get("in_flight", 0) for server in servers),
        "problems": [problem for server in servers for problem in server.get("problems", ())],
    }
    shares = [(d.get("machine") or {}).get("cpu_utilization") or 0.0 for d in documents.values()]
    merged["machine"] = {
        **(merged.get("machine") or {}),
        "cpu_utilization": sum(shares) / len(shares),
        "processes": processes,
    }
    merged["errors"] = _errors(document.get("errors", ()) for document in documents.values())
    return merged


def _process(name: str, machine: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "pid": 0,
        "cpu_secs": machine.get("process_cpu_secs", 0.0),
        "resident_bytes": machine.get("process_resident_bytes", 0),
        "connections": document.get("server", {}).get("in_flight", 0),
    }


def _errors(lists: Iterable[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    return sorted((entry for one in lists for entry in one), key=lambda e: e.get("time_ms", 0))
