"""The cache in a Redis server: shared by all servers that use it, and kept across restarts.

    --cache-config=redis,host=cache.example --cache-config=redis,port=6379

Entries are plain values under `shoal:<key>`. Redis limits and evicts them: set its `maxmemory` and
`maxmemory-policy allkeys-lru`. The settings and the two environment variables are those of Triton's
cache of the same name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from shoal.cache.base import ResponseCache
from shoal.cache.entry import CachedResponse
from shoal.cache.settings import CacheSettings
from shoal.errors import InvalidArgument

logger = logging.getLogger(__name__)

USER_VARIABLE = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE = "TRITONCACHE_REDIS_PASSWORD"  # noqa: S105 - its name, not a password

_PREFIX = b"shoal:"
_TLS_PLACES = ("cert", "key", "cacert", "cacert_dir")
_TLS = (*_TLS_PLACES, "sni")
_KNOWN = (
    *("host", "port", "user", "password", "db"),
    *("connect_timeout", "socket_timeout", "pool_size", "wait_timeout"),
    *("tls_enabled", *_TLS),
)
# Longer than a nearby Redis takes, shorter than a client notices. Triton has no time-out.
_TIMEOUT_MS = 500
_POOL_SIZE = 4
_LARGEST_VALUE_BYTES = 512 << 20  # the limit of Redis


class RedisCache(ResponseCache):
    """Responses in a Redis server. Its methods raise what the client library raises."""

    shared = True
    waits = True

    def __init__(self, client: Any, *, threads: int = _POOL_SIZE) -> None:
        """`client` is a `redis.Redis` that has at least `threads` connections."""
        self._client = client
        self.threads = threads

    def lookup(self, key: bytes) -> CachedResponse | None:
        """The response stored under `key`; None also if the value is something else."""
        packed = self._client.get(_PREFIX + key.hex().encode())
        if packed is None:
            return None
        try:
            return CachedResponse.unpack(packed)
        except ValueError as error:
            logger.warning("a value in Redis is not a cached response: %s", error)
            return None

    def insert(self, key: bytes, entry: CachedResponse) -> bool:
        """Store `entry`, unless it is longer than any value Redis takes."""
        packed = entry.pack()
        if len(packed) > _LARGEST_VALUE_BYTES:
            return False
        self._client.set(_PREFIX + key.hex().encode(), packed)
        return True

    def check(self) -> None:
        """Check that Redis is reachable and accepts our credentials."""
        self._client.ping()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._client.connection_pool.disconnect()


def redis_cache(given: Mapping[str, str]) -> RedisCache:
    """The cache for `--cache-config=redis,…`. Connects when it is first used."""
    settings = CacheSettings("redis", given, _KNOWN)
    host = settings.required("host", "localhost")
    settings.required("port", "6379")
    threads = settings.number("pool_size", _POOL_SIZE, least=1, most=256)
    options: dict[str, Any] = {
        "host": host,
        "port": settings.number("port", None, least=1, most=65535),
        "db": settings.number("db", 0, least=0),
        "username": settings.text("user", os.environ.get(USER_VARIABLE, "")) or None,
        "password": settings.text("password", os.environ.get(PASSWORD_VARIABLE, "")) or None,
        "socket_connect_timeout": _secs(settings, "connect_timeout"),
        "socket_timeout": _secs(settings, "socket_timeout"),
    }
    wait_secs = _secs(settings, "wait_timeout")
    tls = _tls(settings)
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise InvalidArgument(
            "--cache-config=redis needs the package 'redis'; install it with: "
            "pip install 'shoal[redis]'"
        ) from None
    kind: Any = redis.Connection
    if tls is not None:
        kind = _named_connection(settings.text("sni") or host)
        options |= tls
    # A connection that Redis has closed is reopened at once; more retries would only delay the
    # request.
    pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
        max_connections=threads,
        timeout=wait_secs,
        connection_class=kind,
        retry=Retry(NoBackoff(), 1),
        **options,
    )
    return RedisCache(redis.Redis(connection_pool=pool), threads=threads)


def _secs(settings: CacheSettings, key: str) -> float | None:
    """A time limit given in milliseconds; 0 means none."""
    return settings.number(key, _TIMEOUT_MS, least=0) / 1000 or None


def _tls(settings: CacheSettings) -> dict[str, Any] | None:
    """The options of a TLS connection, which any TLS setting switches on. None: without TLS."""
    given = {key: settings.text(key) for key in _TLS}
    if not settings.truth("tls_enabled", any(given.values())):
        return None
    for key in _TLS_PLACES:
        if given[key] and not os.path.exists(given[key]):  # noqa: PTH110 - a file or a folder
            raise InvalidArgument(
                f"--cache-config=redis,{key}={given[key]}: there is no such file or folder"
            )
    if bool(given["cert"]) != bool(given["key"]):
        raise InvalidArgument(
            "a client certificate for Redis needs both: write --cache-config=redis,cert=<file> "
            "and --cache-config=redis,key=<file>"
        )
    return {
        "ssl_certfile": given["cert"] or None,
        "ssl_keyfile": given["key"] or None,
        "ssl_ca_certs": given["cacert"] or None,
        "ssl_ca_path": given["cacert_dir"] or None,
    }


def _named_connection(name: str) -> type[Any]:
    """A TLS connection that requests and verifies the certificate of `name`.

    The client library always uses the host's name, which a certificate need not have.
    """
    from redis.connection import SSLConnection

    class NamedConnection(SSLConnection):
        def _wrap_socket_with_ssl(self, sock: Any) -> Any:
            host, self.host = self.host, name
            try:
                return super()._wrap_socket_with_ssl(sock)  # type: ignore[no-untyped-call]
            finally:
                self.host = host

    return NamedConnection
