"""Print the config.pbtxt lines that allow only the current files of a model to be served.

python examples/operation/checksums.py models/digits >> models/digits/config.pbtxt
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def main(model: Path) -> None:
    print("model_repository_agents { agents { name: 'checksum'")
    for path in sorted(model.glob("*/**/*")):  # files in version folders, not the config
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            name = path.relative_to(model).as_posix()
            print(f"  parameters {{ key: 'SHA256:{name}' value: '{digest}' }}")
    print("} }")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
