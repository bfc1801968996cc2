"""The small parts on their own: status, headers' text, buffers, clocks, settings."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontends.grpc import status
from shoal.frontends.grpc.deadlines import Deadlines
from shoal.frontends.grpc.keepalive import Action, Lifetime
from shoal.frontends.grpc.settings import GrpcLimits, GrpcSettings, KeepAlive
from shoal.wire import http2_frames as frames

# Status and header blocks.


def percent_decoded(data: bytes) -> str:
    out = bytearray()
    position = 0
    while position < len(data):
        if data[position] == ord("%"):
            out.append(int(data[position + 1 : position + 3], 16))
            position += 3
        else:
            out.append(data[position])
            position += 1
    return out.decode()


@given(st.text(max_size=200).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)))
def test_messages_survive_percent_encoding(text):
    encoded = status.percent_encoded(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert percent_decoded(encoded) == text


def test_long_messages_are_cut_at_a_character():
    encoded = status.percent_encoded("ü" * 10_000)
    assert len(encoded) <= status.MAX_MESSAGE_BYTES + 3
    assert percent_decoded(encoded).rstrip(".") == "ü" * (status.MAX_MESSAGE_BYTES // 6)
    assert status.percent_encoded("x" * 5000).endswith(b"x...")


def test_lone_surrogates_do_not_break_an_answer():
    assert status.percent_encoded("a\ud800b") == b"a%3Fb"


@given(st.binary(min_size=1, max_size=400), st.binary(max_size=70_000))
def test_literals_are_hpack(name, value):
    decoder = hpack.Decoder(max_header_list_size=1 << 20)
    assert decoder.decode(status.literal(name, value), raw=True) == [(name, value)]
    assert not decoder.header_table.dynamic_entries


def test_blocks_of_answers():
    decoder = hpack.Decoder()
    block = status.trailers_only(status.StatusCode.NOT_FOUND, "gone", [("k", "v")])
    assert decoder.decode(block) == [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "5"),
        ("grpc-message", "gone"),
        ("k", "v"),
    ]
    assert ("grpc-status", "99") in decoder.decode(status.status_block(99))
    assert (":status", "415") in decoder.decode(status.http_refusal(415, 3, "no"))


@pytest.mark.parametrize("length", [0, 10, 16_384, 16_385, 50_000])
def test_header_blocks_are_cut_into_frames(length):
    data = frames.header_block(7, b"x" * length, end_stream=True, max_frame_bytes=16_384)
    position = 0
    kinds = []
    while position < len(data):
        high, low, kind, flags, stream_id = frames.HEADER.unpack_from(data, position)
        kinds.append((kind, flags))
        assert stream_id == 7
        position += 9 + (high << 8 | low)
    assert position == len(data)
    assert kinds[0][0] == frames.HEADERS
    assert kinds[0][1] & frames.END_STREAM
    assert [bool(flags & frames.END_HEADERS) for _, flags in kinds] == [False] * (
        len(kinds) - 1
    ) + [True]


# Deadlines.


class Waiting:
    def __init__(self):
        self.deadline_pending = True
        self.expired = False

    def expire(self):
        self.deadline_pending = False
        self.expired = True


def test_deadlines_expire_in_time():
    alarms = []
    deadlines = Deadlines(alarms.append)
    late, soon, met = Waiting(), Waiting(), Waiting()
    deadlines.add(300, late)
    deadlines.add(100, soon)
    deadlines.add(200, met)
    assert alarms == [300, 100]
    met.deadline_pending = False
    deadlines.met()
    assert len(deadlines) == 2
    assert deadlines.expire(99) == 100
    assert deadlines.expire(100) == 300
    assert (soon.expired, late.expired, met.expired) == (True, False, False)
    assert deadlines.expire(1000) is None
    assert late.expired
    assert len(deadlines) == 0


def test_a_deadline_that_ends_another_call():
    deadlines = Deadlines(lambda _: None)
    first, second = Waiting(), Waiting()

    def expire_both():
        first.deadline_pending = second.deadline_pending = False
        deadlines.met()

    first.expire = expire_both
    deadlines.add(1, first)
    deadlines.add(2, second)
    assert deadlines.expire(5) is None
    assert not second.expired
    assert len(deadlines) == 0


def test_deadlines_that_were_met_do_not_pile_up():
    deadlines = Deadlines(lambda _: None)
    first, last = Waiting(), Waiting()
    deadlines.add(10**8, first)  # it keeps the others from coming first and being dropped
    deadlines.add(10**12, last)
    for number in range(20_000):
        call = Waiting()
        deadlines.add(10**9 + number, call)
        call.deadline_pending = False
        deadlines.met()
    assert len(deadlines) == 2
    assert len(deadlines._heap) < 3_000
    assert deadlines.expire(10**8) == 10**12
    assert len(deadlines._heap) == 1
    deadlines.expire(10**13)
    assert first.expired
    assert last.expired


# Keepalive and age.


def lifetime(**options):
    return Lifetime(KeepAlive(**options), 0, spread=0.0)


def sweep(life, now_ms, *, heard=False, calls_open=True, sent_frames=0):
    return life.sweep(
        now_ms * 1_000_000, heard=heard, calls_open=calls_open, sent_frames=sent_frames
    )


def test_a_silent_peer_is_asked_and_then_given_up():
    life = lifetime(time_ms=1000, timeout_ms=200)
    assert sweep(life, 999) is Action.NOTHING
    assert sweep(life, 1000) is Action.PING
    assert sweep(life, 1199) is Action.NOTHING
    assert sweep(life, 1200) is Action.ABORT


def test_a_peer_that_answers_lives_on():
    life = lifetime(time_ms=1000, timeout_ms=200)
    assert sweep(life, 1000) is Action.PING
    assert sweep(life, 1100, heard=True) is Action.NOTHING
    assert sweep(life, 2099) is Action.NOTHING
    assert sweep(life, 2100) is Action.PING


def test_no_pings_without_calls_unless_permitted():
    assert sweep(lifetime(time_ms=1000), 5000, calls_open=False) is Action.NOTHING
    permitted = lifetime(time_ms=1000, permit_without_calls=True)
    assert sweep(permitted, 5000, calls_open=False) is Action.PING


@pytest.mark.parametrize(("most", "pings"), [(2, 2), (0, 9)])
def test_pings_without_data_are_bounded(most, pings):
    life = lifetime(time_ms=1000, max_pings_without_data=most)
    now, sent = 0, 0
    for _ in range(9):
        now += 1000
        sent += sweep(life, now) is Action.PING
        sweep(life, now, heard=True)
    assert sent == pings
    assert sweep(life, now + 1000, sent_frames=1) is Action.PING


def test_age_and_grace():
    life = lifetime(time_ms=0, max_connection_age_ms=1000, max_connection_age_grace_ms=500)
    assert sweep(life, 999) is Action.NOTHING
    assert sweep(life, 1000) is Action.DRAIN
    assert sweep(life, 1499) is Action.NOTHING
    assert sweep(life, 1500) is Action.ABORT


def test_without_grace_calls_take_as_long_as_they_take():
    life = lifetime(time_ms=0, max_connection_age_ms=1000)
    assert sweep(life, 1000) is Action.DRAIN
    assert sweep(life, 10**9) is Action.NOTHING


# Settings.


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_frame_bytes": 100},
        {"max_frame_bytes": 1 << 24},
        {"stream_window_bytes": 1000},
        {"connection_window_bytes": 1 << 31},
        {"max_concurrent_streams": -1},
        {"max_receive_message_bytes": 1 << 31},
    ],
)
def test_limits_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GrpcLimits(**wrong)


def test_keepalive_that_cannot_be():
    with pytest.raises(ValueError, match="time_ms is -5"):
        KeepAlive(time_ms=-5)


def test_the_sweep_is_as_quick_as_the_shortest_clock_needs():
    assert GrpcSettings().sweep_secs == 0.5
    assert GrpcSettings(keepalive=KeepAlive(timeout_ms=100)).sweep_secs == 0.025
    assert GrpcSettings(keepalive=KeepAlive(timeout_ms=1)).sweep_secs == 0.01
