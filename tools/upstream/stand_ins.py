"""What is made where an example downloads weights or a picture: tiny, random, of the same form.

Models of a hub are saved under the cache's own names, so that the example's code finds them there
and asks no server. Libraries are imported when a stand-in is made, so that --list needs none.
"""

from __future__ import annotations

import http.server
import io
import threading
from collections.abc import Callable
from pathlib import Path

from upstream.example import Place, StandIn


def hugging_face(name: str, words: str, save: Callable[[Path], None]) -> StandIn:
    """A model of the Hugging Face hub: `save` writes its files into the folder of a snapshot."""

    def make(place: Place) -> None:
        home = place.root / "hugging-face"
        cached = home / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = cached / "snapshots" / "stand-in"
        snapshot.mkdir(parents=True)
        save(snapshot)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text("stand-in", "utf-8")
        place.environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}

    return StandIn(words, make, ("transformers", "torch"))


def picture(file: str) -> StandIn:
    """A photo that the README downloads."""

    def make(place: Place) -> None:
        (place.root / file).write_bytes(_jpeg())

    return StandIn(f"a drawn {file}", make, ("PIL", "numpy"))


def web_pictures() -> StandIn:
    """Photos that a client downloads over http: a proxy answers every address with a picture."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = _jpeg()
            self.send_response(200)
            self.send_header("Content-Type", "image/jpeg")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    def make(place: Place) -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        place.closing.callback(server.server_close)
        place.closing.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = {"no_proxy": "localhost,127.0.0.1"}
        place.environment |= {"http_proxy": f"http://127.0.0.1:{server.server_port}", **here}

    return StandIn("a drawn picture for the one downloaded", make, ("PIL", "numpy"))


def _jpeg() -> bytes:
    """A picture of 640 x 480 with two colour gradients."""
    import numpy as np
    from PIL import Image

    rows, columns = np.mgrid[0:480, 0:640]
    pixels = np.stack([rows * 255 // 480, columns * 255 // 640, (rows + columns) % 256], axis=-1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "JPEG")
    return file.getvalue()
