"""Questions through a real server and the real model: curl, requests, sockets."""

import itertools
import json
import re
import socket
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests

from shoal.cli import demo
from shoal.testing.server import ADDRESS, running_server, wait_until
from tests.support.fakes import WAIT_SECS

PASSAGES = json.loads((Path(__file__).parent / "data" / "questions.json").read_text())
BY_TITLE = {passage["title"]: passage for passage in PASSAGES}
LIGHTHOUSE = BY_TITLE["lighthouse"]["text"]
WHO = "Who built the lighthouse on Skerry Head?"
SHORT = "The bridge was opened by Edith Lowell in 1961."


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The demo's question model, alone; its files are not copied."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "questions").symlink_to(Path(demo.repository()) / "questions")
    (folder / "add_sub").symlink_to(Path(demo.repository()) / "add_sub")
    return folder


@pytest.fixture(scope="module")
def server(repository):
    with running_server(repository, tcp_port=0, tcp_address=ADDRESS) as running:
        yield running


def answer(server, text, question, query="", **more):
    reply = server.post(
        f"/v2/models/questions/answer{query}", {"text": text, "question": question, **more}
    )
    assert reply.status == 200, reply
    return reply.json


# ---- HTTP


@pytest.mark.curl
def test_curl(server):
    url = f"http://{server.http_address}/v2/models/questions/answer"
    body = json.dumps({"text": LIGHTHOUSE, "question": WHO})
    words = ["curl", "--silent", "--fail-with-body", url, "-d", body]
    found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert found["answer"] == "Alma Thorsen"
    assert LIGHTHOUSE[found["start"] : found["end"]] == "Alma Thorsen"
    assert 0.52 < found["score"] < 1
    assert (found["model_name"], found["model_version"]) == ("questions", "1")
    assert set(found) == {"model_name", "model_version", "answer", "score", "start", "end"}


def test_the_short_route_and_a_form(server):
    fields = {"text": LIGHTHOUSE, "question": WHO}
    for how in (
        {"json": fields},
        {"data": fields},
        {"files": {k: (None, fields[k]) for k in fields}},
    ):
        reply = requests.post(f"http://{server.http_address}/answer", timeout=WAIT_SECS, **how)
        assert reply.status_code == 200, reply.text
        assert reply.json()["answer"] == "Alma Thorsen"


def test_alternatives(server):
    found = answer(server, LIGHTHOUSE, WHO, query="?top=3")
    every = [found, *found["alternatives"]]
    assert len(every) == 3
    for one in every:
        assert LIGHTHOUSE[one["start"] : one["end"]] == one["answer"]
    places = sorted((one["start"], one["end"]) for one in every)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))


def test_several_questions_to_one_text(server):
    asked = [question for question, _ in BY_TITLE["lighthouse"]["answerable"]]
    reply = server.post(
        "/v2/models/questions/answer", {"text": LIGHTHOUSE, "questions": asked, "threshold": 0}
    )
    answers = reply.json["answers"]
    assert [one["question"] for one in answers] == asked
    alone = [answer(server, LIGHTHOUSE, one, threshold=0)["answer"] for one in asked]
    assert [one["answer"] for one in answers] == alone


@pytest.mark.parametrize(
    "text",
    [
        "Le café d'été fut bâti par Ségolène Brûlé à Évian en 1871.",
        "Le cafe\u0301 d'e\u0301te\u0301 fut construit par Se\u0301gole\u0300ne Brule\u0301.",
        "\U0001f600\U0001f680 The rocket \U0001f680 was built by Ann\U0001f468\u200d\U0001f469 Lee.",
        "One line.\r\nThe house was\r\nbuilt by Ann\r\nLee.\r\nThe end.",
        "東京タワー was built by 内藤多仲 in 1958.",
        "a\0b was built\0 by Ann \0Lee",
        "İstanbul'da ﬁnally built by Ⅷ Straße",
    ],
)
def test_offsets_are_characters_of_the_text_as_it_was_sent(server, text):
    found = answer(server, text, "Who built it?", query="?top=3", threshold=0)
    for one in [found, *found["alternatives"]]:
        assert one["answer"] == text[one["start"] : one["end"]]
        assert one["answer"]


