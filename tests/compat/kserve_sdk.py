"""KServe's Python package, in a process of its own (`kserve-python`, see tools/kserve_client.py).

    kserve-python kserve_sdk.py client HTTP_URL GRPC_ADDRESS     calls a server; prints what it got
    kserve-python kserve_sdk.py validate < documents.json        prints what is wrong with each

`import kserve` imports its model server and the client of Kubernetes. Neither is needed here, so
that the package's parts are imported without it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from importlib.util import find_spec
from types import ModuleType

package = ModuleType("kserve")
package.__path__ = list(find_spec("kserve").submodule_search_locations)
sys.modules["kserve"] = package

import numpy as np  # noqa: E402


def main():
    if sys.argv[1] == "client":
        print(json.dumps(asyncio.run(call(*sys.argv[2:]))))
    else:
        documents = json.load(sys.stdin)
        print(json.dumps([wrong_fields(document) for document in documents]))


# ---- clients


async def call(url, address):
    from kserve.inference_client import InferenceGRPCClient, InferenceRESTClient, RESTConfig

    rest = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    grpc = InferenceGRPCClient(address, timeout=60)
    async with rest, grpc:
        return {"rest": await over_rest(rest, url), "grpc": await over_grpc(grpc)}


async def over_rest(client, url):
    async def infer(request, model="plus"):
        return shown(await client.infer(url, request, model_name=model))

    found = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model": await client.is_model_ready(url, "plus"),
        "missing": await client.is_model_ready(url, "missing"),
        "json": await infer(request(binary=False)),
        "binary": await infer(request(binary=True)),
        "texts": await infer(texts(binary=False), "echo"),
        "texts_binary": await infer(texts(binary=True), "echo"),
        "half": await infer(halves(), "half"),
    }
    try:
        await infer(request(binary=False, name="OTHER"))
    except Exception as error:  # noqa: BLE001 - the test compares it
        found["error"] = [type(error).__name__, error.response.status_code, str(error)]
    return found


async def over_grpc(client):
    async def infer(asked):
        return shown(await client.infer(asked))

    found = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model": await client.is_model_ready("plus"),
        "contents": await infer(request(binary=False)),
        "raw": await infer(request(binary=True)),
        "texts": await infer(texts(binary=True, model="echo")),
        "half": await infer(halves()),
    }
    try:
        await infer(request(binary=False, name="OTHER"))
    except Exception as error:  # noqa: BLE001 - the test compares it
        found["error"] = [type(error).__name__, error.code().name, error.details()]
    return found


def request(*, binary, name="INPUT0"):
    """One input of two rows; the output as bytes if `binary`."""
    from kserve.protocol.infer_type import InferInput, InferRequest, RequestedOutput

    rows = np.array([[5], [7]], np.float32)
    given = InferInput(name, [2, 1], "FP32")
    given.set_data_from_numpy(rows, binary_data=binary)
    wanted = RequestedOutput("OUTPUT0", parameters={"binary_data": binary})
    return InferRequest("plus", [given], request_id="r1", request_outputs=[wanted])


def texts(*, binary, model="echo"):
    from kserve.protocol.infer_type import InferInput, InferRequest, RequestedOutput

    given = InferInput("INPUT0", [2, 1], "BYTES")
    given.set_data_from_numpy(np.array([["one"], ["zwölf"]], object), binary_data=binary)
    wanted = RequestedOutput("OUTPUT0", parameters={"binary_data": binary})
    return InferRequest(model, [given], request_outputs=[wanted])


def halves():
    """FP16 has no form in JSON."""
    from kserve.protocol.infer_type import InferInput, InferRequest, RequestedOutput

    given = InferInput("INPUT0", [1, 2], "FP16")
    given.set_data_from_numpy(np.array([[0.5, 2]], np.float16), binary_data=True)
    wanted = RequestedOutput("OUTPUT0", parameters={"binary_data": True})
    return InferRequest("half", [given], request_outputs=[wanted])


def shown(response):
    """A response as values of JSON."""
    (output,) = response.outputs
    array = output.as_numpy()
    values = array.reshape(-1).tolist()
    return {
        "model": response.model_name,
        "version": response.model_version,
        "id": response.id,
        "name": output.name,
        "datatype": output.datatype,
        "shape": list(output.shape),
        "values": [v.decode() if isinstance(v, bytes) else v for v in values],
    }


# ---- documents


def wrong_fields(document):
    """Fields that KServe's classes do not have, or whose value is of another type. What is of
    Kubernetes (containers, volumes) is listed as it is, after its type: others check that."""
    from kserve import models

    version = document["apiVersion"].rpartition("/")[2].capitalize()
    found = {"wrong": [], "kubernetes": []}
    _walk(models, f"{version}{document['kind']}", document, "", found)
    return found


def _walk(models, kind, value, place, found):
    many = re.fullmatch(r"list\[(.+)\]", kind)
    mapping = re.fullmatch(r"dict\(str, (.+)\)", kind)
    if many or mapping:
        if not isinstance(value, list if many else dict):
            found["wrong"].append(f"{place}: {value!r} is no {kind}")
            return
        items = enumerate(value) if many else value.items()
        for key, each in items:
            _walk(models, (many or mapping)[1], each, f"{place}.{key}", found)
        return
    plain = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}
    if kind in plain:
        if not isinstance(value, plain[kind]):
            found["wrong"].append(f"{place}: {value!r} is no {kind}")
        return
    described = getattr(models, kind, None)
    if described is None:
        found["kubernetes"].append([place, kind, value])
        return
    if not hasattr(described, "openapi_types"):
        return
    names = {written: name for name, written in described.attribute_map.items()}
    if not isinstance(value, dict):
        found["wrong"].append(f"{place}: {value!r} is no {kind}")
        return
    for key, each in value.items():
        if key in names:
            _walk(models, described.openapi_types[names[key]], each, f"{place}.{key}", found)
        else:
            found["wrong"].append(f"{place}: {kind} has no field '{key}'")


if __name__ == "__main__":
    main()
