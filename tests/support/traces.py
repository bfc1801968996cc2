"""Reading traces in tests: trace files, and a collector of OpenTelemetry spans."""

from __future__ import annotations

import http.server
import json
import queue
import threading

from shoal.config.options import NamedSetting
from shoal.testing import WAIT_SECS

CALLER = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


def trace_settings(*words):
    """The option --trace-config, from words as the command line has them."""
    made = []
    for word in words:
        place, _, rest = word.rpartition(",")
        key, _, value = rest.partition("=")
        made.append(NamedSetting(place, key, value))
    return tuple(made)


def by_id(path):
    """The traces of a file, in the order in which they began: what names each, and its events in
    the order of time."""
    found = {}
    for item in json.loads(path.read_text()):
        trace = found.setdefault(item["id"], {"events": [], "tensors": []})
        if "timestamps" in item:
            trace["events"] += [(stamp["ns"], stamp["name"]) for stamp in item["timestamps"]]
        elif "tensor" in item:
            trace["tensors"].append((item["activity"], item["tensor"]["data"]))
        else:
            trace.update(item)
    for trace in found.values():
        moments = [moment for moment, _ in trace["events"]]
        assert moments == sorted(moments)
        trace["events"] = [name for _, name in trace["events"]]
    return [found[number] for number in sorted(found)]  # as they began


class SpanCollector:
    """Takes spans, as an OpenTelemetry collector does."""

    def __init__(self):
        self.spans = queue.Queue()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                assert self.path == "/v1/traces"
                for resource in body["resourceSpans"]:
                    for span in resource["scopeSpans"][0]["spans"]:
                        outer.spans.put(span)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *words):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, count):
        return [self.spans.get(timeout=WAIT_SECS) for _ in range(count)]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