def test_a_long_text_is_read_to_its_end(server):
    text = "\r\n\r\n".join(passage["text"] for passage in PASSAGES)  # seven windows
    wanted = {
        "From where was Petrel-4 launched?": "Kourou",
        "What does it cost to replace a lost card?": "5 euros",
    }
    reply = server.post("/v2/models/questions/answer", {"text": text, "questions": list(wanted)})
    for found, words in zip(reply.json["answers"], wanted.values(), strict=True):
        assert found["answer"] == words
        assert text[found["start"] : found["end"]] == words


def test_windows_of_a_call_share_executions(server):
    before = server.statistics("questions")
    answer(server, "\n".join(passage["text"] for passage in PASSAGES), "Who is Ilse Baumann?")
    after = server.statistics("questions")
    windows = after["inference_count"] - before["inference_count"]
    assert windows >= 6
    assert after["execution_count"] - before["execution_count"] <= 2


# ---- Unknown


def test_questions_that_the_text_does_not_answer(server):
    found = answer(server, LIGHTHOUSE, "What is the capital of Mongolia?")
    assert (found["answer"], found["start"], found["end"]) == ("Unknown", None, None)
    best = found["best"]
    assert LIGHTHOUSE[best["start"] : best["end"]] == best["answer"]
    assert found["score"] == pytest.approx(1 - best["score"], abs=1e-5)
    assert best["score"] < 0.52
    certain = answer(server, LIGHTHOUSE, "What is the capital of Mongolia?", threshold=0)
    assert certain["answer"] == best["answer"]


@pytest.mark.parametrize("title", ["lighthouse", "football club", "recipe", "storm"])
def test_clear_cases(server, title):
    """Most of what a text answers is answered, most of what is about something else is not."""
    passage = BY_TITLE[title]
    text = passage["text"]
    asked = [question for question, _ in passage["answerable"]]
    others = ["Who won the Nobel Prize in 1911?", "Which planet has rings?", "Why is the sky blue?"]
    reply = server.post("/v2/models/questions/answer", {"text": text, "questions": asked + others})
    answers = [one["answer"] for one in reply.json["answers"]]
    right = [
        words.lower() in found.lower() or found.lower() in words.lower()
        for (_, words), found in zip(passage["answerable"], answers[: len(asked)], strict=True)
    ]
    assert sum(right) >= 4, answers
    assert answers[len(asked) :] == ["Unknown"] * 3


# ---- wrong use


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"text": SHORT}, "'question' is missing"),
        ({"question": "Who?"}, "'text' is missing"),
        ({"text": SHORT, "question": ""}, "the question is empty"),
        ({"text": " \r\n ", "question": "Who?"}, "'text' is empty"),
        ({"text": "", "question": "Who?"}, "'text' is empty"),
        ({"text": "x" * 1_000_000, "question": "Who?"}, "1,000,000 characters, at most 200,000"),
        ({"text": SHORT, "question": "why " * 200}, "has 200 tokens .* at most 125"),
        ({"text": 5, "question": "Who?"}, "'text' must be a text, not a number"),
        ({"text": SHORT, "question": ["Who?"]}, "'question' must be a text, not a list"),
        ({"text": SHORT, "questions": ["Who?"] * 33}, "from 1 to 32 elements, not 33"),
        ({"text": SHORT, "question": "Who?", "top": "many"}, "'top' must be a whole number"),
        ({"text": SHORT, "question": "Who?", "stream": True}, "does not support streaming"),
        (b'{"text": "\\ud800", "question": "Who?"}', "failed to parse"),
        (b'{"text": "a", "question": "\xff"}', "failed to parse"),
        (b"[1]", "JSON object"),
    ],
)
def test_wrong_use(server, body, sentence):
    headers = {"Content-Type": "application/json"}
    reply = server.post("/v2/models/questions/answer", body, headers)
    assert reply.status == (501 if "streaming" in sentence else 400)
    assert re.search(sentence, reply.error), reply.error


def test_other_models_answer_no_questions(server):
    reply = server.post("/v2/models/add_sub/answer", {"text": SHORT, "question": "Who?"})
    assert reply.status == 400
    assert "does not offer 'answer'" in reply.error
    reply = server.post("/v2/models/nothing/answer", {"text": SHORT, "question": "Who?"})
    assert reply.status in (400, 404)
    assert server.post("/v2/models/questions/classify", b"").status == 400


# ---- beside it


