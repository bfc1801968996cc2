"""Archives on web servers: moto's, which has ranges and signed addresses, and Python's own."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import io
import os
import tarfile
import threading
import zipfile

import pytest

from shoal.errors import InvalidArgument
from shoal.storage import archive, transfer
from shoal.storage.errors import (
    ContentRefused,
    ObjectDamaged,
    ObjectMissing,
    StorageRefused,
    StorageUnreachable,
)
from shoal.storage.http_file import ALLOW_HTTP, HttpFile
from shoal.storage.locks import open_lock, try_lock
from shoal.storage.mirrors import Mirrors, StorageSettings
from shoal.storage.retries import RetryPolicy

FILES = {"models/a/config.pbtxt": b"", "models/a/1/model.onnx": b"a" * 200_000}


def packed(files, kind="tar.gz"):
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz" if kind == "tar.gz" else "w:") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def mirrors(tmp_path):
    settings = StorageSettings(
        cache=str(tmp_path / "cache"), retries=RetryPolicy(2, first_secs=0.01)
    )
    with Mirrors(settings) as opened:
        yield opened


@pytest.fixture
def bucket(moto):
    """A bucket whose objects everybody may read."""
    name = moto.bucket()

    def put(key, content):
        moto.client().put_object(Bucket=name, Key=key, Body=content, ACL="public-read")
        return f"{moto.url}/{name}/{key}"

    return put


@contextlib.contextmanager
def served(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", ["tar.gz", "tar", "zip"])
def test_archives(bucket, mirrors, kind):
    address = bucket(f"models.{kind}", packed(FILES, kind))
    assert files(mirrors.local(address)) == {
        "a/config.pbtxt": b"",
        "a/1/model.onnx": b"a" * 200_000,
    }


def test_one_model_has_the_name_of_the_archive(bucket, mirrors):
    address = bucket("res%20net-50.zip", packed({"1/model.onnx": b"x"}, "zip"))
    assert files(mirrors.local(address.replace("%20", "%2520"))) == {
        "res%20net-50/1/model.onnx": b"x"
    }


def test_a_signed_address(moto, mirrors):
    bucket = moto.bucket()
    moto.client().put_object(Bucket=bucket, Key="models.tar.gz", Body=packed(FILES))
    signed = moto.client().generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": "models.tar.gz"}
    )
    assert "Signature" in signed
    mirror = mirrors.open(signed)
    assert "Signature" not in str(mirror.address)
    assert files(mirrors.local(signed))["a/1/model.onnx"] == b"a" * 200_000


def test_only_what_changed_is_new(bucket, mirrors):
    two = {**FILES, "models/b/1/model.onnx": b"b"}
    address = bucket("models.tar.gz", packed(two))
    mirrors.local(address)
    mirror = mirrors.open(address)
    before = {name: model.fingerprint() for name, model in mirror.models.items()}
    bucket("models.tar.gz", packed({**two, "models/b/1/model.onnx": b"new"}))
    mirror.refresh()
    after = {name: model.fingerprint() for name, model in mirror.models.items()}
    assert [name for name in after if after[name] != before[name]] == ["b"]
    assert files(mirrors.local(address))["b/1/model.onnx"] == b"new"


def test_a_restart_downloads_nothing(bucket, tmp_path, monkeypatch):
    address = bucket("models.tar.gz", packed(FILES))
    settings = StorageSettings(cache=str(tmp_path / "cache"))
    for _ in range(2):
        with Mirrors(settings) as mirrors:
            assert files(mirrors.local(address))["a/1/model.onnx"] == b"a" * 200_000
        monkeypatch.setattr(HttpFile, "read", lambda *_: pytest.fail("it is in the cache"))


def test_a_download_that_broke_off_is_continued(bucket, tmp_path, monkeypatch):
    content = packed({"models/a/1/model.onnx": b"".join(map(bytes, zip(range(256))))}, "tar")
    for name in ("_SMALL_BYTES", "_WHOLE_BYTES", "_RANGE_BYTES"):
        monkeypatch.setattr(transfer, name, 1024)
    address = bucket("models.tar", content)
    settings = StorageSettings(cache=str(tmp_path / "cache"), threads=1, retries=RetryPolicy(1))
    read, starts = HttpFile.read, []

    def broken(self, start, end, identity):
        starts.append(start)
        if len(starts) == 4:
            raise StorageUnreachable("gone")
        return read(self, start, end, identity)

    monkeypatch.setattr(HttpFile, "read", broken)
    with Mirrors(settings) as mirrors, pytest.raises(StorageUnreachable):
        mirrors.local(address)
    with Mirrors(settings) as mirrors:
        assert files(mirrors.local(address))["a/1/model.onnx"][:3] == b"\0\1\2"
    assert starts.count(0) == 1  # it was not read a second time
    assert starts.count(starts[3]) == 2


def test_a_server_without_ranges(mirrors, tmp_path):
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "models.tgz").write_bytes(packed(FILES))
    with served(functools.partial(Quiet, directory=str(folder))) as url:
        assert files(mirrors.local(f"{url}/models.tgz"))["a/1/model.onnx"] == b"a" * 200_000
        with pytest.raises(ObjectMissing, match="there is no file at"):
            mirrors.local(f"{url}/other.tgz")


def test_what_is_refused(bucket, mirrors, tmp_path):
    address = bucket("models.tar.gz", packed({"../outside": b"x"}))
    with pytest.raises(ContentRefused, match=r"'\.\.' as a part"):
        mirrors.local(address)
    address = bucket("empty.zip", packed({"README.md": b"x"}, "zip"))
    with pytest.raises(ContentRefused, match="contains no models"):
        mirrors.local(address)
    assert list((tmp_path / "cache").rglob("new-*")) == []


def test_addresses_that_cannot_be(mirrors, monkeypatch):
    with pytest.raises(InvalidArgument, match=r"has to end with \.tar\.gz"):
        mirrors.open("https://host/models")
    with pytest.raises(InvalidArgument, match=f"set {ALLOW_HTTP}=true"):
        mirrors.open("http://10.0.0.1/models.tar.gz")
    monkeypatch.setenv(ALLOW_HTTP, "true")
    mirrors.open("http://10.0.0.1/models.tar.gz")


def test_credentials_stay_with_their_host(mirrors, monkeypatch, tmp_path):
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    seen = {}
    archive = packed(FILES)

    class Storage(Quiet):
        def do_GET(self):
            seen["storage"] = self.headers["Authorization"]
            self.send_response(200)
            self.send_header("Content-Length", str(len(archive)))
            self.end_headers()
            self.wfile.write(archive)

    with served(Storage) as storage:

        class Front(Quiet):
            def do_GET(self):
                seen["front"] = self.headers["Authorization"]
                if self.headers["Authorization"] != "Basic dXNlcjpzZWNyZXQ=":
                    self.send_response(401)
                    self.send_header("Content-Length", "0")
                else:
                    self.send_response(302)
                    to = storage.replace("127.0.0.1", "localhost")
                    self.send_header("Location", f"{to}/models.tar.gz?signature=1")
                self.end_headers()

        with served(Front) as front:
            address = front.replace("//", "//user:secret@") + "/models.tar.gz"
            assert files(mirrors.local(address))["a/1/model.onnx"]
            assert seen == {"front": "Basic dXNlcjpzZWNyZXQ=", "storage": None}
            with pytest.raises(StorageRefused) as caught:
                mirrors.local(address.replace("secret", "wrong-secret"))
            assert "access is refused (401)" in caught.value.message
            assert "wrong-secret" not in caught.value.message


def test_redirects_to_plain_http_are_refused(mirrors):
    class Front(Quiet):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", "http://192.0.2.1/models.tar.gz?signature=secret")
            self.end_headers()

    with served(Front) as front, pytest.raises(StorageRefused) as caught:
        mirrors.local(f"{front}/models.tar.gz")
    assert "redirects to 'http://192.0.2.1/models.tar.gz', which is refused" in caught.value.message


def test_a_server_that_is_not_there(mirrors, port):
    with pytest.raises(StorageUnreachable, match=r"cannot be read: .*refused"):
        mirrors.local(f"http://127.0.0.1:{port}/models.tar.gz")


def test_unpacked_files_do_not_stay_when_the_cache_is_full(bucket, tmp_path):
    first, second = (
        bucket(f"{name}.tar", packed({f"{name}/1/model.onnx": name.encode() * 300_000}, "tar"))
        for name in "ab"
    )
    settings = StorageSettings(cache=str(tmp_path / "cache"), cache_bytes=700_000)
    for address in (first, second, first):
        with Mirrors(settings) as mirrors:
            content = next(iter(files(mirrors.local(address)).values()))
            assert len(content) == 300_000
    sizes = [path.stat().st_size for path in (tmp_path / "cache" / "blobs").iterdir()]
    assert sum(sizes) <= 700_000 + 300_000  # what was unpacked last is not counted yet
    assert list((tmp_path / "cache" / "sources").glob("*b-tar*/*")) == []


def test_what_a_killed_server_has_unpacked_in_part_is_removed(bucket, mirrors, monkeypatch):
    monkeypatch.setattr(archive, "_LOCKED_SECS", -60.0)
    address = bucket("models.tar.gz", packed(FILES))
    home = mirrors.open(address).source._workspace.folder
    killed, running = home / "new-killed", home / "new-running"
    for folder in (killed, running):
        (folder / "files").mkdir(parents=True)
    descriptor = open_lock(running / "lock")
    try:
        try_lock(descriptor)
        mirrors.local(address)
    finally:
        os.close(descriptor)
    assert not killed.exists()
    assert running.exists()


def test_an_unpacked_file_that_was_damaged_is_not_served(bucket, mirrors, tmp_path):
    mirror = mirrors.open(bucket("models.tar.gz", packed(FILES)))
    mirror.refresh()
    (unpacked,) = (tmp_path / "cache/sources").rglob("model.onnx")
    unpacked.write_bytes(b"b" * 200_000)
    with pytest.raises(ObjectDamaged, match="its checksum is"):
        mirror.fetch("a", lambda all_: all_)


def test_the_password_of_a_netrc_that_is_wrong_is_not_shown(mirrors, monkeypatch, tmp_path):
    path = tmp_path / "netrc"
    path.write_text("machine host login user password two secret words\n")
    monkeypatch.setenv("NETRC", str(path))
    with pytest.raises(InvalidArgument) as caught:
        mirrors.open("https://host/models.tar.gz")
    assert "line 1 is wrong" in caught.value.message
    assert "secret" not in caught.value.message


def test_a_password_of_netrc_is_sent_as_it_is(mirrors, monkeypatch, tmp_path):
    path = tmp_path / "netrc"
    path.write_text("machine host login user password a%20b\n")
    monkeypatch.setenv("NETRC", str(path))
    source = mirrors.open("https://host/models.tar.gz").source
    sent = source._file._authorization.removeprefix("Basic ")
    assert base64.b64decode(sent) == b"user:a%20b"


def test_archives_whose_addresses_differ_in_the_query_only(mirrors):
    contents = {
        name: packed({f"models/{name}/1/model.onnx": name.encode() * 100}, "tar")
        for name in ("a", "b")
    }

    class Selecting(Quiet):
        def do_GET(self):
            content = contents[self.path[-1]]
            self.send_response(200)  # without ETag and Last-Modified
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(OSError):  # only its head was wanted
                self.wfile.write(content)

    with served(Selecting) as url:
        first, second = (mirrors.local(f"{url}/models.tar?name={name}") for name in contents)
        assert files(first) == {"a/1/model.onnx": b"a" * 100}
        assert files(second) == {"b/1/model.onnx": b"b" * 100}
