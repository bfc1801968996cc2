"""Archives that are what they should be, and those that want to do harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile

import pytest

from shoal.storage import unpacking
from shoal.storage.errors import CacheUnusable, ContentRefused

FILES = {"a/config.pbtxt": b"", "a/1/model.onnx": b"x" * 3000}
ODD = "a/1/na me ü%20#.bin"


def tar(path, entries, mode="w:gz"):
    """`entries` are (name, content) or TarInfo without content."""
    with tarfile.open(path, mode) as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            archive.addfile(info, io.BytesIO(entry[1]))
    return path


def special(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def zipped(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "below" / "target"
    folder.mkdir(parents=True)
    return folder


def unpack(path, target):
    return unpacking.unpack(path, target, "https://host/models.tar.gz")


def refusal(path, target):
    with pytest.raises(ContentRefused) as caught:
        unpack(path, target)
    assert caught.value.message.startswith("'https://host/models.tar.gz' cannot be used")
    outside = [p for p in target.parent.parent.rglob("*") if target not in (p, *p.parents)]
    assert [p for p in outside if p not in (path, target.parent)] == []
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "mode"), [("tar.gz", "w:gz"), ("tar", "w:"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")]
)
def test_tar(tmp_path, target, name, mode):
    entries = [special("./", tarfile.DIRTYPE), special("./a", tarfile.DIRTYPE)]
    entries += [(f"./{path}", content) for path, content in {**FILES, ODD: b"odd"}.items()]
    found = unpack(tar(tmp_path / f"x.{name}", entries, mode), target)
    assert {path: (target / path).read_bytes() for path in found} == {**FILES, ODD: b"odd"}
    assert found["a/1/model.onnx"] == (3000, hashlib.sha256(b"x" * 3000).hexdigest())


def test_zip(tmp_path, target):
    entries = [("a/", b""), *FILES.items(), (ODD, b"odd")]
    found = unpack(zipped(tmp_path / "x.zip", entries), target)
    assert {path: (target / path).read_bytes() for path in found} == {**FILES, ODD: b"odd"}


def test_links_inside_become_files(tmp_path, target):
    entries = [
        special("a/2/model.onnx", tarfile.SYMTYPE, "../1/model.onnx"),
        special("a/3/model.onnx", tarfile.SYMTYPE, "../2/model.onnx"),
        ("a/1/model.onnx", b"content"),
        special("a/4/model.onnx", tarfile.LNKTYPE, "a/1/model.onnx"),
    ]
    found = unpack(tar(tmp_path / "x.tar.gz", entries), target)
    assert len(found) == 4
    for path in found:
        assert (target / path).read_bytes() == b"content"
        assert not (target / path).is_symlink()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (("../outside", b"x"), "'..' as a part"),
        (("a/../../outside", b"x"), "'..' as a part"),
        (("/tmp/outside", b"x"), "begins with '/'"),
        (("a\\..\\outside", b"x"), "backslash"),
        ((f"{'n' * 300}/x", b"x"), "too long"),
        (special("a/l", tarfile.SYMTYPE, "../../outside"), "outside of it"),
        (special("a/l", tarfile.SYMTYPE, "/etc/passwd"), "outside of it"),
        (special("a/l", tarfile.LNKTYPE, "../outside"), "'..' as a part"),
        (special("a/l", tarfile.SYMTYPE, "missing"), "no file of it"),
        (special("a/l", tarfile.SYMTYPE, "l"), "no file of it"),
        (special("a/dev", tarfile.CHRTYPE), "device or a pipe"),
        (special("a/pipe", tarfile.FIFOTYPE), "device or a pipe"),
        (special("../folder", tarfile.DIRTYPE), "'..' as a part"),
        (("a/1/model.onnx/x", b"x"), "both a file and a folder"),
    ],
)
def test_hostile_tar(tmp_path, target, entry, reason):
    assert reason in refusal(tar(tmp_path / "x.tar.gz", [*FILES.items(), entry]), target)


def test_a_link_cannot_redirect_a_later_file(tmp_path, target):
    entries = [special("a", tarfile.SYMTYPE, "../../elsewhere"), ("a/1/model.onnx", b"x")]
    assert "outside of it" in refusal(tar(tmp_path / "x.tar.gz", entries), target)


def zip_link(name, link):
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info, link


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (("../outside", b"x"), "'..' as a part"),
        (("/outside", b"x"), "begins with '/'"),
        (("a/\\x", b"x"), "backslash"),
        (zip_link("a/l", "../../outside"), "outside of it"),
    ],
)
def test_hostile_zip(tmp_path, target, entry, reason):
    assert reason in refusal(zipped(tmp_path / "x.zip", [*FILES.items(), entry]), target)


def test_an_encrypted_zip(tmp_path, target):
    path = zipped(tmp_path / "x.zip", FILES.items())
    raw = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        position = -1
        while (position := raw.find(signature, position + 1)) >= 0:
            raw[position + offset] |= 1
    path.write_bytes(raw)
    assert "is encrypted" in refusal(path, target)


@pytest.mark.parametrize("make", [tar, zipped])
def test_bombs(tmp_path, target, monkeypatch, make):
    monkeypatch.setattr(unpacking, "LEAST_LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr(unpacking, "MOST_RATIO", 10)
    path = make(tmp_path / "bomb", [("a/1/model.onnx", bytes(3 << 20))])
    assert "unpacks to more than 1 MiB" in refusal(path, target)
    assert sum(p.stat().st_size for p in target.rglob("*") if p.is_file()) <= 1 << 20


@pytest.mark.parametrize("make", [tar, zipped])
def test_too_many_files(tmp_path, target, monkeypatch, make):
    monkeypatch.setattr(unpacking, "MOST_FILES", 10)
    path = make(tmp_path / "many", [(f"a/1/{number}", b"") for number in range(11)])
    assert "more than 10 files" in refusal(path, target)


def test_files_that_occur_again_and_again(tmp_path, target, monkeypatch):
    monkeypatch.setattr(unpacking, "MOST_FILES", 10)
    path = tar(tmp_path / "same", [("a/1/model.onnx", b"x")] * 31)
    assert "more than 10 files" in refusal(path, target)


def test_a_header_that_would_fill_the_memory(tmp_path, target):
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 8 << 30
    raw = info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 16)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(raw))
    text = refusal(path, target)
    # Newer versions of Python notice themselves that the file is too short for such a header.
    assert "header of more than 16 MiB" in text or "damaged (empty header)" in text


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html><p>Please log in", b"PK\x03\x04broken"])
def test_what_is_no_archive(tmp_path, target, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    assert "not a tar or zip archive" in refusal(path, target)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("kind", ["w:gz", "w:bz2", "w:xz", "zip"])
def test_a_damaged_archive(tmp_path, target, kind, cut):
    content = hashlib.shake_256(b"").digest(200_000)
    entries = [("a/1/model.onnx", content), ("a/1/other", content)]
    path = tmp_path / "x"
    zipped(path, entries) if kind == "zip" else tar(path, entries, kind)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    path.write_bytes(raw[: len(raw) // 2] if cut else raw)
    assert "damaged" in refusal(path, target)


def test_a_full_disk(tmp_path, target):
    path = tar(tmp_path / "x.tar", FILES.items(), "w:")
    target.rmdir()
    target.write_text("in the way")
    with pytest.raises((CacheUnusable, ContentRefused)):
        unpack(path, target)


@pytest.mark.parametrize(
    ("make", "entries"),
    [
        (tar, [("m/1/model.onnx", b"x")] * 4),  # the same path again and again
        (tar, [special(f"m/{n}", tarfile.DIRTYPE) for n in range(4)]),
        (zipped, [(f"m/{n}/", b"") for n in range(4)]),
    ],
)
def test_too_many_entries_that_leave_no_files(tmp_path, target, monkeypatch, make, entries):
    monkeypatch.setattr(unpacking, "MOST_FILES", 3)
    assert "more than 3 files and folders" in refusal(make(tmp_path / "a", entries), target)


def test_headers_that_were_read_are_not_kept(tmp_path, target, monkeypatch):
    kept = []
    opened = tarfile.open
    monkeypatch.setattr(tarfile, "open", lambda *a, **k: kept.append(opened(*a, **k)) or kept[-1])
    unpacking.unpack(tar(tmp_path / "a", [(f"m/{n}", b"x") for n in range(9)]), target, "shown")
    assert len(kept[-1].members) <= 1


def test_a_path_that_is_too_deep(tmp_path, target):
    deep = tar(tmp_path / "a", [("a/" * 1000 + "b", b"x")])
    assert "more than 64 parts" in refusal(deep, target)


def test_a_zip_archive_of_a_later_version(tmp_path, target):
    path = zipped(tmp_path / "a.zip", [("m/1/model.onnx", b"x")])
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 200  # the version that is needed to read it
    path.write_bytes(content)
    assert "damaged" in refusal(path, target)
