"""The defaults of options in a container of Vertex AI."""

from __future__ import annotations

import pytest

from shoal.cli import arguments, vertex_ai
from shoal.config.options import OptionError

CONTAINER = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "8000", "AIP_STORAGE_URI": "/models"}


def parse(line, environ):
    return arguments.parse(line.split(), defaults=vertex_ai.defaults(environ))


def test_elsewhere_nothing_changes():
    assert vertex_ai.defaults({"PATH": "/bin", "AIP_MODE": "TRAINING"}) == {}


def test_in_a_container():
    options = parse("", CONTAINER)
    assert (options.allow_vertex_ai, options.allow_http, options.allow_grpc) == (True, False, False)
    assert options.vertex_ai_port == 8000
    assert options.model_repository == ("/models",)


def test_the_command_line_wins():
    line = "here --allow-grpc --vertex-ai-port=9000 --allow-vertex-ai=true"
    options = parse(line, CONTAINER)
    assert (options.allow_http, options.allow_grpc) == (False, True)
    assert options.vertex_ai_port == 9000
    assert options.model_repository == ("here",)
    assert not parse("here --allow-vertex-ai=false --allow-http", CONTAINER).allow_vertex_ai


def test_the_port_alone():
    options = parse("here", {"AIP_HTTP_PORT": "8888"})
    assert (options.vertex_ai_port, options.allow_vertex_ai, options.allow_http) == (
        8888,
        False,
        True,
    )
    with pytest.raises(OptionError, match="AIP_HTTP_PORT takes a whole number from 0 to 65535"):
        parse("here", {"AIP_HTTP_PORT": "http"})
