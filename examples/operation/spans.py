r"""Continue a client's trace through the server, and print it with a minimal collector.

shoal serve --demo --trace-config=mode=opentelemetry --trace-config=level=TIMESTAMPS \
    --trace-config=rate=0 --trace-config=opentelemetry,bsp_schedule_delay=100
pip install "tritonclient[grpc]"
python examples/operation/spans.py [localhost:8001] [4318]

A real set-up has an OpenTelemetry collector, Jaeger or the like on port 4318, and a client whose
own tracing makes the header.
"""

from __future__ import annotations

import json
import queue
import secrets
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import tritonclient.grpc as triton

WAIT_SECS = 60
spans: queue.Queue[dict[str, Any]] = queue.Queue()


class Collector(BaseHTTPRequestHandler):
    """Receives spans as OTLP over HTTP, in JSON."""

    def do_POST(self) -> None:
        """Store the received spans."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    spans.put(span)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Log nothing."""


def main(server: str, port: int) -> None:
    collector = HTTPServer(("127.0.0.1", port), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    trace, span = secrets.token_hex(16), secrets.token_hex(8)

    tensors = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
    with triton.InferenceServerClient(server) as client:
        client.infer("add_sub", tensors)  # without the header: not traced, because of rate=0
        client.infer("add_sub", tensors, headers={"traceparent": f"00-{trace}-{span}-01"})

    found = [spans.get(timeout=WAIT_SECS) for _ in range(3)]
    assert {each["traceId"] for each in found} == {trace}
    parents = {span: ""}
    for each in found:
        parents[each["spanId"]] = parents[each["parentSpanId"]] + "  "
        took_ns = int(each["endTimeUnixNano"]) - int(each["startTimeUnixNano"])
        print(f"{parents[each['spanId']]}{each['name']}: {took_ns / 1000:.0f} us")
    collector.shutdown()


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "localhost:8001"
    main(address, int(sys.argv[2]) if len(sys.argv) > 2 else 4318)
