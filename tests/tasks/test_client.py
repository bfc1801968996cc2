"""The client library's own way to tasks, on the demo's models: blocking and awaited."""

from __future__ import annotations

import asyncio

import pytest

from shoal.cli.demo import photo, repository
from shoal.client import AsyncClient, Client, ServerError
from shoal.testing.server import running_server

TEXT = "Herring swim in shoals of up to three billion fish. They eat plankton."
CATS = {"tabby cat", "tiger cat", "Egyptian cat"}


@pytest.fixture(scope="module")
def server():
    with running_server(repository()) as running:
        yield running


@pytest.fixture
def cat():
    return photo()


def test_photos_and_questions(server, cat):
    with Client(server.http_address) as client:
        one, other = client.classify(cat, cat.read_bytes(), top=2)
        assert one == other
        assert {label.name for label in one} <= CATS
        found = client.answer(TEXT, "What do herring eat?")
        assert found["answer"] == TEXT[found["start"] : found["end"]] == "plankton"


def test_the_same_awaited(server, cat):
    async def ask():
        async with AsyncClient(server.http_address) as client:
            return await asyncio.gather(
                client.classify(cat, model="photos"),
                client.perform("answer", {"text": TEXT, "question": "What do herring eat?"}),
            )

    labels, found = asyncio.run(ask())
    assert labels[0][0].name in CATS
    assert found["answer"] == "plankton"


def test_the_servers_error_is_raised(server):
    with Client(server.http_address) as client:
        with pytest.raises(ServerError, match="is text"):
            client.classify(b"no photo")
        with pytest.raises(ServerError, match="does not offer 'caption'"):
            client.caption(b"x", model="photos")
