"""Downloads from a store that misbehaves, into a cache that survives."""

import errno
import os
import threading
from pathlib import Path

import pytest

from shoal.storage import object_store, transfer
from shoal.storage.errors import (
    CacheUnusable,
    ObjectDamaged,
    ObjectMissing,
    StorageError,
    StorageRefused,
    StorageUnreachable,
)
from shoal.storage.mirrors import Mirrors, StorageSettings
from shoal.storage.progress import Progress, RateLimit
from shoal.storage.retries import RetryPolicy
from tests.support.s3_fixtures import QUICK
from tests.support.s3_server import NO_TAG, Fault

MODEL = "models/a/1/model.bin"
LARGE = os.urandom(300_000)


@pytest.fixture
def in_ranges(monkeypatch):
    """Files over 64 KB are read in ranges."""
    for name in ("_SMALL_BYTES", "_WHOLE_BYTES", "_RANGE_BYTES"):
        monkeypatch.setattr(transfer, name, 1 << 16)


def fetched(mirrors, s3, **settings):
    mirror = mirrors(**settings).open(f"{s3.address}/models")
    mirror.refresh()
    return (mirror.fetch("a", lambda all_: all_) / "1" / "model.bin").read_bytes()


def test_a_restart_downloads_nothing(mirrors, s3):
    s3.objects[MODEL] = b"weights"
    assert fetched(mirrors, s3) == b"weights"
    s3.requests.clear()
    assert fetched(mirrors, s3) == b"weights"
    assert s3.requests == [("GET", "list", "")]


