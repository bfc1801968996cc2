"""`shoal serve`: starts a server and runs until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import arguments, demo, vertex_ai
from shoal.cli.help import serve_help
from shoal.cli.parser import help_requested
from shoal.config.options import OptionError, Options

if TYPE_CHECKING:  # the server is imported after the options are checked
    from shoal.processes.supervisor import Supervisor
    from shoal.server import Server

logger = logging.getLogger(__name__)


def run(words: Sequence[str], *, program: str = "shoal serve", paths: bool = True) -> int:
    """Serve until a signal arrives; returns the exit code. Raises OptionError."""
    if help_requested(words):
        print(serve_help(program, paths=paths), end="")
        return 0
    if os.getpid() == 1:
        # Process 1 of a container ignores signals without a handler: `docker stop` would have no
        # effect until the server handles them, and kill it later.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options = arguments.parse(words, paths=paths, defaults=vertex_ai.defaults(os.environ))
    options = with_repositories(options, program, paths=paths)

    from shoal.cli import process

    def ready(running: Server | Supervisor) -> None:
        if options.demo:
            for name, why in demo.models().skipped.items():
                logger.warning("the demo is served without its model '%s': %s", name, why)
        if options.demo and options.opens_http_port:
            http = (options.http_address, running.http_port)
            metrics = (options.metrics_listen_address, running.metrics_port)
            text = demo.next_steps(
                http, metrics if options.allow_metrics else None, encrypted=bool(options.https_cert)
            )
            with suppress(BrokenPipeError):  # stdout is closed: continue to serve
                print(text, flush=True)

    return process.run(options, on_ready=ready)


def with_repositories(options: Options, program: str, *, paths: bool = True) -> Options:
    """`options` with the demo models if requested, with exported models in place of checkpoints
    and with links in place of one model that has a name. Raises OptionError when there is nothing
    to serve, and errors of an export."""
    paths_given = tuple(_served(path, options) for path in options.model_repository)
    if paths_given != options.model_repository:
        options = replace(options, model_repository=paths_given)
    if options.demo:
        return replace(options, model_repository=(*options.model_repository, demo.repository()))
    if not options.model_repository:
        path = "PATH" if paths else "--model-repository=PATH"
        raise OptionError(
            f"there is nothing to serve; name the folder of your models with "
            f"'{program} {path}', or try '{program} --demo'"
        )
    return options


def _served(path: str, options: Options) -> str:
    """The path of a repository; that of the exported model where it is a checkpoint's folder."""
    if Path(path, "config.json").is_file():  # hardly ever: nothing is imported for others
        from shoal.export.cache import exported_repository, is_checkpoint

        def note(sentence: str) -> None:
            print(sentence, file=sys.stderr, flush=True)

        if is_checkpoint(Path(path)):
            cache, name = options.checkpoint_cache, options.model_name
            return str(exported_repository(Path(path), cache, note, name))
    if options.model_name:
        from shoal.repository.single import named_model

        found = named_model(Path(path), options.model_name)
        return path if found == Path(path) else str(found)  # an address is no path
    return path
