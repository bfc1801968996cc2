"""What a key permits, and its quotas: decisions only, by a clock that the test sets."""

from __future__ import annotations

import time

import pytest

from shoal.access.access import Access
from shoal.access.caller import APIS, Caller, ModelPatterns, Quota
from shoal.access.entry import KeyEntry, digest_of
from shoal.errors import Forbidden, QuotaExceeded, Unauthenticated

SECOND = 1_000_000_000
NOW = 1000 * SECOND


def caller(quota=None, *, apis=("inference",), models=("*",), **more):
    return Caller(
        "k",
        digest=b"",
        apis=frozenset(apis),
        models=[ModelPatterns(models)],
        quota=quota,
        **more,
    )


def entry(name, key, **fields):
    return KeyEntry(name, digest_of(key).hex(), **fields)


@pytest.mark.parametrize(
    ("patterns", "model", "allowed"),
    [
        (("*",), "anything", True),
        (("resnet50",), "resnet50", True),
        (("resnet50",), "resnet501", False),
        (("resnet50",), "xresnet50", False),
        (("resnet*", "bert"), "resnet50", True),
        (("resnet*", "bert"), "bert", True),
        (("resnet*", "bert"), "bert2", False),
        (("resnet*",), "RESNET50", False),
        (("a?c",), "abc", True),
        (("a.c",), "abc", False),
        (("line",), "line\n", False),
        ((), "a", False),
    ],
)
def test_models(patterns, model, allowed):
    assert ModelPatterns(patterns).allow(model) is allowed
    assert ModelPatterns(patterns).allow(model) is allowed


def test_names_of_clients_do_not_fill_the_memory():
    patterns = ModelPatterns(("a*",))
    assert not any(patterns.allow(f"name{number}") for number in range(5000))
    assert patterns.allow("ab")
    assert len(patterns._cached) <= 1024


def test_a_refusal_says_what_to_do():
    one = caller(apis=("health", "inference"), models=("a*",))
    one.check("inference", "ab")
    with pytest.raises(Forbidden, match=r"'k' does not permit 'trace' requests, only: health, inf"):
        one.check("trace")
    with pytest.raises(Forbidden, match=r"'k' does not permit the model 'b'; use a key that does"):
        one.check("inference", "b")
    with pytest.raises(Forbidden, match="permits some models only"):
        one.check_all_models()
    caller().check_all_models()
    assert one.counts.refused == {"api": 1, "model": 2}


def test_the_only_permitted_model():
    one = caller(models=("a*",))
    assert one.only_model(["a1", "b1"], "classify") == "a1"
    with pytest.raises(Forbidden) as caught:
        one.only_model(["b1"], "classify")
    assert "b1" not in caught.value.message
    with pytest.raises(
        Forbidden, match=r"several models that offer 'classify' \(a1, a2\)"
    ) as caught:
        one.only_model(["a1", "a2", "b1"], "classify")
    assert "b1" not in caught.value.message
    assert caller().only_model(["a1", "a2"], "classify") == ""


