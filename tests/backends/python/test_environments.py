"""Models in Python environments of their own, made by pip without a network."""

from __future__ import annotations

import sys
import tarfile
import venv
import zipfile

import pytest

from shoal.errors import Internal
from shoal.link.link import Link
from shoal.testing.server import wait_until

METADATA = "Metadata-Version: 2.1\nName: tidepool\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
DEPTH = """
import sys
import tidepool

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        import tidepool
        return config

    def initialize(self, args):
        print(args["model_name"])

    def execute(self, requests):
        own = int(sys.prefix != "SERVER")
        return [answer([[tidepool.DEPTH, own]]) for _ in requests]
""".replace("SERVER", sys.prefix)


@pytest.fixture
def wheels(tmp_path):
    """A folder with a package for pip to find: `tidepool`, in two versions."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version, depth in (("1.0", 3), ("2.0", 5)):
        info = f"tidepool-{version}.dist-info"
        with zipfile.ZipFile(folder / f"tidepool-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tidepool.py", f"DEPTH = {depth}\n")
            wheel.writestr(f"{info}/METADATA", METADATA.format(version=version))
            wheel.writestr(f"{info}/WHEEL", WHEEL)
            wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def load(processes, wheels, tmp_path):
    """Load a model that needs one version of `tidepool`."""

    def make(name, version):
        text = f"--no-index\n--find-links {wheels}\ntidepool=={version}\n"
        return processes.load(
            DEPTH,
            name=name,
            files={"requirements.txt": text},
            settings={"execution": "auto", "environment-folder": str(tmp_path / "cache")},
        )

    return make


@pytest.mark.timeout(180)
def test_each_model_has_the_packages_it_requires(load, ask, tmp_path):
    shallow, deep = load("shallow", "1.0"), load("deep", "2.0")
    assert ask(shallow, 1).outputs[0].array.tolist() == [[3, 1]]
    assert ask(deep, 1).outputs[0].array.tolist() == [[5, 1]]
    again = load("again", "1.0")  # the same requirements: made once
    assert ask(again, 1).outputs[0].array.tolist() == [[3, 1]]
    assert len(list((tmp_path / "cache").glob("venv-*/pyvenv.cfg"))) == 2


@pytest.mark.timeout(180)
def test_a_package_that_pip_cannot_find_fails_the_load(load, tmp_path):
    with pytest.raises(Internal) as raised:
        load("missing", "9.0")
    assert "pip could not install" in raised.value.message
    assert "tidepool==9.0" in raised.value.message
    assert list((tmp_path / "cache").glob("venv-*/pyvenv.cfg")) == []


FOLDER = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }\n'


@pytest.fixture
def environment(processes):
    """A virtual environment inside the model's folder, with a module put there by hand."""
    folder = processes.folder / "m" / "env"
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "tidepool.py").write_text("DEPTH = 9\n")
    return folder


def test_an_environment_that_is_there(processes, environment, ask):
    model = processes.load(DEPTH, more=FOLDER % "$$TRITON_MODEL_DIRECTORY/env")
    assert ask(model, 1).outputs[0].array.tolist() == [[9, 1]]


def test_an_environment_in_an_archive(processes, environment, ask, tmp_path):
    packed = tmp_path / "env.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for path in sorted(environment.rglob("*")):
            name = str(path.relative_to(environment))
            if path.is_symlink() and path.name.startswith("python"):
                continue  # links to this machine's interpreter: an archive has its own
            archive.add(path, name, recursive=False)
        script = tmp_path / "python"
        script.write_text(
            f'#!/bin/sh\nexport PYTHONPATH="$(dirname "$0")/../{site_of(environment)}"\n'
            f'exec "{sys._base_executable}" "$@"\n'
        )
        script.chmod(0o755)
        archive.add(script, "bin/python")
    model = processes.load(
        DEPTH.replace('sys.prefix != "', 'True or "'),
        more=FOLDER % packed,
        settings={"environment-folder": str(tmp_path / "cache")},
    )
    assert ask(model, 1).outputs[0].array.tolist() == [[9, 1]]


def site_of(environment):
    (site,) = environment.glob("lib/python*/site-packages")
    return site.relative_to(environment)


def test_an_environment_without_numpy_is_reported(processes, environment, monkeypatch):
    monkeypatch.setattr("shoal.backends.python.environment._version", lambda _: (3, 99))
    with pytest.raises(Internal, match="has no numpy that works"):
        processes.load(DEPTH, more=FOLDER % "$$TRITON_MODEL_DIRECTORY/env")


def test_the_output_of_a_process_that_ends_early_is_read(processes, environment, monkeypatch):
    send = Link.send

    def late(link, *message, **options):
        wait_until(lambda: link._channel._closed, "the process has ended")
        send(link, *message, **options)

    monkeypatch.setattr("shoal.backends.python.environment._version", lambda _: (3, 99))
    monkeypatch.setattr(Link, "send", late)
    with pytest.raises(Internal, match="has no numpy that works"):
        processes.load(DEPTH, more=FOLDER % "$$TRITON_MODEL_DIRECTORY/env")
