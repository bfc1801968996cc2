"""Send photos to the demo's classifier and print the best labels.

python photos.py [ADDRESS] [FILE ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import requests

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "localhost:8000"
CAT = Path(__file__).resolve().parents[1] / "demo" / "shoal_demo" / "cat.jpg"
FILES = [Path(name) for name in sys.argv[2:]] or [CAT, CAT]

answer = requests.post(
    f"http://{ADDRESS}/v2/models/photos/classify",
    params={"top": 3},
    files=[("image", (path.name, path.read_bytes())) for path in FILES],
    timeout=30,
)
if not answer.ok:
    sys.exit(answer.json()["error"])
for image in answer.json()["images"]:
    labels = (f"{label['label']} {label['score']:.0%}" for label in image["labels"])
    print(f"{image['file']}: {', '.join(labels)}")
