"""`shoal serve --demo`: the model repository of the package `shoal_demo`, and commands to try.

Models with a task need the libraries of the extra `tasks`. Where those are missing, the other
models are served.
"""

from __future__ import annotations

import atexit
import functools
import shlex
import shutil
import tempfile
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from shoal.config.options import OptionError

# The image is a zero: 8 by 8, grey values from 0 to 16.
_NEXT_STEPS = """
The demo is being served. Open BROWSER_URL in a browser, or try this in another terminal:

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
# By model; shown only if that model is served.
_TASK_STEPS = {
    "photos": """
# What does a photo show? Try one of yours, too:
curl HTTP_URL/v2/models/photos/classify -F image=@CAT
""",
    "questions": """
# Answer a question about a text:
curl HTTP_URL/v2/models/questions/answer -d '{
  "text": "Herring swim in shoals of up to three billion fish. They eat plankton.",
  "question": "What do herring eat?"}'
""",
}
_METRICS_STEP = """
# Read the metrics:
curl METRICS_URL/metrics
"""


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo models that can be served here."""

    folder: Path
    skipped: dict[str, str] = field(default_factory=dict)  # by model: the reason


def repository() -> str:
    """The folder of the demo models that can be served here."""
    return str(models().folder)


def photo() -> Path:
    """A photo of a cat, to try the model `photos` with."""
    return _package() / "cat.jpg"


@functools.cache
def models() -> Demo:
    """The demo models, without those whose libraries are missing. OptionError if there are none.

    Where some are skipped, the folder holds links to the others and is removed at exit.
    """
    folder = _package() / "models"
    found = {path.name: _missing(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    skipped = {name: reason for name, reason in found.items() if reason}
    if not skipped:
        return Demo(folder)
    links = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    atexit.register(shutil.rmtree, links, ignore_errors=True)
    for name in found.keys() - skipped.keys():
        (links / name).symlink_to(folder / name)
    return Demo(links, skipped)


def _package() -> Path:
    """The folder of the package with the models; OptionError where it is not installed."""
    try:
        return Path(str(files("shoal_demo")))
    except ModuleNotFoundError:
        raise OptionError(
            "the demo models are not installed: pip install 'shoal[demo]'"
            " (in a clone: pip install --editable demo)"
        ) from None


def _missing(folder: Path) -> str:
    """Why the task of a model cannot be served here; empty if it can, or if it has none."""
    from shoal.config.pbtxt import parse_pbtxt
    from shoal.errors import ConfigError
    from shoal.tasks import registry
    from shoal.tasks.endpoint import task_of

    path = folder / "config.pbtxt"
    task = task_of(parse_pbtxt(path.read_text(encoding="utf-8"), str(path)))
    try:
        if task:
            registry.get(task)
    except ConfigError as error:
        return error.message.removeprefix(f"{error.file}: {error.field}: ")
    return ""


def next_steps(
    http: tuple[str, int], metrics: tuple[str, int] | None, *, encrypted: bool = False
) -> str:
    """Commands to paste while the demo is served at these addresses and ports."""
    scheme = "https://" if encrypted else ""  # curl takes http:// for granted
    demo = models()
    steps = [step for name, step in _TASK_STEPS.items() if (demo.folder / name).is_dir()]
    text = (_NEXT_STEPS + "".join(steps)).replace(
        "BROWSER_URL", f"{scheme or 'http://'}{_url(*http)}"
    )
    text = text.replace("HTTP_URL", scheme + _url(*http))
    text = text.replace("@CAT", f"@{shlex.quote(str(photo()))}")
    if metrics is not None:
        text += _METRICS_STEP.replace("METRICS_URL", scheme + _url(*metrics))
    return f"{text}\nCtrl-C stops the server.\n"


def _url(address: str, port: int) -> str:
    """How a client on this machine reaches a listener."""
    if address in {"", "0.0.0.0", "::"}:
        address = "localhost"
    return f"{f'[{address}]' if ':' in address else address}:{port}"