def test_tensors_work_as_ever(server):
    ids = [101, 2040, 1029, 102, 2009, 102]
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [1, len(ids)], "data": data}
        for name, data in [
            ("input_ids", ids),
            ("attention_mask", [1] * len(ids)),
            ("token_type_ids", [0, 0, 0, 0, 1, 1]),
        ]
    ]
    reply = server.post("/v2/models/questions/infer", {"inputs": inputs})
    assert [output["shape"] for output in reply.json["outputs"]] == [[1, 6], [1, 6]]
    assert np.isfinite(reply.json["outputs"][0]["data"]).all()


def test_calls_are_counted(server):
    before = server.statistics("questions")["task"]
    answer(server, SHORT, "Who opened it?")
    server.post("/answer", {"text": SHORT, "question": ""})
    after = server.statistics("questions")["task"]
    assert after["name"] == "question-answering"
    grown = {k: after[k]["count"] - before[k]["count"] for k in after if k != "name"}
    assert grown == {"success": 1, "fail": 1, "preprocess": 1, "postprocess": 1}


def test_many_callers_at_once_get_their_own_responses(server):
    asked = [(p["text"], q) for p in PASSAGES[:6] for q, _ in p["answerable"][:3]]
    alone = [answer(server, *one)["answer"] for one in asked]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda one: answer(server, *one)["answer"], asked * 2))
    assert together == alone * 2


def test_the_tokenizer_does_not_complain_when_processes_are_started(repository, tmp_path, capfd):
    """Models in Python run in processes of their own, started after tokenizers were used."""
    folder = tmp_path / "late" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT',\n"
        "            pb_utils.get_input_tensor_by_name(r, 'IN').as_numpy())]) for r in requests]\n"
    )
    (tmp_path / "late" / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 0\n'
        'input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
    )
    options = {"model_control_mode": "explicit", "load_model": ("questions",)}
    with running_server(repository, tmp_path, **options) as running:
        body = {"text": SHORT, "questions": ["Who opened it?", "When?", "What?"]}
        assert running.post("/answer", body).status == 200
        assert running.load("late").status == 200
        assert running.post("/answer", body).status == 200
    assert "tokenizers" not in capfd.readouterr().err


# ---- TCP


class Line:
    """One TCP connection."""

    def __init__(self, server, family=socket.AF_INET, address=ADDRESS):
        self.socket = socket.socket(family)
        self.socket.settimeout(WAIT_SECS)
        try:
            self.socket.connect((address, server.server.tcp_port))
        except OSError:
            self.socket.close()
            raise
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def send(self, *documents, end=b""):
        data = b"".join(json.dumps(one).encode() + end for one in documents)
        self.socket.sendall(data)


def ask(question, text=SHORT, **more):
    return {"text": text, "question": question, **more}


def test_the_ancestors_client(server):
    """It sends an object, reads what comes, and does so again on the same connection."""
    with Line(server) as line:
        for question, words in [("Who opened it?", b"Edith Lowell"), ("When was it?", b"1961")]:
            line.send(ask(question))
            assert line.socket.recv(65536) == words


def test_lines(server):
    with Line(server) as line:
        line.send(ask("Who opened it?"), ask("When was it opened?"), ask("Who?"), end=b"\n")
        assert [line.file.readline() for _ in range(3)] == [
            b"Edith Lowell\n",
            b"1961\n",
            b"Edith Lowell\n",
        ]


def test_unknown_and_utf8(server):
    with Line(server) as line:
        line.send(ask("Which planet has rings?"), end=b"\n")
        assert line.file.readline() == b"Unknown\n"
        line.send(ask("Who opened it?", "It was opened by Zoë Müller yesterday."), end=b"\n")
        assert line.file.readline().decode() == "Zoë Müller\n"


def test_a_question_in_tiny_packets(server):
    text = 'It was {finally} opened by Edith Lowell, "the }{ Minister".'
    data = json.dumps(ask("Who opened it?", text)).encode() + b"\n"
    with Line(server) as line:
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(data)):
            line.socket.sendall(data[at : at + 1])
        assert b"Edith" in line.file.readline()


