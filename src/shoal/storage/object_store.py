"""Object stores: S3 and what speaks like it, Google Cloud Storage and Azure Storage, by obstore."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from shoal.errors import Unsupported
from shoal.storage.address import Address, redacted
from shoal.storage.errors import (
    ObjectChanged,
    ObjectMissing,
    StorageBusy,
    StorageError,
    StorageRefused,
    StorageUnreachable,
)
from shoal.storage.source import RemoteFile, Source, Workspace
from shoal.storage.stores import READ_SECS, locate, open_store

MOST_OBJECTS = 1_000_000  # about half a gigabyte for their names
_CHUNK_BYTES = 4 << 20
_NO_TAG, _WEAK = "-", "W/"  # an object without an ETag, and one that a request cannot require
_MD5 = re.compile(r"[0-9a-f]{32}")
_CONTENT_TAG = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")  # of S3: made from the content
_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>")
_NOT_PARTIAL = "Received non-partial response"
_PATH_IN_ERROR = re.compile(r'[Pp]ath "(.*?)"(?: contained|:)', re.DOTALL)
_CREDENTIAL_CODES = {
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
# Who is asked for the role of this machine if nothing else is configured.
_CREDENTIAL_HOSTS = ("//169.254.169.254", "//169.254.170.2", "//metadata.google.internal")
_HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
}
_AZURE_HINT = "set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or AZURE_STORAGE_AUTH_TYPE"


def open_source(address: Address, workspace: Workspace) -> Source:
    """The repository in an object store. Raises Unsupported without obstore, InvalidArgument for
    an address or credentials that cannot be used."""
    del workspace
    return ObjectStoreSource(address, os.environ)


class ObjectStoreSource(Source):
    """A prefix of a bucket or container."""

    def __init__(self, address: Address, environ: Mapping[str, str]) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError, InvalidPathError
        except ImportError:
            raise Unsupported(
                f"reading '{address}' needs a package: pip install 'shoal[cloud]'"
            ) from None
        self.address = address
        self._obstore = obstore
        self._errors = (BaseError, OSError, ValueError)  # what obstore raises
        self._bad_path = InvalidPathError
        self._location = locate(address)
        self._store = open_store(address, self._location, environ)
        self._prefix = f"{self._location.prefix}/" if self._location.prefix else ""
        # Some servers, such as `rclone serve s3`, send ranges with the status of a whole object.
        self._without_ranges = False
        self._may_be_public = address.scheme == "gs" and not environ.get(
            "GOOGLE_APPLICATION_CREDENTIALS"
        )

    @property
    def scope(self) -> str:
        """The bucket."""
        location = self._location
        return f"{self.address.scheme}:{location.endpoint}{location.account}/{location.bucket}"

    def list(self) -> Sequence[RemoteFile]:
        """All objects below the prefix."""
        try:
            return self._list_all()
        except StorageRefused:
            if not self._may_be_public:
                raise
        # As in Triton: a public bucket of Google needs no credentials.
        self._may_be_public = False
        kept = self._store
        self._store = open_store(self.address, self._location, {}, skip_signature=True)
        try:
            return self._list_all()
        except StorageError:
            self._store = kept
            raise

    def _list_all(self) -> Sequence[RemoteFile]:
        try:
            return list(self._list_below(self._location.prefix))
        except _BadKey as bad:
            return self._list_around(bad)

    def _list_below(self, prefix: str, offset: str | None = None) -> Iterator[RemoteFile]:
        try:
            pages = self._obstore.list(self._store, prefix or None, offset=offset)
            count = 0
            for page in pages:
                count += len(page)
                if count > MOST_OBJECTS:
                    raise StorageError(
                        f"'{self.address}' has more than {MOST_OBJECTS:,} objects; name the folder "
                        "that contains only models"
                    )
                for entry in page:
                    if entry["path"] != self._location.prefix:
                        yield self._file(entry)
        except self._errors as error:
            match = _PATH_IN_ERROR.search(str(error))
            if match is not None and isinstance(error, self._bad_path):
                raise _BadKey(match[1]) from None
            raise self._failure(error) from None

    def _list_around(self, bad: _BadKey) -> Sequence[RemoteFile]:
        """All objects although some have keys that obstore refuses, such as `a/../b`.

        Their models are refused, by an entry that has this key for its path, and no others.
        """
        files = [self._bad(bad)]
        try:
            folders = self._obstore.list_with_delimiter(self._store, self._location.prefix or None)[
                "common_prefixes"
            ]
        except self._errors as error:
            if not isinstance(error, self._bad_path):
                raise self._failure(error) from None
            # It is beside the models, in an order before all names that begin with a digit or
            # a letter.
            try:
                return [*files, *self._list_below(self._location.prefix, f"{self._prefix}0")]
            except _BadKey as other:
                raise StorageError(
                    f"'{self.address}' cannot be listed, because it contains the keys "
                    f"'{bad.key[:200]}' and '{other.key[:200]}'; delete or rename them"
                ) from None
        for folder in folders:
            try:
                files += list(self._list_below(folder))
            except _BadKey as other:
                files.append(self._bad(other))
        return files

    def _bad(self, bad: _BadKey) -> RemoteFile:
        return RemoteFile(bad.key.removeprefix(self._prefix), 1, "refused")

    def _file(self, entry: Mapping[str, Any]) -> RemoteFile:
        path = entry["path"].removeprefix(self._prefix)
        tag = (entry["e_tag"] or _NO_TAG).replace('"', "")
        version = entry["version"] or ""
        identity = tag
        if self.address.scheme != "s3" or not _CONTENT_TAG.fullmatch(tag):  # of this object alone
            identity = f"{tag} {version or entry['last_modified']} {path}"
        is_digest = self.address.scheme == "s3" and _MD5.fullmatch(tag)
        return RemoteFile(path, entry["size"], identity, f"md5:{tag}" if is_digest else "")

    def read(self, file: RemoteFile, start: int, end: int) -> bytes | memoryview:
        """A range of an object, if it is still the one that was listed."""
        try:
            got, position = self._get(file, start, end)
            return memoryview(got.bytes())[start - position : end - position]
        except self._errors as error:
            raise self._read_failure(error, file) from None

    def stream(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes | memoryview]:
        """The same as chunks."""
        try:
            got, position = self._get(file, start, end)
            for chunk in got.stream(_CHUNK_BYTES):
                view = memoryview(chunk)
                wanted = view[max(0, start - position) : end - position]
                position += len(view)
                if wanted:
                    yield wanted
                if position >= end:
                    return
        except self._errors as error:
            raise self._read_failure(error, file) from None

    def _read_failure(self, error: Exception, file: RemoteFile) -> StorageError:
        failure = self._failure(error, file.path)
        return self._changed(file) if isinstance(failure, ObjectChanged) else failure

    def _get(self, file: RemoteFile, start: int, end: int) -> tuple[Any, int]:
        """The response of a request for a range, and where in the object it begins."""
        tag = file.identity.partition(" ")[0]
        has_strong_tag = tag != _NO_TAG and not tag.startswith(_WEAK)
        options: Any = {"if_match": f'"{tag}"'} if has_strong_tag else {}
        ranged = (start, end) != (0, file.size) and not self._without_ranges
        if ranged:
            options["range"] = (start, end)
        try:
            got = self._obstore.get(self._store, self._prefix + file.path, options=options)
        except self._errors as error:
            if not ranged or _NOT_PARTIAL not in str(error):
                raise
            self._without_ranges = True
            return self._get(file, start, end)
        found = (got.meta["e_tag"] or _NO_TAG).replace('"', "")
        if found.removeprefix(_WEAK) != tag.removeprefix(_WEAK):
            raise self._changed(file)
        return got, start if ranged else 0

    def put(self, path: str, content: Path) -> str:
        """Store an object; it appears as a whole."""
        try:
            stored = self._obstore.put(self._store, self._prefix + path, content)
        except self._errors as error:
            raise self._failure(error, path) from None
        return (stored["e_tag"] or "").removeprefix("W/").strip('"')

    def reports_digest(self, file: RemoteFile) -> bool:
        """S3's ETags are MD5 digests, unless the object is encrypted with a key of its owner."""
        try:
            url = self._obstore.sign(
                self._store, "HEAD", self._prefix + file.path, timedelta(seconds=60)
            )
            request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - http or https
            with urllib.request.urlopen(request, timeout=READ_SECS) as response:  # noqa: S310
                kind = response.headers.get("x-amz-server-side-encryption", "")
                own = "x-amz-server-side-encryption-customer-algorithm" in response.headers
        except Exception:  # noqa: BLE001 - not known: then it counts as one
            return True
        return not own and not kind.startswith("aws:kms")

    # ---- errors

    def _changed(self, file: RemoteFile) -> ObjectChanged:
        return ObjectChanged(
            f"'{file.path}' of '{self.address}' was replaced while it was downloaded"
        )

    def _failure(self, error: Exception, path: str = "") -> StorageError:
        """What an error of obstore means, as a sentence without secrets."""
        text, _, details = str(error).partition("\n\nDebug source")
        what = f"'{path}' of '{self.address}'" if path else f"'{self.address}'"
        status = int(match[1]) if (match := _STATUS.search(text)) else 0
        code = match[1] if (match := _CODE.search(text)) else ""
        answer = f"{status} {code}".strip()
        if status == 412:
            return ObjectChanged(f"{what} was replaced")
        if code == "RequestTimeTooSkewed":
            return StorageRefused(
                f"{what} cannot be read: the clock of this machine differs too much from that of "
                "the storage; set it right"
            )
        if any(host in text for host in _CREDENTIAL_HOSTS) or (not status and "redential" in text):
            return StorageRefused(f"there are no credentials for {what}; {self._hint()}")
        if status in (401, 403) or code in _CREDENTIAL_CODES:
            return StorageRefused(
                f"{what} may not be read or written with these credentials ({answer}); "
                f"{self._hint()}, or have access granted"
            )
        if status == 404 or isinstance(error, FileNotFoundError):
            return ObjectMissing(f"{what} does not exist ({answer or 'not found'})")
        if status in (429, 503) or code == "SlowDown":
            return StorageBusy(f"{what} cannot be read: the storage is busy ({answer})")
        if "incorrectly configured region" in text or code == "AuthorizationHeaderMalformed":
            return StorageRefused(f"{what} is in another region; set AWS_REGION to it")
        if status and status < 500:
            return StorageRefused(f"{what} cannot be read: the storage answered {answer}")
        if status:
            return StorageUnreachable(f"{what} cannot be read: the storage answered {answer}")
        if "kind: Timeout" in details or "timed out" in text:
            return StorageUnreachable(f"{what} cannot be read: the storage does not respond")
        if "kind: Connect" in details:
            return StorageUnreachable(f"{what} cannot be read: no connection to the storage")
        if "kind: Interrupted" in details or "IncompleteBody" in details:
            return StorageUnreachable(f"{what} cannot be read: the connection was interrupted")
        return StorageUnreachable(f"{what} cannot be read: {redacted(text)[:500]}")

    def _hint(self) -> str:
        return _HINTS.get(self.address.scheme, _AZURE_HINT)


class _BadKey(Exception):
    """A key that obstore does not accept in a listing."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key
