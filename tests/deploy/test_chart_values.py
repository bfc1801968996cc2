"""deploy/helm/shoal: wrong values get a message that says what is wrong; its README is current; and
the checks of `make check` find what is planted."""

from __future__ import annotations

import copy
import json
import re
import shutil

import pytest

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.helm


@pytest.fixture(scope="module")
def chart(tool):
    return tool("check_chart")


@pytest.fixture(scope="module")
def readme(tool):
    return tool("chart")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("replicas=2", "Additional property replicas is not allowed"),
        ("repository.sorce=1", "repository: Additional property sorce is not allowed"),
        (
            'repository.source="s3"',
            'repository.source must be one of the following: "claim", "remote", "pull", "image"',
        ),
        ("gpu.count=-1", "gpu.count: Must be greater than or equal to 0"),
        ('drain.drainSecs="5s"', "drain.drainSecs: Invalid type. Expected: integer, given: string"),
        ('cache.size="10GB"', "cache.size: Does not match pattern"),
        ('repository.addresses=["my-bucket"]', "repository.addresses.0: Does not match pattern"),
        ('server.extraArgs=["log-verbose=1"]', "server.extraArgs.0: Does not match pattern"),
        ('apiKeys.keyless=["inference"]', "apiKeys.keyless.0 must be one of the following"),
        ('jwt.claims={"subject": "sub"}', "jwt.claims: Additional property subject is not allowed"),
        (
            'repository.source="remote"',
            "repository.source is remote, but repository.addresses is empty; name a repository, such as s3://bucket/models",
        ),
        (
            'repository.addresses=["s3://bucket/models"]',
            "repository.addresses has no effect with repository.source=claim; set it to remote or pull",
        ),
        (
            'repository={"source": "pull", "addresses": ["s3://b/m"], "controlMode": "poll"}',
            "repository.controlMode=poll finds no changes with repository.source=pull",
        ),
        (
            'repository.loadModels=["resnet"]',
            "repository.loadModels has no effect with repository.controlMode=none",
        ),
        (
            'repository.memoryBudget="4G"',
            "repository.memoryBudget has no effect with repository.controlMode=none",
        ),
        ("cache.persistent=true", "cache.persistent needs a disk for each pod; set workload.kind"),
        ('jwt.existingSecret="a"', "name its entry with jwt.jwksKey or jwt.secretKey"),
        ('jwt={"existingSecret": "a", "jwksKey": "b"}', "set jwt.issuer and jwt.audience, too"),
        ("tls.clientCertificates=true", "tls.clientCertificates needs certificates"),
        ("ingress.grpc.enabled=true", "ingress.grpc.hosts is empty; name a host"),
        (
            'podDisruptionBudget={"minAvailable": 1, "maxUnavailable": 2}',
            "set minAvailable or maxUnavailable, not both",
        ),
        (
            'autoscaling={"kind": "hpa", "minReplicas": 9, "maxReplicas": 3}',
            "autoscaling.minReplicas (9) is more than autoscaling.maxReplicas (3)",
        ),
        (
            'autoscaling={"kind": "hpa", "pendingRequests": 0}',
            "autoscaling has nothing to look at; set autoscaling.pendingRequests",
        ),
        (
            'autoscaling={"kind": "hpa", "minReplicas": 0}',
            "which a HorizontalPodAutoscaler cannot do; set autoscaling.kind=keda",
        ),
        (
            'autoscaling={"kind": "keda", "minReplicas": 0}',
            "without pods there are no metrics that would start one",
        ),
        (
            'server.extraArgs=["--drain-secs=60"]',
            "server.extraArgs: --drain-secs is set by drain.drainSecs",
        ),
        (
            'server.extraArgs=["--http-port=80"]',
            "server.extraArgs: --http-port is fixed, because probes, Services and volumes depend on it",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(chart, setting, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        chart.render(None, setting)


def test_values_of_a_parent_chart_are_accepted(chart):
    assert chart.render(None, 'global={"region": "west"}').objects


# ---- what `make check` finds


def planted(chart, kind, change, *settings):
    """The problems after `change` of the only object of that kind."""
    rendered = chart.render(None, *settings)
    (found,) = (copy.deepcopy(each) for each in rendered.objects if each["kind"] == kind)
    change(found["spec"])
    return list(chart.invalid(rendered._replace(objects=[found])))


def test_a_field_that_kubernetes_does_not_have_is_found(chart):
    problems = planted(
        chart, "Deployment", lambda spec: spec["template"]["spec"].update(terminationGrace=5)
    )
    assert [("terminationGrace" in problem) for problem in problems] == [True, True]
    assert [re.search(r"Kubernetes (\S+):", problem)[1] for problem in problems] == [
        chart.OLDEST,
        chart.kubernetes.latest_version(),
    ]


@pytest.mark.parametrize(
    ("kind", "setting", "change", "message"),
    [
        (
            "ScaledObject",
            'autoscaling.kind="keda"',
            lambda spec: spec["triggers"][0]["metadata"].pop("query"),
            "'query' is a required property",
        ),
        (
            "ScaledObject",
            'autoscaling.kind="keda"',
            lambda spec: spec["triggers"][0]["metadata"].update(threshold=20),
            "20 is not of type 'string'",
        ),
        (
            "ServiceMonitor",
            "monitoring.serviceMonitor.enabled=true",
            lambda spec: spec["endpoints"][0].update(intervall="15s"),
            "'intervall' was unexpected",
        ),
        (
            "PrometheusRule",
            "monitoring.prometheusRule.enabled=true",
            lambda spec: spec["groups"][0]["rules"][0].update({"for": "soon"}),
            "'soon' does not match",
        ),
    ],
)
def test_a_mistake_in_a_custom_resource_is_found(chart, kind, setting, change, message):
    (problem,) = planted(chart, kind, change, setting)
    assert message in problem


def test_what_checkov_finds_needs_a_reason(chart, tmp_path):
    """A stand-in for checkov: `make check` has the real one."""
    found = [
        {"check_id": skip.check, "check_name": "x", "file_path": "/a.yaml", "resource": resource}
        for skip, resource in (
            (skip, skip.resource.replace(".*", "a").replace("\\", "")) for skip in chart.SKIPPED
        )
    ]
    known = {"check_id": "CKV_K8S_43", "check_name": "x", "file_path": "/a.yaml", "resource": "P"}
    root = {
        "check_id": "CKV_K8S_23",
        "check_name": "no root",
        "file_path": "/b.yaml",
        "resource": "P",
    }

    def run(*checks):
        program = tmp_path / "checkov"
        (tmp_path / "report").write_text(json.dumps({"results": {"failed_checks": checks}}))
        program.write_text(f"#!/bin/sh\ncat '{tmp_path}/report'\n")
        program.chmod(0o755)
        return list(chart.bad_practice(program, tmp_path))

    assert run(*found, known) == []
    assert run(*found, root) == ["b.yaml: P: checkov CKV_K8S_23: no root"]
    assert run(*found[:-1]) == [
        f"check_chart.py: {chart.SKIPPED[-1].check} for {chart.SKIPPED[-1].resource} is not needed"
    ]
    assert all(skip.reason for skip in chart.SKIPPED)


# ---- README.md


def test_the_readme_is_current(readme, capsys):
    assert readme.main(["--check"]) == 0, capsys.readouterr().out


VALUES = """
# -- Pods
replicas: 1
image:
  # -- A | tag
  tag: ""
# -- Both
resources:
  limits: {cpu: 1}
"""
SCHEMA = {
    "definitions": {"text": {"type": "string"}},
    "properties": {
        "replicas": {"type": "integer"},
        "image": {"type": "object", "properties": {"tag": {"$ref": "#/definitions/text"}}},
        "resources": {"type": "object"},
        "global": {"type": "object"},
    },
}


def test_the_table_of_values(readme):
    page = f"above\n{readme.BEGIN}old\n{readme.END}below\n"
    text = readme.with_table(page, readme.table(VALUES, SCHEMA))
    assert text.startswith(f"above\n{readme.BEGIN}\n### image\n")
    assert text.endswith(f"\n{readme.END}below\n")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        '| `image.tag` | text | `""` | A \\| tag |',
        "| `replicas` | number | `1` | Pods |",
        '| `resources` | map | `{"limits": {"cpu": 1}}` | Both |',
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# -- Pods\n", "", "values.yaml: replicas has no description"),
        ("  tag:", "  label:", "values.schema.json: image.label of values.yaml is missing"),
        ("  tag:", "  label:", "values.yaml: image.tag of values.schema.json is missing"),
    ],
)
def test_values_and_schema_must_agree(readme, old, new, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        readme.table(VALUES.replace(old, new), SCHEMA)


# ---- NOTES.txt, which only an installation prints


@pytest.fixture(scope="module")
def notes(chart, tmp_path_factory):
    """The notes for a file of values or settings: a copy of the chart has them in an object."""
    folder = tmp_path_factory.mktemp("notes") / "shoal"
    shutil.copytree(chart.CHART, folder)
    text = (folder / "templates" / "NOTES.txt").read_text("utf-8")
    holder = (
        'apiVersion: v1\nkind: Notes\nmetadata: {name: a}\ntext: {{ include "notes" . | quote }}\n'
    )
    (folder / "templates" / "notes.yaml").write_text(
        f'{{{{- define "notes" }}}}{text}{{{{ end }}}}\n{holder}', "utf-8"
    )

    def render(*settings, values=None):
        objects = chart.render(values, *settings, chart=folder).objects
        (found,) = (each["text"] for each in objects if each["kind"] == "Notes")
        return found

    return render


def test_the_notes_say_where_it_is(notes):
    text = notes()
    assert "http://rel-shoal.models.svc:8000" in text
    assert "dns:///rel-shoal-headless.models.svc:8001" in text
    assert "The new claim rel-shoal-models is empty" in text
    assert "WARNING: everyone who reaches the Service may use the models" in text


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (["workload.replicas=2"], "WARNING: the claim of the models is ReadWriteOnce"),
        (
            ['apiKeys.existingSecret="k"', "monitoring.serviceMonitor.enabled=true"],
            "WARNING: Prometheus has no key",
        ),
        (['autoscaling.kind="keda"'], "WARNING: KEDA asks Prometheus for series with the labels"),
    ],
)
def test_the_notes_warn(notes, settings, warning):
    assert warning in notes(*settings)


