"""`shoal ask`: asks questions about a text, from a terminal or a pipe."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.parser import (
    CommandParser,
    add_tls_options,
    api_key,
    help_requested,
    port,
    seconds,
    tls_settings,
)
from shoal.config.options import OptionError

if TYPE_CHECKING:  # imported after the options are checked
    from shoal.ask.question import Answer, Question
    from shoal.ask.reading import Reader
    from shoal.ask.screen import Screen

HELP = """\
usage: shoal ask [--host HOST] [OPTION ...]

Ask a server questions about a text. On a terminal: type or paste a text, end it with an empty
line, then type a question; text, question, answer and latency are printed, and so on until
'quit', 'exit', Ctrl-D or Ctrl-C. An empty text keeps the previous one.

Examples:
  shoal ask                                             a dialogue with localhost
  shoal ask --host gpu-box --text-file report.txt       many questions about one text
  shoal ask --text-file report.txt -q "Who wrote it?"   one question
  cat report.txt | shoal ask -q "Who wrote it?" --quiet   in a pipe: only the answer

Server:
      --host HOST        the machine [default: localhost]
      --port PORT        its port for questions over TCP (shoal serve --tcp-port)
      --http URL         use HTTP instead: localhost:8000, https://host/prefix, unix:///path
      --ca FILE          for https://: the certificates to trust (PEM) [default: the system's]
      --cert FILE        the client's own certificate (PEM)
      --key FILE         its private key [default: in --cert]
      --insecure         do not check the server's certificate
  -m, --model MODEL      the model [default: the only one for questions]
      --timeout SECS     how long to wait for an answer [default: 60]
      --api-key KEY      a key for the server [default: the variable SHOAL_API_KEY]

Without --port and --http, port 9999 is tried over TCP, then 8000 over HTTP. HTTP also
returns the score of an answer and its position in the text.

Questions:
      --text-file FILE   the text; '-' is standard input
  -q, --question TEXT    a question about it, without a dialogue; may be repeated
      --quiet            print only the answers
      --json             print one line of JSON per answer

If standard input is not a terminal, it is read without prompts: a text, an empty line, a question,
and so on; with --text-file one question per line; with --question it is the text. The exit code
is 0, or 1 if a question failed. "Unknown" means that the text has no answer.
"""
_WIDEST = 100


def run(words: Sequence[str]) -> int:
    """Run `shoal ask`; returns the exit code. Raises OptionError and other ShoalErrors."""
    if help_requested(words):
        print(HELP, end="")
        return 0
    options = _parse(words)
    text = _text(options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="replace"
        )  # an answer may have characters that the terminal cannot show

    from shoal.ask.askers import find
    from shoal.ask.conversation import Conversation

    interactive = not options.question and _at_terminal()
    asker = find(
        options.host,
        port=options.port,
        http=options.http,
        model=options.model,
        timeout_secs=options.timeout,
        api_key=options.api_key,
        tls=tls_settings(options),
    )
    try:
        screen = _screen()
        if interactive:
            print(f"Asking {asker.description}. {_advice(text)}\n")
        conversation = Conversation(
            asker,
            _reader(options, screen, interactive=interactive),
            _Printer(screen, options, interactive=interactive),
            text=text,
            fixed=bool(text),
            interactive=interactive,
        )
        try:
            conversation.run()
        except KeyboardInterrupt:
            print()
            if not interactive:
                raise
        except UnicodeDecodeError:
            raise OptionError("standard input is not UTF-8") from None
    finally:
        asker.close()
    return 1 if conversation.failed and not interactive else 0


class _Printer:
    """Prints answers as text or JSON."""

    def __init__(self, screen: Screen, options: argparse.Namespace, *, interactive: bool) -> None:
        self._screen = screen
        self._quiet: bool = options.quiet
        self._json: bool = options.json
        self._interactive = interactive
        self._shown = 0

    def answer(self, question: Question, answer: Answer, latency_ms: float) -> None:
        """See `conversation.Display`."""
        if self._json:
            print(_document(question, answer, latency_ms), flush=True)
            return
        if self._quiet:
            print(answer.text, flush=True)
            return
        if self._interactive or self._shown:
            print()
        print("\n".join(self._screen.lines(question, answer, latency_ms)), flush=True)
        if self._interactive:
            print()
        self._shown += 1

    def problem(self, sentence: str) -> None:
        """See `conversation.Display`."""
        print(self._screen.problem(sentence), file=sys.stderr, flush=True)


def _document(question: Question, answer: Answer, latency_ms: float) -> str:
    import json

    return json.dumps(
        {
            "question": question.question,
            "answer": answer.text,
            "score": answer.score,
            "start": answer.start,
            "end": answer.end,
            "model_name": answer.model or None,
            "latency_ms": round(latency_ms, 3),
        },
        ensure_ascii=False,
    )


def _reader(options: argparse.Namespace, screen: Screen, *, interactive: bool) -> Reader:
    from shoal.ask import reading

    if options.question:
        return reading.GivenReader(options.question)
    if interactive:
        return reading.TerminalReader(reading.with_history(_typed), screen)
    return reading.StreamReader(sys.stdin or ())


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _typed(prompt: str) -> str:
    try:
        return input(prompt)
    except EOFError:
        print()  # Ctrl-D leaves the cursor after the prompt
        raise


def _screen() -> Screen:
    from shoal.ask.screen import Screen

    if not sys.stdout.isatty():
        return Screen()
    colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Screen(min(shutil.get_terminal_size().columns - 1, _WIDEST), colours)


def _advice(text: str) -> str:
    if text:
        return "Type a question, or 'quit'."
    return "End the text with an empty line; 'quit' leaves."


def _text(options: argparse.Namespace) -> str:
    """The text of the command line; empty if it is read later."""
    if options.text_file and options.text_file != "-":
        from shoal.errors import InvalidArgument

        try:
            text = Path(options.text_file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = "it is not UTF-8" if isinstance(error, ValueError) else error.strerror
            raise InvalidArgument(
                f"--text-file: '{options.text_file}' cannot be read: {reason}"
            ) from None
    elif options.question or options.text_file:
        try:
            text = sys.stdin.read() if sys.stdin is not None else ""
        except UnicodeDecodeError:
            raise OptionError("the text in standard input is not UTF-8") from None
    else:
        return ""
    if not text.strip():
        where = f"'{options.text_file}'" if options.text_file else "standard input"
        raise OptionError(f"there is no text in {where}")
    return text.strip("\n")


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser("shoal ask")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=port)
    parser.add_argument("--http", default="")
    parser.add_argument("-m", "--model", default="")
    parser.add_argument("--timeout", type=seconds, default=60.0)
    api_key(parser)
    add_tls_options(parser)
    parser.add_argument("--text-file", default="")
    parser.add_argument("-q", "--question", action="append", default=[])
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    if options.quiet and options.json:
        raise OptionError("--quiet and --json are alternatives; choose one of them")
    if any(not question.strip() for question in options.question):
        raise OptionError("--question is empty")
    if options.question and not options.text_file and _at_terminal():
        raise OptionError(
            "--question needs a text: name a file with --text-file, or pipe the text in"
        )
    if options.text_file == "-" and not options.question:
        raise OptionError(
            "--text-file - reads the text from standard input, so questions cannot be read from "
            "it, too; pass them with --question"
        )
    return options
