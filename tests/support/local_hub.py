"""A hub of models as Hugging Face runs it, as far as `huggingface_hub` needs it to read.

with running_hub() as hub:
    hub.commit("org/digits", {"1/model.onnx": b"..."})      a new commit of the branch main
    os.environ["HF_ENDPOINT"] = hub.url

Files of `LFS_BYTES` and more are in large-file storage: the hub redirects to another path for
them, as the real one does to another host. A private repository needs `TOKEN`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LFS_BYTES = 1000
TOKEN = "hf_test_token_51c8"
_INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_LARGE = re.compile(r"/large/([0-9a-f]{64})")


class LocalHub:
    """The repositories, and a server of them on a free port."""

    def __init__(self) -> None:
        self._commits: dict[str, dict[str, dict[str, bytes]]] = {}  # repository, commit, path
        self._branches: dict[tuple[str, str], str] = {}
        self._large: dict[str, bytes] = {}
        self._private: set[str] = set()
        self.requests: Counter[str] = Counter()  # by kind: info, file, large
        self.statuses: list[int] = []  # responses for the next requests, in place of theirs
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def commit(
        self, name: str, files: Mapping[str, bytes], branch: str = "main", *, private: bool = False
    ) -> str:
        """Make `files` the whole content of a branch; returns the commit."""
        text = json.dumps({path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)})
        commit = hashlib.sha1(f"{name} {text}".encode()).hexdigest()
        self._commits.setdefault(name, {})[commit] = dict(files)
        self._branches[name, branch] = commit
        self._large.update(
            {hashlib.sha256(content).hexdigest(): content for content in files.values()}
        )
        (self._private.add if private else self._private.discard)(name)
        return commit

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ---- for the handler

    def visible(self, name: str, authorization: str | None) -> bool:
        """Whether this caller may know of a repository."""
        return name in self._commits and (
            name not in self._private or authorization == f"Bearer {TOKEN}"
        )

    def resolve(self, name: str, revision: str) -> str | None:
        """The commit of a branch or of its own name."""
        known = self._commits[name]
        return revision if revision in known else self._branches.get((name, revision))

    def files(self, name: str, commit: str) -> Mapping[str, bytes]:
        """The files of a commit."""
        return self._commits[name][commit]

    def large(self, digest: str) -> bytes | None:
        """A file of the large-file storage."""
        return self._large.get(digest)

    def info(self, name: str, commit: str) -> dict[str, object]:
        """What the hub's API says of a repository, with its files."""
        siblings = []
        for path, content in self.files(name, commit).items():
            row: dict[str, object] = {"rfilename": path, "size": len(content)}
            row["blobId"] = _blob_id(content)
            if len(content) >= LFS_BYTES:
                digest = hashlib.sha256(content).hexdigest()
                row["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            siblings.append(row)
        return {
            "_id": commit[:24],
            "id": name,
            "modelId": name,
            "sha": commit,
            "private": name in self._private,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": siblings,
        }

    def tree(self, name: str, commit: str) -> list[dict[str, object]]:
        """The files of a commit as the hub's other call lists them."""
        rows = []
        for path, content in self.files(name, commit).items():
            row: dict[str, object] = {"type": "file", "path": path, "size": len(content)}
            row["oid"] = _blob_id(content)
            if len(content) >= LFS_BYTES:
                digest = hashlib.sha256(content).hexdigest()
                row["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            rows.append(row)
        return rows


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.hub.statuses:
            self._send(self.hub.statuses.pop(0), {"Retry-After": "0"})
        elif found := _LARGE.fullmatch(path):
            self.hub.requests["large"] += 1
            content = self.hub.large(found[1])
            if content is None or self.headers["Authorization"]:  # that host must not see a token
                self._send(403, {})
            else:
                self._content(content, {"ETag": f'"{found[1]}"'})
        elif found := _INFO.fullmatch(path) or _TREE.fullmatch(path) or _FILE.fullmatch(path):
            self._repository(found)
        else:
            self._send(404, {})

    def _repository(self, found: re.Match[str]) -> None:
        name, revision, *rest = found.groups()
        if not self.hub.visible(name, self.headers["Authorization"]):
            self._send(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"})
            return
        commit = self.hub.resolve(name, revision or "main")
        if commit is None:
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
        elif not rest:
            self.hub.requests["info"] += 1
            tree = found.re is _TREE
            about = self.hub.tree(name, commit) if tree else self.hub.info(name, commit)
            body = json.dumps(about).encode()
            self._content(body, {"Content-Type": "application/json"})
        elif rest[0] not in self.hub.files(name, commit):
            self._send(404, {"X-Error-Code": "EntryNotFound"})
        else:
            self.hub.requests["file"] += 1
            content = self.hub.files(name, commit)[rest[0]]
            headers = {"X-Repo-Commit": commit}
            if len(content) < LFS_BYTES:
                self._content(content, {**headers, "ETag": f'"{_blob_id(content)}"'})
                return
            digest = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            # Another name of the same machine is another host, which gets no token.
            port = self.server.server_address[1]
            self._send(302, {**headers, "Location": f"http://localhost:{port}/large/{digest}"})

    def _content(self, content: bytes, headers: Mapping[str, str]) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if asked is None:
            self._send(200, {**headers, "Accept-Ranges": "bytes"}, content)
            return
        start = int(asked[1])
        end = min(int(asked[2] or len(content)) + 1, len(content))
        if start >= len(content):
            self._send(416, {"Content-Range": f"bytes */{len(content)}"})
            return
        there = f"bytes {start}-{end - 1}/{len(content)}"
        self._send(206, {**headers, "Content-Range": there}, content[start:end])

    def _send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextlib.contextmanager
def running_hub() -> Iterator[LocalHub]:
    """A hub that has ended after the block."""
    hub = LocalHub()
    try:
        yield hub
    finally:
        hub.stop()
