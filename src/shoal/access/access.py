"""Finds the caller of a request by its key or token. One object for all ports of a server.

    credential --SHA-256--> callers of the key file
                      '---> cache of verified tokens --> TokenVerifier

Keys are looked up by their digest, so that how long it takes says nothing about a key. The same key
gives the same `Caller` until its entry changes: then the old one ends, wherever it is remembered.
"""

from __future__ import annotations

import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.access.caller import ALL, APIS, Caller, ModelPatterns, Quota
from shoal.access.entry import KeyEntry, digest_of
from shoal.access.shared_quota import SharedCaller, SharedQuota
from shoal.errors import Unauthenticated
from shoal.link.counters import SharedCounters
from shoal.statistics import keys as reasons
from shoal.statistics.keys import KeyCounts

if TYPE_CHECKING:
    from shoal.access.tokens import TokenClaims, TokenVerifier

AUTHORIZATION = "authorization"
_BEARER = b"bearer "
_LONGEST_CREDENTIAL = 8192
_MOST_NAMES = 1000  # in the metrics; the keys beyond count as one
_OTHERS = "other"
_TOKENS = "jwt"  # the name in the metrics of tokens that use no entry
_MOST_TOKENS = 1024
_MOST_QUOTAS = 4096


class Access:
    """The keys and tokens of a server. Its methods belong to the event loop's thread, unless they
    say otherwise."""

    def __init__(
        self,
        entries: Iterable[KeyEntry] = (),
        *,
        tokens: TokenVerifier | None = None,
        header: str = "",
        open_apis: Sequence[str] = (),
        counters: SharedCounters | None = None,
    ) -> None:
        """`header` is where keys may be sent beside `Authorization: Bearer`. Requests of
        `open_apis` need no key unless they name a model. Quotas are counted in `counters` where
        other processes serve the same clients."""
        self.header = header.lower()
        self.open_apis = frozenset(open_apis)
        self._entries: dict[str, KeyEntry] = {}
        self._callers: dict[bytes, Caller] = {}
        self._counts: dict[str, KeyCounts] = {}
        self._unknown = KeyCounts("")
        self._counters = counters
        self._tokens = tokens
        self._verified: OrderedDict[bytes, Caller] = OrderedDict()
        self._quotas: OrderedDict[tuple[str, str], Quota] = OrderedDict()  # of tokens' owners
        self.replace(entries)

    # ---- of requests

    @property
    def secret_headers(self) -> frozenset[str]:
        """The names of headers that may hold a key; they are not passed on to models."""
        return frozenset((AUTHORIZATION, self.header)) - {""}

    def is_open(self, api: str, model: str) -> bool:
        """Whether such a request needs no key."""
        return api in self.open_apis and not model

    def identify(self, own: bytes | None, authorization: bytes | None) -> Caller:
        """The caller that sends these headers: the one of choice, and `Authorization`.

        Raises Unauthenticated, with what to send, for a missing or invalid key.
        """
        credential = _credential(own, authorization)
        if not credential:
            self.refuse_missing()
            or_header = f" or '{self.header}: <key>'" if self.header else ""
            raise Unauthenticated(
                f"this request needs a key: send the header 'Authorization: Bearer <key>'"
                f"{or_header} with one from the operator of this server"
            )
        return self._find(credential)

    def known(self, own: bytes | None, authorization: bytes | None) -> Caller | None:
        """As `identify`, for the fast path: None where a refusal or the verification of a token is
        left to the slow path. Nothing is counted."""
        digest = digest_of(_credential(own, authorization))
        caller = self._callers.get(digest) or self._verified.get(digest)
        return caller if caller is not None and time.time() < caller.expires_at else None

    def refuse_missing(self) -> None:
        """Count a request without a key."""
        self._unknown.refuse(reasons.NO_KEY)

    def _find(self, credential: bytes) -> Caller:
        if len(credential) > _LONGEST_CREDENTIAL:
            self._unknown.refuse(reasons.UNKNOWN_KEY)
            raise Unauthenticated(
                f"the key has more than {_LONGEST_CREDENTIAL} bytes, and no key of this server has"
            )
        digest = digest_of(credential)
        caller = self._callers.get(digest) or self._verified.get(digest)
        if caller is None and self._tokens is not None and credential.count(b".") == 2:
            caller = self._verify(credential, digest)
        if caller is None or not hmac.compare_digest(caller.digest, digest):
            self._unknown.refuse(reasons.UNKNOWN_KEY)
            raise Unauthenticated(
                "this server does not know the key; check that all of it was sent, or ask the "
                "operator whether it was removed"
            )
        if time.time() >= caller.expires_at:
            caller.ends_ns = 0
            caller.counts.refuse(reasons.EXPIRED)
            raise Unauthenticated(
                f"the key '{caller.name}' has expired; ask the operator for a new one"
            )
        return caller

    def _verify(self, token: bytes, digest: bytes) -> Caller:
        assert self._tokens is not None
        try:
            claims = self._tokens.verify(token)
            caller = self._token_caller(claims, digest)
        except Unauthenticated:
            self._unknown.refuse(reasons.UNKNOWN_KEY)
            raise
        if len(self._verified) >= _MOST_TOKENS:
            self._verified.popitem(last=False)
        self._verified[digest] = caller
        return caller

    def _token_caller(self, claims: TokenClaims, digest: bytes) -> Caller:
        """What a token permits: its entry's permissions, narrowed by its own."""
        entry: KeyEntry | None = None
        if claims.entry:
            entry = self._entries.get(claims.entry)
            if entry is None:
                raise Unauthenticated(
                    f"the token names the entry '{claims.entry[:64]}', which the key file does not "
                    f"have; ask the operator to add it"
                )
            if entry.expires_at is not None and entry.expires_at <= time.time():
                raise Unauthenticated(f"the entry '{entry.name}' that the token names has expired")
        elif claims.apis is None and claims.models is None:
            raise Unauthenticated(
                f"the token permits nothing: it needs the claim {self._claims_text()}"
            )
        base = entry or KeyEntry(_TOKENS)
        apis = _apis(base.apis)
        if claims.apis is not None:
            named = _apis(claims.apis)
            apis = named & apis if entry is not None else named
        models = [ModelPatterns(base.models)]
        if claims.models is not None:
            models.append(ModelPatterns(claims.models))
        quota = self._token_quota(base, claims.subject)
        return _caller(
            f"{base.name}:{claims.subject}" if claims.subject else base.name,
            quota,
            digest=digest,
            apis=apis,
            models=models,
            upload=base.upload,
            counts=self._counts_of(base.name),
            expires_at=min(claims.expires_at, base.expires_at or claims.expires_at),
        )

    def _claims_text(self) -> str:
        assert self._tokens is not None
        names = self._tokens.claim_names
        return f"'{names['entry']}', '{names['apis']}' or '{names['models']}'"

    def _token_quota(self, entry: KeyEntry, subject: str) -> Quota:
        """The quota of a token's owner, which later tokens of the same owner share."""
        key = (entry.name, subject)
        quota = self._quotas.pop(key, None) or self._quota(entry, f"token {entry.name} {subject}")
        self._quotas[key] = quota
        if len(self._quotas) > _MOST_QUOTAS:
            self._quotas.popitem(last=False)
        return quota

    # ---- of the files

    def replace(self, entries: Iterable[KeyEntry]) -> None:
        """Use these keys from now on. Callers of unchanged entries stay as they are."""
        before = self._entries
        self._entries = {entry.name: entry for entry in entries}
        kept = {
            caller.name: caller
            for caller in self._callers.values()
            if self._entries.get(caller.name) == before.get(caller.name)
        }
        for caller in self._callers.values():
            if caller.name not in kept:
                caller.ends_ns = 0
        counts, self._counts = self._counts, {}
        self._counts.update({name: counts[name] for name in self._entries if name in counts})
        for shared in (_TOKENS, _OTHERS):
            if shared in counts:
                self._counts[shared] = counts[shared]
        self._callers = {
            digest: kept.get(entry.name) or self._key_caller(entry, digest)
            for entry in self._entries.values()
            if entry.sha256 and (digest := bytes.fromhex(entry.sha256))
        }
        self._forget_tokens()

    def replace_tokens(self, tokens: TokenVerifier) -> None:
        """Verify tokens with these keys from now on."""
        self._tokens = tokens
        self._forget_tokens()

    def _forget_tokens(self) -> None:
        for caller in self._verified.values():
            caller.ends_ns = 0
        self._verified.clear()
        self._quotas.clear()

    def _key_caller(self, entry: KeyEntry, digest: bytes) -> Caller:
        return _caller(
            entry.name,
            self._quota(entry, f"key {entry.name}"),
            digest=digest,
            apis=_apis(entry.apis),
            models=[ModelPatterns(entry.models)],
            upload=entry.upload,
            counts=self._counts_of(entry.name),
            expires_at=entry.expires_at or math.inf,
        )

    def _quota(self, entry: KeyEntry, name: str) -> Quota:
        """A quota with the limits of an entry; those of one name are one for all processes."""
        limits = (
            entry.requests_per_second,
            entry.burst,
            entry.bytes_per_second,
            entry.requests_in_flight,
        )
        if self._counters is None or limits.count(None) == len(limits):
            return Quota(*limits)
        return SharedQuota(self._counters, name, *limits)

    # ---- metrics

    def read(self) -> list[KeyCounts]:
        """The counts by name; the one without a name is of requests without a key. Any thread."""
        return [self._unknown, *list(self._counts.values())]

    def _counts_of(self, name: str) -> KeyCounts:
        if name not in self._counts and len(self._counts) >= _MOST_NAMES:
            name = _OTHERS
        return self._counts.setdefault(name, KeyCounts(name))


def _credential(own: bytes | None, authorization: bytes | None) -> bytes:
    """The key in these headers; empty where there is none."""
    if not own and authorization and authorization[:7].lower() == _BEARER:
        return authorization[7:].strip(b" ")
    return own or b""


def _apis(names: Iterable[str]) -> frozenset[str]:
    chosen = frozenset(names)
    return frozenset(APIS) if ALL in chosen else chosen & frozenset(APIS)


def _caller(name: str, quota: Quota, **settings: Any) -> Caller:
    if isinstance(quota, SharedQuota):
        return SharedCaller(name, quota=quota, **settings)
    return Caller(name, quota=quota, **settings)
