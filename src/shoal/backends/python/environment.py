"""Python environments of models: a requirements.txt, a folder, a conda-pack archive.

    requirements.txt --> virtual environment ┐
    environment.tar.gz --> unpacked          ├─ in the cache, under the hash of their content
    a folder                                 ┘  used where it is

An environment is created once and used by every model, instance and restart with the same content.
An interrupted creation is repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import logging
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import threading
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shoal.backends.python.settings import PythonSettings
from shoal.errors import Internal
from shoal.link.process import Interpreter

logger = logging.getLogger(__name__)

_MARKER = "shoal-complete"  # written last
_READ_BYTES = 1 << 20
_MOST_SHOWN = 2000  # characters of pip's output

_making = threading.Lock()  # in this process; between processes a lock file does the same


class Environment:
    """A Python environment that is ready to use."""

    def __init__(self, root: Path) -> None:
        """Find the interpreter in `root` and read its version. Raises Internal."""
        self.root = root
        self.python = _interpreter(root)
        self.version = _version(self.python)

    @classmethod
    def prepare(cls, settings: PythonSettings) -> Environment:
        """The environment of a model, created if necessary. Takes as long as pip does.

        Raises Internal with the reason; an incomplete environment is never used.
        """
        folder = settings.environment
        if folder is not None and folder.is_dir():
            return cls(folder)
        cache = settings.cache_folder or default_cache()
        if folder is not None:
            return cls(_made(cache, f"archive-{_hash_of(folder)}", lambda to: _unpack(folder, to)))
        requirements = settings.requirements
        assert requirements is not None
        return cls(_made(cache, f"venv-{_key(requirements)}", lambda to: _build(requirements, to)))

    def interpreter(self) -> Interpreter:
        """Its Python, for a child process."""
        return Interpreter(self.python, self.version, self.variables(os.environ))

    def variables(self, base: Mapping[str, str]) -> dict[str, str]:
        """Environment variables with which this Python finds only its own packages."""
        kept = {k: v for k, v in base.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        path = f"{self.python.parent}{os.pathsep}{base.get('PATH', os.defpath)}"
        kind = "VIRTUAL_ENV" if (self.root / "pyvenv.cfg").is_file() else "CONDA_PREFIX"
        return {**kept, "PATH": path, kind: str(self.root), "PYTHONNOUSERSITE": "1"}


def default_cache() -> Path:
    """Where environments are stored by default."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "shoal" / "environments"


def _interpreter(root: Path) -> Path:
    candidates = ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe")
    for candidate in candidates:
        if (root / candidate).is_file():
            return root / candidate
    raise Internal(f"'{root}' is not a Python environment: it has none of {', '.join(candidates)}")


def _version(python: Path) -> tuple[int, int]:
    command = [str(python), "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        said = subprocess.run(  # noqa: S603 - the interpreter that the operator chose
            command, capture_output=True, text=True, check=True, timeout=60
        )
        major, minor = said.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise Internal(f"the Python of a model, {python}, does not run: {error}") from None


# ---- making them


def _made(cache: Path, key: str, make: Callable[[Path], None]) -> Path:
    """The folder of an environment, created by `make` if it is missing."""
    folder = cache / key
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _making, _locked(cache / f"{key}.lock"):
            if not (folder / _MARKER).is_file():
                shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted creation
                make(folder)
                (folder / _MARKER).touch()
    except OSError as error:
        raise Internal(
            f"cannot create a Python environment in '{cache}': {error}. Choose another folder with "
            f"--backend-config=python,environment-folder=<folder>"
        ) from None
    return folder


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Prevent other processes from creating the same environment at the same time."""
    with file.open("w") as opened:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _build(requirements: Path, folder: Path) -> None:
    """A virtual environment of this Python with the file's packages."""
    logger.info("creating a Python environment for %s; this may take a while", requirements)
    # Not importlib.util: hooks of setuptools' change this process when pip is looked up.
    has_pip = importlib.machinery.PathFinder.find_spec("pip") is not None
    venv.EnvBuilder(with_pip=not has_pip, symlinks=os.name != "nt").create(folder)
    python = _interpreter(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    if not has_pip:
        pip = [str(python), "-m", "pip"]
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    done = subprocess.run(  # noqa: S603 - what the operator's requirements file says
        [*pip, "install", *quiet, "--requirement", str(requirements.resolve())],
        cwd=requirements.parent,  # paths in the file are relative to it
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        said = (done.stderr or done.stdout).strip()[-_MOST_SHOWN:]
        raise Internal(f"pip could not install {requirements}: {said}")


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive; all its files must stay inside the folder."""
    logger.info("unpacking the Python environment %s; this may take a while", archive)
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                _check_inside(member, folder)
            if hasattr(tarfile, "data_filter"):
                opened.extraction_filter = staticmethod(tarfile.tar_filter)
            opened.extractall(folder)  # noqa: S202 - every name was checked above
    except (tarfile.TarError, EOFError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Internal(
            f"'{archive}' is not an archive of a Python environment ({error}); use conda-pack"
        ) from None


def _check_inside(member: tarfile.TarInfo, folder: Path) -> None:
    """Reject names and links that lead out of the folder."""
    base = os.path.realpath(folder)
    place = os.path.normpath(os.path.join(base, member.name))  # noqa: PTH118 - not yet on disk
    inside = place == base or place.startswith(base + os.sep)
    if inside and (member.issym() or member.islnk()):
        start = os.path.dirname(place) if member.issym() else base  # noqa: PTH120
        target = os.path.normpath(os.path.join(start, member.linkname))  # noqa: PTH118
        inside = target == base or target.startswith(base + os.sep)
    if not inside or member.isdev():
        raise Internal(
            f"the archive of a Python environment holds '{member.name}', which leads out of it"
        )


# ---- their keys


def _key(requirements: Path) -> str:
    """The identity of a virtual environment."""
    digest = hashlib.sha256()
    machine = (sys.version, platform.platform(), sys.base_prefix)
    digest.update("\n".join(machine).encode())
    for text in _texts(requirements, set()):
        digest.update(b"\0" + text)
    return digest.hexdigest()[:32]


def _texts(file: Path, seen: set[Path]) -> Iterator[bytes]:
    """The content of a requirements file and of those it includes."""
    file = file.resolve()
    if file in seen:
        return
    seen.add(file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise Internal(f"cannot read {file}: {error.strerror}") from None
    yield content
    for line in content.decode("utf-8", "replace").splitlines():
        words = line.replace("=", " ").split()
        if len(words) > 1 and words[0] in ("-r", "--requirement", "-c", "--constraint"):
            yield from _texts(file.parent / words[1], seen)


def _hash_of(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()[:32]
