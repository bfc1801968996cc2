"""What does a key cost on the path of a request, in nanoseconds? No sockets, one thread.

    python -m benchmarks.keys

The parts that a request with a key adds: on the fast path the quotas (`admit`, `sent`, `end`), on
the slow path also the lookup of the key, or of a token that was verified before. Verifying a token
happens once for each. `python -m benchmarks.before_after . . --with-key` measures the whole.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.access.access import Access
from shoal.access.entry import KeyEntry, digest_of, new_key
from shoal.access.tokens import TokenSettings, TokenVerifier

REPEATS = 7
SECRET = b"benchmark-secret-of-32-bytes-or-more"


def measured(work: Callable[[], object]) -> float:
    """Nanoseconds of a call: the best of several runs, less the cost of an empty function."""
    timer, empty = timeit.Timer(work), timeit.Timer(lambda: None)
    number, _ = timer.autorange()
    best = min(timer.repeat(REPEATS, number)) / number
    return 1e9 * (best - min(empty.repeat(REPEATS, number)) / number)


def main() -> None:
    """Print a table."""
    import jwt

    key = new_key().encode()
    limits = {
        "requests_per_second": 1e12,
        "bytes_per_second": 1e15,
        "requests_in_flight": 1000,
    }
    entry = KeyEntry("key", digest_of(key).hex(), models=("a*", "model"), **limits)  # type: ignore[arg-type]
    claims = {"iss": "i", "aud": "a", "sub": "s", "exp": time.time() + 600, "shoal_key": "key"}
    token = jwt.encode(claims, SECRET, "HS256").encode()
    with TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_bytes(SECRET)
        verifier = TokenVerifier(TokenSettings("i", "a", "", str(secret)))
    access = Access([entry], tokens=verifier)
    caller = access.identify(None, b"Bearer " + key)
    now_ns = time.monotonic_ns

    def request() -> None:
        caller.admit(128, now_ns())
        caller.sent(128)
        caller.end()

    header, token_header = b"Bearer " + key, b"Bearer " + token
    rows: list[tuple[str, Callable[[], object]]] = [
        ("quotas of a request: admit, sent, end (and reading the clock)", request),
        ("is the model permitted", lambda: caller.may_use("model")),
        ("find the caller of a key", lambda: access.identify(None, header)),
        (
            "find the caller of a token that was verified before",
            lambda: access.identify(None, token_header),
        ),
        ("verify a token (HS256)", lambda: verifier.verify(token)),
    ]
    for name, work in rows:
        print(f"{measured(work):8.0f} ns  {name}")


if __name__ == "__main__":
    main()
