"""`shoal image`: classifies images with a model of a server."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from shoal.cli.parser import (
    TLS_HELP,
    CommandParser,
    add_tls_options,
    api_key,
    help_requested,
    integer,
    tls_settings,
)
from shoal.config.options import OptionError
from shoal.errors import ShoalError

if TYPE_CHECKING:  # imported after the options are checked
    import numpy as np

    from shoal.client import Client
    from shoal.image.classifier import Classifier

HELP = """\
usage: shoal image -m MODEL [OPTION ...] IMAGE_OR_FOLDER [IMAGE_OR_FOLDER ...]

Send images to a classifier and print the class, label and probability of each, and how often each
class came first. Size, layout and datatype are read from the model's metadata and config. Works
with Shoal, Triton and every server of the KServe v2 protocol.

Examples:
  shoal image -m resnet50 -s INCEPTION mug.jpg             the most probable class
  shoal image -m resnet50 -s INCEPTION -c 3 a.jpg b.png    the three best of each
  shoal image -m resnet50 -s VGG -b 8 --async photos       a folder, eight images per request
  shoal image -m resnet50 -i grpc --streaming photos       on one gRPC stream

Options:
  -m, --model-name MODEL        the model
  -x, --model-version VERSION   its version [default: the newest]
  -b, --batch-size N            images per request; the last is filled up by repeating the
                                first images [default: 1]
  -c, --classes N               how many classes to print for each image [default: 1]
  -s, --scaling NAME            how pixels from 0 to 255 are scaled [default: NONE]
{scalings}
      --crop                    cut out the centre instead of stretching the image
      --size HEIGHTxWIDTH       the size to send, for models that take any size
      --softmax                 the model returns logits: print probabilities
  -u, --url ADDRESS             the server [default: localhost:8000, over gRPC localhost:8001]
  -i, --protocol http|grpc      the protocol [default: http]
  -a, --async                   send several requests at once
      --streaming               send all requests on one stream (gRPC only)
  -H, --header NAME:VALUE       a header to send with each request; may be repeated
      --api-key KEY             a key for the server [default: the variable SHOAL_API_KEY]
{tls}  -v, --verbose                 print the model's inputs

A folder stands for the images in it, by name. Reading images needs Pillow:
pip install 'shoal[image]'.
"""
_MOST_CLASSES = 1_000_000


def run(words: Sequence[str]) -> int:
    """Run `shoal image`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if help_requested(words):
        print(help_text(), end="")
        return 0
    options = _parse(words)

    from shoal.client import Client
    from shoal.image.pixels import check_scaling, image_files

    files = image_files(options.images)
    url = options.url or ("localhost:8001" if options.protocol == "grpc" else "localhost:8000")
    settings = {
        "protocol": options.protocol,
        "headers": dict(options.header),
        "api_key": options.api_key,
    }
    with Client(url, **settings, **tls_settings(options)) as client:
        model = _classifier(client, options)
        _check_batch(model, options.batch_size)
        check_scaling(options.scaling, model)
        if options.verbose:
            print(_described(model), file=sys.stderr)
        _classify(client, model, files, options)
    return 0


def help_text() -> str:
    """The text of `shoal image --help`."""
    from shoal.image.pixels import SCALINGS

    lines = [f"{' ' * 32}{name:<10}{kind.words}" for name, kind in SCALINGS.items()]
    return HELP.format(scalings="\n".join(lines), tls=TLS_HELP)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    from shoal.image.pixels import SCALINGS

    parser = CommandParser("shoal image")
    parser.add_argument("-m", "--model-name", required=True)
    parser.add_argument("-x", "--model-version", default="")
    parser.add_argument("-b", "--batch-size", type=integer(1), default=1)
    parser.add_argument("-c", "--classes", type=integer(1), default=1)
    parser.add_argument("-s", "--scaling", type=str.upper, choices=list(SCALINGS), default="NONE")
    parser.add_argument("--crop", action="store_true")
    parser.add_argument("--size", type=_size)
    parser.add_argument("--softmax", action="store_true")
    parser.add_argument("-u", "--url", default="")
    parser.add_argument("-i", "--protocol", type=str.lower, choices=["http", "grpc"])
    parser.add_argument("-a", "--async", dest="at_once", action="store_true")
    parser.add_argument("--streaming", action="store_true")
    parser.add_argument("-H", "--header", type=_header, action="append", default=[])
    api_key(parser)
    add_tls_options(parser)
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("images", nargs="*")
    options = parser.parse_intermixed_args(list(words))
    if options.protocol is None:
        options.protocol = "grpc" if re.match(r"(?i)grpcs?://", options.url) else "http"
    if not options.images:
        raise OptionError("name an image or a folder of images: shoal image -m MODEL mug.jpg")
    if options.streaming and options.protocol != "grpc":
        raise OptionError("--streaming needs gRPC; add -i grpc (and -u with the gRPC port)")
    if options.streaming and options.at_once:
        raise OptionError("--streaming and --async are alternatives; choose one of them")
    return options


