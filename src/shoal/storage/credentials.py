"""Who we are to an object store: Triton's credential file, the variables and files of the clouds.

    TRITON_CLOUD_CREDENTIAL_PATH (longest prefix) --> variables --> profiles --> roles

The result is a configuration for obstore, which itself reads the variables of the clouds and asks
for the roles of instances, pods and web identities.
"""

from __future__ import annotations

import configparser
import json
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgument, Unsupported
from shoal.storage.address import Address

TRITON_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"
_PROCESS_SECS = 60.0
_NEEDS_BOTO = ("role_arn", "sso_session", "sso_start_url", "sso_account_id")


@dataclass(slots=True)
class StoreConfig:
    """What a store of obstore is made with."""

    config: dict[str, Any] = field(default_factory=dict)
    provider: Callable[[], Any] | None = None  # returns credentials whenever some are needed
    addressing: str = ""  # S3: "path" or "virtual", where a profile says so
    endpoint: str = ""  # of a profile, or of a service account


def triton_entry(address: Address, kind: str, environ: Mapping[str, str]) -> Any | None:
    """The entry of Triton's credential file for an address; None without such a file or entry.

    Raises InvalidArgument for a file that cannot be read.
    """
    path = environ.get(TRITON_FILE)
    if not path:
        return None
    try:
        entries = json.loads(Path(path).read_bytes()).get(kind, {})
        names = sorted(entries.keys(), key=len, reverse=True)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "it is not the JSON object that it should be"
        raise InvalidArgument(
            f"the file '{path}' of {TRITON_FILE} cannot be used: {reason}"
        ) from None
    text = f"{kind}://{address.rest}"
    return next((entries[name] for name in names if text.startswith(name)), None)


# ---- Amazon S3


def for_s3(address: Address, environ: Mapping[str, str]) -> StoreConfig:
    """For an S3 store. Raises InvalidArgument or Unsupported, never with a secret in the text."""
    entry = triton_entry(address, "s3", environ)
    if entry is not None:
        made = _from_triton_s3(entry)
        if made.config.get("access_key_id"):
            return made
        profile = str(entry.get("profile") or "")
        if profile:
            found = _profile(profile, environ, must_exist=True)
            found.config |= made.config
            return found
    if environ.get("AWS_ACCESS_KEY_ID"):
        return _region_only(_profile(_profile_name(environ), environ, must_exist=False), environ)
    named = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    if not named and environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        sts = environ.get("AWS_ENDPOINT_URL_STS")
        return StoreConfig({"endpoint_url_sts": sts} if sts else {})
    found = _profile(named or "default", environ, must_exist=bool(named))
    if environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        found.config.pop("region", None)
    return found


def _profile_name(environ: Mapping[str, str]) -> str:
    return environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"


def _region_only(profile: StoreConfig, environ: Mapping[str, str]) -> StoreConfig:
    """The settings of a profile without its credentials, because the environment has some."""
    config = {key: value for key, value in profile.config.items() if key == "region"}
    if environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        config.clear()
    return StoreConfig(config, addressing=profile.addressing, endpoint=profile.endpoint)


def _from_triton_s3(entry: Any) -> StoreConfig:
    if not isinstance(entry, dict):
        raise InvalidArgument(f"an entry for s3 in the file of {TRITON_FILE} is not an object")
    names = {
        "key_id": "access_key_id",
        "secret_key": "secret_access_key",
        "session_token": "session_token",
        "region": "region",
    }
    return StoreConfig({ours: str(entry[name]) for name, ours in names.items() if entry.get(name)})


