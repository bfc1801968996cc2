import pytest

from shoal.frontends.client_limits import ConnectionLimits, most_connections
from shoal.frontends.pace import Pace, is_too_slow


def test_all_connections_together_are_limited():
    limits = ConnectionLimits(max_connections=2)
    assert limits.admit("a") == ""
    assert limits.admit("") == ""
    assert "more than 2 connections" in limits.admit("b")
    assert "--max-connections" in limits.admit("b")
    assert limits.refused == 2
    for address in ("a", "b", "b"):
        limits.leave(address)
    assert limits.count == 1
    assert limits.admit("c") == ""


def test_connections_of_one_address_are_limited():
    limits = ConnectionLimits(max_per_address=1)
    assert limits.admit("a") == ""
    assert "a has more than 1 connections" in limits.admit("a")
    assert limits.admit("b") == ""
    assert [limits.admit("") for _ in range(3)] == ["", "", ""], "Unix sockets have no address"
    limits.leave("a")
    limits.leave("a")
    assert limits.admit("a") == ""
    assert limits._by_address == {"a": 1, "b": 1}


def test_beyond_the_limit_only_some_are_told_why():
    limits = ConnectionLimits(max_connections=1)
    for _ in range(65):
        limits.admit("")
    assert not limits.crowded
    limits.admit("")
    assert limits.crowded


def test_the_log_has_one_refusal_a_minute(caplog):
    now = 0.0
    limits = ConnectionLimits(max_connections=1, clock=lambda: now)
    for _ in range(5):
        limits.admit("")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    now = 60.0
    limits.admit("")
    assert len(caplog.records) == 2


def test_without_limits_everybody_may_connect():
    limits = ConnectionLimits()
    assert {limits.admit("a") for _ in range(1000)} == {""}
    assert not limits.crowded


@pytest.mark.parametrize(("files", "expected"), [(1024, 768), (100, 50), (-1, 0)])
def test_the_default_leaves_files_for_the_server(monkeypatch, files, expected):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, -1))
    assert most_connections() == expected


def test_a_pace_is_that_of_one_transfer():
    pace = Pace()
    assert pace.measure("a", 100, 10.0) == (0.0, 0)
    assert pace.measure("a", 150, 12.0) == (2.0, 50)
    assert pace.measure("b", 150, 13.0) == (0.0, 0)
    pace.end()
    assert pace.measure("b", 160, 20.0) == (0.0, 0)


@pytest.mark.parametrize(
    ("secs", "moved", "pause", "rate", "slow"),
    [
        (60, 0, 60, 500, False),
        (61, 0, 60, 500, True),
        (61, 500, 60, 500, False),
        (60, 0, 0, 500, False),  # any pause: a minute is permitted
        (61, 0, 0, 500, True),
        (10**9, 0, 60, 0, False),
    ],
)
def test_too_slow_is_below_the_rate_after_a_pause(secs, moved, pause, rate, slow):
    assert is_too_slow(secs, moved, pause, rate) is slow