def test_requests_a_second_and_burst():
    one = caller(Quota(requests_per_second=10, burst=3))
    assert [one.admit(0, NOW) for _ in range(4)] == [True, True, True, False]
    assert not one.admit(0, NOW + SECOND // 11)
    assert one.admit(0, NOW + SECOND // 10)
    assert not one.admit(0, NOW + SECOND // 10)
    later = NOW + 100 * SECOND  # what is not used does not add up beyond the burst
    assert [one.admit(0, later) for _ in range(4)] == [True, True, True, False]


def test_the_default_burst_is_that_of_a_second():
    one = caller(Quota(requests_per_second=5))
    assert sum(one.admit(0, NOW) for _ in range(20)) == 5
    slow = caller(Quota(requests_per_second=0.5))
    assert [slow.admit(0, NOW), slow.admit(0, NOW + SECOND)] == [True, False]
    assert slow.admit(0, NOW + 2 * SECOND)


def test_bytes_of_requests_and_responses():
    one = caller(Quota(bytes_per_second=1000))
    assert one.admit(5000, NOW)  # any size, while some bytes are left
    assert not one.admit(1, NOW + 3 * SECOND)
    assert one.admit(1, NOW + 4 * SECOND + SECOND // 100)
    one.sent(10_000)
    assert not one.admit(1, NOW + 10 * SECOND)
    assert one.admit(1, NOW + 15 * SECOND)
    assert (one.counts.received_bytes, one.counts.sent_bytes) == (5002, 10_000)


def test_requests_in_flight():
    one = caller(Quota(requests_in_flight=2))
    assert [one.admit(1, NOW) for _ in range(3)] == [True, True, False]
    one.end()
    assert one.admit(1, NOW)
    assert one.counts.in_flight == 2
    assert one.counts.requests == 3


def test_nothing_is_used_by_a_refusal():
    one = caller(Quota(10, 1, 1000, 1))
    assert one.admit(2000, NOW)
    state = (one.quota.due_ns, one.quota.bytes_due_ns, one.quota.in_flight, one.counts.requests)
    assert not one.admit(2000, NOW)
    assert state == (
        one.quota.due_ns,
        one.quota.bytes_due_ns,
        one.quota.in_flight,
        one.counts.requests,
    )


@pytest.mark.parametrize(
    ("quota", "text"),
    [
        (Quota(0.01), "0.01 requests a second; retry in 100 s"),
        (Quota(bytes_per_second=1), "1 bytes a second; retry in 99 s"),
        (Quota(requests_in_flight=1), "1 requests in flight; retry in 1 s"),
    ],
)
def test_a_used_up_quota_says_when_to_retry(quota, text):
    one = caller(quota)
    one.begin(100)
    with pytest.raises(QuotaExceeded) as caught:
        one.begin(100)
    assert text in caught.value.message
    assert caught.value.retry_secs in (1, 99, 100)


def test_who_sends_a_key():
    access = Access([entry("a", b"key-a"), entry("b", b"key-b")], header="X-Key")
    assert access.identify(None, b"Bearer key-a").name == "a"
    assert access.identify(None, b"bearer  key-b ").name == "b"
    assert access.identify(b"key-b", b"Bearer key-a").name == "b"
    for wrong in (b"key-c", b"KEY-A", b"key-a\x00", b"x" * 100_000):
        with pytest.raises(Unauthenticated) as caught:
            access.identify(None, b"Bearer " + wrong)
        assert b"key" not in wrong or wrong.decode() not in caught.value.message
    for none in (None, b"", b"Bearer ", b"Basic key-a", b"key-a"):
        with pytest.raises(Unauthenticated, match="Authorization: Bearer <key>' or 'x-key: <key>'"):
            access.identify(None, none)
    assert access.read()[0].refused == {"unknown_key": 4, "no_key": 5}


def test_an_expired_key(monkeypatch):
    access = Access(
        [entry("a", b"a", expires="2001-01-01"), entry("b", b"b", expires="2099-01-01")]
    )
    with pytest.raises(Unauthenticated, match="the key 'a' has expired"):
        access.identify(b"a", None)
    other = access.identify(b"b", None)
    other.begin(1)
    assert not other.admit(1, other.ends_ns)  # by the clock of the fast path
    monkeypatch.setattr(time, "time", lambda: other.expires_at)  # the clock was set
    with pytest.raises(Unauthenticated, match="the key 'b' has expired"):
        access.identify(b"b", None)
    with pytest.raises(Unauthenticated, match="no longer valid"):
        other.begin(1)


def test_entries_that_do_not_change_keep_their_callers():
    access = Access([entry("a", b"a"), entry("b", b"b"), entry("c", b"c")])
    a, b, c = (access.identify(key, None) for key in (b"a", b"b", b"c"))
    a.begin(1)
    access.replace([entry("a", b"a"), entry("b", b"b", models=("x",))])
    assert access.identify(b"a", None) is a
    changed = access.identify(b"b", None)
    assert changed is not b
    assert changed.counts is b.counts
    assert not changed.may_use("y")
    for old in (b, c):
        assert not old.admit(0, NOW)
    assert [(counts.name, counts.requests) for counts in access.read()] == [
        ("", 0),
        ("a", 1),
        ("b", 0),
    ]


def test_names_in_the_metrics_are_bounded():
    access = Access([entry(f"k{n}", b"%d" % n) for n in range(1500)])
    access.identify(b"1499", None).begin(1)
    counts = access.read()
    assert len(counts) == 1002
    assert counts[-1].name == "other"
    assert counts[-1].requests == 1


def test_what_is_open_names_no_model():
    access = Access(open_apis=("health",))
    assert access.is_open("health", "")
    assert not access.is_open("health", "m")
    assert not access.is_open("metadata", "")


def test_all_kinds():
    access = Access([entry("a", b"a", apis=("*",))])
    assert access.identify(b"a", None).apis == frozenset(APIS)
