"""`shoal ask` and `shoal stress` over real sockets: against a stand-in, and the model of the demo."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from shoal.ask.askers import HttpAsker, TcpAsker, find
from shoal.ask.question import Answer, Question
from shoal.cli import demo
from shoal.cli.main import main
from shoal.client.address import parse
from shoal.client.errors import ConnectionFailed, ProtocolError, ServerError, Timeout
from shoal.stress.cell import ServerSetup
from shoal.stress.load import QuestionTarget
from shoal.stress.plan import StressPlan
from shoal.stress.run import run as measure
from shoal.stress.servers import ExistingServer
from shoal.testing.server import running_server
from tests.support.questions import QuestionServer, Refusal, last_word

HERE = "127.0.0.1"
SEA = Question("The sky is blue. The sea is green.", "What colour is the sea?")
SGR = re.compile(r"\x1b\[[0-9;]*m")
SHOAL = (sys.executable, "-m", "shoal")


@pytest.fixture(scope="module", autouse=True)
def ctrl_c_is_heard():
    """A suite that runs in the background ignores Ctrl-C, and so would the programs it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def server():
    with QuestionServer() as running:
        yield running


@pytest.fixture(params=["tcp", "http"])
def asker(server, request):
    made = connect(server, request.param)
    with contextlib.closing(made):
        yield made


def connect(server, protocol):
    if protocol == "tcp":
        return TcpAsker(HERE, server.tcp_port, "", 20.0)
    return HttpAsker(parse(f"{HERE}:{server.http_port}"), "", 20.0)


def flags(server, protocol):
    if protocol == "tcp":
        return ["--host", HERE, "--port", str(server.tcp_port)]
    return ["--http", f"{HERE}:{server.http_port}"]


@pytest.fixture
def unused_port():
    """A port where no server listens; it is held, or another program might get it."""
    with socket.socket() as held:
        held.bind((HERE, 0))
        yield held.getsockname()[1]


# ---- one question


def test_an_answer_and_what_http_tells_besides(server):
    with contextlib.closing(connect(server, "tcp")) as asker:
        answer, latency_ms = asker.ask(SEA)
        assert answer == Answer("green")
        assert latency_ms > 0
        assert asker.description == f"{HERE}:{server.tcp_port} over TCP"
    with contextlib.closing(connect(server, "http")) as asker:
        assert asker.ask(SEA)[0] == Answer("green", 0.75, 28, 33, "questions")
        assert asker.description == f"{HERE}:{server.http_port} over HTTP"
    assert server.paths == ["/answer"]


def test_a_refusal_is_the_servers_own_sentence(server, asker):
    def refuse(text, question):
        raise Refusal("this text is too long")

    server.reply = refuse
    with pytest.raises(ServerError, match=r"^this text is too long$"):
        asker.ask(SEA)
    server.reply = last_word
    assert asker.ask(SEA)[0].text == "green"


def test_a_lost_connection_is_opened_again(server, asker):
    assert asker.ask(SEA)[0].text == "green"
    server.disconnect()
    assert asker.ask(SEA)[0].text == "green"


def test_no_response_in_time(server):
    answered = threading.Event()

    def wait(text, question):
        answered.wait()
        return "late"

    server.reply = wait
    try:
        for protocol in ("tcp", "http"):
            with contextlib.closing(connect(server, protocol)) as asker:
                asker._timeout_secs = 0.05  # from here on: to connect may take its time
                with pytest.raises(Timeout, match=r"no (answer|response) from .* within 0\.05 s"):
                    asker.ask(SEA)
                server.reply = last_word
                asker._timeout_secs = 20.0
                # The late answer goes nowhere: the next question has a connection of its own.
                assert asker.ask(SEA)[0].text == "green"
                server.reply = wait
    finally:
        answered.set()


def test_a_server_that_stops_during_a_question(server, asker):
    calls = []

    def leave(text, question):
        calls.append(question)
        server.disconnect()
        return "never"

    server.reply = leave
    with pytest.raises(ConnectionFailed, match="closed the connection before it answered"):
        asker.ask(SEA)
    assert len(calls) == 2  # on a fresh connection, too


