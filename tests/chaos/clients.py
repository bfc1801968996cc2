"""Clients of the checker: one connection each, over one protocol.

    with CLIENTS["grpc"](server, "model") as ask:
        ask(numbers, arrays)     for each: the id and the output of the answer, or Refused

`ask` raises if the connection has failed: then none of its requests has an answer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue

import grpc
import numpy as np

from shoal.testing import WAIT_SECS
from shoal.wire.proto import messages
from tests.chaos.server import ADDRESS
from tests.support.client import Infer, read_outputs

_SERVICE = "/inference.GRPCInferenceService"


class Refused(Exception):
    """An answer that is an error."""


class Lost(Exception):
    """No answer came."""


class WrongAnswer(Exception):
    """An answer that belongs to no request, or to one that has its answer."""


@contextlib.contextmanager
def http_client(server, model, *, binary=True):
    line = http.client.HTTPConnection(ADDRESS, server.http_port, timeout=WAIT_SECS)

    def ask(numbers, arrays):
        (number,), (array,) = numbers, arrays
        infer = Infer(id=str(number)).add("INPUT0", array, binary=binary)
        infer.want("OUTPUT0", binary_data=binary)
        body, headers = infer.body()
        line.request("POST", f"/v2/models/{model}/infer", body, headers)
        response = line.getresponse()
        content = response.read()
        if response.status != 200:
            return [Refused(f"{response.status} {json.loads(content)['error']}")]
        fields = {name.lower(): value for name, value in response.getheaders()}
        length = int(fields.get("inference-header-content-length", len(content)))
        return [(json.loads(content[:length])["id"], read_outputs(fields, content)["OUTPUT0"])]

    with contextlib.closing(line):
        yield ask


def json_client(server, model):
    return http_client(server, model, binary=False)


@contextlib.contextmanager
def grpc_client(server, model):
    with _channel(server) as channel:
        call = channel.unary_unary(f"{_SERVICE}/ModelInfer")

        def ask(numbers, arrays):
            (number,), (array,) = numbers, arrays
            try:
                answer = call(_message(model, number, array), timeout=WAIT_SECS)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE and not _from_server(error):
                    raise
                return [Refused(f"{error.code().name} {error.details()}")]
            return [_read(messages.ModelInferResponse.FromString(answer))]

        yield ask


@contextlib.contextmanager
def stream_client(server, model):
    requests = queue.SimpleQueue()
    with _channel(server) as channel:
        answers = channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")(iter(requests.get, None))

        def ask(numbers, arrays):
            for number, array in zip(numbers, arrays, strict=True):
                requests.put(_message(model, number, array))
            found = {}
            for _ in numbers:
                answer = messages.ModelStreamInferResponse.FromString(next(answers))
                name = answer.infer_response.id
                if name in found or name not in map(str, numbers):
                    raise WrongAnswer(f"an unexpected answer with the id {name!r} to {numbers}")
                if answer.error_message:
                    found[name] = Refused(answer.error_message)
                else:
                    found[name] = _read(answer.infer_response)
            return [found[str(number)] for number in numbers]

        yield ask
        requests.put(None)
        answers.cancel()


def _channel(server):
    # Each client has a connection of its own, which is opened again soon after it was lost.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
    options += [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.enable_retries", 0)]
    return grpc.insecure_channel(f"{ADDRESS}:{server.grpc_port}", options)


def _from_server(error):
    """Whether the status was sent by the server, not made by the client for a lost connection."""
    return "received from peer" in (error.debug_error_string() or "").lower()


def _message(model, number, array):
    made = messages.ModelInferRequest(model_name=model, id=str(number))
    made.inputs.add(name="INPUT0", datatype="FP32", shape=list(array.shape))
    made.raw_input_contents.append(array.tobytes())
    return made.SerializeToString()


def _read(answer):
    shape = list(answer.outputs[0].shape)
    return answer.id, np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(shape)


CLIENTS = {
    "http": http_client,
    "json": json_client,
    "grpc": grpc_client,
    "stream": stream_client,
}
