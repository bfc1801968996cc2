"""Images and containers for tests, in a storage and a mount namespace of their own.

    containers = Containers(folder)
    containers.make_base()                      Debian, by mmdebstrap: no registry is asked
    containers("podman", "run", ..., image)     any command, in the namespace
    containers.close()                          removes containers, images and storage

With cgroups in hybrid mode, crun fails unless /sys/fs/cgroup/unified is unmounted; the namespace
hides that from everybody else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/debian:slim"
# Where limits cannot be raised, the defaults of podman are refused.
LIMITS = ("nofile=1024:1024", "nproc=1024:1024")
PROGRAMS = ("buildah", "podman", "crun", "mmdebstrap", "unshare", "nsenter")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

# As in the image `debian:…-slim`: no documentation, no translations.
_LEFT_OUT = ("doc/*", "man/*", "locale/*", "info/*")
_HOLD = "umount /sys/fs/cgroup/unified 2>/dev/null; echo held; exec sleep infinity"


def missing() -> str:
    """Why images cannot be built and run here, or an empty text."""
    if os.name != "posix" or os.geteuid() != 0:
        return "needs root"
    programs = [name for name in PROGRAMS if shutil.which(name) is None]
    if programs:
        return f"needs {' and '.join(programs)}"
    if _release().get("ID") != "debian":
        return "makes its base of this machine's Debian, which it is not"
    return ""


class Containers:
    """Commands of buildah and podman with storage of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        settings = folder / "storage.conf"
        settings.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
        )
        defaults = folder / "containers.conf"
        limits = ", ".join(f'"{limit}"' for limit in LIMITS)
        defaults.write_text(f"[containers]\ndefault_ulimits = [{limits}]\n")
        self.environment = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(settings),
            "CONTAINERS_CONF": str(defaults),
        }
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation=private", "sh", "-c", _HOLD],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._enter = ("nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt")
        assert self._holder.stdout.readline() == "held\n", "no mount namespace can be made here"

    def __call__(self, *command, check=True, environment=MappingProxyType({})):
        """Run a command in the namespace. With `check`, a failure is an AssertionError."""
        done = subprocess.run(
            # Entering a namespace leaves the folder.
            [*self._enter, "env", f"--chdir={ROOT}", *map(str, command)],
            check=False,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
        )
        if check:
            assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done

    def inspect(self, name):
        """What podman knows of an image or a container."""
        return json.loads(self("podman", "inspect", name).stdout)[0]

    def make_base(self, name=BASE, *packages) -> str:
        """Make an image of Debian with these packages; its name."""
        archive = self._folder / "base.tar"
        excluded = [f"--dpkgopt=path-exclude=/usr/share/{part}" for part in _LEFT_OUT]
        self(
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(('usr-is-merged', *packages))}",
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            '--aptopt=Acquire::Check-Valid-Until "false"',
            *excluded,
            _release()["VERSION_CODENAME"],
            archive,
            *_sources(),
        )
        self.build(name, "FROM scratch\nADD base.tar /\n", archive)
        archive.unlink()
        return name

    def build(self, name, dockerfile, *files) -> str:
        """Build an image from the text of a Dockerfile that copies these files; its name."""
        context = self._folder / "context"
        context.mkdir()
        (context / "Dockerfile").write_text(dockerfile)
        for file in files:
            copy = shutil.copytree if file.is_dir() else os.link
            copy(file, context / file.name)
        self("buildah", "build", *build_arguments(), "--quiet", f"--tag={name}", context)
        shutil.rmtree(context)
        return name

    def make_image(self, variant, name, **environment) -> str:
        """`make image` with buildah, on the base; its name."""
        command = ["make", "--no-print-directory", "image", f"VARIANT={variant}"]
        secrets = []
        if AUTHORITIES.exists():  # the network may have an authority of its own
            secrets.append(f"--secret=id=ca-certificates,src={AUTHORITIES}")
        settings = self._folder / "pip.conf"
        settings.write_text(_pip_settings())
        secrets.append(f"--secret=id=pip,src={settings}")
        arguments = [*build_arguments(), "--quiet", *secrets]
        self(
            *command,
            f"ARGS={' '.join(arguments)}",
            environment={"BUILDER": "buildah", "BASE": BASE, "IMAGE": name, **environment},
        )
        return name

    def close(self) -> None:
        """Remove everything."""
        self("podman", "rm", "--all", "--force", "--volumes", check=False)
        self("buildah", "rm", "--all", check=False)
        self("buildah", "rmi", "--all", "--force", check=False)
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()
        shutil.rmtree(self._folder)


def build_arguments():
    """What buildah needs here beside what is built."""
    # With chroot and the machine's network, a build needs no more than the tests themselves.
    limits = [f"--ulimit={limit}" for limit in LIMITS]
    return ["--isolation=chroot", "--network=host", *limits]


def _release():
    lines = Path("/etc/os-release").read_text().splitlines() if os.name == "posix" else ()
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip('"') for name, _, value in pairs}


def _sources():
    """Where this machine's packages come from, or nothing for Debian's own servers."""
    folder = Path("/etc/apt")
    found = [folder / "sources.list", *(folder / "sources.list.d").glob("debian.sources")]
    return [path for path in found if path.is_file() and path.stat().st_size]


def _pip_settings() -> str:
    """This machine's settings of pip's indexes, without folders of its own."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    kept = ["[global]"]
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        key, value = name.rpartition(".")[2], value.strip("'")
        if key in ("index-url", "extra-index-url", "trusted-host") and "file:" not in value:
            kept.append(f"{key} = {value}")
    return "\n".join(kept) + "\n"