def test_only_what_changed_is_downloaded(mirrors, s3):
    s3.objects |= {MODEL: b"one", "models/a/1/labels.txt": b"labels"}
    mirror = mirrors().open(f"{s3.address}/models")
    mirror.refresh()
    folder = mirror.fetch("a", lambda all_: all_)
    before = (folder / "1/labels.txt").stat()
    s3.objects |= {MODEL: b"two", "models/a/1/more.txt": b"more"}
    s3.requests.clear()
    mirror.refresh()
    assert mirror.fetch("a", lambda all_: all_) == folder
    assert (folder / "1/model.bin").read_bytes() == b"two"
    assert sorted(key for _, key, _ in s3.requests) == [
        "list",
        "models/a/1/model.bin",
        "models/a/1/more.txt",
    ]
    after = (folder / "1/labels.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    del s3.objects["models/a/1/more.txt"]
    mirror.refresh()
    mirror.fetch("a", lambda all_: all_)
    assert sorted(path.name for path in (folder / "1").iterdir()) == ["labels.txt", "model.bin"]


def test_equal_contents_are_downloaded_once(mirrors, s3):
    s3.objects |= {MODEL: b"same", "models/b/3/other.bin": b"same"}
    folder = mirrors(threads=1).local(f"{s3.address}/models")
    assert (folder / "b/3/other.bin").read_bytes() == b"same"
    assert s3.count("GET", "models/") == 1


def test_a_large_file_is_read_in_ranges_side_by_side(in_ranges, mirrors, s3):
    s3.objects[MODEL] = LARGE
    assert fetched(mirrors, s3) == LARGE
    assert sorted(wanted for _, key, wanted in s3.requests if key == MODEL) == sorted(
        f"bytes={start}-{min(start + 65536, 300_000) - 1}" for start in range(0, 300_000, 65536)
    )


def test_an_interrupted_download_is_continued(in_ranges, mirrors, s3, tmp_path):
    s3.objects[MODEL] = LARGE
    s3.etags[MODEL] = "not-a-digest"
    real = s3.fault

    def only_two(method, key):
        fault = real(method, key)
        return Fault(status=500) if key == MODEL and s3.count("GET", MODEL) > 2 else fault

    s3.fault = only_two
    try:
        with pytest.raises(StorageUnreachable, match="the storage answered 500"):
            fetched(mirrors, s3, threads=1)
    finally:
        del s3.fault
    assert not list((tmp_path / "cache/blobs").iterdir())  # nothing half
    s3.requests.clear()
    assert fetched(mirrors, s3, threads=1) == LARGE
    assert s3.count("GET", MODEL) == 3  # of five ranges
    assert not list((tmp_path / "cache/partial").iterdir())


def test_a_download_of_a_machine_that_crashed_is_not_continued(in_ranges, mirrors, s3, tmp_path):
    s3.objects[MODEL] = LARGE
    s3.faults.append(Fault(key=MODEL, status=403))
    with pytest.raises(StorageRefused):
        fetched(mirrors, s3)
    (journal,) = (tmp_path / "cache/partial").glob("*.ranges")
    journal.write_text(journal.read_text().replace("-", "x") + "0\n65536\n")
    s3.faults.clear()
    assert fetched(mirrors, s3) == LARGE


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (
            Fault(status=403, code="AccessDenied"),
            StorageRefused,
            r"may not be read .*\(403 AccessDenied\); set AWS_ACCESS_KEY_ID",
        ),
        (
            Fault(status=403, code="RequestTimeTooSkewed"),
            StorageRefused,
            "the clock of this machine differs",
        ),
        (
            Fault(status=400, code="ExpiredToken"),
            StorageRefused,
            r"with these credentials \(400 ExpiredToken\)",
        ),
        (Fault(status=429, code="SlowDown"), StorageUnreachable, "the storage is busy"),
        (Fault(status=503, code="SlowDown"), StorageUnreachable, "the storage is busy"),
        (Fault(status=500), StorageUnreachable, "the storage answered 500"),
        (Fault(status=301), StorageRefused, "another region; set AWS_REGION"),
        (Fault(cut=2), StorageUnreachable, "the connection was interrupted"),
        (Fault(damage=True), ObjectDamaged, "is damaged: its checksum is md5 .* and should be"),
    ],
)
@pytest.mark.parametrize("key", ["list", MODEL])
def test_a_fault_that_stays_is_one_clear_sentence(mirrors, s3, tmp_path, fault, error, text, key):
    if key == "list" and not fault.status:
        return  # only contents can be cut or damaged
    s3.objects[MODEL] = b"weights"
    s3.faults.append(
        Fault(key=key, status=fault.status, code=fault.code, cut=fault.cut, damage=fault.damage)
    )
    with pytest.raises(error, match=text) as caught:
        fetched(mirrors, s3)
    assert f"{s3.address}/models" in caught.value.message
    assert "sEcReT" not in caught.value.message
    assert not list((tmp_path / "cache/blobs").iterdir())
    tries = 2 if fault.damage else 4 if error.retryable else 1
    assert s3.count("GET", key) == tries


@pytest.mark.parametrize(
    "fault",
    [Fault(status=429), Fault(status=503), Fault(status=500), Fault(cut=2), Fault(damage=True)],
)
def test_a_fault_that_passes_is_not_noticed(mirrors, s3, fault):
    s3.objects[MODEL] = b"weights"
    s3.faults.append(
        Fault(key=MODEL, status=fault.status, cut=fault.cut, damage=fault.damage, times=1)
    )
    assert fetched(mirrors, s3) == b"weights"


def test_a_damaged_range_is_read_again(in_ranges, mirrors, s3):
    s3.objects[MODEL] = LARGE
    s3.faults.append(Fault(key=MODEL, damage=True, times=1))
    assert fetched(mirrors, s3) == LARGE


def test_a_storage_that_does_not_respond(mirrors, s3, monkeypatch):
    monkeypatch.setattr("shoal.storage.stores.READ_SECS", 0.2)
    released = threading.Event()
    s3.objects[MODEL] = b"weights"
    s3.faults.append(Fault(key=MODEL, wait_for=released))
    with pytest.raises(StorageUnreachable, match="the storage does not respond"):
        fetched(mirrors, s3, retries=RetryPolicy(attempts=1))
    released.set()


def test_no_connection(mirrors, s3):
    mirror = mirrors().open("s3://127.0.0.1:1/bucket/models")
    with pytest.raises(StorageUnreachable, match="no connection to the storage"):
        mirror.refresh()


