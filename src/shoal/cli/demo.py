"""`shoal serve --demo`: the repository that comes with the package, and what to try on it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from shoal.config.options import OptionError

# The picture is a nought: 8 by 8, grey values from 0 to 16.
_NEXT_STEPS = """
The demo is being served. Try this in another terminal:

# Is it ready, and what does it serve?
curl -i HTTP_URL/v2/health/ready
curl -X POST HTTP_URL/v2/repository/index

# Add and subtract two rows of 16 numbers:
curl HTTP_URL/v2/models/add_sub/infer -d '{"inputs": [
  {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16],
   "data": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]},
  {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16],
   "data": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}]}'

# Which digit is this? The two best guesses, with labels:
curl HTTP_URL/v2/models/digits/infer -d '{"inputs": [
  {"name": "image", "datatype": "FP32", "shape": [1, 64], "data": [
    0, 0, 5,14,13, 4, 0, 0,
    0, 1,15,10, 9,15, 1, 0,
    0, 5,14, 0, 0,12, 6, 0,
    0, 8, 9, 0, 0, 7, 8, 0,
    0, 8, 8, 0, 0, 7, 8, 0,
    0, 6,11, 0, 0,11, 6, 0,
    0, 1,15, 6, 8,14, 1, 0,
    0, 0, 5,14,13, 3, 0, 0]}],
  "outputs": [{"name": "probabilities", "parameters": {"classification": 2}}]}'

# Turn a text into capital letters:
curl HTTP_URL/v2/models/upper/infer -d '{"inputs": [
  {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["a shoal of fish"]}]}'
"""
_METRICS_STEP = """
# See what has been counted:
curl METRICS_URL/metrics
"""


def repository() -> str:
    """The folder of the demo models."""
    folder = Path(str(files("shoal") / "demo" / "models"))
    if not folder.is_dir():
        raise OptionError(f"the demo models are missing from this installation ({folder})")
    return str(folder)


def next_steps(http: tuple[str, int], metrics: tuple[str, int] | None) -> str:
    """Commands to paste while the demo is served at these addresses and ports."""
    text = _NEXT_STEPS.replace("HTTP_URL", _url(*http))
    if metrics is not None:
        text += _METRICS_STEP.replace("METRICS_URL", _url(*metrics))
    return f"{text}\nCtrl-C stops the server.\n"


def _url(address: str, port: int) -> str:
    """How a client on this machine reaches a listener."""
    if address in {"", "0.0.0.0", "::"}:
        address = "localhost"
    return f"{f'[{address}]' if ':' in address else address}:{port}"
