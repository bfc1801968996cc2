"""Questions about a text: one, several at once, with alternatives, and one without an answer.

pip install requests
python examples/questions/ask.py [localhost:8000]
"""

from __future__ import annotations

import sys
from typing import Any

import requests

TEXT = """\
Herring are found in shoals of up to three billion fish. A shoal stays together for safety: a
predator that sees thousands of equal fish finds it hard to choose one. The sense that lets each
fish feel its neighbours is the lateral line, which runs along both of its sides. In spring the
shoals of the North Sea move towards the coast of Norway, where they spawn on gravel.
"""


def main(server: str) -> None:
    def answer(**asked: object) -> dict[str, Any]:
        url = f"http://{server}/v2/models/questions/answer"
        response = requests.post(url, json={"text": TEXT, **asked}, timeout=30)
        if not response.ok:
            sys.exit(f"{response.status_code}: {response.json()['error']}")
        found: dict[str, Any] = response.json()
        return found

    found = answer(question="What lets a fish feel its neighbours?")
    print(f"{found['answer']} ({found['score']:.2f})")
    assert TEXT[found["start"] : found["end"]] == found["answer"]

    several = ["Where does the lateral line run?", "How many fish are in a shoal?"]
    for one in answer(questions=several)["answers"]:
        print(f"{one['question']} {one['answer']}")

    found = answer(question="When do the shoals move?", top=3)
    for one in [found, *found["alternatives"]]:
        print(f"{one['score']:.2f} {one['answer']}")

    found = answer(question="Who invented the telephone?")
    print(f"{found['answer']}; the best guess was: {found['best']['answer']}")
    assert found["start"] is None


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")