def test_no_warning_without_a_reason(notes, chart):
    assert "WARNING" not in notes(values=chart.CHART / "ci" / "secure-values.yaml")


# ---- a release


def test_the_chart_of_a_release_names_its_image(chart, tool, tmp_path, root):
    image = "ghcr.io/someone/shoal"
    path = tool("package_chart").package(image, tmp_path)
    version = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["version"]
    assert path == tmp_path / f"shoal-{version}.tgz"
    (workload,) = [
        each for each in chart.render(chart=path).objects if each["kind"] == "Deployment"
    ]
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{image}:{version}-cpu"  # as the release workflow tags it
    shown = chart.helm("show", "readme", str(path)).stdout
    assert f'| `image.repository` | text | `"{image}"` |' in shown
    workflow = yaml.safe_load((root / ".github" / "workflows" / "release.yml").read_text())
    (push,) = [
        step["with"]["tags"]
        for step in workflow["jobs"]["image"]["steps"]
        if step.get("uses", "").startswith("docker/build-push-action")
    ]
    assert push.endswith("}}:${{ steps.release.outputs.version }}-${{ matrix.variant }}")


# ---- docs/deploy/kubernetes.md


def test_the_values_of_the_page_are_accepted(chart, root, tmp_path):
    page = (root / "docs" / "deploy" / "kubernetes.md").read_text("utf-8")
    blocks = re.findall(r"(?s)(<!-- run: no [^\n]*\n)?```yaml\n(.*?)```", page)
    values = [block for elsewhere, block in blocks if not elsewhere]
    assert len(values) > 8
    for number, block in enumerate(values):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block, "utf-8")
        assert chart.render(file).objects
