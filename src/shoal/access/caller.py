"""A client that has shown a key or a token: what it may do, and its quotas.

    Caller.check(api, model) --> Caller.begin(bytes) --> ... --> Caller.sent(bytes), Caller.end()

A quota is kept as the moment at which all that was used so far has been earned back, so that a
request costs an addition and a comparison and no timer is needed.
"""

from __future__ import annotations

import fnmatch
import math
import re
import time
from collections.abc import Iterable, Sequence

from shoal.config.options.checks import CATEGORIES
from shoal.errors import Forbidden, QuotaExceeded, ShoalError, Unauthenticated
from shoal.statistics import keys as reasons
from shoal.statistics.keys import KeyCounts

METRICS = "metrics"
APIS = (*CATEGORIES, METRICS)  # the kinds of request that a key can permit
DEFAULT_APIS = ("health", "metadata", "model-config", "inference")
ALL = "*"

_NEVER_NS = 1 << 62  # later than any moment of the monotonic clock
_SECOND_NS = 1_000_000_000
_MOST_CACHED_NAMES = 1024


class ModelPatterns:
    """The models that a key may use: names, or patterns with `*`, `?` and `[…]`."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        self.all = ALL in self.patterns
        self._regex = re.compile("|".join(map(fnmatch.translate, self.patterns)) or r"(?!)")
        self._cached: dict[str, bool] = {}

    def allow(self, model: str) -> bool:
        """Whether `model` is one of them."""
        known = self._cached.get(model)
        if known is None:
            if len(self._cached) >= _MOST_CACHED_NAMES:  # clients may send any name
                self._cached.clear()
            known = self._cached[model] = self.all or self._regex.match(model) is not None
        return known


class Quota:
    """Requests a second, bytes a second and requests in flight; None sets no limit."""

    __slots__ = (
        "byte_ns",
        "byte_window_ns",
        "bytes_due_ns",
        "due_ns",
        "in_flight",
        "interval_ns",
        "most_in_flight",
        "window_ns",
    )

    def __init__(
        self,
        requests_per_second: float | None = None,
        burst: float | None = None,
        bytes_per_second: float | None = None,
        requests_in_flight: int | None = None,
    ) -> None:
        """`burst` requests may come at once; by default those of one second, at least one."""
        self.interval_ns = 0.0
        self.window_ns = math.inf
        if requests_per_second is not None:
            self.interval_ns = _SECOND_NS / requests_per_second
            most = max(requests_per_second, 1.0) if burst is None else burst
            self.window_ns = (most - 1) * self.interval_ns
        self.byte_ns = 0.0
        self.byte_window_ns = math.inf
        if bytes_per_second is not None:
            # The bytes of one second may come at once. A request is never too large: it is let in
            # while any of them are left, and the next ones wait until its bytes are earned back.
            self.byte_ns = _SECOND_NS / bytes_per_second
            self.byte_window_ns = float(_SECOND_NS)
        self.most_in_flight = math.inf if requests_in_flight is None else requests_in_flight
        self.in_flight = 0
        # When everything that was used is earned back; the past: nothing is in use.
        self.due_ns = 0.0
        self.bytes_due_ns = 0.0


class Caller:
    """The client that sends one key or token. Its methods belong to the event loop's thread."""

    __slots__ = (
        "apis",
        "counts",
        "digest",
        "ends_ns",
        "expires_at",
        "models",
        "name",
        "quota",
        "upload",
    )

    def __init__(
        self,
        name: str,
        *,
        digest: bytes,
        apis: frozenset[str],
        models: Sequence[ModelPatterns],
        upload: bool = False,
        quota: Quota | None = None,
        counts: KeyCounts | None = None,
        expires_at: float = math.inf,
    ) -> None:
        """`models` must all allow a model. `counts` may be shared with other callers, `quota` with
        other tokens of the same person."""
        self.name = name  # for logs: of the key, or of the token's owner
        self.digest = digest
        self.apis = apis
        self.models = tuple(models)
        self.upload = upload
        self.quota = quota or Quota()
        self.counts = counts or KeyCounts(name)
        self.expires_at = expires_at  # in seconds since the epoch
        # The same by the monotonic clock, which the fast path reads; 0: revoked.
        self.ends_ns = _NEVER_NS
        if expires_at < math.inf:
            left_ns = int((expires_at - time.time()) * _SECOND_NS)
            self.ends_ns = max(1, min(time.monotonic_ns() + left_ns, _NEVER_NS))

    # ---- what it may do

    def permits(self, api: str, model: str) -> bool:
        """As `check`, without an error; a refusal is not counted."""
        return api in self.apis and self.may_use(model)

    def check(self, api: str, model: str = "") -> None:
        """Raise Forbidden if it may not send requests of kind `api`, or not for `model`."""
        if api and api not in self.apis:
            self.counts.refuse(reasons.API)
            allowed = ", ".join(sorted(self.apis)) or "nothing"
            raise Forbidden(
                f"the key '{self.name}' does not permit '{api}' requests, only: {allowed}; use a "
                f"key that does, or ask the operator to add '{api}' to its 'apis'"
            )
        if model:
            self.check_model(model)

    def check_model(self, model: str) -> None:
        """Raise Forbidden if it may not use `model`, whether that exists or not."""
        if not self.may_use(model):
            self.counts.refuse(reasons.MODEL)
            raise Forbidden(
                f"the key '{self.name}' does not permit the model '{model[:200]}'; use a key that "
                f"does, or ask the operator to add the model to its 'models'"
            )

    def check_all_models(self) -> None:
        """Raise Forbidden if there are models that it may not use."""
        if not all(patterns.all for patterns in self.models):
            self.counts.refuse(reasons.MODEL)
            raise Forbidden(
                f"the key '{self.name}' permits some models only, and this request is about all of "
                f"them; name a model, or use a key without 'models'"
            )

    def only_model(self, names: Iterable[str], operation: str) -> str:
        """The one of `names` that it may use, for a request that names none; empty if it may use
        all models. Raises Forbidden if there is not exactly one, without the names of others."""
        if all(patterns.all for patterns in self.models):
            return ""
        permitted = sorted(name for name in names if self.may_use(name))
        if len(permitted) != 1:
            self.counts.refuse(reasons.MODEL)
            several = f"several models that offer '{operation}' ({', '.join(permitted)})"
            raise Forbidden(
                f"the key '{self.name}' permits "
                f"{several if permitted else f'no loaded model that offers {operation!r}'}; name "
                f"the model in the request"
            )
        return permitted[0]

    def may_use(self, model: str) -> bool:
        """Whether it may use `model`."""
        for patterns in self.models:  # noqa: SIM110 - on the fast path, where a generator is slow
            if not patterns.allow(model):
                return False
        return True

    # ---- how much

    def admit(self, size: int, now_ns: int) -> bool:
        """Begin a request of `size` bytes, which `end` ends; false, with nothing done, if a quota
        is used up or the key is no longer valid."""
        quota = self.quota
        late = quota.due_ns - now_ns
        bytes_late = quota.bytes_due_ns - now_ns
        if (
            late > quota.window_ns
            or bytes_late >= quota.byte_window_ns
            or quota.in_flight >= quota.most_in_flight
            or now_ns >= self.ends_ns
        ):
            return False
        quota.due_ns = (quota.due_ns if late > 0 else now_ns) + quota.interval_ns
        quota.bytes_due_ns = (quota.bytes_due_ns if bytes_late > 0 else now_ns) + (
            size * quota.byte_ns
        )
        quota.in_flight += 1
        counts = self.counts
        counts.requests += 1
        counts.received_bytes += size
        counts.in_flight += 1
        return True

    def begin(self, size: int) -> None:
        """As `admit`; raises QuotaExceeded, or Unauthenticated if the key is no longer valid."""
        now_ns = time.monotonic_ns()
        if not self.admit(size, now_ns):
            raise self._refusal(now_ns)

    def sent(self, size: int) -> None:
        """Count bytes of a response."""
        quota = self.quota
        quota.bytes_due_ns += size * quota.byte_ns
        self.counts.sent_bytes += size

    def end(self) -> None:
        """A request that was admitted has its response, or its client has disconnected."""
        self.quota.in_flight -= 1
        self.counts.in_flight -= 1

    def finish(self, size: int) -> None:
        """`sent` and `end` at once, for the fast path."""
        quota = self.quota
        quota.bytes_due_ns += size * quota.byte_ns
        quota.in_flight -= 1
        counts = self.counts
        counts.sent_bytes += size
        counts.in_flight -= 1

    def _refusal(self, now_ns: int) -> ShoalError:
        quota = self.quota
        if now_ns >= self.ends_ns:
            self.counts.refuse(reasons.EXPIRED)
            return Unauthenticated(
                f"the key '{self.name}' is no longer valid; ask the operator for a new one"
            )
        if quota.due_ns - now_ns > quota.window_ns:
            self.counts.refuse(reasons.RATE)
            wait_ns = quota.due_ns - now_ns - quota.window_ns
            limit = f"{_SECOND_NS / quota.interval_ns:g} requests a second"
        elif quota.bytes_due_ns - now_ns >= quota.byte_window_ns:
            self.counts.refuse(reasons.BYTES)
            wait_ns = quota.bytes_due_ns - now_ns - quota.byte_window_ns
            limit = f"{_SECOND_NS / quota.byte_ns:g} bytes a second"
        else:
            self.counts.refuse(reasons.IN_FLIGHT)
            wait_ns = _SECOND_NS
            limit = f"{quota.most_in_flight} requests in flight"
        retry_secs = max(1, math.ceil(wait_ns / _SECOND_NS))
        return QuotaExceeded(
            f"the key '{self.name}' has used up its quota of {limit}; retry in {retry_secs} s, or "
            f"ask the operator for a larger quota",
            retry_secs,
        )
