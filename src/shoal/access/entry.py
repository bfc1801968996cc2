"""One key: what the operator writes about it in the key file, checked.

{"name": "team-a", "sha256": "…", "apis": ["inference"], "models": ["resnet*"], …}  -->  KeyEntry
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from shoal.access.caller import ALL, APIS, DEFAULT_APIS
from shoal.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PREFIX = "shoal_"  # lets scanners for leaked secrets recognise a key
_KEY_BYTES = 32
_LARGEST = 1e15


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """The permissions and quotas of a key; None sets no limit.

    An entry without `sha256` has no key of its own: it is for tokens that name it.
    """

    name: str
    sha256: str = ""
    apis: tuple[str, ...] = DEFAULT_APIS
    models: tuple[str, ...] = (ALL,)
    upload: bool = False
    requests_per_second: float | None = None
    burst: float | None = None
    bytes_per_second: float | None = None
    requests_in_flight: int | None = None
    expires: str = ""  # ISO 8601; empty: never

    @classmethod
    def read(cls, line: str) -> KeyEntry:
        """The entry in a line of the key file. Raises InvalidArgument with the reason."""
        try:
            values = json.loads(line, object_pairs_hook=_without_duplicates)
        except RecursionError:
            raise InvalidArgument("the line is nested too deeply to be a key") from None
        except json.JSONDecodeError as error:
            raise InvalidArgument(
                f"not a JSON object: {error.msg} at column {error.colno}"
            ) from None
        if type(values) is not dict:
            raise InvalidArgument("not a JSON object with the fields of a key")
        unknown = [field for field in values if field not in _FIELDS]
        if unknown:
            raise InvalidArgument(
                f"unknown field '{unknown[0][:100]}'; a key has {', '.join(_FIELDS)}"
            )
        return cls.checked(values)

    @classmethod
    def checked(cls, values: dict[str, Any]) -> KeyEntry:
        """The entry with these fields. Raises InvalidArgument for a value that cannot be."""
        name = values.get("name")
        if type(name) is not str or not _NAME.fullmatch(name):
            raise InvalidArgument(
                "'name' must be 1 to 64 letters, digits, dots, dashes and underscores, and begin "
                "with a letter or digit"
            )
        digest = values.get("sha256", "")
        if type(digest) is not str or (digest and not _DIGEST.fullmatch(digest)):
            raise InvalidArgument(
                "'sha256' must be the SHA-256 of the key in 64 hexadecimal digits, as 'shoal key "
                "new' writes it"
            )
        apis = _texts("apis", values.get("apis", list(DEFAULT_APIS)))
        for api in apis:
            if api != ALL and api not in APIS:
                raise InvalidArgument(
                    f"'apis' has no kind of request '{api[:100]}'; use {', '.join(APIS)} or {ALL}"
                )
        upload = values.get("upload", False)
        if type(upload) is not bool:
            raise InvalidArgument("'upload' must be true or false")
        burst = _number("burst", values.get("burst"), least=1)
        if burst is not None and values.get("requests_per_second") is None:
            raise InvalidArgument("'burst' needs 'requests_per_second'")
        in_flight = values.get("requests_in_flight")
        if in_flight is not None and (type(in_flight) is not int or not 1 <= in_flight <= 10**9):
            raise InvalidArgument("'requests_in_flight' must be a whole number of at least 1")
        expires = values.get("expires") or ""
        if expires:
            expiry(expires)
        return cls(
            name,
            digest,
            apis,
            _texts("models", values.get("models", [ALL])),
            upload,
            _number("requests_per_second", values.get("requests_per_second")),
            burst,
            _number("bytes_per_second", values.get("bytes_per_second")),
            in_flight,
            expires,
        )

    def line(self) -> str:
        """The entry as a line of the key file, without fields that have their default."""
        default = asdict(KeyEntry(self.name))
        fields = {
            field: value
            for field, value in asdict(self).items()
            if field == "name" or value != default[field]
        }
        return json.dumps(fields)

    @property
    def expires_at(self) -> float | None:
        """The end of its validity, in seconds since the epoch."""
        return expiry(self.expires).timestamp() if self.expires else None


_FIELDS = tuple(KeyEntry.__dataclass_fields__)


def new_key() -> str:
    """A random key of 256 bits."""
    return _PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def digest_of(credential: bytes) -> bytes:
    """What is stored of a key."""
    return hashlib.sha256(credential).digest()


def expiry(text: object) -> datetime:
    """The moment that `text` names; without a zone it is UTC. Raises InvalidArgument."""
    try:
        if type(text) is not str:
            raise ValueError
        moment = datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text))
        moment.timestamp()
    except (ValueError, OverflowError):
        raise InvalidArgument(
            "'expires' must be a date or a moment, such as 2027-01-31 or 2027-01-31T18:00:00Z"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise InvalidArgument("a field is given twice")
    return values


def _texts(field: str, value: Any) -> tuple[str, ...]:
    if type(value) is not list or not all(type(text) is str and text for text in value):
        raise InvalidArgument(f"'{field}' must be a list of texts, such as [\"{ALL}\"]")
    return tuple(value)


def _number(field: str, value: Any, least: float = 0) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value <= _LARGEST or value < least:
        bound = f"of at least {least:g}" if least else "above 0"
        raise InvalidArgument(f"'{field}' must be a number {bound}")
    return float(value)
