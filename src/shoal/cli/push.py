"""`shoal push`: stores models in a remote repository."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import arguments
from shoal.cli.check import described, preparation_settings
from shoal.cli.parser import CommandParser, help_requested
from shoal.config.options import OptionError, Options
from shoal.errors import InvalidArgument, NotFound
from shoal.repository import layout
from shoal.storage.address import is_address, parse

if TYPE_CHECKING:  # imported after the options are checked
    from shoal.storage.pushing import Pusher

HELP = """\
usage: shoal push FOLDER ADDRESS [--no-check] [OPTION ...]

Store the models of a repository, or one model, in a remote repository. FOLDER is a repository or
the folder of one model; ADDRESS is that of the repository in both cases. Models are checked first,
as `shoal check` does. Files that are there already and have not changed are not sent.

A server that polls the repository never loads half of a model: a model is marked while it is
stored, and Shoal keeps what it serves. For other servers each version's largest file is stored
last. Nothing is deleted.

Examples:
  shoal push models s3://bucket/models              every model of a repository
  shoal push models/resnet s3://bucket/models       one model, as s3://bucket/models/resnet
  shoal push models as://account/container/models   Azure Storage; gs://bucket/models: Google

Options:
  --no-check         store models even if they cannot be served

The options of `shoal serve` are accepted too, for the check. The exit code is 0 if everything is
stored, else 1.
"""
_READ_ONLY = ("http", "https", "hf")


def run(words: Sequence[str]) -> int:
    """Run `shoal push`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    parser = CommandParser("shoal push")
    parser.add_argument("--no-check", action="store_true")
    chosen, rest = parser.parse_known_args(list(words))
    options = arguments.parse(rest)
    if len(options.model_repository) != 2:
        raise OptionError("name a folder and an address: shoal push models s3://bucket/models")
    folder, address = options.model_repository
    if is_address(folder) or not is_address(address):
        raise OptionError(
            "the first argument is a folder and the second an address: "
            "shoal push models s3://bucket/models"
        )
    if parse(address).scheme in _READ_ONLY:
        raise OptionError(
            f"models cannot be stored at '{parse(address)}': it can only be read; name an address "
            "with s3://, gs:// or as://"
        )
    models = _models(Path(folder), address)
    if not chosen.no_check and not _checked(Path(folder), options):
        print("nothing was stored; --no-check stores these models, too", file=sys.stderr)
        return 1
    push(models, address, options)
    return 0


def push(models: Mapping[str, Path], address: str, options: Options) -> None:
    """Store model folders by name in the repository at `address`, and print what was done.

    Raises StorageError.
    """
    from shoal.cli import remote
    from shoal.storage.pushing import Pusher, local_files

    with remote.opened(options) as mirrors:
        source = mirrors.open(address).source
        progress = _Progress()
        pusher = Pusher(source, remote.listed(source), progress.add)
        try:
            plans = {
                name: (files, pusher.changed(name, files))
                for name, files in ((name, local_files(at)) for name, at in models.items())
            }
            progress.expect(
                at.stat().st_size
                for files, changed in plans.values()
                for path in changed
                if (at := files[path]) is not None
            )
            for name, (files, changed) in plans.items():
                done = pusher.push(name, files, changed)
                progress.clear()
                print(
                    f"{name}: {done.sent_files} file{'' if done.sent_files == 1 else 's'} stored "
                    f"({done.sent_bytes / 1e6:.1f} MB), {done.unchanged_files} unchanged",
                    flush=True,
                )
        except OSError as error:
            raise InvalidArgument(f"a file cannot be read: {error}") from None
        finally:
            progress.clear()
    print(f"stored in '{source.address}'; serve it with: shoal serve {source.address}")


def check_absent(pusher: Pusher, names: Sequence[str], address: str) -> None:
    """Raises InvalidArgument if the repository has one of these models."""
    for name in names:
        if pusher.has(name):
            raise InvalidArgument(
                f"there is a model '{name}' in '{parse(address)}'; --force replaces it"
            )


def _models(folder: Path, address: str) -> dict[str, Path]:
    """The model folders to store, ensembles after the others."""
    if not folder.is_dir():
        raise NotFound(f"there is no folder '{folder}'")
    if layout.is_model_folder(folder):
        name = folder.resolve().name
        if parse(address).rest.rpartition("/")[2] == name:
            raise InvalidArgument(
                f"'{parse(address)}' ends with the name of the model; name the repository, in "
                f"which '{name}' becomes a folder: {str(parse(address)).rpartition('/')[0]}"
            )
        return {name: folder}
    found = layout.list_models(folder).models
    if not found:
        raise InvalidArgument(
            f"'{folder}' has no models: put each into a folder of its own, as in "
            "models/resnet/1/model.onnx"
        )
    return dict(sorted(found.items(), key=lambda item: (_is_ensemble(item[1]), item[0])))


def _is_ensemble(folder: Path) -> bool:
    try:
        return "ensemble" in (folder / "config.pbtxt").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def _checked(folder: Path, options: Options) -> bool:
    """Whether all models can be served; prints what is wrong with the others."""
    from shoal.repository.inspection import Inspection

    inspection = Inspection([folder], preparation_settings(options))
    try:
        broken = [report for report in inspection.reports() if not report.ok]
    finally:
        inspection.close()
    for report in broken:
        print("\n".join([f"FAIL  {report.name}", *described(report)]), file=sys.stderr)
    return not broken


class _Progress:
    """Bytes of the files that are stored, shown on a terminal."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0
        self._terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None

    def expect(self, sizes: Iterator[int]) -> None:
        self._total = sum(sizes)

    def add(self, size: int) -> None:
        self._done += size
        if self._terminal is not None and self._total:
            percent = 100 * self._done // self._total
            self._terminal.write(f"\r\033[K{percent} % of {self._total / 1e6:.1f} MB")
            self._terminal.flush()

    def clear(self) -> None:
        if self._terminal is not None:
            self._terminal.write("\r\033[K")
            self._terminal.flush()