def _profile(name: str, environ: Mapping[str, str], *, must_exist: bool) -> StoreConfig:
    """A profile of the files that `aws configure` writes."""
    home = Path(environ.get("HOME") or "~").expanduser()
    config_file = Path(environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config")
    secret_file = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    section = "default" if name == "default" else f"profile {name}"
    values = {**_section(config_file, section), **_section(secret_file, name)}
    if not values:
        if must_exist:
            raise InvalidArgument(
                f"there is no AWS profile '{name}' in '{config_file}' or '{secret_file}'"
            )
        return StoreConfig()
    made = StoreConfig(endpoint=values.get("endpoint_url", ""))
    if values.get("region"):
        made.config["region"] = values["region"]
    for line in values.get("s3", "").splitlines():  # settings that are nested below "s3 ="
        key, _, value = line.partition("=")
        if key.strip() == "addressing_style":
            made.addressing = value.strip()
    if values.get("aws_access_key_id") and values.get("aws_secret_access_key"):
        made.config["access_key_id"] = values["aws_access_key_id"]
        made.config["secret_access_key"] = values["aws_secret_access_key"]
        if values.get("aws_session_token"):
            made.config["session_token"] = values["aws_session_token"]
    elif values.get("role_arn") and values.get("web_identity_token_file"):
        made.config["role_arn"] = values["role_arn"]
        made.config["web_identity_token_file"] = values["web_identity_token_file"]
    elif any(values.get(key) for key in _NEEDS_BOTO):
        made.provider = _boto_provider(name)
    elif values.get("credential_process"):
        command = values["credential_process"]
        made.provider = lambda: _from_process(command, name)
    return made


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InvalidArgument(f"the AWS file '{path}' cannot be read: {reason}") from None
    return dict(parser[name]) if parser.has_section(name) else {}


def _boto_provider(profile: str) -> Callable[[], Any]:
    """Profiles that assume a role or sign in once: botocore knows how, if it is installed."""
    try:
        from boto3 import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise Unsupported(
            f"the AWS profile '{profile}' assumes a role or uses single sign-on, for which boto3 "
            "is needed: pip install boto3"
        ) from None
    provider: Callable[[], Any] = Boto3CredentialProvider(Session(profile_name=profile))
    return provider


def _from_process(command: str, profile: str) -> dict[str, Any]:
    """The credentials that a program prints (`credential_process`)."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own configuration file names it
            shlex.split(command), check=True, capture_output=True, timeout=_PROCESS_SECS
        )
        printed = json.loads(done.stdout)
        expires = printed.get("Expiration")
        return {
            "access_key_id": printed["AccessKeyId"],
            "secret_access_key": printed["SecretAccessKey"],
            "token": printed.get("SessionToken"),
            "expires_at": datetime.fromisoformat(expires.replace("Z", "+00:00"))
            if expires
            else None,
        }
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, AttributeError) as error:
        raise InvalidArgument(
            f"the credential_process of the AWS profile '{profile}' failed: {type(error).__name__}"
        ) from None


# ---- Google Cloud Storage


def for_gs(address: Address, environ: Mapping[str, str]) -> StoreConfig:
    """For a bucket of Google. Raises InvalidArgument or Unsupported."""
    entry = triton_entry(address, "gs", environ)
    made = StoreConfig(endpoint=environ.get("GOOGLE_BASE_URL", ""))
    emulator = environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        made.endpoint = emulator if "://" in emulator else f"http://{emulator}"
        made.config |= {"base_url": made.endpoint, "skip_signature": True}
        return made
    path = entry if isinstance(entry, str) else environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not path:
        return made
    try:
        content = json.loads(Path(path).read_bytes())
        kind = content.get("type", "")
    except (OSError, ValueError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a JSON object"
        raise InvalidArgument(f"the Google credentials '{path}' cannot be read: {reason}") from None
    if kind in ("external_account", "impersonated_service_account"):
        made.provider = _google_provider(path, kind)
    elif kind == "authorized_user":
        made.config["application_credentials"] = path
    else:
        made.config["service_account"] = path
        made.endpoint = str(content.get("gcs_base_url") or made.endpoint)
    return made


def _google_provider(path: str, kind: str) -> Callable[[], Any]:
    try:
        import google.auth
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError:
        raise Unsupported(
            f"the Google credentials '{path}' are of the type '{kind}', for which google-auth is "
            "needed: pip install google-auth requests"
        ) from None
    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    credentials, _ = google.auth.load_credentials_from_file(path, scopes=scopes)
    provider: Callable[[], Any] = GoogleCredentialProvider(credentials=credentials)
    return provider


# ---- Azure Storage


def for_azure(address: Address, account: str, environ: Mapping[str, str]) -> StoreConfig:
    """For a container of an account; an empty `account` is taken from the environment.

    Raises InvalidArgument if none is known.
    """
    entry = triton_entry(address, "as", environ)
    entry = entry if isinstance(entry, dict) else {}
    connection = _connection_string(environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    made = StoreConfig()
    account = (
        account
        or str(entry.get("account_str") or "")
        or environ.get("AZURE_STORAGE_ACCOUNT", "")
        or environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        or connection.get("AccountName", "")
    )
    if not account:
        raise InvalidArgument(
            f"the storage account of '{address}' is not known; set AZURE_STORAGE_ACCOUNT, or write "
            "as://<account>/<container>/<path>"
        )
    made.config["account_name"] = account
    kind = str(entry.get("auth_type") or environ.get("AZURE_STORAGE_AUTH_TYPE") or "")
    client = str(entry.get("client_id") or environ.get("AZURE_STORAGE_CLIENT_ID") or "")
    if client:
        made.config["client_id"] = client
    if kind == "managed_identity":
        made.config["credential_type"] = "managed_identity"
        return made
    if kind == "default":
        made.config["use_azure_cli"] = _only_cli_is_left(environ)
        return made
    key = (
        str(entry.get("account_key") or "")
        or environ.get("AZURE_STORAGE_KEY", "")
        or connection.get("AccountKey", "")
    )
    if key:
        made.config["account_key"] = key
    elif connection.get("SharedAccessSignature"):
        made.config["sas_key"] = connection["SharedAccessSignature"]
    if connection.get("BlobEndpoint"):
        made.config["endpoint"] = connection["BlobEndpoint"]
    return made


def _only_cli_is_left(environ: Mapping[str, str]) -> bool:
    """Whether neither a secret nor a federated token nor a managed identity is configured."""
    names = (
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "IDENTITY_ENDPOINT",
        "MSI_ENDPOINT",
    )
    folder = Path(environ.get("AZURE_CONFIG_DIR") or "~/.azure").expanduser()
    return not any(environ.get(name) for name in names) and folder.is_dir()


def _connection_string(text: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.split(";") if "=" in part)
    return {name.strip(): value.strip() for name, _, value in parts}
