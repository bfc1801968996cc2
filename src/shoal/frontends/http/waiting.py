"""An exchange that waits for its model to be loaded: in lazy mode, and while the server starts."""

from __future__ import annotations

from collections.abc import Callable

from shoal.core.model_loading import ModelLoading
from shoal.errors import ShoalError
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error
from shoal.frontends.waiting import when_loaded


def respond_when_loaded(
    pending: ModelLoading, exchange: Exchange, again: Callable[[], None], timeout_us: int = 0
) -> None:
    """Call `again` to respond once the model is loaded; a failed load is the response.

    A client that disconnects meanwhile stops waiting, and so does a request whose own `timeout_us`
    has passed.
    """

    def resume(error: ShoalError | None) -> None:
        exchange.on_disconnect = None
        try:
            if error is not None:
                raise error
            again()
        except ModelLoading as still:  # it has been evicted again
            respond_when_loaded(still, exchange, again, timeout_us)
        except Exception as failure:  # noqa: BLE001 - becomes the response
            send_error(exchange, as_shoal_error(failure))

    exchange.on_disconnect = when_loaded(pending, resume, timeout_us)
