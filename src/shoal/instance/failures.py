"""Executions that fail: the error that answers an exception, and the end of an abandoned one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from shoal.core.request import Request
from shoal.errors import BackendFailure, ShoalError

logger = logging.getLogger(__name__)


class ExecutionAbandoned(BaseException):
    """Ends a thread whose execution took too long, once it returns: another one has answered.

    `on_return`, if any, is to be called at the end of that thread.
    """

    def __init__(self, on_return: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.on_return = on_return


def error_of(
    failure: BaseException, model_name: str, version: int, requests: Sequence[Request] = ()
) -> ShoalError:
    """The error that answers an exception; its traceback goes to the log, with the ids of
    `requests`."""
    ids = ", ".join([request.id for request in requests if request.id])
    shown = f" (request id: {ids})" if ids else ""
    if isinstance(failure, ShoalError):
        if ids and isinstance(failure, BackendFailure):  # its traceback was logged, if any
            logger.error("model '%s' version %d failed%s: %s", model_name, version, shown, failure)
        return failure
    logger.error(
        "model '%s' version %d failed%s: %s", model_name, version, shown, failure, exc_info=failure
    )
    return BackendFailure(f"{type(failure).__name__}: {failure}")
