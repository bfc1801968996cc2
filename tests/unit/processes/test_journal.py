"""What an engine process that replaces another one is told."""

from __future__ import annotations

from pathlib import Path

from shoal.errors import NotFound
from shoal.processes.journal import Journal, record


class Engine:
    def __init__(self):
        self.calls = []

    def __getattr__(self, method):
        def call(*arguments, **_options):
            if arguments[0] == "missing":
                raise NotFound("there is no such model")
            self.calls.append((method, *arguments))

        return call


def test_the_last_call_for_a_model_and_all_settings_are_repeated(caplog):
    calls = {}
    journal = Journal(Engine(), lambda *call: record(calls, *call))
    journal.update_trace_settings("", {"trace_level": ["TIMESTAMPS"], "trace_rate": ["1"]})
    journal.load("a", None, {})
    journal.load("b", None, {})
    journal.unload("a")
    journal.update_trace_settings("", {"trace_rate": ["2"]})
    journal.update_trace_settings("b", {"trace_rate": ["7"]})
    journal.register_repository(Path("/kept"), {"a": "b"})
    journal.register_repository(Path("/removed"), {})
    journal.unregister_repository(Path("/removed"))
    journal.update_log_settings({"log_info": False})
    journal.update_log_settings({"log_verbose_level": 1})
    record(calls, "load", "missing", None, {})

    engine = Engine()
    Journal.replay(engine, [list(call) for call in calls.values()])

    assert engine.calls == [
        ("load", "b", None, {}),
        ("unload", "a", False),
        ("update_trace_settings", "", {"trace_level": ["TIMESTAMPS"], "trace_rate": ["2"]}),
        ("update_trace_settings", "b", {"trace_rate": ["7"]}),
        ("register_repository", Path("/kept"), {"a": "b"}),
        ("update_log_settings", {"log_info": False, "log_verbose_level": 1}),
    ]
    assert "load(missing) could not be repeated" in caplog.text
