"""All targets by name. A target takes any bytes and raises only if it has found a bug."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz import config_targets, grpc_targets, http_targets, json_targets

Target = Callable[[bytes], None]

CORPUS = Path(__file__).parent / "corpus"
TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        http_targets.http_head,
        http_targets.http_requests,
        http_targets.multipart_form,
        http_targets.compressed_body,
        json_targets.json_text,
        json_targets.infer_body,
        json_targets.generate_body,
        json_targets.function_fields,
        json_targets.json_objects,
        json_targets.bytes_elements,
        grpc_targets.grpc_frames,
        grpc_targets.header_blocks,
        grpc_targets.infer_message,
        grpc_targets.compressed_message,
        config_targets.pbtxt,
    )
}


def seeds(name: str) -> Iterator[bytes]:
    """The files of a target's corpus, in a fixed order."""
    for file in sorted((CORPUS / name).iterdir()):
        yield file.read_bytes()


def mutations(seed: bytes, count: int) -> Iterator[bytes]:
    """Changed copies of a seed, the same ones every time."""
    source = random.Random(seed)
    for _ in range(count):
        changed = bytearray(seed)
        for _ in range(source.randint(1, 4)):
            place = source.randint(0, len(changed))
            match source.randrange(5):
                case 0 if changed:
                    changed[place % len(changed)] = source.randrange(256)
                case 1:
                    changed[place:place] = source.randbytes(source.randint(1, 8))
                case 2:
                    del changed[place : place + source.randint(1, 16)]
                case 3:
                    changed[place:place] = changed[place : place + source.randint(1, 64)]
                case _ if changed:
                    changed[place % len(changed)] ^= 1 << source.randrange(8)
        yield bytes(changed)
