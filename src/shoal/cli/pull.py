"""`shoal pull`: downloads models into the cache, before a server needs them."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from shoal.cli import arguments
from shoal.cli.check import preparation_settings
from shoal.cli.parser import CommandParser, help_requested
from shoal.config.options import OptionError, Options
from shoal.errors import InvalidArgument, NotFound
from shoal.storage.address import is_address
from shoal.storage.errors import StorageError
from shoal.storage.mirror import Mirror

HELP = """\
usage: shoal pull ADDRESS [ADDRESS ...] [--model NAME ...] [--output FOLDER] [OPTION ...]

Download the models of remote repositories into the cache, so that a server that starts later reads
them from this disk: for the build of an image, or in an init container. Only what is not in the
cache is downloaded. ADDRESS is as for `shoal serve`: s3://, gs://, as://, https://, hf://.

Examples:
  shoal pull s3://bucket/models                             all models
  shoal pull s3://bucket/models --model resnet              one of them, and models that it runs
  shoal pull hf://org/name --repository-cache /cache        into a folder of the image
  shoal pull s3://bucket/models --output /mnt/models        also as a folder, without the cache

  shoal serve s3://bucket/models --repository-cache /cache --repository-offline=cached

Options:
  --model NAME       only this model; may be repeated
  --all-versions     all versions, not only those that the version policy of each model selects
  --output FOLDER    also write the models to this folder, as a repository for any server

The options of `shoal serve` are accepted too; --repository-cache, --repository-cache-size,
--repository-download-rate and --repository-download-threads have an effect here. The exit code is
0 if everything is there, else 1.
"""
_SHOWN_SECS = 0.2  # between two lines of progress on a terminal


def run(words: Sequence[str]) -> int:
    """Run `shoal pull`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if not words or help_requested(words):
        print(HELP, end="")
        return 0
    parser = CommandParser("shoal pull")
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--all-versions", action="store_true")
    parser.add_argument("--output", type=Path)
    chosen, rest = parser.parse_known_args(list(words))
    options = arguments.parse(rest)
    if not options.model_repository:
        raise OptionError("name what to download: shoal pull s3://bucket/models")
    for text in options.model_repository:
        if not is_address(text):
            raise OptionError(f"'{text}' is a path of this machine; there is nothing to download")
    return _Pull(options, chosen.model, chosen.output, all_versions=chosen.all_versions).run()


class _Pull:
    def __init__(
        self, options: Options, names: Sequence[str], output: Path | None, *, all_versions: bool
    ) -> None:
        self._options = options
        self._names = names
        self._output = output
        self._all_versions = all_versions
        self._preparation = preparation_settings(options)
        self._counting = threading.Lock()  # guards _downloaded
        self._downloaded = 0

    def run(self) -> int:
        from shoal.cli import remote

        failed = 0
        with remote.opened(self._options, self._count) as mirrors:
            found = [mirrors.open(text) for text in self._options.model_repository]
            for mirror in found:
                mirror.refresh()
            self._check_names(found)
            for mirror in found:
                failed += self._pull(mirror)
        return 1 if failed else 0

    def _count(self, size: int) -> None:
        with self._counting:
            self._downloaded += size

    def _check_names(self, mirrors: Iterable[Mirror]) -> None:
        known = {name for mirror in mirrors for name in mirror.models}
        for name in self._names:
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                raise NotFound(f"there is no model '{name}'; models: {there}")

    def _pull(self, mirror: Mirror) -> int:
        """Download the models of one repository; returns how many failed."""
        from shoal.cli import remote

        def all_of_it(name: str) -> Path:
            return mirror.fetch(name, lambda available: available)

        def served(name: str) -> Path:
            return remote.fetch(mirror, name, self._preparation)

        names = [name for name in mirror.models if not self._names or name in self._names]
        if not names and not self._names:
            raise InvalidArgument(f"there are no models in '{mirror.address}'")
        before, failed = self._downloaded, 0
        fetch: Callable[[str], Path] = all_of_it if self._all_versions else served
        with ThreadPoolExecutor(max(1, min(32, len(names))), "shoal-pull") as pool:
            futures = {pool.submit(fetch, name): name for name in names}
            for future in _as_completed(futures, mirror):
                name = futures[future]
                try:
                    line = _summary(name, future.result())
                except StorageError as error:
                    failed += 1
                    print(f"FAIL  {name}: {error.message}", file=sys.stderr)
                else:
                    print(line, flush=True)
        if self._output is not None and not failed:
            # With the models that these run.
            for folder in sorted(path for path in mirror.folder.iterdir() if path.is_dir()):
                _copy(folder, self._output / folder.name)
            print(f"wrote '{self._output}'")
        size = self._downloaded - before
        print(
            f"{len(names) - failed} of {len(names)} models of '{mirror.address}' are in the cache; "
            f"{size / 1e6:.1f} MB were downloaded"
        )
        return failed


def _summary(name: str, folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    plural = "" if len(files) == 1 else "s"
    return f"ok    {name}: {len(files)} file{plural}, {size / 1e6:.1f} MB"


def _copy(folder: Path, target: Path) -> None:
    """Replace a folder by a copy of another; it is never there in part."""
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    try:
        shutil.copytree(folder, new, copy_function=shutil.copyfile)
        if target.exists():
            shutil.rmtree(target)
        new.rename(target)
    except OSError as error:
        raise InvalidArgument(f"--output: '{target}' cannot be written: {error}") from None


def _as_completed(futures: Iterable[Future[Path]], mirror: Mirror) -> Iterable[Future[Path]]:
    """The futures as they end; meanwhile the progress is shown on a terminal."""
    terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
    pending = set(futures)
    while pending:
        done, pending = wait(pending, _SHOWN_SECS if terminal else None, FIRST_COMPLETED)
        if terminal is not None:
            shown = [one for name in mirror.models if (one := mirror.progress(name)) is not None]
            total = sum(one.total_bytes for one in shown)
            here = sum(one.done_bytes for one in shown)
            text = (
                f"{here / 1e6:.1f} of {total / 1e6:.1f} MB, {len(pending)} models" if shown else ""
            )
            terminal.write(f"\r\033[K{'' if done else text}")
            terminal.flush()
        yield from done
