"""The servers that the tests of this folder use are what they should be."""

from __future__ import annotations

import os

import pytest

from shoal.storage import transfer
from shoal.storage.mirrors import Mirrors, StorageSettings

obstore = pytest.importorskip("obstore")


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files" / "model" / "1"
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"content")
    return tmp_path / "files"


def listed(store):
    return [(row["path"], row["size"]) for row in obstore.list(store).collect()]


def test_moto_is_s3_and_google(moto, files, tmp_path):
    bucket = moto.bucket()
    moto.upload(bucket, files, "p/")
    s3 = obstore.store.S3Store(
        bucket, config=_s3(moto.environment), client_options={"allow_http": True}
    )
    google = obstore.store.GCSStore(
        bucket,
        service_account_path=str(moto.google_credentials(tmp_path)),
        client_options={"allow_http": True},
    )
    assert listed(s3) == listed(google) == [("p/model/1/model.bin", 7)]
    assert bytes(obstore.get(google, "p/model/1/model.bin").bytes()) == b"content"


@pytest.mark.rclone
def test_rclone_is_s3(rclone, files):
    bucket = rclone.bucket()
    rclone.upload(bucket, files)
    store = obstore.store.S3Store(
        bucket, config=_s3(rclone.environment), client_options={"allow_http": True}
    )
    assert listed(store) == [("model/1/model.bin", 7)]


@pytest.mark.azurite
def test_azurite_is_azure(azurite, files):
    container = azurite.bucket()
    azurite.upload(container, files)
    variables = azurite.environment
    store = obstore.store.AzureStore(
        container,
        account_name=variables["AZURE_STORAGE_ACCOUNT"],
        account_key=variables["AZURE_STORAGE_KEY"],
        endpoint=variables["AZURE_STORAGE_ENDPOINT"],
        client_options={"allow_http": True},
    )
    assert listed(store) == [("model/1/model.bin", 7)]


def _s3(variables):
    return {
        "access_key_id": variables["AWS_ACCESS_KEY_ID"],
        "secret_access_key": variables["AWS_SECRET_ACCESS_KEY"],
        "region": variables["AWS_DEFAULT_REGION"],
        "endpoint": variables["AWS_ENDPOINT_URL"],
    }


@pytest.mark.rclone
def test_a_server_without_ranges(rclone, tmp_path, monkeypatch):
    """rclone sends ranges with status 200, which obstore refuses."""
    for name in ("_SMALL_BYTES", "_WHOLE_BYTES", "_RANGE_BYTES"):
        monkeypatch.setattr(transfer, name, 100_000)
    for name, value in rclone.environment.items():
        monkeypatch.setenv(name, value)
    bucket, content = rclone.bucket(), os.urandom(250_000)
    rclone.client().put_object(Bucket=bucket, Key="a/1/model.bin", Body=content)
    with Mirrors(StorageSettings(cache=str(tmp_path / "cache"))) as mirrors:
        folder = mirrors.local(rclone.s3_address(bucket))
        assert (folder / "a/1/model.bin").read_bytes() == content
