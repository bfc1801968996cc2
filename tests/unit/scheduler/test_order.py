"""preserve_ordering, when a reply brings the next request before it has returned."""

from __future__ import annotations

import threading

from shoal.core.request import Request
from shoal.core.response import Response
from shoal.scheduler.order import OrderKeeper
from tests.support.fakes import WAIT_SECS, Collector, make_request


def respond(request, final=True):
    request.reply.send(Response(request.model_name, 1, request.id, final=final))


def test_a_reply_may_queue_another_request():
    """As an ensemble does that has the same model as two steps in a row."""
    keeper = OrderKeeper()
    second, collector = make_request(id="second")

    class Reply:
        def send(self, response):
            keeper.join(second)

    first = Request("m", {}, Reply())
    keeper.join(first)
    thread = threading.Thread(target=respond, args=(first,), daemon=True)
    thread.start()
    thread.join(WAIT_SECS)
    assert not thread.is_alive(), "it waits for itself"
    respond(second)
    assert collector.answered


def test_a_reply_that_answers_another_request_keeps_the_order():
    keeper = OrderKeeper()
    seen = []

    class Reply:
        def __init__(self, name, then=None):
            self.name, self.then = name, then

        def send(self, response):
            seen.append((self.name, response.final))
            if self.then is not None:
                self.then()

    third = Request("m", {}, Reply("third"))
    second = Request("m", {}, Reply("second"))
    first = Request("m", {}, Reply("first", then=lambda: (respond(third), respond(second))))
    for request in (first, second, third):
        keeper.join(request)
    respond(first)
    assert [name for name, _ in seen] == ["first", "second", "third"]


def test_many_threads_keep_the_order():
    keeper = OrderKeeper()
    seen = []

    class Reply(Collector):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def send(self, response):
            seen.append(self.number)
            super().send(response)

    replies = [Reply(number) for number in range(200)]
    requests = [Request("m", {}, reply) for reply in replies]
    for request in requests:
        keeper.join(request)

    def answer(share):
        for request in reversed(requests[share::4]):
            respond(request, final=False)
            respond(request)

    threads = [threading.Thread(target=answer, args=(share,)) for share in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reply in replies:
        reply.wait()
    assert seen == [number for number in range(200) for _ in range(2)]
