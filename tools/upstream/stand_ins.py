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

_LIBRARIES = Path(__file__).resolve().parent / "libraries"


def hugging_face(name: str, words: str, save: Callable[[Path], None]) -> StandIn:
    """A model of the Hugging Face hub: `save` writes its files into the folder of a snapshot."""

    def make(place: Place) -> None:
        home = place.root / "hugging-face"
        cached = home / "hub" / f"models--{name.replace('/', '--')}"
        commit = "0" * 40
        snapshot = cached / "snapshots" / commit
        snapshot.mkdir(parents=True)
        save(snapshot)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(commit, "utf-8")
        place.environment.update(HF_HOME=str(home), HF_HUB_OFFLINE="1")

    return StandIn(words, make, ("transformers", "torch"))


def library(folder: str, words: str) -> StandIn:
    """A Python library: a module of its name in libraries/, which is found before any other."""

    def make(place: Place) -> None:
        place.environment["PYTHONPATH"] = str(_LIBRARIES / folder)

    return StandIn(words, make)


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
        place.environment["http_proxy"] = f"http://127.0.0.1:{server.server_port}"
        place.environment["no_proxy"] = "localhost,127.0.0.1"

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


def torchvision_weights(model: str, weights: str) -> StandIn:
    """Pretrained weights of torchvision: random ones, in the folder where downloads are kept."""

    def make(place: Place) -> None:
        import torch
        from torchvision import models

        network = getattr(models, model)()
        file = Path(models.get_model_weights(model)[weights].url).name
        checkpoints = _torch_home(place) / "hub" / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), checkpoints / file)

    return StandIn(f"random weights of {model}", make, ("torch", "torchvision"))


_HUBCONF = '''
"""Preparing a picture, as the repository of this name does it."""


class Utilities:
    def prepare_input_from_uri(self, uri):
        import torch

        return torch.rand(1, 3, 224, 224)


def nvidia_convnets_processing_utils(**options):
    return Utilities()
'''


def nvidia_torch_hub() -> StandIn:
    """NVIDIA's repository on torch.hub, which downloads a picture and prepares it."""

    def make(place: Place) -> None:
        hub = _torch_home(place) / "hub"
        repository = hub / "NVIDIA_DeepLearningExamples_torchhub"
        repository.mkdir(parents=True)
        (repository / "hubconf.py").write_text(_HUBCONF, "utf-8")
        (hub / "trusted_list").write_text("NVIDIA_DeepLearningExamples\n", "utf-8")

    return StandIn("random pixels for the picture from torch.hub", make, ("torch",))


def _torch_home(place: Place) -> Path:
    home = place.root / "torch"
    place.environment["TORCH_HOME"] = str(home)
    return home


def traced_network(model: str, file: str) -> StandIn:
    """A network of torchvision with random weights as TorchScript."""

    def make(place: Place) -> None:
        import torch
        from torchvision import models

        network = getattr(models, model)().eval()
        traced = torch.jit.trace(network, torch.rand(1, 3, 224, 224))
        (place.root / file).parent.mkdir(parents=True, exist_ok=True)
        torch.jit.save(traced, place.root / file)

    return StandIn(f"a traced {model} with random weights", make, ("torch", "torchvision"))
