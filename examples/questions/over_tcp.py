"""Ask questions over TCP: JSON objects in, answers out, all on one connection.

shoal serve --demo --tcp-port=9999
python examples/questions/over_tcp.py [localhost:9999]
"""

from __future__ import annotations

import json
import socket
import sys

TEXT = "The stone pier of Ebbing was built in 1874 by the engineer Ada Thornwell."
QUESTIONS = ("Who built the pier?", "When was it built?", "What is the name of the mayor?")


def main(server: str) -> None:
    host, _, port = server.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        answers = connection.makefile("r", encoding="utf-8")
        for question in QUESTIONS:
            # With this newline, the answer ends with a newline too and can be read as a line.
            asked = json.dumps({"text": TEXT, "question": question}) + "\n"
            connection.sendall(asked.encode())
            print(question, answers.readline().rstrip("\n"))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9999")
