"""Addresses, as people write them."""

from __future__ import annotations

import pytest

from shoal.client import InvalidInput
from shoal.client.address import parse


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("localhost:8000", None, ("http", "localhost", 8000, False, "")),
        ("localhost", None, ("http", "localhost", 8000, False, "")),
        ("http://host:80/", None, ("http", "host", 80, False, "")),
        ("https://host", None, ("http", "host", 443, True, "")),
        ("https://host:9/api/v1/", None, ("http", "host", 9, True, "/api/v1")),
        ("grpc://host", None, ("grpc", "host", 8001, False, "")),
        ("grpcs://host:1", None, ("grpc", "host", 1, True, "")),
        ("host:8001", "grpc", ("grpc", "host", 8001, False, "")),
        ("http://host:8001", "grpc", ("grpc", "host", 8001, False, "")),
        ("[::1]:8000", None, ("http", "::1", 8000, False, "")),
        (" 127.0.0.1:8000 ", None, ("http", "127.0.0.1", 8000, False, "")),
    ],
)
def test_parse(url, protocol, expected):
    address = parse(url, protocol)
    found = (address.protocol, address.host, address.port, address.encrypted, address.prefix)
    assert found == expected


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("unix:///run/shoal.sock", "/run/shoal.sock"),
        ("unix:/run/shoal.sock", "/run/shoal.sock"),
        ("UNIX:here.sock", "here.sock"),
    ],
)
@pytest.mark.parametrize("protocol", [None, "http", "grpc"])
def test_unix_sockets(url, path, protocol):
    address = parse(url, protocol)
    assert (address.protocol, address.socket) == (protocol or "http", path)
    assert address.authority == "localhost"  # a name that every server accepts
    assert address.shown == f"unix:{path}"
    with pytest.raises(InvalidInput, match="not encrypted"):
        parse(url, protocol, encrypted=True)


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        ("shoal+ray://host", None, ("http", 8000, "shoal+ray://host:8000")),
        ("shoal+ray://host:9", "grpc", ("grpc", 9, "shoal+ray+grpc://host:9")),
        ("shoal+ray+grpc://[::1]", None, ("grpc", 8000, "shoal+ray+grpc://[::1]:8000")),
    ],
)
def test_ingresses(url, protocol, expected):
    address = parse(url, protocol, replicas=True)
    assert address.balanced
    assert (address.protocol, address.port, address.url) == expected
    with pytest.raises(InvalidInput, match="not supported"):
        parse(url, protocol)


@pytest.mark.parametrize(
    ("url", "arguments", "text"),
    [
        ("shoal+ray://host/path", {}, "an ingress has none"),
        ("shoal+ray://host", {"encrypted": True}, "replicas, which are called without TLS"),
        ("shoal+ray+grpc://host", {"protocol": "http"}, "contradict"),
        ("ray://host", {}, r"use one of .* unix://, shoal\+ray://, shoal\+ray\+grpc://"),
    ],
)
def test_what_is_no_ingress(url, arguments, text):
    with pytest.raises(InvalidInput, match=text):
        parse(url, replicas=True, **arguments)


def test_ssl_encrypts_whatever_the_scheme():
    assert parse("host:8001", "grpc", encrypted=True).encrypted


def test_the_authority_of_an_ipv6_address_has_its_brackets():
    assert parse("[::1]:8000").authority == "[::1]:8000"


@pytest.mark.parametrize(
    ("url", "protocol", "text"),
    [
        ("", None, "not a server address"),
        ("host:port", None, "not a server address"),
        ("user@host:1", None, "not a server address"),
        ("ftp://host", None, "use one of http://, https://, grpc://, grpcs://, unix://"),
        ("host:70000", None, "ports are 1 to 65535"),
        ("host:0", None, "ports are 1 to 65535"),
        ("host", "udp", "protocol is 'http' or 'grpc'"),
        ("grpc://host", "http", "contradict"),
        ("grpc://host/path", None, "gRPC has none"),
    ],
)
def test_what_is_no_address(url, protocol, text):
    with pytest.raises(InvalidInput, match=text):
        parse(url, protocol)
