"""The address of a remote repository: `s3://bucket/models`, and how it may be shown.

An address can contain secrets: a password before the host, a signature in the query. `str()` of an
address has none of them, and `redacted` removes them from the texts of libraries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shoal.errors import InvalidArgument

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
# "container@account" of abfs:// is none: other schemes than http need a password in it.
_USER_INFO = re.compile(r"((?:https?://)|://(?=[^/?#\s'\"@]*:))[^/?#\s'\"]*@", re.IGNORECASE)
_QUERY = re.compile(r"(://[^?\s'\"]*)\?[^\s'\"]*")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a repository is. Equal addresses are the same repository."""

    scheme: str  # in lower case
    rest: str = field(repr=False)  # what follows "://", without slashes at the end; may be secret

    @property
    def text(self) -> str:
        """The whole address, with its secrets: for the source only."""
        return f"{self.scheme}://{self.rest}"

    def __str__(self) -> str:
        """The address without its secrets, for logs, errors and the console."""
        return redacted(self.text)


def is_address(text: str) -> bool:
    """Whether this names a remote repository rather than a path of this machine."""
    return _ADDRESS.fullmatch(text) is not None


def parse(text: str) -> Address:
    """The address in `text`. Raises InvalidArgument if it is none."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not match[2].strip("/"):
        raise InvalidArgument(
            f"'{redacted(text)}' is no address of a repository; write s3://bucket/path, "
            "gs://bucket/path, as://account/container/path, https://host/models.tar.gz or "
            "hf://organisation/name"
        )
    return Address(match[1].lower(), match[2].rstrip("/"))


def redacted(text: str) -> str:
    """`text` without the user info and the queries of the URLs in it."""
    return _QUERY.sub(r"\1", _USER_INFO.sub(r"\1", text))
