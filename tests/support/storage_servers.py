"""Object stores for tests: real servers of other projects, each in a process of its own.

    moto      S3, and the XML reads of Google Cloud Storage     pip, extra dev
    azurite   Azure Blob Storage                                npm, tools/azurite.py
    rclone    S3 over a folder (`rclone serve s3`)              pip, extra dev

with running_moto() as moto:
    bucket = moto.bucket()                 a new, empty one
    os.environ.update(moto.environment)    what clients need to know of it
    moto.pause(); moto.resume()            it does not respond for a while
"""

from __future__ import annotations

import base64
import collections
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoal.testing import WAIT_SECS

KEY, SECRET = "test-key", "test-secret-9f3b"
# Of every Azurite, as documented: an account and a key that are no secret.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


class StorageServer:
    """A server that prints its port, until `stop`."""

    def __init__(self, command: Sequence[str], listening: str, **environment: str) -> None:
        """Start it and wait for a line that matches `listening`, whose group is the port."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self._numbers = itertools.count(1)
        self.output: collections.deque[str] = collections.deque(maxlen=200)
        self._listening = threading.Event()
        self.port = 0
        self._reader = threading.Thread(target=self._read, args=(re.compile(listening),))
        self._reader.start()
        if not self._listening.wait(WAIT_SECS) or not self.port:
            self.stop()
            raise TimeoutError(f"{command[0]} did not start: {''.join(self.output)}")

    def _read(self, listening: re.Pattern[str]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output.append(line)
            found = None if self.port else listening.search(line)
            if found:
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()  # it has ended

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of clients of S3."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }

    def s3_address(self, bucket: str, path: str = "") -> str:
        """The address of a bucket of this server, in Triton's form with a host."""
        return f"s3://127.0.0.1:{self.port}/{bucket}{'/' if path else ''}{path}"

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"models{next(self._numbers)}"  # moto does not decode the "%2D" of clients of gs://
        self._create(name)
        return name

    def _create(self, name: str) -> None:
        self.client().create_bucket(Bucket=name)

    def client(self):
        """A client of boto3, which is not what Shoal uses."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def upload(self, bucket: str, folder: Path, prefix: str = "") -> None:
        """Store every file below `folder`."""
        client = self.client()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = f"{prefix}{path.relative_to(folder).as_posix()}"
                content = path.read_bytes()
                # Clients of gs:// read from moto without credentials.
                client.put_object(Bucket=bucket, Key=key, Body=content, ACL="public-read")

    def pause(self) -> None:
        """Accept connections and respond to nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Respond again."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, with all it stores."""
        self.resume()
        self._process.kill()
        self._process.wait(WAIT_SECS)
        self._reader.join(WAIT_SECS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class MotoServer(StorageServer):
    """moto: S3. Reads of Google Cloud Storage have the same form, so it serves those, too."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        super().__init__(command, r"Running on http://127\.0\.0\.1:(\d+)", PYTHONUNBUFFERED="1")

    def google_credentials(self, folder: Path) -> Path:
        """A file for GOOGLE_APPLICATION_CREDENTIALS that leads clients of gs:// to this server."""
        path = folder / "google.json"
        content = {"gcs_base_url": self.url, "disable_oauth": True}
        content |= {"client_email": "", "private_key": "", "private_key_id": ""}
        path.write_text(json.dumps(content))
        return path


class AzuriteServer(StorageServer):
    """Azurite: the account `devstoreaccount1` of Azure Blob Storage."""

    def __init__(self) -> None:
        command = [
            _program("azurite-blob"),
            "--blobPort",
            "0",
            "--inMemoryPersistence",
            "--skipApiVersionCheck",
        ]
        command += ["--disableTelemetry", "--silent"]
        super().__init__(command, r"(?:listens|listening) (?:at|on) http://127\.0\.0\.1:(\d+)")

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of clients of Azure."""
        return {
            "AZURE_STORAGE_ACCOUNT": AZURE_ACCOUNT,
            "AZURE_STORAGE_KEY": AZURE_KEY,
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{AZURE_ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def _create(self, name: str) -> None:
        self.request("PUT", f"{name}?restype=container")

    def upload(self, bucket: str, folder: Path, prefix: str = "") -> None:
        """Store every file below `folder`."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = f"{prefix}{path.relative_to(folder).as_posix()}"
                self.request("PUT", f"{bucket}/{name}", path.read_bytes())

    def request(self, method: str, target: str, body: bytes = b"") -> None:
        """One request of the Blob service, signed with the account's key."""
        import hashlib
        import hmac
        import urllib.request
        from email.utils import formatdate

        date, version, blob = formatdate(usegmt=True), "2021-08-06", "x-ms-blob-type:BlockBlob\n"
        path, _, query = target.partition("?")
        resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{path}"
        resource += "".join("\n" + part.replace("=", ":") for part in filter(None, [query]))
        headers = f"{'' if query else blob}x-ms-date:{date}\nx-ms-version:{version}\n"
        kind = "" if query else "application/octet-stream"
        length = str(len(body)) if body else ""
        text = f"{method}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{headers}{resource}"
        digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
        request = urllib.request.Request(
            f"{self.url}/{AZURE_ACCOUNT}/{target}",
            data=body,
            method=method,
            headers={
                "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}",
                "x-ms-date": date,
                "x-ms-version": version,
                "Content-Type": kind,
                **({} if query else {"x-ms-blob-type": "BlockBlob"}),
            },
        )
        with urllib.request.urlopen(request, timeout=WAIT_SECS):
            pass


class RcloneServer(StorageServer):
    """`rclone serve s3`: the folders of `folder` are buckets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [_program("rclone"), "serve", "s3", "--addr", "127.0.0.1:0"]
        command += ["--auth-key", f"{KEY},{SECRET}", "--config", "", str(folder)]
        super().__init__(command, r"127\.0\.0\.1:(\d+)")


def _program(name: str) -> str:
    """Where a program is, of the system or of this Python's environment."""
    folders = os.pathsep.join((os.environ["PATH"], sysconfig.get_path("scripts")))
    found = shutil.which(name, path=folders)
    assert found is not None, f"there is no {name}; is the test marked?"
    return found


@contextlib.contextmanager
def running_moto() -> Iterator[MotoServer]:
    """A moto that has ended after the block."""
    server = MotoServer()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_azurite() -> Iterator[AzuriteServer]:
    """An Azurite that has ended after the block."""
    server = AzuriteServer()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def running_rclone() -> Iterator[RcloneServer]:
    """An `rclone serve s3` over a temporary folder that has ended after the block."""
    with tempfile.TemporaryDirectory(prefix="shoal-rclone-") as folder:
        server = RcloneServer(Path(folder))
        try:
            yield server
        finally:
            server.stop()
