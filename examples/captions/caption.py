"""Send a photo to a captioning model and print the words as they arrive.

    python examples/captions/make_checkpoint.py checkpoint        # or a real one
    shoal export blip checkpoint captioning/captions
    shoal serve captioning
    python examples/captions/caption.py [ADDRESS] [FILE]

It needs requests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import requests

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "localhost:8000"
CAT = Path(__file__).resolve().parents[2] / "demo" / "shoal_demo" / "cat.jpg"
FILE = Path(sys.argv[2]) if len(sys.argv) > 2 else CAT

with requests.post(
    f"http://{ADDRESS}/v2/models/captions/caption",
    params={"stream": "true", "max_tokens": 20},
    files={"image": (FILE.name, FILE.read_bytes())},
    stream=True,
    timeout=60,
) as answer:
    if not answer.ok:
        sys.exit(answer.json()["error"])
    for line in answer.iter_lines(chunk_size=1):
        if not line:
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "text" in event:
            print(event["text"], end="", flush=True)
        elif "error" in event:
            sys.exit(event["error"])
        else:
            print(f"\n{event['file']}: {event['tokens']} tokens")
