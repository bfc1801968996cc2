"""constraints.txt: pins that hold for one Python and platform only."""

from __future__ import annotations

import re

LINE = re.compile(
    r"[a-z0-9-]+==[0-9][^+ ]* ; python_version == '3\.\d+'"
    r" and sys_platform == 'linux' and platform_machine == 'x86_64'"
)


def test_lines_of_a_report(tool):
    constraints = tool("constraints")
    packages = [("torch", "2.13.0+cpu"), ("shoal", "0.1.0"), ("ml_dtypes", "0.5"), ("a.b", "1")]
    report = {"install": [{"metadata": {"name": n, "version": v}} for n, v in packages]}
    lines = constraints.pins(report, "os_name == 'posix'").removeprefix(constraints.HEAD)
    assert lines.splitlines() == [
        "a-b==1 ; os_name == 'posix'",
        "ml-dtypes==0.5 ; os_name == 'posix'",
        "torch==2.13.0 ; os_name == 'posix'",
    ]


def test_every_pin_names_its_environment(root):
    lines = (root / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 100
    assert [line for line in pins if not LINE.fullmatch(line)] == []