def test_a_bucket_that_does_not_exist(mirrors, s3):
    s3.faults.append(Fault(key="list", status=404, code="NoSuchBucket"))
    with pytest.raises(ObjectMissing, match=r"does not exist \(404 NoSuchBucket\)"):
        fetched(mirrors, s3)


def test_an_object_that_is_replaced_during_its_download(in_ranges, mirrors, s3):
    s3.objects[MODEL] = LARGE
    newer = os.urandom(200_000)
    s3.faults.append(Fault(key=MODEL, replace=newer, times=1))
    assert fetched(mirrors, s3) == newer
    assert s3.count("GET", "list") == 2


def test_an_object_that_is_replaced_again_and_again(mirrors, s3):
    s3.objects[MODEL] = b"0"
    real = s3.fault

    def always(method, key):
        return Fault(replace=os.urandom(9)) if key == MODEL else real(method, key)

    s3.fault = always
    try:
        with pytest.raises(StorageError, match="was replaced while it was downloaded"):
            fetched(mirrors, s3)
    finally:
        del s3.fault


def test_objects_encrypted_with_a_key_of_their_owner_have_no_digests(mirrors, s3):
    s3.objects[MODEL] = b"weights"
    s3.etags[MODEL] = "0" * 32
    s3.faults.append(Fault("HEAD", MODEL, headers={"x-amz-server-side-encryption": "aws:kms"}))
    assert fetched(mirrors, s3) == b"weights"


def test_damage_in_the_cache_is_found_before_use(mirrors, s3, tmp_path, caplog):
    s3.objects[MODEL] = b"weights"
    fetched(mirrors, s3)
    (blob,) = (tmp_path / "cache/blobs").iterdir()
    blob.chmod(0o644)
    blob.write_bytes(b"wEights")
    assert fetched(mirrors, s3) == b"weights"
    assert s3.count("GET", MODEL) == 2
    assert "was changed or is damaged" in caplog.text


def test_what_a_backend_writes_does_not_reach_the_cache(mirrors, s3):
    s3.objects[MODEL] = b"weights"
    mirror = mirrors().open(f"{s3.address}/models")
    mirror.refresh()
    folder = mirror.fetch("a", lambda all_: all_)
    with (folder / "1/model.bin").open("r+b") as file:
        file.write(b"W")
    (folder / "1/engine.cache").write_bytes(b"made by a backend")
    s3.objects["models/a/config.pbtxt"] = b""
    mirror.refresh()
    mirror.fetch("a", lambda all_: all_)
    assert (folder / "1/engine.cache").exists()
    assert fetched(mirrors, s3) == b"weights"
    assert s3.count("GET", MODEL) == 1


def test_several_servers_download_a_large_file_once(in_ranges, mirrors, s3):
    s3.objects[MODEL] = LARGE
    started, released = threading.Event(), threading.Event()

    class Held(threading.Event):
        def wait(self, timeout=None):
            started.set()
            return released.wait(timeout)

    s3.faults.append(Fault(key=MODEL, wait_for=Held(), times=1))
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(fetched(mirrors, s3))) for _ in range(3)
    ]
    threads[0].start()
    assert started.wait(30)
    for thread in threads[1:]:
        thread.start()
    released.set()
    for thread in threads:
        thread.join()
    assert results == [LARGE] * 3
    assert s3.count("GET", MODEL) == 5


def test_the_least_recently_used_contents_are_deleted(mirrors, s3, tmp_path):
    for number in range(4):
        s3.objects[f"models/m{number}/1/model.bin"] = bytes([number]) * 1000
    records, ages = tmp_path / "cache/records", iter(range(1, 9))
    for number in (0, 1, 2, 0, 3):
        mirror = mirrors(cache_bytes=3000).open(f"{s3.address}/models")
        mirror.refresh()
        known = {path: path.stat().st_mtime_ns for path in records.iterdir()}
        mirror.fetch(f"m{number}", lambda all_: all_)
        for path in records.iterdir():
            if path.stat().st_mtime_ns != known.get(path):
                os.utime(path, (age := next(ages), age))
    kept = {path.read_bytes()[0] for path in (tmp_path / "cache/blobs").iterdir()}
    assert kept == {0, 2, 3}


