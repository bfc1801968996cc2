"""A second session for executions that run alone: when it is opened, used and closed."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("onnxruntime")

from shoal.backends.onnx_lone_session import LONG_NS, LoneSession
from shoal.core.concurrency import ExpectedConcurrency
from shoal.errors import Internal
from tests.support.fakes import WAIT_SECS

SESSION = object()


class Lone:
    def __init__(self, open_session=lambda: SESSION):
        self.concurrency = ExpectedConcurrency()
        self.concurrency.executions = 1
        self.opened = 0
        self._open = open_session
        self.session = LoneSession(self._opened, self.concurrency, "m")

    def _opened(self):
        self.opened += 1
        return self._open()

    def run(self, took_ns, times=1, elements=100, cpu_ns=None):
        cpu_ns = took_ns if cpu_ns is None else cpu_ns
        for _ in range(times):
            self.session.observe(self.session.session, elements, took_ns, cpu_ns)
        thread = self.session._opening
        if thread is not None:
            thread.join(WAIT_SECS)
        return self.session.session


@pytest.mark.parametrize(("executions", "alone"), [(0, False), (1, True), (2, False)])
def test_alone_is_what_the_scheduler_expects(executions, alone):
    lone = Lone()
    lone.concurrency.executions = executions
    assert lone.session.is_alone is alone


def test_short_executions_get_no_second_session():
    lone = Lone()
    assert lone.run(LONG_NS // 2, times=100) is None
    assert not lone.opened


def test_executions_that_waited_for_a_core_are_short():
    """Many models at once on a busy machine: each would get a second session it cannot use."""
    lone = Lone()
    assert lone.run(10 * LONG_NS, times=10, cpu_ns=LONG_NS // 100) is None
    assert not lone.session.is_long


def test_short_executions_after_a_long_one_do_not_count():
    lone = Lone()
    lone.run(2 * LONG_NS)
    assert lone.run(LONG_NS // 2, times=10) is None
    assert lone.run(2 * LONG_NS) is SESSION


def test_long_executions_get_one():
    lone = Lone()
    assert not lone.session.is_long
    assert lone.run(10 * LONG_NS) is None  # the first may be slow for other reasons
    assert lone.session.is_long
    assert lone.run(10 * LONG_NS) is SESSION
    assert lone.run(6 * LONG_NS, times=100) is SESSION
    assert lone.opened == 1


def test_it_is_compared_by_work_not_by_time():
    lone = Lone()
    lone.run(10 * LONG_NS, times=2)
    assert lone.run(60 * LONG_NS, times=100, elements=1000) is SESSION


def test_one_that_gains_nothing_is_closed_for_good():
    lone = Lone()
    lone.run(10 * LONG_NS, times=2)
    assert lone.run(int(9.5 * LONG_NS), times=8) is None
    assert not lone.session.is_alone
    assert not lone.session.is_long
    assert lone.run(10 * LONG_NS, times=10) is None
    assert lone.opened == 1


def test_one_that_cannot_be_opened_is_reported_once(caplog):
    def fail():
        raise Internal("no memory")

    lone = Lone(fail)
    assert lone.run(10 * LONG_NS, times=10) is None
    assert not lone.session.is_alone
    assert "model 'm' runs without a second session for all cores: no memory" in caplog.text


def test_closing_waits_for_one_that_is_being_opened():
    begun, goes_on = threading.Event(), threading.Event()

    def slowly():
        begun.set()
        assert goes_on.wait(WAIT_SECS)
        return SESSION

    lone = Lone(slowly)
    lone.session.observe(None, 100, 10 * LONG_NS, 10 * LONG_NS)
    lone.session.observe(None, 100, 10 * LONG_NS, 10 * LONG_NS)
    assert begun.wait(WAIT_SECS)
    closing = threading.Thread(target=lone.session.close)
    closing.start()
    goes_on.set()
    closing.join(WAIT_SECS)
    assert not closing.is_alive()
    assert lone.session.session is None
