"""Where an address is, and with which credentials it is read."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone

import pytest

from shoal.errors import InvalidArgument, Unsupported
from shoal.storage import credentials
from shoal.storage.address import parse
from shoal.storage.object_store import ObjectStoreSource
from shoal.storage.stores import Location, _s3_endpoint, locate

CREDENTIALS = """
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key = sEcReT

[work]
aws_access_key_id = WORK
aws_secret_access_key = sEcReT
aws_session_token = token
"""
CONFIG = """
[default]
region = eu-west-1

[profile work]
region = us-west-2
endpoint_url = https://s3.work.example
s3 =
  addressing_style = virtual

[profile printed]
credential_process = %s -c "print('{\\"Version\\": 1, \\"AccessKeyId\\": \\"P\\", \\"SecretAccessKey\\": \\"S\\", \\"SessionToken\\": \\"T\\", \\"Expiration\\": \\"2030-01-02T03:04:05Z\\"}')"

[profile failing]
credential_process = exit 7

[profile pod]
role_arn = arn:aws:iam::1:role/r
web_identity_token_file = /var/run/token

[profile role]
role_arn = arn:aws:iam::1:role/r
source_profile = default
"""


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://bucket", Location("bucket", "")),
        ("s3://bucket/a/b/", Location("bucket", "a/b")),
        ("s3://host:9000/bucket/a", Location("bucket", "a", "http://host:9000")),
        ("s3://127.0.0.1:9000/bucket", Location("bucket", "", "http://127.0.0.1:9000")),
        ("s3://https://host:9000/bucket/a", Location("bucket", "a", "https://host:9000")),
        ("s3://http://host/bucket/a", Location("bucket", "a", "http://host")),
        ("s3://https://me:secret@host/bucket", Location("bucket", "", "https://host")),
        ("gs://bucket/a", Location("bucket", "a")),
        ("as://account/box/a/b", Location("box", "a/b", account="account")),
        ("as://account.blob.core.windows.net/box", Location("box", "", account="account")),
        ("az://box/a", Location("box", "a")),
        ("abfs://box@account.dfs.core.windows.net/a", Location("box", "a", account="account")),
        ("abfss://box@account.dfs.core.windows.net", Location("box", "", account="account")),
    ],
)
def test_where_an_address_is(text, location):
    assert locate(parse(text)) == location


@pytest.mark.parametrize("text", ["s3://host:9000", "s3://host:9000/", "as://account"])
def test_an_address_needs_a_bucket(text):
    with pytest.raises(InvalidArgument, match="names no bucket; write s3://bucket/path"):
        locate(parse(text))


@pytest.mark.parametrize(
    ("text", "environ", "endpoint", "virtual"),
    [
        ("s3://bucket/a", {}, None, True),
        ("s3://my.bucket/a", {}, None, False),  # a certificate would not fit
        ("s3://host:9000/bucket", {}, "http://host:9000", False),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "https://minio/"}, "https://minio", False),
        (
            "s3://bucket",
            {"AWS_ENDPOINT_URL": "https://a", "AWS_ENDPOINT_URL_S3": "https://b"},
            "https://b",
            False,
        ),
        ("s3://host:9000/bucket", {"AWS_ENDPOINT_URL": "https://other"}, "http://host:9000", False),
        (
            "s3://https://host:9000/bucket",
            {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
            "https://bucket.host:9000",
            True,
        ),
        ("s3://bucket", {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"}, None, False),
    ],
)
def test_path_and_virtual_host_style(text, environ, endpoint, virtual):
    found = _s3_endpoint(locate(parse(text)), credentials.StoreConfig(), environ)
    assert (found.get("endpoint"), found["virtual_hosted_style_request"]) == (endpoint, virtual)


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(CREDENTIALS)
    (tmp_path / ".aws/config").write_text(CONFIG % sys.executable)
    return {"HOME": str(tmp_path)}


def s3(environ, text="s3://bucket/models"):
    return credentials.for_s3(parse(text), environ)


class TestS3:
    def test_the_default_profile(self, home):
        assert s3(home).config == {
            "access_key_id": "DEFAULT",
            "secret_access_key": "sEcReT",
            "region": "eu-west-1",
        }

    def test_a_named_profile(self, home):
        made = s3({**home, "AWS_PROFILE": "work"})
        assert made.config["access_key_id"] == "WORK"
        assert made.config["session_token"] == "token"
        assert (made.addressing, made.endpoint) == ("virtual", "https://s3.work.example")

    def test_files_of_other_names(self, home, tmp_path):
        (tmp_path / "other").write_text("[default]\naws_access_key_id=O\naws_secret_access_key=S\n")
        made = s3({**home, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "other")})
        assert made.config["access_key_id"] == "O"

    def test_variables_come_before_profiles(self, home):
        made = s3({**home, "AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "S"})
        assert made.config == {"region": "eu-west-1"}  # obstore reads the variables itself
        assert s3({**home, "AWS_ACCESS_KEY_ID": "ENV", "AWS_REGION": "x"}).config == {}

    def test_a_web_identity_comes_before_the_default_profile(self, home):
        assert s3({**home, "AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}).config == {}
        named = {**home, "AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_PROFILE": "work"}
        assert s3(named).config["access_key_id"] == "WORK"

    def test_nothing_is_configured(self, tmp_path):
        assert s3({"HOME": str(tmp_path)}).config == {}  # obstore asks for the instance's role

    def test_a_profile_that_does_not_exist(self, home):
        with pytest.raises(InvalidArgument, match="there is no AWS profile 'nope' in"):
            s3({**home, "AWS_PROFILE": "nope"})

    def test_a_program_that_prints_credentials(self, home):
        made = s3({**home, "AWS_PROFILE": "printed"})
        assert made.provider() == {
            "access_key_id": "P",
            "secret_access_key": "S",
            "token": "T",
            "expires_at": datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        }

    def test_a_program_that_fails(self, home):
        with pytest.raises(InvalidArgument, match="the credential_process of the AWS profile"):
            s3({**home, "AWS_PROFILE": "failing"}).provider()

    def test_a_profile_with_a_web_identity(self, home):
        made = s3({**home, "AWS_PROFILE": "pod"})
        assert made.config["web_identity_token_file"] == "/var/run/token"

    def test_a_profile_that_assumes_a_role_needs_boto3(self, home, monkeypatch):
        monkeypatch.setitem(sys.modules, "boto3", None)
        with pytest.raises(Unsupported, match="pip install boto3"):
            s3({**home, "AWS_PROFILE": "role"})

    def test_a_broken_file_is_named_without_its_content(self, home, tmp_path):
        (tmp_path / ".aws/credentials").write_text("sEcReT without a section")
        with pytest.raises(InvalidArgument, match="cannot be read") as caught:
            s3(home)
        assert "sEcReT" not in caught.value.message


class TestTritonFile:
    @pytest.fixture
    def environ(self, home, tmp_path):
        google = tmp_path / "google.json"
        google.write_text('{"type": "service_account"}')
        path = tmp_path / "cloud.json"
        path.write_text(
            json.dumps(
                {
                    "s3": {
                        "": {
                            "secret_key": "S",
                            "key_id": "ANY",
                            "region": "r",
                            "session_token": "",
                            "profile": "",
                        },
                        "s3://bucket": {"secret_key": "S", "key_id": "BUCKET"},
                        "s3://bucket/deep": {
                            "secret_key": "",
                            "key_id": "",
                            "profile": "work",
                            "region": "x",
                        },
                    },
                    "gs": {"gs://bucket": str(google)},
                    "as": {
                        "": {"account_str": "any", "account_key": "k"},
                        "as://mi": {
                            "account_str": "mi",
                            "auth_type": "managed_identity",
                            "client_id": "c",
                        },
                    },
                }
            )
        )
        return {**home, "TRITON_CLOUD_CREDENTIAL_PATH": str(path)}

    @pytest.mark.parametrize(
        ("text", "key"),
        [("s3://other/a", "ANY"), ("s3://bucket/a", "BUCKET"), ("s3://bucket/deep/a", "WORK")],
    )
    def test_the_longest_prefix_wins(self, environ, text, key):
        assert s3(environ, text).config["access_key_id"] == key

    def test_it_comes_before_the_variables(self, environ):
        made = s3({**environ, "AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "S"})
        assert made.config["access_key_id"] == "BUCKET"

    def test_a_region_beside_a_profile(self, environ):
        assert s3(environ, "s3://bucket/deep").config["region"] == "x"

    def test_google(self, environ, tmp_path):
        found = credentials.for_gs(parse("gs://bucket/a"), environ).config
        assert found == {"service_account": str(tmp_path / "google.json")}
        assert credentials.for_gs(parse("gs://other/a"), environ).config == {}

    def test_azure(self, environ):
        found = credentials.for_azure(parse("as://acc/box"), "acc", environ).config
        assert found == {"account_name": "acc", "account_key": "k"}
        found = credentials.for_azure(parse("as://mi/box"), "mi", environ).config
        assert found == {
            "account_name": "mi",
            "client_id": "c",
            "credential_type": "managed_identity",
        }

    @pytest.mark.parametrize("content", ["{", "[]", '{"s3": ["sEcReT"]}'])
    def test_a_broken_file(self, environ, tmp_path, content):
        (tmp_path / "cloud.json").write_text(content)
        with pytest.raises(InvalidArgument, match="TRITON_CLOUD_CREDENTIAL_PATH") as caught:
            s3(environ)
        assert "sEcReT" not in caught.value.message


class TestOthers:
    def test_google_by_its_variable(self, tmp_path):
        path = tmp_path / "key.json"
        path.write_text('{"type": "authorized_user"}')
        environ = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
        found = credentials.for_gs(parse("gs://bucket"), environ).config
        assert found == {"application_credentials": str(path)}

    def test_google_credentials_that_cannot_be_read(self, tmp_path):
        environ = {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "nowhere")}
        with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
            credentials.for_gs(parse("gs://bucket"), environ)

    @pytest.mark.parametrize(
        ("environ", "config"),
        [
            (
                {"AZURE_STORAGE_ACCOUNT": "a", "AZURE_STORAGE_KEY": "k"},
                {"account_name": "a", "account_key": "k"},
            ),
            (
                {
                    "AZURE_STORAGE_ACCOUNT": "a",
                    "AZURE_STORAGE_KEY": "k",
                    "AZURE_STORAGE_AUTH_TYPE": "managed_identity",
                    "AZURE_STORAGE_CLIENT_ID": "c",
                },
                {"account_name": "a", "client_id": "c", "credential_type": "managed_identity"},
            ),
            (
                {
                    "AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=k==;BlobEndpoint=http://127.0.0.1:1/a"
                },
                {"account_name": "a", "account_key": "k==", "endpoint": "http://127.0.0.1:1/a"},
            ),
            (
                {
                    "AZURE_STORAGE_ACCOUNT": "a",
                    "AZURE_STORAGE_AUTH_TYPE": "default",
                    "AZURE_FEDERATED_TOKEN_FILE": "/t",
                },
                {"account_name": "a", "use_azure_cli": False},
            ),
        ],
    )
    def test_azure_by_its_variables(self, environ, config):
        assert credentials.for_azure(parse("az://box/a"), "", environ).config == config

    def test_azure_needs_an_account(self):
        with pytest.raises(InvalidArgument, match="set AZURE_STORAGE_ACCOUNT, or write as://"):
            credentials.for_azure(parse("az://box/a"), "", {})

    @pytest.mark.parametrize("text", ["s3://bucket/a", "gs://bucket/a", "as://account/box/a"])
    def test_a_source_is_made_without_any_connection(self, text, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert str(ObjectStoreSource(parse(text), {"HOME": str(tmp_path)}).address) == text

    def test_what_is_missing_without_obstore(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "obstore", None)
        with pytest.raises(Unsupported, match=r"pip install 'shoal\[cloud\]'"):
            ObjectStoreSource(parse("s3://bucket/a"), {})


def test_the_variables_of_triton_name_the_folder(tmp_path, monkeypatch):
    from shoal.storage.mirrors import Mirrors, StorageSettings

    environ = {
        "TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path / "aws"),
        "TRITON_AZURE_MOUNT_DIRECTORY": str(tmp_path / "azure"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    with Mirrors(StorageSettings(), environ) as mirrors:
        folders = {
            text: mirrors.open(text).folder for text in ("s3://b/m", "gs://b/m", "as://a/b/m")
        }
        assert [
            tmp_path / name in folders[text].parents
            for text, name in zip(
                folders, ("aws", "cache/shoal/repositories", "azure"), strict=True
            )
        ] == [True] * 3
    with Mirrors(StorageSettings(cache=str(tmp_path / "own")), environ) as mirrors:
        assert tmp_path / "own" in mirrors.open("s3://b/m").folder.parents
