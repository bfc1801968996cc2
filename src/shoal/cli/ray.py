"""`shoal ray`: replicas on the nodes of a Ray cluster, or of this machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.parser import CommandParser, help_requested, integer
from shoal.config.options import OptionError

if TYPE_CHECKING:
    from shoal.ray.cluster import Cluster

HELP = """\
usage: shoal ray up REPOSITORY [REPOSITORY ...] [OPTION ...] [-- SERVE_OPTION ...]
       shoal ray up --config FILE [OPTION ...]
       shoal ray status | down [--address ADDRESS] [--name NAME]

Serves models with several replicas, which Ray Serve places, replaces and scales; HAProxy sends
requests to them. Without --address it starts Ray on this machine and runs until Ctrl-C. Needs
`pip install 'shoal[ray]'` on every node.

Examples:
  shoal ray up models --min-replicas 1 --max-replicas 4
  shoal ray up s3://bucket/models --address auto --max-replicas 8 --cpus 4 --gpus 1
  shoal ray up models -- --model-control-mode=lazy --frontend-processes=2
  shoal ray status --address auto

Replicas:
  --config FILE          a YAML or JSON file with all settings, in place of the options below
  --min-replicas N       [default: 1]
  --max-replicas N       [default: the number of --min-replicas]
  --cpus N               CPUs of a replica [default: 1]
  --gpus N               GPUs of a replica [default: 0]
  -- OPTION ...          options of `shoal serve` for every replica

Ports of clients:
  --http-port N          [default: 8000]
  --grpc-port N          [default: 8001]
  --metrics-port N       metrics of all replicas [default: 8002]

Cluster:
  --address ADDRESS      of a Ray cluster; `auto` for the one that this machine belongs to
  --name NAME            of the application [default: shoal]
  --json                 `status` as JSON

The exit code is 0; 1 after an error.
"""
_ACTIONS = ("up", "status", "down")


def run(words: Sequence[str]) -> int:
    """Run `shoal ray`; returns the exit code. Raises OptionError and ShoalError."""
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    action, *rest = words
    if action not in _ACTIONS:
        raise OptionError(f"'{action}' is not an action of `shoal ray`: up, status or down")
    chosen = _parse(action, rest)

    from shoal.ray.cluster import Cluster
    from shoal.ray.config import from_dict

    if action == "up":
        document = _config(chosen)
        from_dict(document)
        if not chosen.address:
            _check_folders(document)
        return _up(Cluster(chosen.address), document, chosen)
    with contextlib.closing(Cluster(chosen.address or "auto")) as cluster:
        if action == "down":
            cluster.delete(chosen.name)
            print(f"'{chosen.name}' is stopped")
        else:
            found = cluster.describe(chosen.name)
            print(json.dumps(found, indent=2) if chosen.json else _text(found))
    return 0


def _check_folders(document: dict[str, Any]) -> None:
    """Where all nodes are this machine, a folder that is not here is nowhere."""
    named = document["repository"]
    for place in [named] if isinstance(named, str) else named:
        if "://" not in place and not Path(place).exists():
            raise OptionError(f"there is no model repository '{place}'")


def _up(cluster: Cluster, document: dict[str, Any], chosen: argparse.Namespace) -> int:
    """Start, and without an address serve until SIGINT or SIGTERM."""
    if not chosen.address:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cluster.start(document, chosen.name)
        ports = {"http_port": 8000, "grpc_port": 8001, **document.get("ingress", {})}
        print(
            f"serving at port {ports['http_port']} (HTTP) and {ports['grpc_port']} (gRPC); "
            f"replicas: http://localhost:{ports['http_port']}/v2/replicas",
            flush=True,
        )
        if not chosen.address:
            threading.Event().wait()
    except KeyboardInterrupt:
        if chosen.address:
            raise
        print("stopping: replicas finish their requests", flush=True)
    finally:
        cluster.close()
    return 0


def _text(found: dict[str, Any]) -> str:
    lines = [f"{found['name']}: {found['status']} {found['message']}".rstrip()]
    for group, one in found["groups"].items():
        states = ", ".join(f"{count} {state}" for state, count in one["states"].items())
        lines.append(f"  {group}: {one['status']}, {states} {one['message']}".rstrip())
    head = ("replica", "group", "state", "http", "load", "queue", "rate")
    form = "  {:10} {:12} {:8} {:22} {:>5} {:>8} {:>8}"
    lines += ["", form.format(*head)]
    for one in found["replicas"]:
        load = f"{one.get('utilisation', 0):.0%}"
        queue, rate = f"{one.get('queue_secs', 0):.2f} s", f"{one.get('rate', 0):.0f}/s"
        words = (one["id"], one["group"], one["state"], one["http"], load, queue, rate)
        lines.append(form.format(*words))
    return "\n".join(lines)


def _parse(action: str, words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(f"shoal ray {action}")
    parser.add_argument("--address", default="")
    parser.add_argument("--name", default="shoal")
    serve_options: list[str] = []
    if action == "up":
        if "--" in words:
            place = list(words).index("--")
            words, serve_options = words[:place], list(words[place + 1 :])
        parser.add_argument("repositories", nargs="*", metavar="REPOSITORY")
        parser.add_argument("--config", default="")
        parser.add_argument("--min-replicas", type=integer(1, 100_000), default=1)
        parser.add_argument("--max-replicas", type=integer(1, 100_000))
        parser.add_argument("--cpus", type=float, default=1.0)
        parser.add_argument("--gpus", type=float, default=0.0)
        for protocol, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
            parser.add_argument(f"--{protocol}-port", type=integer(0, 65535), default=port)
    elif action == "status":
        parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(list(words))
    chosen.serve_options = serve_options
    return chosen


def _config(chosen: argparse.Namespace) -> dict[str, Any]:
    """The document of the config that `up` was told."""
    if chosen.config:
        if chosen.repositories or chosen.serve_options:
            raise OptionError("--config names everything; leave out repositories and options")
        return _read_file(chosen.config)
    if not chosen.repositories:
        raise OptionError("name a model repository: shoal ray up models")
    return {
        "repository": [_absolute(place) for place in chosen.repositories],
        "groups": [
            {
                "min_replicas": chosen.min_replicas,
                "max_replicas": chosen.max_replicas or chosen.min_replicas,
                "cpus": chosen.cpus,
                "gpus": chosen.gpus,
                "options": chosen.serve_options,
            }
        ],
        "ingress": {
            "http_port": chosen.http_port,
            "grpc_port": chosen.grpc_port,
            "metrics_port": chosen.metrics_port,
        },
    }


def _absolute(place: str) -> str:
    """Replicas have other working directories."""
    return place if "://" in place else os.path.abspath(place)  # noqa: PTH100 - keeps links


def _read_file(path: str) -> dict[str, Any]:
    import yaml  # Ray needs it

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise OptionError(f"--config={path} cannot be read: {error}") from None
    if isinstance(document, dict) and "applications" in document:  # a file for `serve deploy`
        applications = document["applications"]
        found = [one for one in applications if one.get("import_path") == "shoal.ray:app"]
        if len(found) != 1:
            raise OptionError(f"--config={path} has {len(found)} applications of shoal.ray:app")
        document = found[0].get("args", {})
    if not isinstance(document, dict):
        raise OptionError(f"--config={path} is not an object with the fields of a config")
    return document
