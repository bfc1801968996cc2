"""Invoke a SageMaker endpoint with tensors as bytes, or a server on this machine in the same way.

python examples/operation/sagemaker_client.py my-endpoint       # with boto3
python examples/operation/sagemaker_client.py localhost:8080    # without the platform
"""

from __future__ import annotations

import http.client
import json
import sys

import numpy as np

BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="


def encoded(tensors: dict[str, np.ndarray]) -> tuple[bytes, str]:
    """The body of a request with these tensors (INT32) as bytes, and its media type."""
    inputs = [
        {
            "name": name,
            "datatype": "INT32",
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in tensors.items()
    ]
    header = json.dumps({"inputs": inputs}).encode()
    body = header + b"".join(array.tobytes() for array in tensors.values())
    return body, f"{BINARY}{len(header)}"


def invoke(endpoint: str, body: bytes, media_type: str) -> bytes:
    """The body of the response."""
    if ":" in endpoint:
        connection = http.client.HTTPConnection(endpoint)
        connection.request("POST", "/invocations", body, {"Content-Type": media_type})
        return connection.getresponse().read()

    import boto3

    runtime = boto3.client("sagemaker-runtime")
    response = runtime.invoke_endpoint(
        EndpointName=endpoint,
        ContentType=media_type,
        Body=body,
        # TargetModel="resnet.tar.gz",  for an endpoint with many models
    )
    content: bytes = response["Body"].read()
    return content


if __name__ == "__main__":
    row = np.arange(16, dtype=np.int32).reshape(1, 16)
    content = invoke(sys.argv[1], *encoded({"INPUT0": row, "INPUT1": row}))
    print(json.loads(content)["outputs"][0]["data"])
