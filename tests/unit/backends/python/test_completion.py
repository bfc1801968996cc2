"""Whether a model.py has to be asked for its config, while other models load."""

import threading

from shoal.backends.python import completion
from shoal.testing.server import wait_until

PLAIN = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


def test_one_file_is_parsed_at_a_time(tmp_path, monkeypatch):
    file = tmp_path / "model.py"
    file.write_text(PLAIN)
    inside, most, go = [], [], threading.Event()
    parse = completion.ast.parse

    def slow(source):
        inside.append(1)
        most.append(len(inside))
        go.wait(30)
        inside.pop()
        return parse(source)

    monkeypatch.setattr(completion.ast, "parse", slow)
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(completion.may_complete(file)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: most)
    go.set()
    for thread in threads:
        thread.join(30)
    assert answers == [False] * 3
    assert most == [1, 1, 1]


def test_a_library_that_parses_meanwhile(tmp_path, monkeypatch):
    file = tmp_path / "model.py"
    file.write_text(PLAIN)

    def mismatch(source):
        raise SystemError("AST constructor recursion depth mismatch (before=42, after=36)")

    monkeypatch.setattr(completion.ast, "parse", mismatch)
    assert completion.may_complete(file) is True
