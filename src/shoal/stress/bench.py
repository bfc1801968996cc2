"""Who is measured: a server that is started for each row, or one that runs already.

LocalBench:    model's config + sessions + batching --load--> a server of its own --> Target
RunningBench:  an address --> Target
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from shoal.ask.askers import Asker, HttpAsker, TcpAsker
from shoal.ask.question import Answer
from shoal.client import Client
from shoal.config import codec
from shoal.config.options import Options
from shoal.errors import ShoalError
from shoal.inprocess.server import LOOPBACK
from shoal.instance.device import available_cores
from shoal.stress.cell import Setup
from shoal.stress.load import Target
from shoal.stress.model import QuestionModel
from shoal.stress.plan import Plan
from shoal.tune.serving import ChildServer

_LOAD_SECS = 120.0

Counts = tuple[int, int]  # inferences and executions so far


@dataclass(frozen=True, slots=True)
class Row:
    """A server that is ready to be asked."""

    target: Target
    counts: Callable[[], Counts | None]  # what the model has done; None where nobody says
    ours: bool = False  # a process of ours, beside which others may disturb


class Bench(Protocol):
    """What a run measures."""

    @property
    def what(self) -> str:
        """For people: a model or an address."""

    @property
    def cores(self) -> int | None:
        """Those of the server's machine, if it is this one."""

    def setups(self) -> Sequence[Setup]:
        """The rows, in order."""

    def row(self, setup: Setup) -> AbstractContextManager[Row]:
        """A server with that setup, for a `with` block. Raises ShoalError."""


class LocalBench:
    """Starts a server for each row and stops it after it."""

    def __init__(
        self, model: QuestionModel, setups: Sequence[Setup], plan: Plan, options: Options
    ) -> None:
        """`options` as for `shoal serve`."""
        self._model = model
        self._setups = setups
        self._plan = plan
        self._options = dataclasses.replace(
            options,
            model_repository=(str(model.repository),),
            tcp_address=LOOPBACK,
            tcp_port=0 if plan.protocol == "tcp" else options.tcp_port,
        )

    @property
    def what(self) -> str:
        """The model."""
        return f"model '{self._model.name}'"

    @property
    def cores(self) -> int | None:
        """Those that the server may use."""
        return available_cores()

    def setups(self) -> Sequence[Setup]:
        """As given."""
        return self._setups

    @contextmanager
    def row(self, setup: Setup) -> Iterator[Row]:
        """A fresh process with nothing but this model in it."""
        name = self._model.name
        config = codec.to_dict(self._model.configured(setup))
        with ChildServer(self._options) as server, Client(server.http_url) as client:
            client.load(name, config=config, timeout=_LOAD_SECS)
            protocol = self._plan.protocol
            url = server.tcp_url if protocol == "tcp" else server.http_url
            host, _, port = url.rpartition(":")
            target = Target(protocol, host, int(port), name)
            probe(target, self._plan)
            yield Row(target, lambda: counts(client, name), ours=True)


# ---- a server that runs


class RunningBench:
    """One row: a server as it is."""

    def __init__(self, target: Target, plan: Plan) -> None:
        self._target = target
        self._plan = plan

    @property
    def what(self) -> str:
        """Its address."""
        return self._target.address.authority

    @property
    def cores(self) -> int | None:
        """Not known."""
        return None

    def setups(self) -> Sequence[Setup]:
        """What its config says, over HTTP; over TCP there is no way to know.

        Raises ShoalError when it does not answer.
        """
        answer = probe(self._target, self._plan)
        if answer.model:
            self._target = dataclasses.replace(self._target, model=answer.model)
        with self._client() as client:
            if client is not None:
                with contextlib.suppress(ShoalError):  # the numbers do not depend on it
                    return [_setup(client, self._target.model)]
        return [Setup(None, None)]

    @contextmanager
    def row(self, setup: Setup) -> Iterator[Row]:  # noqa: ARG002 - there is only one
        """The server."""
        with self._client() as client:
            yield Row(self._target, lambda: counts(client, self._target.model))

    @contextmanager
    def _client(self) -> Iterator[Client | None]:
        target = self._target
        if target.protocol != "http" or not target.model:
            yield None
            return
        with Client(f"{target.address.authority}{target.prefix}") as client:
            yield client


def probe(target: Target, plan: Plan) -> Answer:
    """Ask the first question: whether answers come at all is better known before the table.

    Raises ShoalError when none does.
    """
    made: Asker
    if target.protocol == "tcp":
        made = TcpAsker(target.host, target.port, target.model, plan.timeout_secs)
    else:
        made = HttpAsker(target.address, target.model, plan.timeout_secs)
    with contextlib.closing(made) as asker:
        return asker.ask(plan.questions[0])[0]


def counts(client: Client | None, model: str) -> Counts | None:
    """What the model has done so far, if the server tells."""
    if client is None:
        return None
    try:
        entries = client.statistics(model)
        return (
            sum(int(entry.get("inference_count", 0)) for entry in entries),
            sum(int(entry.get("execution_count", 0)) for entry in entries),
        )
    except (ShoalError, AttributeError, ValueError):  # nice to know, but no more than that
        return None


def _setup(client: Client, model: str) -> Setup:
    config = client.config(model)
    groups = config.get("instance_group", [])
    if not groups:  # a server that does not say how it runs models
        return Setup(None, None)
    sessions = sum(int(group.get("count", 1)) for group in groups)
    return Setup(sessions, "dynamic_batching" in config)