def test_a_full_disk_is_said(mirrors, s3, tmp_path, monkeypatch):
    s3.objects[MODEL] = b"weights"
    real = Path.write_bytes

    def full(path, content):
        if path.suffix == ".new":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CacheUnusable, match=r"the disk of the repository cache .* is full"):
        fetched(mirrors, s3)
    monkeypatch.undo()


def test_a_disk_that_is_too_small_is_said_before_the_download(mirrors, s3, monkeypatch):
    s3.objects[MODEL] = b"weights"
    usage = type("Usage", (), {"free": 3})
    monkeypatch.setattr("shoal.storage.cache.shutil.disk_usage", lambda _path: usage)
    with pytest.raises(CacheUnusable, match="has 3 bytes left and 7 are needed"):
        fetched(mirrors, s3)
    assert s3.count("GET", MODEL) == 0


def test_a_cache_folder_that_cannot_be_made(mirrors, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheUnusable, match=r"cannot be written: Not a directory; name another"):
        mirrors(cache=str(tmp_path / "file/cache")).open("s3://bucket/models")


def test_ten_thousand_objects_are_listed_by_pages(mirrors, s3):
    s3.objects |= {
        f"models/m{number // 10}/{number % 10 + 1}/model.bin": b"" for number in range(10_000)
    }
    mirror = mirrors().open(f"{s3.address}/models")
    mirror.refresh()
    assert len(mirror.models) == 1000
    assert mirror.models["m7"].versions == list(range(1, 11))
    assert s3.count("GET", "list") == 10


def test_keys_with_odd_characters(mirrors, s3):
    names = ["a b+c.txt", "ä%41&<>.txt", "%2e%2e", "q?#=.bin", "it's[1]{2}.x"]
    s3.objects |= {f"models/a/1/{name}": name.encode() for name in names}
    folder = mirrors().local(f"{s3.address}/models")
    assert {path.name: path.read_bytes().decode() for path in (folder / "a/1").iterdir()} == {
        name: name for name in names
    }


@pytest.mark.parametrize("key", ["models/a/../../evil", "models/a//b", "models/a/1/\x01"])
def test_a_key_that_leaves_its_folder_refuses_its_model_only(mirrors, s3, key):
    s3.objects |= {MODEL: b"weights", "models/b/1/model.bin": b"fine", key: b"evil"}
    mirror = mirrors().open(f"{s3.address}/models")
    mirror.refresh()
    assert (mirror.fetch("b", lambda all_: all_) / "1/model.bin").read_bytes() == b"fine"
    with pytest.raises(
        StorageError, match=r"model 'a' of .*: the name .* cannot be used: it contains"
    ):
        mirror.fetch("a", lambda all_: all_)


@pytest.mark.parametrize("key", ["models/../evil", "models//evil"])
def test_such_a_key_beside_the_models_is_left_out(mirrors, s3, key):
    s3.objects |= {MODEL: b"weights", key: b"evil"}
    assert fetched(mirrors, s3) == b"weights"


def test_the_rate_limit_counts_everything_together():
    now = [0.0]
    limit = RateLimit(1000, lambda: now[0])
    assert [limit.delay_secs(500) for _ in range(3)] == [0.0, 0.5, 1.0]
    now[0] = 10.0
    assert limit.delay_secs(100) == 0.0
    assert RateLimit(0).delay_secs(1 << 40) == 0.0


def test_waits_grow_and_differ():
    policy = RetryPolicy(first_secs=1.0, longest_secs=10.0)
    assert [policy.wait_secs(attempt, 0, 1.0) for attempt in range(5)] == [1, 2, 4, 8, 10]
    assert policy.wait_secs(2, 0, 0.0) == 2
    assert policy.wait_secs(0, 30, 0.5) == 30
    assert policy.wait_secs(0, 3600, 0.5) == 60


def test_percents():
    progress = Progress(0.0)
    assert progress.percent == 100
    progress.expect(2, 200)
    progress.add(50)
    assert progress.percent == 25


