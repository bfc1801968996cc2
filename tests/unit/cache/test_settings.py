"""--cache-config: which caches there are, and what each of them can be told."""

from __future__ import annotations

import sys

import pytest

from shoal.cache import redis as redis_module
from shoal.cache import registry
from shoal.cache.local import LocalCache
from shoal.cache.redis import redis_cache
from shoal.errors import InvalidArgument

PLACE = {"host": "cache.example", "port": "6380"}


def connection(**settings):
    """How the client would connect."""
    pool = redis_cache({**PLACE, **settings})._client.connection_pool
    return pool.connection_kwargs | {"class": pool.connection_class.__name__}


def test_caches_are_found_by_name():
    assert {"local", "redis"} <= set(registry.names())
    assert isinstance(registry.open_cache("local", {"size": "1000"}), LocalCache)


def test_an_installed_package_can_bring_one(monkeypatch):
    class Entry:
        def load(self):
            return lambda settings: LocalCache(int(settings["bytes"]))

    def entry_points(*, group, name):
        return [Entry()] if (group, name) == ("shoal.caches", "mine") else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert registry.open_cache("mine", {"bytes": "5"}).usage().size_bytes == 5
    with pytest.raises(
        InvalidArgument, match=r"the cache 'mine' cannot be used: KeyError: 'bytes'"
    ):
        registry.open_cache("mine", {})


def test_a_name_that_nobody_knows():
    with pytest.raises(InvalidArgument, match=r"there is no cache 'locl'; installed are .*local"):
        registry.open_cache("locl", {})


def test_redis_where_it_is_and_for_how_long_to_wait():
    made = connection(db="2", connect_timeout="250", socket_timeout="0", pool_size="7")
    assert (made["host"], made["port"], made["db"]) == ("cache.example", 6380, 2)
    assert made["socket_connect_timeout"] == 0.25
    assert made["socket_timeout"] is None  # 0: for ever
    assert (made["username"], made["password"]) == (None, None)
    assert made["class"] == "Connection"
    cache = redis_cache({**PLACE, "pool_size": "7", "wait_timeout": "2000"})
    assert cache.threads == 7
    assert cache._client.connection_pool.max_connections == 7
    assert cache._client.connection_pool.timeout == 2


def test_no_question_to_redis_takes_for_ever_unless_told_to():
    made = connection()
    assert 0 < made["socket_timeout"] <= 1
    assert 0 < made["socket_connect_timeout"] <= 1


def test_credentials_come_from_settings_or_from_the_environment(monkeypatch):
    monkeypatch.setenv("TRITONCACHE_REDIS_USERNAME", "ann")
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
    made = connection()
    assert (made["username"], made["password"]) == ("ann", "secret")
    made = connection(user="bob", password="other")
    assert (made["username"], made["password"]) == ("bob", "other")


def test_tls_is_switched_on_by_any_of_its_settings(tmp_path):
    for name in ("cert", "key", "ca"):
        (tmp_path / name).touch()
    assert connection(tls_enabled="true")["class"] == "NamedConnection"
    assert connection(sni="other.example")["class"] == "NamedConnection"
    made = connection(
        cert=str(tmp_path / "cert"),
        key=str(tmp_path / "key"),
        cacert=str(tmp_path / "ca"),
        cacert_dir=str(tmp_path),
    )
    assert made["class"] == "NamedConnection"
    assert made["ssl_certfile"] == str(tmp_path / "cert")
    assert made["ssl_keyfile"] == str(tmp_path / "key")
    assert made["ssl_ca_certs"] == str(tmp_path / "ca")
    assert made["ssl_ca_path"] == str(tmp_path)
    assert connection(tls_enabled="false", sni="x")["class"] == "Connection"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host": "h"}, "the cache 'redis' needs 'port'; write for example"),
        ({"port": "1"}, "the cache 'redis' needs 'host'; write for example"),
        ({**PLACE, "port": "many"}, "'port' is 'many'; write a whole number from 1 on"),
        ({**PLACE, "port": "70000"}, "'port' is '70000'; write a whole number from 1 to 65535"),
        ({**PLACE, "pool_size": "0"}, "'pool_size' is '0'; write a whole number from 1 to 256"),
        ({**PLACE, "db": "-1"}, "'db' is '-1'; write a whole number from 0 on"),
        ({**PLACE, "tls_enabled": "maybe"}, "'tls_enabled' is 'maybe'; write true or false"),
        ({**PLACE, "cacert": "/no/such"}, "cacert=/no/such: there is no such file or folder"),
        ({**PLACE, "cert": __file__}, "a client certificate for Redis needs both"),
        (
            {**PLACE, "timeout": "1"},
            "the cache 'redis' has no setting 'timeout'; its settings are host,",
        ),
    ],
)
def test_wrong_settings(settings, sentence):
    with pytest.raises(InvalidArgument) as failure:
        redis_cache(settings)
    assert sentence in failure.value.message


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'shoal\[redis\]'"):
        redis_cache(PLACE)


class Kept(dict):
    """A Redis that is a dict."""

    def set(self, key, value):
        self[key] = value


def test_something_else_under_a_key_is_a_miss(caplog):
    client = Kept()
    cache = redis_module.RedisCache(client)
    key = bytes(32)
    assert cache.lookup(key) is None
    client[b"shoal:" + key.hex().encode()] = b"not ours"
    assert cache.lookup(key) is None
    assert "a value in Redis is not a cached response" in caplog.text


def test_what_is_too_long_for_redis_is_not_sent(monkeypatch):
    class Long:
        def pack(self):
            return bytes(11)

    monkeypatch.setattr(redis_module, "_LARGEST_VALUE_BYTES", 10)
    client = Kept()
    assert redis_module.RedisCache(client).insert(bytes(32), Long()) is False
    assert not client
