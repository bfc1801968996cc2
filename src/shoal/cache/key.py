"""The key of a cached response: equal for requests that have the same response.

    model (which load, or which files), version   ┐
    requested outputs, in order                   ├─ blake2b ─▶ 32 bytes
    parameters, with their types                  │
    each input: name, datatype, shape, bytes      ┘

It contains everything that can change the response and nothing else: not the request's id, not its
priority or time-out, nor how its tensors were sent. Two different requests share a key only if two
random numbers of 256 bits are equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.config import codec
from shoal.config.model import ModelConfig
from shoal.core.request import Request

KEY_BYTES = 32
_READ_BYTES = 1 << 20


def request_key(model: bytes, request: Request) -> bytes:
    """The key of a valid request; `model` is the identity of the model."""
    inputs = request.inputs
    names = list(inputs) if len(inputs) == 1 else sorted(inputs)
    tensors = [inputs[name] for name in names]
    parameters = request.parameters
    # The repr of a tuple of strings and numbers is unique, types included; with the sizes in it,
    # bytes cannot move from one tensor to the next.
    described = repr(
        (
            request.requested_outputs,
            sorted(parameters.items()) if parameters else (),
            [(t.name, t.datatype.name, t.shape, t.nbytes) for t in tensors],
        )
    ).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(model, digest_size=KEY_BYTES)
    digest.update(b"%d:" % len(described))
    digest.update(described)
    for tensor in tensors:
        digest.update(tensor.raw)
    return digest.digest()


def input_bytes(request: Request) -> int:
    """How many bytes there are to hash, except for strings that are not encoded yet."""
    return sum(
        [
            tensor.nbytes if tensor.has_raw else tensor.element_count * tensor.datatype.itemsize
            for tensor in request.inputs.values()
        ]
    )


def new_identity() -> bytes:
    """The identity of one load of a model: entries of earlier loads are never found."""
    return secrets.token_bytes(KEY_BYTES)


def content_identity(
    version: int, config: ModelConfig, folder: Path, version_folder: Path | None
) -> bytes:
    """The identity of a model on any server: its config and all bytes of its files.

    Instance groups are left out: they do not change responses. An ensemble has no version folder.
    If the version folder is not a folder (a function as a model), or a file cannot be read, the
    identity is a random one, so that nothing wrong is shared.
    """
    if version_folder is not None and not version_folder.is_dir():
        return new_identity()
    plain = codec.to_dict(config)
    plain.pop("instance_group", None)
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    text = json.dumps([config.name, version, plain], sort_keys=True, default=repr)
    digest.update(text.encode("utf-8", "surrogatepass"))
    try:
        for relative, path in _files(folder, version_folder) if version_folder else ():
            digest.update(repr((relative, path.stat().st_size)).encode("utf-8", "surrogatepass"))
            with path.open("rb") as file:
                while block := file.read(_READ_BYTES):
                    digest.update(block)
    except OSError:
        return new_identity()
    return digest.digest()


def combined_identity(own: bytes, others: Sequence[bytes]) -> bytes:
    """The identity of a model that runs other models, as they are now."""
    digest = hashlib.blake2b(own, digest_size=KEY_BYTES)
    for other in others:
        digest.update(b"%d:" % len(other))
        digest.update(other)
    return digest.digest()


def _files(folder: Path, version_folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a version, in the same order on every machine."""
    beside = [path for path in sorted(folder.glob("*")) if path.is_file()]
    for path in beside:
        if path.suffix != ".pbtxt":  # the parsed config is used instead
            yield path.name, path
    for root, folders, files in os.walk(version_folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = Path(root, name)
            yield f"{version_folder.name}/{path.relative_to(version_folder).as_posix()}", path
