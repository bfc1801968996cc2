"""The graceful end of a connection."""

from __future__ import annotations

import pytest
from hyperframe.frame import GoAwayFrame, PingFrame, SettingsFrame

from shoal.wire.http2_frames import PREFACE, H2Error


def answer_ping(peer, frames):
    (ping,) = [frame for frame in frames if isinstance(frame, PingFrame)]
    return peer.send(PingFrame(0, opaque_data=ping.opaque_data, flags=["ACK"]))


def test_calls_on_their_way_are_served_and_later_ones_are_not(peer, tools):
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    peer.connection.drain("max_age")
    frames = peer.collect()
    first = frames[0]
    assert (first.last_stream_id, first.error_code) == (2**31 - 1, H2Error.NO_ERROR)
    assert first.additional_data == b"max_age"

    peer.call(3)  # sent before the client heard of it
    assert peer.answers[3].status == 0

    (last,) = answer_ping(peer, frames)
    assert isinstance(last, GoAwayFrame)
    assert last.last_stream_id == 3
    assert peer.call(5) == [], "GOAWAY said that it would be ignored"
    assert len(peer.service.calls) == 2
    assert not peer.connection.closed

    peer.send(tools.data(1, tools.prefixed(b"x"), end=True))
    peer.service.calls[0].reply((b"done",))
    peer.collect()
    assert peer.answers[1].messages == [(0, b"done")]
    assert peer.connection.closed
    assert "cancel" not in peer.service.events


def test_an_idle_connection_closes_as_soon_as_the_client_knows(peer):
    peer.call(1)
    peer.connection.drain()
    assert not peer.connection.closed
    answer_ping(peer, peer.collect())
    assert peer.connection.closed
    assert not peer.connection.fault


def test_draining_twice_changes_nothing(peer):
    peer.connection.drain()
    assert len(peer.collect()) == 2
    peer.connection.drain()
    assert peer.collect() == []


def test_a_client_that_has_just_connected_is_served(tools):
    peer = tools.Peer()
    peer.connection.drain()
    assert not peer.connection.closed
    assert peer.collect() == []
    frames = peer.send(PREFACE, SettingsFrame(0))
    (goaway,) = [frame for frame in frames if isinstance(frame, GoAwayFrame)]
    assert goaway.last_stream_id == 2**31 - 1
    peer.call(1)
    assert peer.answers[1].status == 0
    assert not peer.connection.closed
    answer_ping(peer, frames)
    assert peer.connection.closed


def test_a_client_that_does_not_answer_the_ping_waits_no_longer(peer, tools):
    peer.send(peer.headers(1, path="/test.Echo/Hold"))
    peer.connection.drain()
    peer.connection.end_drain()
    assert peer.collect()[-1].last_stream_id == 1
    peer.send(tools.data(1, tools.prefixed(b"x"), end=True))
    peer.service.calls[0].reply((b"done",))
    peer.collect()
    assert peer.answers[1].messages == [(0, b"done")]
    assert peer.connection.closed


@pytest.mark.parametrize("path", ["/test.Echo/Hold", "/test.Echo/ServerStream"])
def test_giving_up_ends_calls_with_an_error(peer, path):
    peer.send(peer.headers(1, path=path))
    peer.connection.drain()
    peer.connection.give_up_all("it takes too long")
    peer.collect()
    assert (peer.answers[1].status, peer.answers[1].text) == (14, "it takes too long")
    assert peer.service.events == ["cancel"]
    assert peer.connection.closed


@pytest.mark.parametrize("path", ["/test.Echo/Hold", "/test.Echo/ServerStream"])
def test_closing_cancels_what_is_open(peer, path):
    peer.send(peer.headers(1, path=path))
    call = peer.service.calls[0]
    peer.connection.close()
    assert peer.service.events == ["cancel"]
    assert call.cancelled
    call.send((b"too late",))
    call.finish()
    assert peer.collect() == []
