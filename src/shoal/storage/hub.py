"""A repository of models on Hugging Face's hub: `hf://organisation/name[@revision][/folder]`.

    one call of the hub's API --> the commit and its files --> range requests for that commit

`huggingface_hub` has the endpoint (HF_ENDPOINT), the token (HF_TOKEN, `hf auth login`) and the
offline mode (HF_HUB_OFFLINE), in which its own cache is what there is. Files in its cache are not
downloaded again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from shoal.errors import InvalidArgument, Unsupported
from shoal.storage import contents
from shoal.storage.address import Address, redacted
from shoal.storage.errors import (
    ContentRefused,
    ObjectMissing,
    StorageBusy,
    StorageError,
    StorageRefused,
    StorageUnreachable,
)
from shoal.storage.source import RemoteFile, Source, Workspace

_TIMEOUT_SECS = 30.0
_REVISION = re.compile(r"(refs/(?:pr|convert)/[^/]+|[^/]+)(?:/(.*))?", re.DOTALL)


class HubPath(NamedTuple):
    """The parts of an address."""

    repository: str  # "organisation/name"
    revision: str  # a branch, tag or commit; empty: the main branch
    inside: str  # a folder or a model file in it; empty: all


class _HubFile(NamedTuple):
    path: str
    size: int
    identity: str
    sha256: str  # of large files only


class HubSource(Source):
    """One revision of a repository."""

    def __init__(self, address: Address) -> None:
        try:
            import huggingface_hub
            import huggingface_hub.constants
            import huggingface_hub.errors
            import huggingface_hub.utils
        except ImportError:
            raise Unsupported(
                f"'{address}' needs the package huggingface_hub: pip install 'shoal[cloud]'"
            ) from None
        self.address = address
        self._hub: Any = huggingface_hub
        self._at = parse_path(address)
        try:
            self._hub.utils.validate_repo_id(self._at.repository)
        except ValueError as error:
            raise InvalidArgument(f"'{address}' is no address on the hub: {error}") from None
        self._endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
        # Of the last listing: commit and path on the hub.
        self._places: Mapping[RemoteFile, tuple[str, str]] = {}

    @property
    def scope(self) -> str:
        """Identities are digests, within any repository."""
        return f"hf://{self._at.repository}"

    def list(self) -> Sequence[RemoteFile]:
        """The files of models in the newest commit of the revision."""
        commit, files = self._offline() if self._is_offline() else self._online()
        located = contents.locate(files, self._model_name(), self._at.inside)
        if not located:
            raise ContentRefused(self._why_no_models(files))
        self._places = {
            RemoteFile(path, file.size, file.identity, file.sha256 and f"sha256:{file.sha256}"): (
                commit,
                given,
            )
            for path, given in located.items()
            for file in [files[given]]
        }
        return list(self._places)

    def read(self, file: RemoteFile, start: int, end: int) -> bytes:
        """A range of a file, of the commit that was listed."""
        place = self._places.get(file)
        if place is None:
            raise ObjectMissing(f"'{file.path}' is no longer in '{self.address}' as it was listed")
        commit, path = place
        url = self._hub.hf_hub_url(
            self._at.repository, path, revision=commit, endpoint=self._endpoint
        )
        headers = {**self._hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}
        headers["Range"] = f"bytes={start}-{end - 1}"
        with self._errors():
            response = self._hub.utils.get_session().get(
                url, headers=headers, timeout=_TIMEOUT_SECS, follow_redirects=True
            )
            self._hub.utils.hf_raise_for_status(response)
            content: bytes = response.content
        # A small file may be sent as a whole.
        return content if response.status_code == 206 else content[start:end]

    def local(self, file: RemoteFile) -> Path | None:
        """Where the hub's own cache has a file; None if that is another user's."""
        place = self._places.get(file)
        if place is None:
            return None
        commit, path = place
        found = self._hub.try_to_load_from_cache(
            self._at.repository, path, revision=commit, cache_dir=self._cache()
        )
        if not isinstance(found, str):
            return None
        target = Path(found).resolve()
        status = target.stat()
        mine = status.st_uid == os.getuid()  # the repository cache makes it read-only
        return target if mine and status.st_size == file.size else None

    # ---- listing

    def _online(self) -> tuple[str, dict[str, _HubFile]]:
        with self._errors():
            about = self._hub.HfApi(endpoint=self._endpoint).model_info(
                self._at.repository,
                revision=self._at.revision or None,
                files_metadata=True,
                timeout=_TIMEOUT_SECS,
            )
        files: dict[str, _HubFile] = {}
        for sibling in about.siblings or ():
            digest = sibling.lfs.sha256 if sibling.lfs is not None else ""
            files[sibling.rfilename] = _HubFile(
                sibling.rfilename, sibling.size or 0, digest or sibling.blob_id or "", digest
            )
        return about.sha or "", files

    def _is_offline(self) -> bool:
        return bool(self._hub.constants.HF_HUB_OFFLINE)

    def _offline(self) -> tuple[str, dict[str, _HubFile]]:
        """As the hub's own cache has it, from an earlier download."""
        try:
            folder = Path(
                self._hub.snapshot_download(
                    self._at.repository,
                    revision=self._at.revision or None,
                    cache_dir=self._cache(),
                    local_files_only=True,
                )
            )
        except Exception as error:
            raise _OfflineMode(
                f"'{self.address}' cannot be read: HF_HUB_OFFLINE is set, and the hub's cache "
                f"has no download of it"
            ) from error
        files: dict[str, _HubFile] = {}
        for path in folder.rglob("*"):
            if path.is_file():
                identity = path.resolve().name  # the cache names files by ETag: a digest
                name = path.relative_to(folder).as_posix()
                digest = identity if len(identity) == 64 else ""
                files[name] = _HubFile(name, path.stat().st_size, identity, digest)
        return folder.name, files

    def _cache(self) -> str:
        return str(self._hub.constants.HF_HUB_CACHE)

    def _model_name(self) -> str:
        """For a model that has no folder with a name."""
        last = self._at.inside.rpartition("/")[2]
        stem = last.rpartition(".")[0] or last
        return stem if stem not in ("", "model") else self._at.repository.rpartition("/")[2]

    def _why_no_models(self, files: Collection[str]) -> str:
        repository, name = self._at.repository, self._at.repository.rpartition("/")[2]
        several = contents.model_files(files)
        if several:
            return (
                f"'{self.address}' has several model files ({', '.join(several[:4])}...) and no "
                f"folder of a model; name one: hf://{repository}/{several[0]}"
            )
        weights = contents.checkpoint_files(files)
        if not weights:
            return (
                f"'{self.address}' contains no models: it needs folders as in resnet/1/model.onnx, "
                "the files of one model (config.pbtxt, 1/model.onnx), or model.onnx"
            )
        return (
            f"'{self.address}' contains a checkpoint ({weights[0]}) and no model that can be "
            f"served as it is; download it with 'hf download {repository} --local-dir {name}' and "
            f"run 'shoal export {name} models/{name}', or 'shoal serve {name}' to try it"
        )

    # ---- errors

    @contextlib.contextmanager
    def _errors(self) -> Any:
        """Errors of the hub and of the connection become StorageErrors."""
        errors = self._hub.errors
        try:
            yield
        except errors.GatedRepoError:
            raise StorageRefused(
                f"'{self.address}' is gated: accept its terms on the hub and set HF_TOKEN to a "
                "token of that account"
            ) from None
        except errors.RepositoryNotFoundError:
            raise ObjectMissing(
                f"there is no repository '{self._at.repository}' on the hub, or it is private: "
                "then set HF_TOKEN or run 'hf auth login'"
            ) from None
        except errors.RevisionNotFoundError:
            raise ObjectMissing(
                f"'{self._at.repository}' has no revision '{self._at.revision or 'main'}'"
            ) from None
        except errors.OfflineModeIsEnabled:
            raise _OfflineMode(f"'{self.address}' cannot be read: HF_HUB_OFFLINE is set") from None
        except errors.HfHubHTTPError as error:
            response = getattr(error, "response", None)
            status = 0 if response is None else response.status_code
            raise self._by_status(status, "" if response is None else response.headers) from None
        except Exception as error:  # noqa: BLE001 - of whichever HTTP library it uses
            text = redacted(str(error)) or type(error).__name__
            raise StorageUnreachable(f"'{self.address}' cannot be read: {text}") from None

    def _by_status(self, status: int, headers: Any) -> StorageError:
        if status in (401, 403):
            return StorageRefused(
                f"'{self.address}' cannot be read: the hub refuses access ({status}); set HF_TOKEN "
                "to a token that may read it"
            )
        if status == 404:
            return ObjectMissing(f"a file of '{self.address}' does not exist any more")
        if status in (429, 503):
            wait = (headers and headers.get("Retry-After")) or ""
            return StorageBusy(
                f"'{self.address}' cannot be read: the hub is busy ({status})",
                int(wait) if wait.isdecimal() else 0,
            )
        return StorageUnreachable(f"'{self.address}' cannot be read: the hub answered {status}")


class _OfflineMode(StorageUnreachable):
    """The hub must not be asked: a retry does not help."""

    retryable = False


def parse_path(address: Address) -> HubPath:
    """The parts of an address. Raises InvalidArgument if some are missing."""
    organisation, _, rest = address.rest.partition("/")
    name, mark, after = rest.partition("@")
    if mark and "/" not in name:
        match = _REVISION.fullmatch(after)
        revision, inside = (unquote(match[1]), match[2] or "") if match else ("", "")
    else:  # an "@" further on belongs to the path of a file
        name, _, inside = rest.partition("/")
        revision = ""
    if (
        not organisation
        or not name
        or (mark and "/" not in rest.partition("@")[0] and not revision)
    ):
        raise InvalidArgument(
            f"'{address}' is no address on the hub; write hf://organisation/name, "
            "hf://organisation/name@revision or hf://organisation/name/folder"
        )
    return HubPath(f"{organisation}/{name}", revision, inside)


def open_source(address: Address, workspace: Workspace) -> Source:
    """The source of a repository on the hub."""
    del workspace
    return HubSource(address)