def test_a_long_text_over_tcp(server):
    text = "\n".join(passage["text"] for passage in PASSAGES)
    with Line(server) as line:
        line.send(ask("From where was Petrel-4 launched?", text), end=b"\n")
        assert line.file.readline() == b"Kourou\n"


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b'{"text": "a"}\n', b"'question' is missing"),
        (b'{"text": "a", "question": " "}\n', b"the question is empty"),
        (b'{"text": "a", "question": }\n', b"failed to parse"),
        (b'{"text": "a", "question": "b", "model": "add_sub"}\n', b"does not offer 'answer'"),
        (b'{"text": "a", "question": "b", "model": "nobody"}\n', b"nobody"),
        (b'["text"]\n', b"expected a JSON object"),
        (json.dumps(ask("?", "x" * 1_000_000)).encode() + b"\n", b"at most 200,000"),
    ],
)
def test_errors_over_tcp(server, sent, sentence):
    with Line(server) as line:
        line.socket.sendall(sent)
        reply = line.file.readline()
        assert reply.startswith(b"error: ")
        assert sentence in reply
        line.send(ask("Who opened it?"), end=b"\n")
        assert line.file.readline() == b"Edith Lowell\n"


def test_an_http_request_ends_the_connection(server):
    """A web page could otherwise put a question into the body of a request."""
    with Line(server) as line:
        line.socket.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + json.dumps(ask("?")).encode())
        reply = line.file.read()
    assert reply.startswith(b"error: ")
    assert reply.count(b"\n") == 1


def test_nonsense_without_a_line_ends_the_connection(server):
    with Line(server) as line:
        line.socket.sendall(b"hello?")
        assert line.file.read() == b"error: expected a JSON object, found 'hello?'\n"


def test_a_client_that_shuts_down_its_side_gets_its_answer(server):
    with Line(server) as line:
        line.send(ask("Who opened it?"), end=b"\n")
        line.socket.shutdown(socket.SHUT_WR)
        assert line.file.read() == b"Edith Lowell\n"


def test_many_clients_at_once(server):
    def one_client(number):
        years = range(1500 + 10 * number, 1503 + 10 * number)
        texts = [f"The bridge {'over the river ' * (number % 5)}was opened in {y}." for y in years]
        with Line(server) as line:
            got = []
            for text in texts:
                line.send(ask("When was the bridge opened?", text, threshold=0), end=b"\n")
                got.append(line.file.readline())
        return got == [f"{year}\n".encode() for year in years]

    with ThreadPoolExecutor(50) as pool:
        assert all(pool.map(one_client, range(50)))
    wait_until(lambda: server.server.ports.tcp.open_connections == 0, "all clients have gone")


def test_a_client_that_disconnects_cancels_its_question(server):
    text = "\n".join(passage["text"] for passage in PASSAGES) * 8
    door = server.model("questions").task
    wait_until(lambda: door.calls == 0, "the questions before it are answered")
    before = server.statistics("questions")
    with Line(server) as line:
        line.send(ask("Who is Ilse Baumann?", text))
        begun = before["task"]["preprocess"]["count"] + 1
        wait_until(
            lambda: door.statistics.snapshot()["preprocess"]["count"] == begun,
            "the question is under way",
        )
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: door.calls == 0, "the question is withdrawn")
    after = server.statistics("questions")
    assert after["task"]["fail"]["count"] == before["task"]["fail"]["count"] + 1
    assert after["inference_count"] - before["inference_count"] < 50  # of 57 windows


@pytest.mark.one_process
def test_stopping_answers_pending_questions(repository):
    text = "\n".join(passage["text"] for passage in PASSAGES)
    with running_server(repository, tcp_port=0, tcp_address=ADDRESS) as running:
        idle, busy = Line(running), Line(running)
        with idle, busy:
            busy.send(ask("From where was Petrel-4 launched?", text), end=b"\n")
            wait_until(lambda: running.model("questions").task.calls == 1, "it is asked")
            stopping = threading.Thread(target=running.run, args=(running.server.stop(),))
            stopping.start()
            assert busy.file.read() == b"Kourou\n"
            assert idle.file.read() == b""
            stopping.join(WAIT_SECS)
            assert not stopping.is_alive()
            with pytest.raises(ConnectionRefusedError):
                Line(running)


def test_ipv6(repository):
    with (
        running_server(repository, tcp_port=0, tcp_address="::1") as running,
        Line(running, socket.AF_INET6, "::1") as line,
    ):
        line.send(ask("Who opened it?"), end=b"\n")
        assert line.file.readline() == b"Edith Lowell\n"


def test_off_by_default(repository):
    with running_server(repository, model_control_mode="explicit") as running:
        assert running.server.tcp_port == 0
        assert running.server.ports.tcp is None
