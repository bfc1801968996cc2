"""The servers to measure: one that is started for each row, or one that is running already.

StartedServers:  the model's config + sessions + batching --> a new server
ExistingServer:   an address
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shoal.ask.askers import Asker, HttpAsker, TcpAsker
from shoal.ask.question import Answer
from shoal.client import Client
from shoal.config import codec
from shoal.config.options import Options
from shoal.errors import ShoalError
from shoal.inprocess.keywords import LOOPBACK
from shoal.instance.device import available_cores
from shoal.stress.cell import ServerSetup
from shoal.stress.load import QuestionTarget
from shoal.stress.model import QuestionModel
from shoal.stress.plan import StressPlan
from shoal.tune.serving import ChildServer

_LOAD_SECS = 120.0

Counts = tuple[int, int]  # inferences and executions so far


@dataclass(frozen=True, slots=True)
class ReadyServer:
    """A server that is ready for questions."""

    target: QuestionTarget
    counts: Callable[[], Counts | None]  # of the model; None where the server does not report them
    ours: bool = False  # started by this process, so other programs may disturb it


class StartedServers:
    """Starts a server for each row and stops it afterwards."""

    def __init__(
        self,
        model: QuestionModel,
        setups: Sequence[ServerSetup],
        plan: StressPlan,
        options: Options,
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
        """The cores that the server may use."""
        return available_cores()

    def setups(self) -> Sequence[ServerSetup]:
        """As given."""
        return self._setups

    @contextmanager
    def ready(self, setup: ServerSetup) -> Iterator[ReadyServer]:
        """A new process with only this model loaded."""
        name = self._model.name
        config = codec.to_dict(self._model.configured(setup))
        with ChildServer(self._options) as server, Client(server.http_url) as client:
            client.load(name, config=config, timeout=_LOAD_SECS)
            protocol = self._plan.protocol
            url = server.tcp_url if protocol == "tcp" else server.http_url
            host, _, port = url.rpartition(":")
            target = QuestionTarget(protocol, host, int(port), name)
            probe(target, self._plan)
            yield ReadyServer(target, lambda: counts(client, name), ours=True)


# ---- a running server


class ExistingServer:
    """One row: a server as it is configured."""

    def __init__(self, target: QuestionTarget, plan: StressPlan) -> None:
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

    def setups(self) -> Sequence[ServerSetup]:
        """From the model's config over HTTP; TCP does not offer it.

        Raises ShoalError when the server does not respond.
        """
        answer = probe(self._target, self._plan)
        if answer.model:
            self._target = dataclasses.replace(self._target, model=answer.model)
        with self._client() as client:
            if client is not None:
                with contextlib.suppress(ShoalError):  # the measurement does not depend on it
                    return [_setup(client, self._target.model)]
        return [ServerSetup(None, None)]

    @contextmanager
    def ready(self, setup: ServerSetup) -> Iterator[ReadyServer]:  # noqa: ARG002 - there is only one
        """The server."""
        with self._client() as client:
            yield ReadyServer(self._target, lambda: counts(client, self._target.model))

    @contextmanager
    def _client(self) -> Iterator[Client | None]:
        target = self._target
        if target.protocol != "http" or not target.model:
            yield None
            return
        url = f"{target.address.authority}{target.prefix}"
        with Client(url, api_key=target.api_key) as client:
            yield client


ServersUnderTest = StartedServers | ExistingServer


def probe(target: QuestionTarget, plan: StressPlan) -> Answer:
    """Ask one question, so that errors show before the table.

    Raises ShoalError when it is not answered.
    """
    made: Asker
    if target.protocol == "tcp":
        made = TcpAsker(target.host, target.port, target.model, plan.timeout_secs, target.api_key)
    else:
        made = HttpAsker(target.address, target.model, plan.timeout_secs, target.api_key)
    with contextlib.closing(made) as asker:
        return asker.ask(plan.questions[0])[0]


def counts(client: Client | None, model: str) -> Counts | None:
    """The inferences and executions of the model so far, if the server reports them."""
    if client is None:
        return None
    try:
        entries = client.statistics(model)
        return (
            sum(int(entry.get("inference_count", 0)) for entry in entries),
            sum(int(entry.get("execution_count", 0)) for entry in entries),
        )
    except (ShoalError, AttributeError, ValueError):  # optional information
        return None


def _setup(client: Client, model: str) -> ServerSetup:
    config = client.config(model)
    groups = config.get("instance_group", [])
    if not groups:  # the server does not report instances
        return ServerSetup(None, None)
    sessions = sum(int(group.get("count", 1)) for group in groups)
    return ServerSetup(sessions, "dynamic_batching" in config)
