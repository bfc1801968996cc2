"""Polling for the next request of a lone client without sleeping.

    response --> next request within 200 µs, eight times in a row --> poll instead of sleeping

To wake a sleeping thread takes 20-40 µs, more than a tiny model computes, and a client that waits
for each response pays for that with every request. So, after the response to a client that is
alone and quick, the loop polls its sockets until the next request arrives or 200 µs have passed.
A server with several clients never does, nor one whose client takes its time.
"""

from __future__ import annotations

from shoal.core.concurrency import LoneClient

LIMIT_NS = 200_000
ENOUGH = 8  # quick requests in a row; after a poll without success, as many again


class BusyPoll:
    """Whether to poll, from when the last requests arrived. It reads no clock."""

    __slots__ = ("_answered_ns", "_client", "_lone_client", "_quick")

    def __init__(self, lone_client: LoneClient) -> None:
        """`lone_client` is there while the last requests were those of one quick client."""
        self._lone_client = lone_client
        self._client = 0
        self._answered_ns = 0
        self._quick = 0

    def answered(self, client: object, arrived_ns: int, now_ns: int) -> bool:
        """The only request of a loop iteration has its response; whether to poll for LIMIT_NS from
        now on. `client` is its connection."""
        quick = id(client) == self._client and arrived_ns - self._answered_ns < LIMIT_NS
        self._quick = self._quick + 1 if quick else 0
        self._client = id(client)
        self._answered_ns = now_ns
        self._lone_client.is_there = is_lone = self._quick >= ENOUGH
        return is_lone

    def reset(self) -> None:
        """There were several requests, or polling had no success."""
        self._quick = 0
        self._lone_client.is_there = False
