"""Compile the .proto files beside this module into schema.binpb.

    python -m shoal.wire.proto.build

Only developers who change the schema run this; it needs `grpcio-tools`. The result is checked in,
so that users need no compiler, and a test compiles it again and compares.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from shoal.wire.proto.schema import BINARY
from shoal.wire.proto.sources import SOURCES


def compile_schema() -> FileDescriptorSet:
    """What the .proto files say now. RuntimeError when they do not compile (protoc says why)."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    folder = BINARY.parent
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, BINARY.name)
        arguments = ["protoc", f"--proto_path={folder}", f"--descriptor_set_out={target}"]
        if protoc.main([*arguments, *SOURCES]) != 0:
            raise RuntimeError(f"protoc could not compile the schema in {folder}")
        return FileDescriptorSet.FromString(target.read_bytes())


def main() -> None:
    """Write schema.binpb anew."""
    BINARY.write_bytes(compile_schema().SerializeToString(deterministic=True))
    sys.stdout.write(f"wrote {BINARY} ({BINARY.stat().st_size} bytes)\n")


if __name__ == "__main__":
    main()
