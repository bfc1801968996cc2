"""A queue behind an admission control."""

from __future__ import annotations

import pytest

from shoal.errors import QueueRejected
from shoal.scheduler.admission import AdmissionControl
from shoal.scheduler.admission_queue import AdmissionQueue
from shoal.scheduler.queue import QueuePolicy
from tests.support.fakes import make_request

MS = 1_000_000


def queue_of(**policy):
    """A queue with a target of 40 ms, of a model whose batches of one row take 10 ms."""
    control = AdmissionControl(40 * MS, 1)
    for _ in range(10):
        batch = [make_request(rows=1)[0]]
        control.started(batch, 0)
        control.finished(batch, 10 * MS)
    return AdmissionQueue(control, QueuePolicy(**policy))


def test_nothing_is_refused_in_advance_while_there_is_room():
    queue = queue_of()
    assert queue.may_refuse
    assert not queue.takes_any_number
    assert queue.refusal(1, 3, 0) is None


def test_what_would_be_late_is_refused_in_advance_and_counted():
    queue = queue_of()
    assert queue.push_all([make_request(rows=1)[0] for _ in range(8)], 0) == 3
    with pytest.raises(QueueRejected, match="target latency of 40 ms"):
        queue.push(make_request(rows=1)[0], 0)
    error = queue.refusal(1, 5, 0)
    assert "target latency of 40 ms" in str(error)
    assert queue.admission.refused == 1 + 5


def test_a_full_queue_is_the_first_reason():
    queue = queue_of(max_size=2)
    assert queue.push_all([make_request(rows=1)[0] for _ in range(8)], 0) == 2
    assert "maximum queue size" in str(queue.refusal(1, 5, 0))
    assert queue.admission.refused == 0


@pytest.mark.parametrize("how", ["take", "take_at", "prune"])
def test_what_leaves_makes_room(how):
    queue = queue_of()
    requests = [make_request(rows=1)[0] for _ in range(4)]
    assert queue.push_all(requests, 0) == 3
    if how == "take":
        queue.take(1)
    elif how == "take_at":
        queue.take_at([1])
    else:
        requests[1].cancel()
        queue.prune(0, cancelled=True)
    assert queue.push_all(requests[3:], 0) == 1
