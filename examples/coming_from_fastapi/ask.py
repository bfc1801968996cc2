"""Send an image to `shoal serve app.py`: with any HTTP client, then with `shoal.client`.

pip install requests
python ask.py [localhost:8000]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import requests

from shoal.client import Client

IMAGE = json.loads((Path(__file__).parent / "one.json").read_text(encoding="utf-8"))["image"]


def main(address: str) -> None:
    # The same as for FastAPI.
    answer = requests.post(f"http://{address}/classify", json={"image": IMAGE}, timeout=60)
    answer.raise_for_status()
    digit = answer.json()
    print(digit["label"], round(digit["probability"], 3))

    # Arrays are sent as bytes, and 32 images are one request.
    with Client(address) as client:
        result = client.infer("classify", {"image": [IMAGE] * 32})
    print(result["label"].shape, result["label"][0, 0].decode())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")
