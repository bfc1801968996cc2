"""What the image starts, how it is checked, and how `make image` finds a builder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest

from shoal.cli import process, serve
from shoal.cli.arguments import parse


@pytest.mark.parametrize(
    ("words", "environ", "started"),
    [
        ("", {}, "tritonserver --model-repository=/models"),
        ("", {"AIP_STORAGE_URI": "gs://bucket/models"}, "tritonserver"),
        ("--model-store=/mnt/models", {}, "tritonserver --model-store=/mnt/models"),
        ("tritonserver --http-port=1", {}, "tritonserver --http-port=1"),
        ("shoal check /models", {}, "shoal check /models"),
        ("serve", {}, "shoal sagemaker serve"),
        ("python -c pass", {}, "python -c pass"),
    ],
)
def test_what_the_image_starts(program, words, environ, started):
    assert program("entrypoint").program(words.split(), environ) == started.split()


@pytest.mark.parametrize(
    ("command_lines", "found"),
    [
        (["python /opt/bin/tritonserver --http-port=9"], "--http-port=9"),
        (["init -- python entrypoint.py --x", "python /opt/bin/tritonserver --x"], "--x"),
        (["python /opt/bin/shoal serve /models"], "/models"),
        (["python /opt/bin/shoal check /models", "sh"], None),
        (["", "sleep"], None),
    ],
)
def test_the_health_check_finds_the_options_of_the_server(program, command_lines, found):
    words = program("healthcheck").server_words(iter(line.split() for line in command_lines))
    assert words == (None if found is None else [found])


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ("", ("ready", "0.0.0.0", 8000, False)),
        ("--http-port=9000 --http-address=10.0.0.1", ("ready", "10.0.0.1", 9000, False)),
        ("--health-port=9001 --allow-http=false", ("ready", "0.0.0.0", 9001, False)),
        ("--https-cert=c --https-key=k", ("ready", "0.0.0.0", 8000, True)),
        ("--https-cert=c --https-key=k --https-client-ca=a", ("listens", "0.0.0.0", 8000)),
        ("--allow-http=false", ("listens", "0.0.0.0", 8001)),
        ("--allow-http=false --allow-grpc=false --allow-sagemaker", ("listens", "0.0.0.0", 8080)),
        ("--http-port=0 --allow-grpc=false", None),  # the port cannot be known
    ],
)
def test_which_port_the_health_check_asks(program, monkeypatch, options, asked):
    module, calls = program("healthcheck"), []
    monkeypatch.setattr(
        module,
        "_not_ready",
        lambda address, port, encrypted: calls.append(("ready", address, port, encrypted)) or "",
    )
    monkeypatch.setattr(
        module,
        "_not_listening",
        lambda address, port: calls.append(("listens", address, port)) or "",
    )
    assert module.problem(parse(options.split())) == ""
    assert calls == ([] if asked is None else [asked])


def test_packages_of_debian(program):
    listing = (
        "installed\tlibstdc++6\t12.2.0-14+deb12u1\tamd64\tgcc-12\n"
        "config-files\told\t1\tamd64\told\n"
    )
    (found,) = program("sbom").debian_components(listing, "debian")
    assert found["purl"] == "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64"
    assert (found["name"], found["version"]) == ("libstdc++6", "12.2.0-14+deb12u1")


def test_process_1_obeys_before_the_server_runs(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(process, "run", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as ended:
            serve.run(["models"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 0


@pytest.fixture
def make_image(root, tmp_path):
    """Run tools/image.sh where only these programs exist, as scripts; its result."""

    def run(*words, **programs):
        for name in ("sh", "sed", "dirname", "date", "git"):
            found = shutil.which(name)
            if found:
                (tmp_path / name).symlink_to(found)
        for name, script in programs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        return subprocess.run(
            [root / "tools" / "image.sh", *words],
            env={"PATH": str(tmp_path)},
            check=False,
            capture_output=True,
            text=True,
        )

    return run


def test_without_a_builder_make_image_says_what_to_install(make_image):
    done = make_image("cpu", docker="exit 1")  # a client without a daemon
    assert done.returncode == 1
    assert "start docker, or install podman or buildah" in done.stderr


def test_make_image_takes_the_builder_that_works(make_image):
    done = make_image("gpu", "--pull", docker="exit 1", buildah='printf "%s\\n" "$@"')
    first, *words = done.stdout.split("\n")
    assert first.startswith("building shoal:")
    assert first.endswith("-gpu with buildah")
    assert words[:3] == ["build", "--format", "docker"]  # that of OCI has no health checks
    assert "VARIANT=gpu" in words
    assert "--pull" in words


def test_an_unknown_variant(make_image):
    done = make_image("tpu")
    assert (done.returncode, done.stderr) == (1, "VARIANT is cpu, gpu or full, not 'tpu'\n")
