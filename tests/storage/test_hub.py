"""Repositories on a hub, read by the real `huggingface_hub`."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidArgument
from shoal.storage.address import parse
from shoal.storage.errors import (
    ContentRefused,
    ObjectMissing,
    StorageRefused,
    StorageUnreachable,
)
from shoal.storage.hub import HubPath, parse_path
from shoal.storage.mirrors import Mirrors, StorageSettings
from shoal.storage.retries import RetryPolicy
from tests.support.local_hub import LFS_BYTES, TOKEN

huggingface_hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("huggingface_hub.constants")

LARGE = bytes(range(256)) * 20
REPOSITORY = {
    "README.md": b"# Models",
    "digits/config.pbtxt": b"",
    "digits/1/model.onnx": LARGE,
    "images/cat.png": b"no model",
}
assert len(LARGE) > LFS_BYTES


@pytest.fixture
def mirrors(hub, tmp_path):
    settings = StorageSettings(
        cache=str(tmp_path / "cache"), retries=RetryPolicy(3, first_secs=0.01)
    )
    with Mirrors(settings) as opened:
        yield opened


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://org/name", HubPath("org/name", "", "")),
        ("hf://org/name@v1.0", HubPath("org/name", "v1.0", "")),
        ("hf://org/name@v1/models/a", HubPath("org/name", "v1", "models/a")),
        ("hf://org/name@refs/pr/3/a", HubPath("org/name", "refs/pr/3", "a")),
        ("hf://org/name@feature%2Fx", HubPath("org/name", "feature/x", "")),
        ("hf://org/name/a@b/c", HubPath("org/name", "", "a@b/c")),
    ],
)
def test_addresses(text, expected):
    assert parse_path(parse(text)) == expected


@pytest.mark.parametrize("text", ["hf://name", "hf://org/@v1", "hf://org/name@"])
def test_addresses_that_are_none(text):
    with pytest.raises(InvalidArgument, match="write hf://organisation/name"):
        parse_path(parse(text))


def test_a_name_that_cannot_be(mirrors):
    with pytest.raises(InvalidArgument, match="no address on the hub"):
        mirrors.open("hf://org/na me")


def test_a_repository(hub, mirrors):
    hub.commit("org/models", REPOSITORY)
    folder = mirrors.local("hf://org/models")
    assert files(folder) == {"digits/config.pbtxt": b"", "digits/1/model.onnx": LARGE}
    assert hub.requests["info"] == 1


def test_one_model_and_a_bare_file(hub, mirrors):
    hub.commit("org/digits", {"config.pbtxt": b"", "1/model.onnx": LARGE})
    assert set(files(mirrors.local("hf://org/digits"))) == {
        "digits/config.pbtxt",
        "digits/1/model.onnx",
    }
    hub.commit("org/bert", {"config.json": b"{}", "onnx/model.onnx": LARGE, "model.bin": LARGE})
    assert files(mirrors.local("hf://org/bert")) == {"bert/1/model.onnx": LARGE}


def test_revisions_and_what_changed(hub, mirrors):
    first = hub.commit("org/models", REPOSITORY)
    mirror = mirrors.open("hf://org/models")
    mirrors.local("hf://org/models")
    before = mirror.models["digits"].fingerprint()
    hub.commit("org/models", {**REPOSITORY, "README.md": b"# other"})
    mirror.refresh()
    assert mirror.models["digits"].fingerprint() == before
    hub.commit("org/models", {**REPOSITORY, "digits/1/model.onnx": b"new"})
    mirror.refresh()
    assert mirror.models["digits"].fingerprint() != before
    downloads = hub.requests["file"]
    assert files(mirrors.local("hf://org/models"))["digits/1/model.onnx"] == b"new"
    assert hub.requests["file"] == downloads + 1
    old = files(mirrors.local(f"hf://org/models@{first}"))
    assert old["digits/1/model.onnx"] == LARGE
    assert hub.requests["file"] == downloads + 1  # it is still in the cache


def test_a_file_of_an_earlier_listing_is_not_read_from_a_later_commit(hub, mirrors):
    hub.commit("org/models", {**REPOSITORY, "digits/labels.txt": b"one"})
    mirror = mirrors.open("hf://org/models")
    mirror.refresh()
    earlier = mirror.models["digits"].files["labels.txt"]
    hub.commit("org/models", {**REPOSITORY, "digits/labels.txt": b"two"})
    mirror.refresh()
    with pytest.raises(ObjectMissing, match="as it was listed"):
        mirror.source.read(earlier, 0, 3)


def test_a_checkpoint_must_be_exported(hub, mirrors):
    hub.commit("org/captions", {"config.json": b"{}", "model.safetensors": LARGE})
    with pytest.raises(ContentRefused) as caught:
        mirrors.local("hf://org/captions")
    assert "a checkpoint (model.safetensors)" in caught.value.message
    assert "shoal export captions models/captions" in caught.value.message


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"README.md": b""}, "contains no models"),
        ({"a.onnx": b"", "b.onnx": b""}, "several model files (a.onnx, b.onnx...)"),
    ],
)
def test_what_has_no_models(hub, mirrors, content, sentence):
    hub.commit("org/other", content)
    with pytest.raises(ContentRefused) as caught:
        mirrors.local("hf://org/other")
    assert sentence in caught.value.message


def test_private_repositories(hub, mirrors, monkeypatch):
    hub.commit("org/private", REPOSITORY, private=True)
    with pytest.raises(ObjectMissing, match="or it is private: then set HF_TOKEN"):
        mirrors.local("hf://org/private")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert files(mirrors.local("hf://org/private"))["digits/1/model.onnx"] == LARGE


def test_faults(hub, mirrors):
    hub.commit("org/models", REPOSITORY)
    with pytest.raises(ObjectMissing, match="no revision 'v9'"):
        mirrors.local("hf://org/models@v9")
    hub.statuses[:] = [429, 503]
    assert files(mirrors.local("hf://org/models"))  # after retries
    hub.statuses[:] = [403]
    with pytest.raises(StorageRefused, match="HF_TOKEN"):
        mirrors.open("hf://org/models").refresh()
    hub.statuses[:] = [500] * 10
    with pytest.raises(StorageUnreachable, match="the hub answered 500"):
        mirrors.open("hf://org/models").refresh()


def test_offline_with_the_hubs_own_cache(hub, mirrors, monkeypatch):
    hub.commit("org/models", REPOSITORY)
    huggingface_hub.snapshot_download(
        "org/models", cache_dir=huggingface_hub.constants.HF_HUB_CACHE, endpoint=hub.url
    )
    downloads = hub.requests["file"] + hub.requests["large"]
    online = mirrors.open("hf://org/models")
    online.refresh()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    asked = hub.requests.copy()
    assert files(mirrors.local("hf://org/models")) == {
        "digits/config.pbtxt": b"",
        "digits/1/model.onnx": LARGE,
    }
    assert hub.requests == asked
    assert hub.requests["file"] + hub.requests["large"] == downloads
    with pytest.raises(StorageUnreachable, match="HF_HUB_OFFLINE is set"):
        mirrors.local("hf://org/unknown")
