"""The port for probes: the health of the server and of its models, and nothing else.

It speaks plain HTTP and asks for no key, whatever the other ports do, and has its own listener, so
that it answers while those refuse connections.
"""

from __future__ import annotations

from shoal.engine import Engine
from shoal.errors import NotFound
from shoal.frontends.http.contracts import Exchange
from shoal.frontends.http.errors import as_shoal_error, send_error, send_refusal
from shoal.frontends.http.health import HealthRoutes
from shoal.frontends.http.limits import HttpLimits
from shoal.frontends.http.routes import endpoints, resolve

# Probes are small and quick.
LIMITS = HttpLimits(
    max_head_bytes=8_192,
    max_body_bytes=1_024,
    head_timeout_secs=10.0,
    body_idle_timeout_secs=10.0,
    keepalive_idle_secs=60.0,
    write_stall_secs=10.0,
)


class HealthApplication:
    """Serves the health port."""

    def __init__(self, engine: Engine) -> None:
        routes = HealthRoutes(engine)
        self._handlers = {
            endpoint: getattr(routes, endpoint.handler.__name__)
            for endpoint in endpoints()
            if endpoint.handler in vars(HealthRoutes).values()
        }

    def handle(self, exchange: Exchange) -> None:
        """Respond to `exchange`, exactly once, now or later. Never raises."""
        request = exchange.request
        try:
            target = resolve(request.path)
            found = None if target is None else target.route.endpoints
            if target is None or found is None or found.get("GET") not in self._handlers:
                raise NotFound(
                    "this port serves /v2/health/live, /v2/health/ready and "
                    "/v2/models/<model>/ready; use the HTTP port for everything else"
                )
            if request.method not in found:
                send_refusal(exchange, 405, "Method Not Allowed", [(b"Allow", b"GET, HEAD")])
                return
            self._handlers[found["GET"]](exchange, target)
        except Exception as error:  # noqa: BLE001 - becomes the response
            send_error(exchange, as_shoal_error(error))