def _classifier(client: Client, options: argparse.Namespace) -> Classifier:
    """The classifier as the server describes it; errors list the available models."""
    from shoal.client import ServerError
    from shoal.errors import NotFound
    from shoal.image.classifier import read_classifier

    name, version = options.model_name, options.model_version
    try:
        metadata = client.metadata(name, version)
    except ServerError as error:
        if error.status in ("NOT_FOUND", "INVALID_ARGUMENT"):
            raise NotFound(f"{error.message}{_others(client, name)}") from None
        raise
    try:
        config = client.config(name, version)
    except ServerError as error:
        if error.status not in ("NOT_FOUND", "UNIMPLEMENTED", "INVALID_ARGUMENT"):
            raise
        config = None  # a server of the plain protocol, without configs
    return read_classifier(metadata, config, options.size)


def _others(client: Client, name: str) -> str:
    """The available models, for an error message; empty if the server does not list them."""
    try:
        ready = {str(entry["name"]) for entry in client.index() if entry.get("state") == "READY"}
    except ShoalError:  # the first error is more helpful
        return ""
    if not ready or name in ready:
        return ""
    return f"; the server has {', '.join(sorted(ready))}"


def _check_batch(model: Classifier, size: int) -> None:
    if size > 1 and model.max_batch_size == 0:
        raise OptionError(f"model '{model.model}' doesn't support batching; leave -b {size} out")
    if size > max(1, model.max_batch_size):
        raise OptionError(
            f"-b {size} is more than model '{model.model}' takes: its max_batch_size is "
            f"{model.max_batch_size}"
        )


def _classify(
    client: Client, model: Classifier, files: list[Path], options: argparse.Namespace
) -> None:
    from shoal.image.pixels import preprocess
    from shoal.image.report import ImageProgress, ImageReport
    from shoal.image.sending import ImageSender, batches

    def read(file: Path) -> np.ndarray:
        return preprocess(file, model, options.scaling, crop=options.crop)

    requested: int = options.classes
    if options.softmax:  # probabilities need the scores of all classes
        requested = model.classes if model.classes > 0 else _MOST_CLASSES
    sender = ImageSender(client, model, read, version=options.model_version, classes=requested)
    report = ImageReport(model.output, options.classes, softmax=options.softmax)
    progress = ImageProgress(len(files), _terminal() if len(files) > 1 else None)
    send = sender.one_by_one
    if options.streaming or options.at_once:
        send = sender.streamed if options.streaming else sender.at_once
    try:
        for answer in send(batches(files, options.batch_size)):
            progress.hide()
            print("\n".join(report.lines(answer)), flush=True)
            progress.step(len(answer.batch.files))
    finally:
        progress.hide()
    print("\n".join(report.totals()))


def _terminal() -> TextIO | None:
    return sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None


def _described(model: Classifier) -> str:
    layout = "NCHW" if model.channels_first else "NHWC"
    batch = f", up to {model.max_batch_size} per request" if model.max_batch_size else ""
    return (
        f"model '{model.model}': input '{model.input}' takes {model.datatype.name} images of "
        f"{model.height}x{model.width}, {model.channels} channel"
        f"{'' if model.channels == 1 else 's'} ({layout}){batch}; output '{model.output}'"
    )


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,4})(?:[xX]([1-9][0-9]{0,4}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected HEIGHTxWIDTH, such as 224x224, found '{text}'")
    return int(match[1]), int(match[2] or match[1])


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"expected NAME:VALUE, found '{text}'")
    return name.strip(), value.strip()
