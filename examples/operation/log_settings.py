"""Make a running server log more, then restore its settings.

shoal serve --demo
pip install "tritonclient[http]"
python examples/operation/log_settings.py [localhost:8000]
"""

from __future__ import annotations

import sys

import tritonclient.http as triton


def main(server: str) -> None:
    with triton.InferenceServerClient(server) as client:
        before = client.get_log_settings()
        print("before:", before)
        changed = client.update_log_settings({"log_verbose_level": 1, "log_format": "ISO8601"})
        print("now:   ", changed)
        assert changed == {**before, "log_verbose_level": 1, "log_format": "ISO8601"}

        # Only the operator can set the log file.
        back = {name: value for name, value in before.items() if name != "log_file"}
        assert client.update_log_settings(back) == before


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")
