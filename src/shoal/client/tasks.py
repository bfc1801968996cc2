"""The operations of tasks, on photos and texts. They need HTTP.

    client.classify("cat.jpg")[0][0].name             "tiger cat"
    client.answer(text, "Who was it?")["answer"]
    client.caption("cat.jpg")[0]
    client.embed(["one text", "another"])             a numpy array with a row for each

Without `model` the server uses the only loaded model for the operation. A photo is a path or bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shoal.client.codec import Headers
from shoal.client.errors import InvalidInput, ProtocolError
from shoal.client.http_codec import HttpCodec
from shoal.client.result import Label
from shoal.client.steps import ClientSession, Steps, Version, send_with_retries
from shoal.core.tensor import Buffer

Photo: TypeAlias = str | Path | Buffer


def perform(
    session: ClientSession,
    operation: str,
    values: Mapping[str, Any] | None = None,
    *,
    photos: Sequence[Photo] = (),
    model: str = "",
    version: Version = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """Run a task by the name of its operation: `perform("answer", {"text": …})`.

    Returns the JSON object of the response. Raises InvalidInput for a photo that cannot be read
    and over gRPC, otherwise as `infer` does.
    """
    options = session.options(timeout, headers)
    if not isinstance(session.codec, HttpCodec):
        raise InvalidInput(
            f"{operation} needs HTTP: use a client of the server's HTTP port, as in "
            "Client('localhost:8000')"
        )
    given = {name: value for name, value in (values or {}).items() if value is not None}
    form = _form(photos, given) if photos else None
    call = session.codec.perform(operation, model, str(version), given, form, options)
    return (yield from send_with_retries(session, call, options))


def classify(
    session: ClientSession,
    *photos: Photo,
    top: int | None = None,
    model: str = "",
    version: Version = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[list[list[Label]]]:
    """The best labels of each photo, the best one first. Raises as `perform` does."""
    document = yield from perform(
        session,
        "classify",
        {"top": top},
        photos=_some(photos),
        model=model,
        version=version,
        timeout=timeout,
        headers=headers,
    )
    return [
        [Label(label["score"], label["index"], label["label"]) for label in image["labels"]]
        for image in _member(document, "images")
    ]


def caption(
    session: ClientSession,
    *photos: Photo,
    options: Mapping[str, Any] | None = None,
    model: str = "",
    version: Version = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[list[str]]:
    """A caption for each photo; `options` are max_tokens, num_beams and others.

    Raises as `perform` does.
    """
    document = yield from perform(
        session,
        "caption",
        options,
        photos=_some(photos),
        model=model,
        version=version,
        timeout=timeout,
        headers=headers,
    )
    return [str(each["caption"]) for each in _member(document, "captions")]


def answer(
    session: ClientSession,
    text: str,
    question: str,
    *,
    model: str = "",
    version: Version = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[dict[str, Any]]:
    """The `answer` in `text`, its `score`, and its position in the text, `start` and `end`.

    Raises as `perform` does.
    """
    values = {"text": text, "question": question}
    return (
        yield from perform(
            session,
            "answer",
            values,
            model=model,
            version=version,
            timeout=timeout,
            headers=headers,
        )
    )


def embed(
    session: ClientSession,
    texts: Sequence[str],
    *,
    model: str = "",
    version: Version = "",
    timeout: float | None = None,
    headers: Headers | None = None,
) -> Steps[np.ndarray]:
    """A vector for each text, as rows. Raises as `perform` does."""
    values = {"texts": [texts] if isinstance(texts, str) else list(texts)}
    document = yield from perform(
        session, "embed", values, model=model, version=version, timeout=timeout, headers=headers
    )
    return np.asarray(_member(document, "embeddings"), np.float32)


def _some(photos: Sequence[Photo]) -> Sequence[Photo]:
    if not photos:
        raise InvalidInput("no photo was given: pass at least one path, or the bytes of a file")
    return photos


def _member(document: Mapping[str, Any], name: str) -> Any:
    try:
        return document[name]
    except KeyError:
        raise ProtocolError(f"the response has no '{name}'") from None


def _form(photos: Sequence[Photo], values: Mapping[str, Any]) -> tuple[str, bytes]:
    """The content type and body of a form with the photos and the values."""
    boundary = secrets.token_hex(16)
    parts: list[bytes] = []
    for name, value in values.items():
        parts += [_head(boundary, f'name="{name}"'), str(value).encode(), b"\r\n"]
    for photo in photos:
        file_name, content = _read(photo)
        parts += [_head(boundary, f'name="image"; filename="{file_name}"'), content, b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", b"".join(parts)


def _head(boundary: str, disposition: str) -> bytes:
    return f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode()


def _read(photo: Photo) -> tuple[str, bytes]:
    if not isinstance(photo, str | Path):
        return "photo", bytes(photo)
    path = Path(photo)
    try:
        # Replace characters that would end the name.
        return path.name.replace('"', "'").replace("\r", " ").replace("\n", " "), path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"the photo '{photo}' cannot be read: {error.strerror}") from None
