"""What `import shoal.client` brings along, and what it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shoal.client
from shoal.client import Client, InvalidInput

HEAVY = ("asyncio", "google", "grpc", "httptools", "onnxruntime", "shoal.server", "shoal.engine")


def test_every_name_is_there():
    for name in shoal.client.__all__:
        assert getattr(shoal.client, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        shoal.client.Klient  # noqa: B018


def test_it_is_light():
    code = (
        "import sys; from shoal.client import Client; Client('localhost:8000');"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"timeout": 0}, "timeout is a number of seconds above 0"),
        ({"connect_timeout": -1}, "connect_timeout is"),
        ({"retries": -1}, "retries is 0 or more"),
        ({"connections": 0}, "connections is 1 or more"),
        ({"headers": {"a": "b\r\nc"}}, "cannot be sent as an HTTP header"),
        ({"headers": {"a:": "b"}}, "cannot be sent"),
    ],
)
def test_arguments_that_make_no_sense(arguments, text):
    with pytest.raises(InvalidInput, match=text):
        Client("localhost", **arguments)


def test_methods_tell_what_they_do():
    assert Client.infer.__doc__.startswith("Run an inference")
    assert Client.infer.__name__ == "infer"
    assert repr(Client("grpc://host:1")) == "Client('grpc://host:1')"
