"""Python environments without pip and without a network: folders, archives, keys."""

from __future__ import annotations

import io
import sys
import tarfile

import pytest

from shoal.backends.python import environment
from shoal.backends.python.environment import Environment
from shoal.backends.python.settings import PythonSettings
from shoal.errors import Internal


@pytest.fixture
def python_folder(tmp_path):
    """A folder with this very interpreter in it."""
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


def archive(path, members):
    with tarfile.open(path, "w:gz") as opened:
        for member, content in members:
            if content is not None:
                member.size = len(content)
            opened.addfile(member, None if content is None else io.BytesIO(content))
    return path


def member(name, kind=tarfile.REGTYPE, link="", mode=0o755):
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def test_a_folder_is_used_where_it_is(python_folder):
    made = Environment.prepare(PythonSettings(environment=python_folder))
    assert made.python == python_folder / "bin" / "python"
    assert made.version == sys.version_info[:2]


def test_its_process_sees_no_packages_of_the_server(python_folder):
    variables = Environment(python_folder).variables(
        {"PATH": "/bin", "PYTHONPATH": "/server", "PYTHONHOME": "/home", "OTHER": "1"}
    )
    assert variables["PATH"].startswith(str(python_folder / "bin"))
    assert variables["OTHER"] == "1"
    assert variables["CONDA_PREFIX"] == str(python_folder)
    assert "PYTHONPATH" not in variables
    assert "PYTHONHOME" not in variables


def test_a_folder_without_python_is_none(tmp_path):
    with pytest.raises(Internal, match="is not a Python environment: it has none of bin/python"):
        Environment(tmp_path)


def test_a_python_that_does_not_run(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("#!/bin/false\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    with pytest.raises(Internal, match="does not run"):
        Environment(tmp_path)


def test_an_archive_is_unpacked_once(tmp_path):
    script = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'.encode()
    packed = archive(tmp_path / "env.tar.gz", [(member("bin/python"), script)])
    chosen = PythonSettings(environment=packed, cache_folder=tmp_path / "cache")
    made = Environment.prepare(chosen)
    (made.root / "note").touch()
    again = Environment.prepare(chosen)
    assert again.root == made.root
    assert (again.root / "note").exists()


def test_an_interrupted_unpacking_is_begun_again(tmp_path):
    script = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'.encode()
    packed = archive(tmp_path / "env.tar.gz", [(member("bin/python"), script)])
    chosen = PythonSettings(environment=packed, cache_folder=tmp_path / "cache")
    root = Environment.prepare(chosen).root
    (root / environment._MARKER).unlink()
    (root / "bin" / "python").unlink()
    assert Environment.prepare(chosen).python.is_file()


@pytest.mark.parametrize(
    "wrong",
    [
        (member("../outside"), b"x"),
        (member("/etc/outside"), b"x"),
        (member("link", tarfile.SYMTYPE, "/etc/passwd"), None),
        (member("a/link", tarfile.SYMTYPE, "../../outside"), None),
        (member("hard", tarfile.LNKTYPE, "../outside"), None),
        (member("device", tarfile.CHRTYPE), None),
    ],
    ids=lambda entry: entry[0].name,
)
def test_an_archive_cannot_leave_its_folder(tmp_path, wrong):
    packed = archive(tmp_path / "env.tar.gz", [wrong])
    chosen = PythonSettings(environment=packed, cache_folder=tmp_path / "cache")
    with pytest.raises(Internal, match="leads out of it"):
        Environment.prepare(chosen)
    assert not (tmp_path / "outside").exists()


def test_what_is_no_archive(tmp_path):
    file = tmp_path / "env.tar.gz"
    file.write_bytes(b"not at all")
    chosen = PythonSettings(environment=file, cache_folder=tmp_path / "cache")
    with pytest.raises(Internal, match="use conda-pack"):
        Environment.prepare(chosen)


def test_the_key_follows_the_content(tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text("-r more.txt\n-c=limits.txt\nleft-pad\n")
    (tmp_path / "more.txt").write_text("a\n")
    (tmp_path / "limits.txt").write_text("a<2\n")
    first = environment._key(file)
    assert environment._key(file) == first
    (tmp_path / "limits.txt").write_text("a<3\n")
    assert environment._key(file) != first


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "requirements.txt").write_text("")
    chosen = PythonSettings(
        requirements=tmp_path / "requirements.txt", cache_folder=tmp_path / "cache"
    )
    with pytest.raises(Internal, match="environment-folder=<folder>"):
        Environment.prepare(chosen)
