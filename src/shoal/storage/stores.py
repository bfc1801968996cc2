"""Where an address is in an object store, and the client of obstore for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shoal.errors import InvalidArgument
from shoal.storage import credentials
from shoal.storage.address import Address, redacted

CONNECT_SECS = 5.0
READ_SECS = 20.0  # without a single byte
_REQUEST_SECS = 900.0  # for one range, however slow the connection is
_ENDPOINT = re.compile(r"(?:(https?)://)?([^/]+)/(.+)", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"[^/:@]+:[0-9]+")
_AZURE_HOST = re.compile(r"([^@/]+)@([^./]+)(\.[^/]+)?(?:/(.*))?")


@dataclass(frozen=True, slots=True)
class Location:
    """Where in a store a repository is."""

    bucket: str  # or the container
    prefix: str  # of the keys, without slashes at its ends
    endpoint: str = ""  # of S3; empty: Amazon
    account: str = ""  # of Azure


def locate(address: Address) -> Location:
    """What an address means. Raises InvalidArgument."""
    scheme, rest = address.scheme, address.rest
    found: Location | None = None
    if scheme == "s3":
        found = _locate_s3(rest)
    elif scheme == "as":
        account, _, path = rest.partition("/")
        found = _in_bucket(path, account=account.partition(".")[0])
    elif scheme in ("abfs", "abfss", "az") and (match := _AZURE_HOST.fullmatch(rest)):
        found = Location(match[1], (match[4] or "").strip("/"), account=match[2])
    else:
        found = _in_bucket(rest)
    if found is None or not found.bucket:
        raise InvalidArgument(
            f"'{address}' names no bucket; write s3://bucket/path, s3://host:port/bucket/path, "
            "s3://https://host:port/bucket/path, gs://bucket/path or as://account/container/path"
        )
    return found


def _locate_s3(rest: str) -> Location | None:
    match = _ENDPOINT.fullmatch(rest)
    if match is not None and (match[1] or _HOST_AND_PORT.fullmatch(match[2])):
        host = match[2].rpartition("@")[2]
        return _in_bucket(match[3], endpoint=f"{(match[1] or 'http').lower()}://{host}")
    return None if match is None and _HOST_AND_PORT.fullmatch(rest) else _in_bucket(rest)


def _in_bucket(path: str, *, endpoint: str = "", account: str = "") -> Location:
    bucket, _, prefix = path.partition("/")
    return Location(bucket, prefix.strip("/"), endpoint, account)


def open_store(
    address: Address,
    location: Location,
    environ: Mapping[str, str],
    *,
    skip_signature: bool = False,
) -> Any:
    """The client for a bucket or container; connects to nothing. Raises InvalidArgument or
    Unsupported, without secrets in their texts."""
    from obstore import exceptions, store

    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_SECS),
        "read_timeout": timedelta(seconds=READ_SECS),
        "timeout": timedelta(seconds=_REQUEST_SECS),
        "user_agent": "shoal",
    }
    bundle = environ.get("AWS_CA_BUNDLE") or environ.get("SSL_CERT_FILE")
    if bundle:
        client["root_certificate"] = _certificates(bundle)
    # `transfer` retries, for all kinds of sources alike.
    retry: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=_REQUEST_SECS)}
    opened: Any
    try:
        if address.scheme == "s3":
            made = credentials.for_s3(address, environ)
            endpoint = _s3_endpoint(location, made, environ)
            config = {**made.config, **endpoint}
            client["allow_http"] = config.get("endpoint", "").startswith("http://")
            kind: Any = store.S3Store
        elif address.scheme == "gs":
            made = credentials.for_gs(address, environ)
            config = made.config | ({"skip_signature": True} if skip_signature else {})
            client["allow_http"] = made.endpoint.startswith("http://")
            kind = store.GCSStore
        else:
            made = credentials.for_azure(address, location.account, environ)
            config = made.config
            client["allow_http"] = _azure_by_http(config, environ)
            kind = store.AzureStore
        provider = {"credential_provider": made.provider} if made.provider is not None else {}
        opened = kind(
            location.bucket, **config, **provider, client_options=client, retry_config=retry
        )
    except (exceptions.BaseError, ValueError) as error:
        text = str(error).partition("\n\nDebug source")[0]
        raise InvalidArgument(f"'{address}' cannot be used: {redacted(text)[:500]}") from None
    return opened


def _s3_endpoint(
    location: Location, made: credentials.StoreConfig, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The endpoint, and whether the bucket is part of its host name or of the path."""
    endpoint = (
        location.endpoint
        or environ.get("AWS_ENDPOINT_URL_S3")
        or environ.get("AWS_ENDPOINT_URL")
        or environ.get("AWS_ENDPOINT")
        or made.endpoint
    )
    wanted = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower()
    if wanted:
        virtual = wanted in ("true", "1", "yes")
    else:  # a host name of Amazon's own certificate has no further dots
        virtual = made.addressing == "virtual" or (
            not endpoint and made.addressing != "path" and "." not in location.bucket
        )
    found: dict[str, Any] = {"virtual_hosted_style_request": virtual}
    if endpoint:
        parts = urlsplit(endpoint)
        if virtual and not parts.netloc.startswith(f"{location.bucket}."):
            endpoint = f"{parts.scheme}://{location.bucket}.{parts.netloc}{parts.path}"
        found["endpoint"] = endpoint.rstrip("/")
        if not (made.config.get("region") or environ.get("AWS_REGION")):
            found["region"] = environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return found


def _azure_by_http(config: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    endpoint = (
        config.get("endpoint")
        or environ.get("AZURE_STORAGE_ENDPOINT")
        or environ.get("AZURE_ENDPOINT")
        or ""
    )
    emulated = environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("true", "1")
    return emulated or str(endpoint).startswith("http://")


def _certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"the certificates '{path}' cannot be read: {error.strerror}"
        ) from None