def test_no_server_is_running(unused_port):
    port = unused_port
    with pytest.raises(
        ConnectionFailed, match=f"no server answers at {HERE}:{port}; is it running"
    ):
        TcpAsker(HERE, port, "", 1.0)
    with pytest.raises(ConnectionFailed, match=f"no server answers at {HERE}:{port}"):
        find(HERE, port=None, http=f"{HERE}:{port}", model="", timeout_secs=1.0)
    with pytest.raises(ConnectionFailed, match=r"unknown host 'no\.such\.host\.invalid'"):
        find("no.such.host.invalid", port=None, http="", model="", timeout_secs=1.0)


def test_something_else_is_there(server):
    server.reply = lambda text, question: "one\ntwo"
    with (
        contextlib.closing(connect(server, "tcp")) as asker,
        pytest.raises(ProtocolError, match="does not speak the question protocol"),
    ):
        asker.ask(SEA)


def test_tcp_is_tried_first_then_http(server, monkeypatch, unused_port):
    monkeypatch.setattr("shoal.ask.askers.TCP_PORT", server.tcp_port)
    monkeypatch.setattr("shoal.ask.askers.HTTP_PORT", server.http_port)
    settings = {"port": None, "http": "", "model": "", "timeout_secs": 20.0}
    with contextlib.closing(find(HERE, **settings)) as asker:
        assert isinstance(asker, TcpAsker)
    monkeypatch.setattr("shoal.ask.askers.TCP_PORT", unused_port)
    with contextlib.closing(find(HERE, **settings)) as asker:
        assert isinstance(asker, HttpAsker)
    monkeypatch.setattr("shoal.ask.askers.HTTP_PORT", unused_port)
    with pytest.raises(ConnectionFailed, match=r"\(TCP\) or .* \(HTTP\) of .*; is it running"):
        find(HERE, **settings)


# ---- shoal ask, without a terminal


