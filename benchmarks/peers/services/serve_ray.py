"""The Ray Serve application: one deployment, the plain form."""

from __future__ import annotations

import signal
import sys

from ray.serve.schema import LoggingConfig
from starlette.requests import Request
from starlette.responses import Response

import ray
from benchmarks.peers.services.inference import Model, setting
from ray import serve


@serve.deployment(
    num_replicas=int(setting("WORKERS", "1")),
    max_ongoing_requests=200,
    ray_actor_options={"num_cpus": 0.5},
)
class Inference:
    """One session per replica."""

    def __init__(self) -> None:
        self.model = Model()

    async def __call__(self, request: Request) -> Response:
        """One replica per core: the model runs right here."""
        body = await request.body()
        return Response(self.model.answer(body), media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(setting("PORT"))})
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    serve.run(Inference.options(logging_config=quiet).bind())  # type: ignore[attr-defined]
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
    sys.exit(0)
