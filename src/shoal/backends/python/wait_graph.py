"""Waiting calls between models: detects a call that would deadlock.

    A's only instance --exec--> B's only instance --exec--> A       no instance is left to run it

Instances are registered here while they exist and while they wait. A call is rejected if every
instance of its model already waits, directly or through others, for one that waits.
"""

from __future__ import annotations

import threading

from shoal.backends.python.api.host import Context
from shoal.core.reply import Reply
from shoal.core.response import Response
from shoal.errors import Unavailable


class WaitGraph:
    """The instances of one server's Python models. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both
        self._instances: dict[str, set[Context]] = {}
        self._waiting: dict[Context, str] = {}

    def join(self, instance: Context) -> None:
        """An instance exists."""
        with self._lock:
            self._instances.setdefault(instance.model_name, set()).add(instance)

    def leave(self, instance: Context) -> None:
        """It exists no longer."""
        with self._lock:
            known = self._instances.get(instance.model_name, set())
            known.discard(instance)
            if not known:
                self._instances.pop(instance.model_name, None)
            self._waiting.pop(instance, None)

    def begin(self, instance: Context, model: str) -> None:
        """`instance` is about to wait for `model`; Unavailable if that would deadlock."""
        with self._lock:
            self._waiting[instance] = model
            if self._all_wait(model, set()):
                del self._waiting[instance]
                raise Unavailable(
                    f"model '{instance.model_name}' calls model '{model}', all of whose instances "
                    f"wait for a response themselves: no instance is left to run it. Give the "
                    f"model more instances, one for each call that may wait for another"
                )

    def end(self, instance: Context) -> None:
        """The response has arrived."""
        with self._lock:
            self._waiting.pop(instance, None)

    def _all_wait(self, model: str, seen: set[str]) -> bool:
        instances = self._instances.get(model)
        if not instances:
            return False
        seen.add(model)
        for instance in instances:
            target = self._waiting.get(instance)
            if target is None:
                return False
            if target not in seen and not self._all_wait(target, seen):
                return False
        return True


class WaitEndingReply:
    """A reply that ends the wait of its instance when the response arrives."""

    __slots__ = ("_instance", "_reply", "_wait_graph")

    def __init__(self, reply: Reply, waits: WaitGraph, instance: Context) -> None:
        self._reply = reply
        self._wait_graph = waits
        self._instance = instance

    def send(self, response: Response) -> None:
        """Pass the response on."""
        if response.final:
            self._wait_graph.end(self._instance)
        self._reply.send(response)