@pytest.fixture
def ask(server, capsys, monkeypatch):
    def run(*words, protocol="tcp", stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(["ask", *flags(server, protocol), *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_text_of_a_file_and_two_questions(ask, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(f"{SEA.text}\n")
    code, out, err = ask("--text-file", path, "-q", SEA.question, "-q", "Why not?")
    assert (code, err) == (0, "")
    lines = [re.sub(r"[0-9.]+ ms", "1.0 ms", line) for line in out.splitlines()]
    assert lines == [
        f"text      {SEA.text}",
        f"question  {SEA.question}",
        "answer    green",
        "latency   1.0 ms",
        "",
        f"text      {SEA.text}",
        "question  Why not?",
        "answer    Unknown",
        "latency   1.0 ms",
    ]


def test_a_text_in_a_pipe_and_the_answer_alone(ask):
    assert ask("-q", SEA.question, "--quiet", stdin=SEA.text) == (0, "green\n", "")


def test_a_whole_dialogue_in_a_pipe(ask, server):
    code, out, _ = ask("--quiet", stdin=f"{SEA.text}\nIt is deep.\n\nHow?\n\nWhy not?\n")
    assert (code, out) == (0, "deep\nUnknown\n")
    assert server.asked == [
        (f"{SEA.text}\nIt is deep.", "How?"),
        (f"{SEA.text}\nIt is deep.", "Why not?"),
    ]


def test_questions_in_a_pipe_and_answers_as_json(ask, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(SEA.text)
    code, out, _ = ask("--text-file", path, "--json", protocol="http", stdin="What?\nWhy not?\n")
    first, second = map(json.loads, out.splitlines())
    assert code == 0
    assert first.pop("latency_ms") > 0
    assert first == {
        "question": "What?",
        "answer": "green",
        "score": 0.75,
        "start": 28,
        "end": 33,
        "model_name": "questions",
    }
    assert (second["answer"], second["start"]) == ("Unknown", None)


def test_a_named_model(ask, server):
    ask("-q", "What?", "-m", "faq", protocol="http", stdin=SEA.text)
    assert server.paths == ["/v2/models/faq/answer"]


def test_failures_show_in_the_exit_code(ask, server):
    def sometimes(text, question):
        if question == "Bad?":
            raise Refusal("no such thing")
        return "green"

    server.reply = sometimes
    code, out, err = ask("-q", "Bad?", "-q", "Good?", "--quiet", stdin=SEA.text)
    assert (code, out, err) == (1, "green\n", "error: no such thing\n")


# ---- shoal ask, at a terminal


class Terminal:
    """A program on a terminal of 80 columns: waits for what it shows, types what it wants."""

    def __init__(self, *command, **environment):
        self._own, theirs = pty.openpty()
        self.seen = ""
        clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**clean, "TERM": "xterm", "COLUMNS": "80", **environment},
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, what):
        """Everything up to and with `what`, from where the last call ended."""
        while what not in self.seen:
            try:
                self.seen += os.read(self._own, 65_536).decode()
            except OSError:
                pytest.fail(f"it ended before it showed {what!r}: {self.seen}")
        shown, _, self.seen = self.seen.partition(what)
        return shown + what

    def type(self, text):
        os.write(self._own, text.encode())

    def end(self):
        """Its last words and its exit code."""
        with contextlib.suppress(OSError):  # Linux's way to say that the other end was closed
            while piece := os.read(self._own, 65_536):
                self.seen += piece.decode()
        return self.seen, self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._own)


@pytest.fixture
def terminal():
    opened = []

    def start(*words, **environment):
        opened.append(Terminal(*SHOAL, *words, **environment))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_the_screen(server, terminal):
    person = terminal("ask", *flags(server, "http"))
    assert f"Asking {HERE}:{server.http_port} over HTTP." in person.until("text> ")
    person.type("The sky is blue.\n")
    person.until("....> ")
    person.type("The sea is green.\n")
    person.until("....> ")
    person.type("\n")
    person.until("question> ")
    person.type("What colour?\n")
    shown = person.until("text (empty: the same)> ")
    assert "The sea is \x1b[1;32mgreen\x1b[0m." in shown
    plain = SGR.sub("", shown)
    assert "question  What colour?\r\n" in plain
    assert "answer    green\r\n" in plain
    assert re.search(r"latency   [0-9.]+ ms  \(score 0\.75, characters 28 to 33, model", plain)
    person.type("\n")
    person.until("question> ")
    person.type("quit\n")
    assert person.end()[1] == 0
    assert server.asked == [("The sky is blue.\nThe sea is green.", "What colour?")]


@pytest.mark.parametrize("key", ["\x04", "\x03"], ids=["ctrl-d", "ctrl-c"])
def test_keys_that_leave_and_no_colour(server, terminal, tmp_path, key):
    path = tmp_path / "text.txt"
    path.write_text(SEA.text)
    words = ("ask", *flags(server, "tcp"), "--text-file", str(path))
    person = terminal(*words, NO_COLOR="1")
    person.until("question> ")
    person.type("What?\n")
    shown = person.until("question> ")
    assert "answer    green" in shown
    assert not SGR.search(shown)
    if key == "\x03":
        os.kill(person.process.pid, signal.SIGINT)
        # The line editor may have been about to wait; then it notices with the next key.
        with contextlib.suppress(OSError):
            person.type("\n")
    else:
        person.type(key)
    shown, code = person.end()
    assert code == 0
    assert "Traceback" not in shown


def test_a_server_that_was_started_again(terminal, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(SEA.text)
    with QuestionServer() as first:
        person = terminal("ask", *flags(first, "tcp"), "--text-file", str(path))
        person.until("question> ")
        person.type("What?\n")
        person.until("question> ")
    person.type("And now?\n")
    shown = person.until("question> ")
    assert "no server answers at" in shown
    assert "your text is kept: ask again when the server is running" in shown
    person.type("exit\n")
    assert person.end()[1] == 0


# ---- shoal stress, against a stand-in


@pytest.fixture
def stress(capsys):
    def run(*words):
        code = main(["stress", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_a_server_that_runs(server, stress, tmp_path, protocol):
    where = ("--host", HERE, "--port", server.tcp_port)
    if protocol == "http":
        where = ("--url", f"{HERE}:{server.http_port}")
    files = [tmp_path / name for name in ("table.csv", "table.json", "table.html")]
    outputs = [
        word for pair in zip(("--csv", "--json", "--report"), files, strict=True) for word in pair
    ]
    code, out, err = stress(
        *where, "--clients", "1,4", "--requests", "5", "--warmup", "1", *outputs
    )
    assert code == 0, err
    lines = out.splitlines()
    assert (
        lines[0]
        == f"{HERE}:{where[-1] if protocol == 'tcp' else server.http_port} · {protocol.upper()} · 5 questions per client"
    )
    assert lines[3] == "sessions  batching       1 client      4 clients"
    assert re.fullmatch(r" +-  - +[0-9.]+ ± [0-9.]+ +[0-9.]+ ± [0-9.]+", lines[5])
    assert re.fullmatch(r" +[0-9,.]+/s +[0-9,.]+/s", lines[6])
    assert len(server.asked) == 1 + (1 + 4) * (5 + 1)  # one to see whether it works at all
    rows = list(csv.DictReader(io.StringIO(files[0].read_text())))
    assert [(row["clients"], row["answered"], row["failed"]) for row in rows] == [
        ("1", "5", "0"),
        ("4", "20", "0"),
    ]
    assert json.loads(files[1].read_text())["protocol"] == protocol
    assert "<svg" in files[2].read_text()
    assert [line.split()[0] for line in err.splitlines()] == ["wrote"] * 3


def test_all_clients_ask_at_once(server, stress):
    together = threading.Barrier(6)
    calls = iter(range(10**6))

    def wait(text, question):
        if next(calls):  # the first one asks alone
            together.wait(timeout=20)
        return "here"

    server.reply = wait
    code, _, _ = stress(
        "--host", HERE, "--port", server.tcp_port, "--clients", "6", "--requests", 2
    )
    assert code == 0


def test_questions_of_ones_own(server, stress, tmp_path):
    text, questions = tmp_path / "text.txt", tmp_path / "questions.txt"
    text.write_text("x" * 3_000_000)  # more than a socket takes at once
    questions.write_text("What?\nWhy?\n")
    where = ("--host", HERE, "--port", server.tcp_port)
    words = ("--clients", "2", "--requests", "2", "--text-file", text, "--questions", questions)
    code, _, err = stress(*where, *words)
    assert code == 0, err
    assert {question for _, question in server.asked} == {"What?", "Why?"}
    assert {len(asked) for asked, _ in server.asked} == {3_000_000}


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_failures_are_counted_and_shown(server, stress, protocol):
    calls = iter(range(10**6))

    def sometimes(text, question):
        number = next(calls)
        if number % 4 == 1:
            raise Refusal("not now")
        if number % 4 == 2:
            server.disconnect()
        return "here"

    server.reply = sometimes
    where = ("--host", HERE, "--port", server.tcp_port)
    if protocol == "http":
        where = ("--url", f"{HERE}:{server.http_port}")
    code, out, _ = stress(*where, "--clients", "1", "--requests", "8", "--warmup", "0")
    assert code == 2
    assert re.search(r"failed +4 of 8\n", out)
    assert "4 of 8 questions were not answered:" in out
    assert "2 times: not now" in out
    port = server.tcp_port if protocol == "tcp" else server.http_port
    assert f"2 times: the server at {HERE}:{port} closed the connection" in out


def test_responses_that_come_too_late(server, stress, monkeypatch):
    def patient(host, port, model, _timeout_secs, _api_key):
        """For the first question, which only asks whether there is a server."""
        return TcpAsker(host, port, model, 20.0)

    monkeypatch.setattr("shoal.stress.servers.TcpAsker", patient)
    release = threading.Event()
    calls = iter(range(10**6))

    def slow(text, question):
        if next(calls) == 1:
            release.wait()
        return "here"

    server.reply = slow
    words = ("--clients", "1", "--requests", "3", "--warmup", "0", "--timeout", "0.1")
    try:
        code, out, _ = stress("--host", HERE, "--port", server.tcp_port, *words)
    finally:
        release.set()
    assert code == 2
    assert re.search(r"[1-3] times: no answer within 0\.1 s", out)


def test_no_server_to_measure(stress, unused_port):
    code, out, err = stress("--host", HERE, "--port", unused_port)
    assert (code, out) == (1, "")
    assert f"no server answers at {HERE}:{unused_port}" in err


class StressListener:
    """Presses Ctrl-C after so many looks."""

    def __init__(self, looks):
        self._looks = looks
        self.rows = []

    def starting(self, setup):
        pass

    def asking(self, clients, done, total):
        self._looks -= 1
        if not self._looks:
            raise KeyboardInterrupt

    def measured(self, outcome, setup):
        self.rows.append(setup)


def test_ctrl_c_keeps_what_was_measured(server):
    plan = StressPlan([SEA], clients=(1, 2), requests=3, warmup=1, timeout_secs=20.0)
    servers = ExistingServer(QuestionTarget("tcp", HERE, server.tcp_port), plan)
    listener = StressListener(2)  # when the second cell begins
    outcome = measure(plan, servers, listener)
    assert outcome.interrupted
    assert [(cell.clients, cell.answered) for cell in outcome.cells] == [(1, 3)]
    assert listener.rows == [ServerSetup(None, None)]


# ---- the real thing


@pytest.fixture(scope="module")
def real():
    with running_server(
        demo.repository(),
        model_control_mode="explicit",
        load_model=("questions",),
        tcp_address=HERE,
        tcp_port=0,
    ) as running:
        yield running


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_the_model_of_the_demo_answers(real, capsys, monkeypatch, protocol):
    where = ["--host", HERE, "--port", str(real.server.tcp_port)]
    if protocol == "http":
        where = ["--http", real.http_address]
    text = "The pier was built in 1874 by\nAda Thornwell. It is made of stone."
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["ask", *where, "-q", "Who built the pier?", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["answer"] == "Ada Thornwell"
    if protocol == "http":
        assert text[answer["start"] : answer["end"]] == "Ada Thornwell"
        assert answer["model_name"] == "questions"


def test_a_running_server_reports_its_setup(real, stress):
    code, out, err = stress(
        "--url", real.http_address, "--clients", "2", "--requests", "1", "--warmup", "0"
    )
    assert code == 0, err
    assert re.search(r"\n +[0-9]+  on  +[0-9.]+ ± ", out)


def test_the_table_of_a_model_on_disk(stress, tmp_path):
    path = tmp_path / "table.json"
    words = (
        "--sessions",
        "2",
        "--clients",
        "1,3",
        "--requests",
        "1",
        "--warmup",
        "1",
        "--json",
        path,
    )
    code, out, err = stress(*words)
    assert code == 0, err
    assert out.startswith("model 'questions' · TCP · 1 question per client · ")
    assert re.search(r"\n +2  off +[0-9]", out)
    assert re.search(r"\n +on +[0-9]", out)
    assert re.search(r"\n +faster +[0-9.]+x +[0-9.]+x\n", out)
    cells = json.loads(path.read_text())["cells"]
    assert [(cell["sessions"], cell["batching"], cell["clients"]) for cell in cells] == [
        (2, False, 1),
        (2, False, 3),
        (2, True, 1),
        (2, True, 3),
    ]
    assert all(cell["mean_batch"] == 1 for cell in cells if not cell["batching"])


def test_ctrl_c_stops_the_servers_it_started(terminal):
    words = ("--sessions", "1", "--clients", "1", "--requests", "100000")
    person = terminal("stress", *words)
    person.until("questions")  # of the bar: the server answers
    children = psutil.Process(person.process.pid).children(recursive=True)
    assert children
    person.process.send_signal(signal.SIGINT)
    shown, code = person.end()
    assert code == 130, shown
    assert "Traceback" not in shown
    assert psutil.wait_procs(children, timeout=20)[1] == []
