"""Unpack archives that may be hostile: nothing is written outside the target folder.

    models.tar.gz --unpack--> {"resnet/1/model.onnx": Unpacked(size, sha256), ...} below a folder

Paths that leave the folder, devices, and links to anything but files of the archive are refused,
and so is an archive that unpacks to far more than a set of models would. File modes, owners and
times of the archive have no effect.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import IO, NamedTuple

from shoal.storage.errors import CacheUnusable, ContentRefused
from shoal.storage.paths import why_unsafe

MOST_FILES = 100_000
LEAST_LIMIT_BYTES = 4 << 30  # archives may unpack to this much, whatever their size
MOST_RATIO = 100  # or to this many times their own size
_PIECE_BYTES = 1 << 20
_LONGEST_HEADER_BYTES = 16 << 20  # of one entry of a tar archive
_LONGEST_CHAIN = 16  # of links to links
_OPENERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
# What the libraries raise for bytes that they do not understand; ValueError is for names.
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    NotImplementedError,
    ValueError,
)


class Unpacked(NamedTuple):
    """One file of an archive."""

    size: int
    sha256: str


class _Entry(NamedTuple):
    """What an archive has at a path: content, or the path that it links to."""

    path: str
    content: IO[bytes] | None
    link: str = ""


def unpack(archive: Path, target: Path, shown: str) -> dict[str, Unpacked]:
    """Write the files of `archive` below `target`, an empty folder; their paths, sizes, digests.

    `shown` is the archive's address for errors. Raises ContentRefused if it is no archive, is
    damaged, or has something that it must not have, and CacheUnusable if files cannot be written;
    the caller removes what was written.
    """
    limit = max(LEAST_LIMIT_BYTES, MOST_RATIO * archive.stat().st_size)
    return _Unpacking(target, shown, limit).run(archive)


class _Unpacking:
    def __init__(self, target: Path, shown: str, limit_bytes: int) -> None:
        self._target = target
        self._shown = shown
        self._limit = limit_bytes
        self._left = limit_bytes
        self._entries = 0
        self._files: dict[str, Unpacked] = {}
        self._links: dict[str, str] = {}
        self._entries = 0  # with folders, and with files that occur again

    def run(self, archive: Path) -> dict[str, Unpacked]:
        try:
            with archive.open("rb") as opened:
                start = opened.read(512)
                opened.seek(0)
                entries = self._zip(opened) if start.startswith(b"PK") else self._tar(opened, start)
                with closing(entries):
                    for entry in entries:
                        self._take(entry)
        except _BROKEN as error:
            what = "is damaged" if self._files else "is not a tar or zip archive, or is damaged"
            raise self._refused(f"it {what} ({error})") from None
        except (NotADirectoryError, IsADirectoryError, FileExistsError):
            raise self._refused("one of its paths is both a file and a folder") from None
        except OSError as error:
            if error.errno in (None, errno.EINVAL):  # of gzip or bz2, or a seek to nowhere
                raise self._refused(f"it is damaged ({error})") from None
            raise CacheUnusable(
                f"'{self._shown}' cannot be unpacked into '{self._target.parent}': {error.strerror}"
            ) from None
        for path in self._links:
            self._link(path)
        return self._files

    def _take(self, entry: _Entry) -> None:
        if entry.content is None:
            self._links[entry.path] = entry.link
            return
        target = self._target / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with entry.content, target.open("wb") as output:
            while piece := entry.content.read(_PIECE_BYTES):
                size += len(piece)
                self._left -= len(piece)
                if self._left < 0:
                    raise self._too_large()
                digest.update(piece)
                output.write(piece)
        self._files[entry.path] = Unpacked(size, digest.hexdigest())

    def _link(self, path: str) -> None:
        """Make a link the file that it leads to."""
        found = path
        for _ in range(_LONGEST_CHAIN):
            if found not in self._links:
                break
            found = self._links[found]
        if found not in self._files:
            raise self._refused(f"'{path}' is a link to '{found}', which is no file of it")
        target = self._target / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        os.link(self._target / found, target)
        self._files[path] = self._files[found]

    # ---- formats

    def _tar(self, opened: IO[bytes], start: bytes) -> Generator[_Entry, None, None]:
        opener = next((opener for magic, opener in _OPENERS if start.startswith(magic)), None)
        stream = opened if opener is None else opener(opened)
        bounded = _BoundedReader(stream, self)  # type: ignore[arg-type]
        with tarfile.open(fileobj=bounded, mode="r:") as archive:  # type: ignore[call-overload]
            while (member := archive.next()) is not None:
                archive.members.clear()  # or else it keeps every header that it has read
                self._count_entry()
                if member.isdir():
                    self._checked(member.name, folder=True)
                    continue
                path = self._checked(member.name)
                if member.issym():
                    yield _Entry(path, None, self._inside(path, member.linkname))
                elif member.islnk():
                    yield _Entry(path, None, self._checked(member.linkname))
                elif member.isreg():
                    yield _Entry(path, archive.extractfile(member))
                else:
                    raise self._refused(f"'{path}' is a device or a pipe")
        while bounded.read(_PIECE_BYTES):  # the checksum of the whole is at its end
            pass

    def _zip(self, opened: IO[bytes]) -> Generator[_Entry, None, None]:
        with zipfile.ZipFile(opened) as archive:
            for info in archive.infolist():
                self._count_entry()
                if info.filename.endswith("/"):
                    self._checked(info.filename, folder=True)
                    continue
                path = self._checked(info.filename)
                if info.flag_bits & 1:
                    raise self._refused(f"'{path}' is encrypted")
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind == stat.S_IFLNK:
                    with archive.open(info) as content:
                        link = content.read(4096).decode("utf-8", "replace")
                    yield _Entry(path, None, self._inside(path, link))
                elif kind in (0, stat.S_IFREG):
                    try:
                        yield _Entry(path, archive.open(info))
                    except NotImplementedError as error:
                        raise self._refused(f"'{path}': {error}") from None
                else:
                    raise self._refused(f"'{path}' is a device or a pipe")

    # ---- checks

    def _count_entry(self) -> None:
        self._entries += 1
        if self._entries > MOST_FILES:
            raise self._refused(f"it has more than {MOST_FILES} files and folders")

    def _checked(self, name: str, *, folder: bool = False) -> str:
        """A path of the archive, if it stays inside the folder."""
        self._entries += 1
        if self._entries > 3 * MOST_FILES:
            raise self._refused(f"it has more than {MOST_FILES} files")
        path = name.removesuffix("/") if folder else name
        while path.startswith("./"):
            path = path[2:].lstrip("/")
        if folder and path in ("", "."):
            return ""
        reason = why_unsafe(path)
        if reason:
            raise self._refused(f"it has the path {name!r}: {reason}")
        return path

    def _inside(self, path: str, link: str) -> str:
        """The path in the archive that a symbolic link at `path` leads to."""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
        if why_unsafe(target):
            raise self._refused(f"'{path}' is a link to {link!r}, outside of it")
        return target

    def _refused(self, reason: str) -> ContentRefused:
        return ContentRefused(f"'{self._shown}' cannot be used as an archive of models: {reason}")

    def _too_large(self) -> ContentRefused:
        return self._refused(
            f"it unpacks to more than {self._limit >> 20} MiB, {MOST_RATIO} times its size or more"
        )

    def check_position(self, position: int) -> None:
        """Refuse an archive that goes on and on."""
        if position > self._limit + MOST_FILES * 2048:
            raise self._too_large()

    def check_read(self, count: int) -> None:
        """Refuse entries whose headers would fill the memory."""
        if count < 0 or count > _LONGEST_HEADER_BYTES:
            raise self._refused("one of its entries has a header of more than 16 MiB")


class _BoundedReader:
    """The bytes of a tar archive, of which a limited number is read, at once and altogether."""

    def __init__(self, stream: IO[bytes], unpacking: _Unpacking) -> None:
        self._stream = stream
        self._unpacking = unpacking

    def read(self, count: int = -1) -> bytes:
        self._unpacking.check_read(count)
        self._unpacking.check_position(self._stream.tell())
        return self._stream.read(count)

    def seek(self, position: int) -> int:
        self._unpacking.check_position(position)
        return self._stream.seek(position)

    def tell(self) -> int:
        return self._stream.tell()