def test_a_machine_without_credentials(mirrors, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    mirror = mirrors().open("s3://127.0.0.1:1/bucket/models")
    with pytest.raises(StorageError, match=r"no credentials|no connection"):
        mirror.refresh()


def test_what_is_left_to_download_is_counted(in_ranges, s3, tmp_path):
    counts = {"downloaded": 0, "left": 0}
    most = [0]

    def changed(name):
        def change(_source, size):
            counts[name] += size
            most[0] = max(most[0], counts["left"])

        return change

    s3.objects |= {MODEL: LARGE, "models/a/2/model.bin": b"small"}
    s3.faults.append(Fault(key="a/2/", status=403))
    settings = StorageSettings(cache=str(tmp_path / "cache"), retries=QUICK)
    with Mirrors(settings, downloaded=changed("downloaded"), left=changed("left")) as mirrors:
        with pytest.raises(StorageRefused):
            mirrors.local(f"{s3.address}/models")
        assert counts["left"] == 0
        s3.faults.clear()
        mirrors.local(f"{s3.address}/models")
    assert most[0] == 300_005
    assert counts == {"downloaded": 300_005, "left": 0}


def test_a_list_of_ranges_that_was_cut_off_is_not_believed(in_ranges, mirrors, s3, tmp_path):
    s3.objects[MODEL] = LARGE
    s3.faults.append(Fault(key=MODEL, status=403))
    with pytest.raises(StorageRefused):
        fetched(mirrors, s3)
    (journal,) = (tmp_path / "cache/partial").glob("*.ranges")
    with journal.open("a") as opened:
        opened.write("1048565536 131072\n")  # "10485..." without its end, and the next row
    s3.faults.clear()
    assert fetched(mirrors, s3) == LARGE


def test_a_file_becomes_a_folder_and_a_file_again(mirrors, s3):
    mirror = mirrors().open(f"{s3.address}/models")
    for objects in ({"words": b"one"}, {"words/en.txt": b"two"}, {"words": b"three"}):
        s3.objects.clear()
        s3.objects |= {MODEL: b"weights"}
        s3.objects |= {f"models/a/1/{path}": content for path, content in objects.items()}
        mirror.refresh()
        folder = mirror.fetch("a", lambda all_: all_) / "1"
        for path, content in objects.items():
            assert (folder / path).read_bytes() == content


@pytest.mark.parametrize(
    "tag", [NO_TAG, "W/1234", "0x8D-time", "d41d8cd98f00b204e9800998ecf8427e-2"]
)
def test_stores_with_other_etags(in_ranges, mirrors, s3, tag):
    s3.objects[MODEL] = LARGE
    s3.etags[MODEL] = tag
    assert fetched(mirrors, s3) == LARGE
    s3.requests.clear()
    assert fetched(mirrors, s3) == LARGE
    assert s3.requests == [("GET", "list", "")]


def test_a_bucket_with_too_many_objects_is_not_listed_to_its_end(mirrors, s3, monkeypatch):
    monkeypatch.setattr(object_store, "MOST_OBJECTS", 3)
    s3.objects |= {f"models/a/1/{number}": b"x" for number in range(4)}
    with pytest.raises(StorageError, match="more than 3 objects; name the folder"):
        mirrors().open(f"{s3.address}/models").refresh()


def test_without_locks_no_running_server_loses_its_files(mirrors, s3, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    s3.objects[MODEL] = b"weights"
    running = mirrors().local(f"{s3.address}/models")
    other = mirrors().open(f"{s3.address}/models")
    assert (running / "a/1/model.bin").read_bytes() == b"weights"
    assert other._cache.partial("key") != mirrors()._cache("s3")[0].partial("key")


def test_folders_that_a_server_left_behind_are_removed(mirrors, s3, tmp_path):
    left = tmp_path / "cache/servers/1-left"
    left.mkdir(parents=True)
    fresh = mirrors().open(f"{s3.address}/models")
    assert not left.exists()
    assert fresh.folder.parent.parent.is_dir()
