"""The errors of late: equal ones together, the newest first, never more than so many."""

import pytest

from shoal.statistics.recent_errors import MOST_CHARACTERS, MOST_OF_A_PLACE, RecentErrors


@pytest.fixture
def now():
    return [1_000_000_000]


@pytest.fixture
def errors(now):
    return RecentErrors(most=3, wall_clock=lambda: now[0])


def test_an_error_is_remembered_with_its_time(errors):
    errors.note("HTTP", "POST /v2/models/m/infer", "400", "no such input", "m")
    (entry,) = errors.since()
    assert (entry.protocol, entry.place, entry.status) == ("HTTP", "POST /v2/models/m/infer", "400")
    assert (entry.model, entry.text, entry.count) == ("m", "no such input", 1)
    assert (entry.first_ms, entry.last_ms) == (1000, 1000)


def test_equal_errors_are_one(errors, now):
    errors.note("HTTP", "/", "400", "one")
    errors.note("HTTP", "/", "400", "two")
    now[0] += 5_000_000_000
    errors.note("HTTP", "/", "400", "one")
    newest, older = errors.since()
    assert (newest.text, newest.count, newest.first_ms, newest.last_ms) == ("one", 2, 1000, 6000)
    assert (older.text, older.count) == ("two", 1)


def test_the_oldest_make_room(errors):
    for text in "abcd":
        errors.note("gRPC", "ModelInfer", "NOT_FOUND", text)
    assert [entry.text for entry in errors.since()] == ["d", "c", "b"]


def test_only_what_is_new_is_given(errors):
    errors.note("HTTP", "/", "400", "one")
    errors.note("HTTP", "/", "400", "two")
    seen = errors.since()[0].number
    assert errors.since(seen) == []
    errors.note("HTTP", "/", "400", "one")
    (entry,) = errors.since(seen)
    assert (entry.text, entry.count) == ("one", 2)


def test_what_was_given_does_not_change(errors):
    errors.note("HTTP", "/", "400", "one")
    (entry,) = errors.since()
    errors.note("HTTP", "/", "400", "one")
    assert entry.count == 1


def test_long_texts_are_cut(errors):
    errors.note("HTTP", "GET /" + "y" * 8000, "400", "x" * 100_000)
    (entry,) = errors.since()
    assert len(entry.text) == MOST_CHARACTERS + 2
    assert len(entry.place) == MOST_OF_A_PLACE + 1


def test_errors_of_different_requests_are_one(errors):
    errors.note("HTTP", "/", "503", "[request id: 1] Exceeds maximum queue size")
    errors.note("HTTP", "/", "503", "[request id: <id_unknown>] Exceeds maximum queue size")
    (entry,) = errors.since()
    assert (entry.text, entry.count) == ("Exceeds maximum queue size", 2)


def test_errors_of_other_processes_are_numbered_with_the_own_ones(errors):
    other = RecentErrors()
    errors.note("HTTP", "GET /a", "404", "not found")
    other.note("HTTP", "GET /a", "404", "not found", count=2)
    other.note("gRPC", "ModelInfer", "UNAVAILABLE", "busy")
    errors.merge(*other.drain())
    assert [(entry.place, entry.count, entry.number) for entry in errors.since()] == [
        ("ModelInfer", 1, 3),
        ("GET /a", 3, 2),
    ]
    assert errors.counts()["HTTP", "404"] == 3
    errors.merge(*other.drain())
    assert errors.counts()["HTTP", "404"] == 3
    assert errors.since(3) == []
