"""What makes two requests the same: the key that their answer is kept under.

    model (which load, or which files), version   ┐
    outputs asked for, in order                   ├─ blake2b ─▶ 32 bytes
    parameters, with their types                  │
    each input: name, datatype, shape, bytes      ┘

All that can change the answer is in it and nothing else is: not the request's id, not its priority
or timeout, nor how its tensors travelled. Two different requests with one key are as likely as two
random numbers of 256 bits that are equal.
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
    """The key of a request that passed validation; `model` stands for what would answer it."""
    inputs = request.inputs
    names = list(inputs) if len(inputs) == 1 else sorted(inputs)
    tensors = [inputs[name] for name in names]
    parameters = request.parameters
    # The text of a tuple of texts and numbers tells it apart from every other, types included, and
    # with the sizes in it nothing can move from one tensor's bytes to the next one's.
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
    """How many bytes there are to hash, but for texts that are not bytes yet."""
    return sum(
        [
            tensor.nbytes if tensor.has_raw else tensor.element_count * tensor.datatype.itemsize
            for tensor in request.inputs.values()
        ]
    )


def new_identity() -> bytes:
    """What stands for one load of a model: nothing kept for an earlier load is found again."""
    return secrets.token_bytes(KEY_BYTES)


def content_identity(
    version: int, config: ModelConfig, folder: Path, version_folder: Path | None
) -> bytes:
    """What stands for a model wherever it is loaded: its config and all bytes of its files.

    Instance groups are left out: they change who computes an answer, not the answer. An ensemble
    has no version folder. One that is no folder (a model that is a function of some program), or a
    file that cannot be read, makes the identity one of its own, so that nothing wrong is shared.
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
    """What stands for a model that is made of others, as they are now."""
    digest = hashlib.blake2b(own, digest_size=KEY_BYTES)
    for other in others:
        digest.update(b"%d:" % len(other))
        digest.update(other)
    return digest.digest()


def _files(folder: Path, version_folder: Path) -> Iterator[tuple[str, Path]]:
    """The files a version is made of, in an order that is the same everywhere."""
    beside = [path for path in sorted(folder.glob("*")) if path.is_file()]
    for path in beside:
        if path.suffix != ".pbtxt":  # the config is taken as it was understood
            yield path.name, path
    for root, folders, files in os.walk(version_folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            path = Path(root, name)
            yield f"{version_folder.name}/{path.relative_to(version_folder).as_posix()}", path
