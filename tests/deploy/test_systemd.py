"""deploy/systemd: the unit is valid and restricted, and agrees with the server's options."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from shoal.cli import arguments
from shoal.config.options import Options

EXPOSURE = 20  # in tenths: systemd 252 rates the unit 1.2, and 1.4 with gpu.conf


@pytest.fixture(scope="module")
def files(root):
    return root / "deploy" / "systemd"


@pytest.fixture(scope="module")
def settings(files):
    """The settings of the unit; a repeated one has its last value."""
    return dict(re.findall(r"^(\w+)=(.*)$", (files / "shoal.service").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def words(files):
    """The options in the file of defaults."""
    text = (files / "shoal.default").read_text()
    return shlex.split(re.search(r'^SHOAL_OPTIONS="(.*)"$', text, re.MULTILINE)[1])


def test_the_defaults_are_options_of_the_server(words):
    options = arguments.parse(words)
    assert options.model_repository == ("/srv/shoal/models",)


def test_a_stop_has_more_time_than_the_server_takes(settings, words):
    most = max(
        options.drain_secs + options.exit_timeout_secs
        for options in (Options(), arguments.parse(words))
    )
    assert int(settings["TimeoutStopSec"]) >= most + 10


def test_folders_are_the_same_in_all_files(files, settings):
    assert "/srv/shoal/models" in (files / "shoal.tmpfiles").read_text()
    assert f"u {settings['User']} " in (files / "shoal.sysusers").read_text()
    assert settings["WorkingDirectory"] == f"/var/lib/{settings['StateDirectory']}"


@pytest.fixture(scope="module")
def unit(files, tmp_path_factory):
    """A copy whose program exists."""
    folder = tmp_path_factory.mktemp("units")
    text = (files / "shoal.service").read_text()
    copy = folder / "shoal.service"
    copy.write_text(text.replace("/opt/shoal/bin/shoal", shutil.which("true")))
    return copy


def analyze(*words):
    done = subprocess.run(
        ("systemd-analyze", *map(str, words)), capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.systemd
def test_systemd_accepts_the_unit(unit):
    assert analyze("verify", "--man=no", "--recursive-errors=no", unit) == (0, "")


@pytest.mark.systemd
@pytest.mark.parametrize("gpu", [False, True])
def test_systemd_rates_the_unit_well(unit, files, gpu):
    more = unit.with_name("shoal.service.d")
    if gpu:
        more.mkdir()
        shutil.copy(files / "gpu.conf", more)
    code, text = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", unit)
    assert code == 0, text


@pytest.mark.systemd
def test_a_wrong_setting_would_be_found(unit):
    wrong = unit.with_name("wrong.service")
    wrong.write_text(unit.read_text().replace("Type=notify", "Type=notfy"))
    _, text = analyze("verify", "--man=no", "--recursive-errors=no", wrong)
    assert "Failed to parse service type" in text
