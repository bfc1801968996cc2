"""tools/nvidia_clients.py without NVIDIA's packages: what it installs, serves and accepts."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from shoal.cli.main import main

# Model Analyzer as the checks see it: it reads a config file and writes tables and reports.
ANALYZER = """#!{python}
import pathlib, sys
here = pathlib.Path("export")
if sys.argv[1] == "profile":
    text = pathlib.Path("profile.yaml").read_text()
    assert "triton_launch_mode: remote" in text and "triton_grpc_endpoint: 127.0.0.1:2" in text
    (here / "results").mkdir()
    (here / "results" / "metrics-model-inference.csv").write_text('''{table}''')
    (here / "reports" / "summaries" / "add_sub").mkdir(parents=True)
    (here / "reports" / "summaries" / "add_sub" / "result_summary.html").touch()
elif {reports}:
    folder = here / "reports" / "detailed" / sys.argv[3]
    folder.mkdir(parents=True)
    (folder / "detailed_report.pdf").touch()
"""
HEAD = "Model Config Path,Concurrency,Throughput (infer/sec),p99 Latency (ms)\n"
WHOLE = HEAD + "".join(f"config_{n},2,{100 + n},1.5\n" for n in range(5))


@pytest.fixture(scope="module")
def script(tool):
    return tool("nvidia_clients")


@pytest.fixture(scope="module")
def analyzer(script):
    return importlib.import_module("nvidia.model_analyzer")


@pytest.fixture
def profile(analyzer, tmp_path):
    def run(table, reports=True):
        program = tmp_path / "model-analyzer"
        program.write_text(ANALYZER.format(python=sys.executable, table=table, reports=reports))
        program.chmod(0o755)
        ports = (1, 2, 3)
        work = tmp_path / "work"
        return analyzer.profile(program, work, tmp_path, ports, tmp_path, protocol="grpc")

    return run


def test_a_profile_with_all_its_numbers(profile):
    assert profile(WHOLE) == "5 measurements of 5 configs; config_4 has 104 infer/sec"


@pytest.mark.parametrize(
    ("table", "reports", "message"),
    [
        (HEAD + "config_0,2,100,1\n", True, "only these configs were measured: config_0"),
        (WHOLE + "config_5,2,0,1\n", True, "a number is missing in"),
        (WHOLE, False, "there is no report detailed/config_4/detailed_report"),
    ],
)
def test_a_profile_that_lacks_something(profile, analyzer, table, reports, message):
    with pytest.raises(analyzer.CheckFailed, match=message):
        profile(table, reports)


def test_the_models_have_no_problems(script, tmp_path, capsys):
    models, app = script.repository.write(tmp_path)
    assert main(["check", str(models), str(app)]) == 0, capsys.readouterr()
    assert "8 models checked, no problems" in capsys.readouterr().out


def test_packages_are_installed_once(script, tmp_path, monkeypatch):
    commands = []

    def run(command, **_):
        commands.append(command)
        (tmp_path / "env").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(script.subprocess, "run", run)
    for _ in range(2):
        assert script.environment(tmp_path / "env") == tmp_path / "env" / "bin"
    assert len(commands) == 2
    assert commands[1][-2:] == list(script.PACKAGES)


def test_packages_that_cannot_be_installed(script, tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "first\nno such package\n")
    monkeypatch.setattr(script.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match="no such package"):
        script.environment(tmp_path / "env")
