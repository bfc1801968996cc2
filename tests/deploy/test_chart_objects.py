"""deploy/helm/shoal: what the chart makes of ci/*-values.yaml holds together, and `shoal` takes the
arguments. `make check` compares the same objects with the schemas of Kubernetes."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.cli import arguments, pull
from shoal.config.options import BY_FLAG

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.helm

WORKLOADS = ("Deployment", "StatefulSet")


@pytest.fixture(scope="module")
def chart(tool):
    return tool("check_chart")


@pytest.fixture(scope="module")
def matrix(chart):
    """The objects of each file of values, by the file's name."""
    with ThreadPoolExecutor(2) as pool:
        return {each.name: each.objects for each in pool.map(chart.render, chart.cases())}


def of_kind(objects, *kinds):
    return [each for each in objects if each["kind"] in kinds]


def only(objects, *kinds):
    (found,) = of_kind(objects, *kinds)
    return found


def pod(objects):
    return only(objects, *WORKLOADS)["spec"]["template"]


def server(objects):
    (found,) = (each for each in pod(objects)["spec"]["containers"] if each["name"] == "shoal")
    return found


def all_pods(objects):
    """The pods of the workload and of helm test."""
    return [pod(objects), *of_kind(objects, "Pod")]


def containers(each):
    return [*each["spec"].get("initContainers", ()), *each["spec"]["containers"]]


@pytest.fixture(scope="module")
def version(tool):
    """The version in the source; that of a build may name a commit, too."""
    return tool("version").base()


def test_the_chart_has_the_version_of_shoal(chart, version):
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text("utf-8"))
    assert (described["version"], described["appVersion"]) == (version, version)


# ---- arguments


def test_serve_takes_the_arguments(matrix):
    for name, objects in matrix.items():
        container = server(objects)
        assert container["command"] == ["shoal"], name
        command, *words = container["args"]
        assert command == "serve"
        options = arguments.parse(words)
        without_effect = {
            flag
            for flag in (word.partition("=")[0] for word in words)
            if flag in BY_FLAG and BY_FLAG[flag].no_effect
        }
        assert without_effect == set(), name
        assert options.health_port == 8003, name


def test_pull_takes_the_arguments(matrix, monkeypatch):
    container, *_ = (
        each for each in containers(pod(matrix["pull-values.yaml"])) if each["name"] == "pull"
    )
    command, *words = container["args"]
    assert (container["command"], command) == (["shoal"], "pull")
    taken = {}

    class Recorded:
        def __init__(self, options, names, output, *, all_versions):
            taken.update(options=options, names=names, output=output, all_versions=all_versions)

        def run(self):
            return 0

    monkeypatch.setattr(pull, "_Pull", Recorded)
    assert pull.run(words) == 0
    options = taken.pop("options")
    assert options.model_repository == ("s3://https://minio.storage.svc:9000/models",)
    assert options.repository_cache == "/var/cache/shoal/repositories"
    served, *_ = server(matrix["pull-values.yaml"])["args"][1:]
    assert str(taken.pop("output")) == served
    assert taken == {"names": ["resnet", "bert"], "all_versions": True}


def test_each_option_that_the_chart_passes_is_refused_in_extra_args(chart, matrix):
    """Two values for one option would contradict each other: the last would count."""
    text = (chart.CHART / "templates" / "_validate.tpl").read_text("utf-8")
    refused = set(re.findall(r'"(--[a-z-]+)"', text))
    extra = {"--frontend-processes", "--default-isolation", "--tcp-port", "--backend-config"}
    passed = {
        word.partition("=")[0]
        for objects in matrix.values()
        for word in server(objects)["args"]
        if word.startswith("--")
    } - extra
    assert passed - refused == {"--jwt-claim"}  # which may be repeated
    assert refused - set(BY_FLAG) == set()


# ---- the life of a pod


@pytest.mark.parametrize(
    ("name", "seconds", "before_sigterm"),
    [("default-values.yaml", 5 + 5 + 30 + 10, 5), ("gpu-values.yaml", 10 + 20 + 120 + 30, 10)],
)
def test_a_pod_has_the_time_that_draining_takes(matrix, name, seconds, before_sigterm):
    container = server(matrix[name])
    options = arguments.parse(container["args"][1:])
    period = pod(matrix[name])["spec"]["terminationGracePeriodSeconds"]
    assert period == seconds
    assert period > before_sigterm + options.drain_secs + options.exit_timeout_secs
    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": before_sigterm}}}


def test_no_pre_stop_without_seconds_for_it(chart):
    objects = chart.render(None, "drain.preStopSecs=0").objects
    assert "lifecycle" not in server(objects)
    assert pod(objects)["spec"]["terminationGracePeriodSeconds"] == 45


def test_startup_has_the_time_that_models_may_take(matrix):
    probe = server(matrix["gpu-values.yaml"])["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 1805
    assert "startupProbe" not in server(matrix["secure-values.yaml"])


def test_a_rollout_has_the_time_that_models_may_take(matrix):
    spec = only(matrix["gpu-values.yaml"], "Deployment")["spec"]
    assert spec["progressDeadlineSeconds"] == 1802 + 600


def test_a_model_that_fails_does_not_restart_a_server_that_should_run_without_it(chart):
    objects = chart.render(None, "repository.exitOnError=false").objects
    assert server(objects)["startupProbe"]["httpGet"]["path"] == "/v2/health/live"


def test_a_volume_that_one_node_can_mount_has_one_pod_at_a_time(matrix):
    assert only(matrix["default-values.yaml"], "Deployment")["spec"]["strategy"] == {
        "type": "Recreate"
    }
    shared = only(matrix["hpa-values.yaml"], "Deployment")["spec"]["strategy"]
    assert shared["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_downloads_of_a_stateful_set_are_on_disks_of_its_own(matrix):
    workload = only(matrix["statefulset-values.yaml"], "StatefulSet")
    (claim,) = workload["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "cache"
    services = [
        each["metadata"]["name"] for each in of_kind(matrix["statefulset-values.yaml"], "Service")
    ]
    assert workload["spec"]["serviceName"] in services


# ---- objects that refer to each other


def test_selectors_find_the_pods_and_nothing_else(matrix):
    for name, objects in matrix.items():
        labels = pod(objects)["metadata"]["labels"].items()
        selectors = [only(objects, *WORKLOADS)["spec"]["selector"]["matchLabels"]]
        selectors += [each["spec"]["selector"] for each in of_kind(objects, "Service")]
        selectors += [
            each["spec"]["selector"]["matchLabels"]
            for each in of_kind(objects, "PodDisruptionBudget")
        ]
        selectors += [
            each["spec"]["podSelector"]["matchLabels"] for each in of_kind(objects, "NetworkPolicy")
        ]
        selectors += [
            each["labelSelector"]["matchLabels"]
            for each in pod(objects)["spec"].get("topologySpreadConstraints", ())
        ]
        for selector in selectors:
            assert selector.items() <= labels, name
            for test in of_kind(objects, "Pod"):
                assert not selector.items() <= test["metadata"]["labels"].items(), name


def test_ports_are_those_of_the_server(matrix):
    for name, objects in matrix.items():
        container = server(objects)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        options = arguments.parse(container["args"][1:])
        listening = {
            "http": options.http_port,
            "grpc": options.grpc_port,
            "metrics": options.metrics_port,
            "health": options.health_port,
        }
        if options.tcp_port > 0:
            listening["questions"] = options.tcp_port
        assert ports == listening, name
        named = {
            port["targetPort"]
            for each in of_kind(objects, "Service")
            for port in each["spec"]["ports"]
        }
        for policy in of_kind(objects, "NetworkPolicy"):
            opened = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
            assert sorted(opened) == sorted(ports), name
        named |= {
            container[probe]["httpGet"]["port"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe")
            if probe in container
        }
        assert named <= set(ports), name


def test_mounts_have_volumes_and_volumes_are_mounted(matrix):
    for name, objects in matrix.items():
        for each in all_pods(objects):
            volumes = {volume["name"] for volume in each["spec"]["volumes"]}
            templates = only(objects, *WORKLOADS)["spec"].get("volumeClaimTemplates", ())
            if each is pod(objects):
                volumes |= {claim["metadata"]["name"] for claim in templates}
            mounted = {
                mount["name"]
                for container in containers(each)
                for mount in container.get("volumeMounts", ())
            }
            assert mounted == volumes, name


def test_files_that_arguments_name_are_mounted(matrix):
    for name, objects in matrix.items():
        for each in all_pods(objects):
            for container in containers(each):
                folders = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
                folders += ["/models"]  # of the image
                texts = (
                    [*container.get("args", ())] if container.get("command") == ["shoal"] else []
                )
                texts += [entry.get("value", "") for entry in container.get("env", ())]
                paths = [
                    path for text in texts for path in re.findall(r"(?:^|=)(/[^/:][^,]*)$", text)
                ]
                for path in paths:
                    assert any(path.startswith(folder) for folder in folders), (name, path)


def test_what_scales_is_there(matrix):
    for name, objects in matrix.items():
        workload = only(objects, *WORKLOADS)
        scalers = of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
        for scaler in scalers:
            assert scaler["spec"]["scaleTargetRef"] == {
                "apiVersion": workload["apiVersion"],
                "kind": workload["kind"],
                "name": workload["metadata"]["name"],
            }, name
        # A replica count would undo what the scaler did, at each upgrade.
        assert ("replicas" in workload["spec"]) == (not scalers), name


def test_ingresses_lead_to_the_service(matrix):
    objects = matrix["everything-values.yaml"]
    ports = {port["name"] for port in only(objects, "Service")["spec"]["ports"]}
    found = {}
    for ingress in of_kind(objects, "Ingress"):
        (rule,) = ingress["spec"]["rules"]
        backend = rule["http"]["paths"][0]["backend"]["service"]
        assert backend["name"] == only(objects, "Service")["metadata"]["name"]
        found[rule["host"]] = backend["port"]["name"]
    assert found == {"models.example.com": "http", "grpc.example.com": "grpc"}
    assert set(found.values()) <= ports
    assert "--http-allowed-hosts=console.internal,models.example.com" in server(objects)["args"]


# ---- credentials


def test_only_what_downloads_has_the_credentials(matrix):
    pulling = pod(matrix["pull-values.yaml"])["spec"]
    names = {each["name"]: json.dumps(each) for each in containers({"spec": pulling})}
    assert "minio-keys" in names["pull"]
    assert "minio-keys" not in names["shoal"]
    assert "AWS_REGION" not in names["shoal"]
    remote = json.dumps(server(matrix["remote-values.yaml"]))
    assert "/etc/shoal/credentials/credentials.json" in remote
    account = only(matrix["remote-values.yaml"], "ServiceAccount")
    assert "eks.amazonaws.com/role-arn" in account["metadata"]["annotations"]


def test_pods_without_gpus_see_none(matrix, version):
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert hidden in server(matrix["default-values.yaml"])["env"]
    container = server(matrix["gpu-values.yaml"])
    assert hidden not in container.get("env", [])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["image"] == f"registry.example.com/shoal:{version}-gpu"
    keys = [each["key"] for each in pod(matrix["gpu-values.yaml"])["spec"]["tolerations"]]
    assert keys == ["dedicated", "nvidia.com/gpu"]


# ---- monitoring


def test_queries_select_the_series_of_the_release(matrix):
    first, second, *_ = only(matrix["keda-values.yaml"], "ScaledObject")["spec"]["triggers"]
    series = '{namespace="models",service="rel-shoal"}'
    assert first["metadata"]["query"] == f"sum(nv_inference_pending_request_count{series})"
    assert (first["metricType"], first["metadata"]["threshold"]) == ("AverageValue", "50")
    assert second["metadata"]["query"] == f"max(shoal_time_to_drain_seconds{series})"
    assert (second["metricType"], second["metadata"]["threshold"]) == ("Value", "1.5")


def test_the_service_monitor_finds_one_service(matrix):
    for name, objects in matrix.items():
        for monitor in of_kind(objects, "ServiceMonitor"):
            selector = monitor["spec"]["selector"]["matchLabels"].items()
            services = of_kind(objects, "Service")
            found = [each for each in services if selector <= each["metadata"]["labels"].items()]
            assert len(found) == 1, name
            (endpoint,) = monitor["spec"]["endpoints"]
            assert endpoint["port"] in {port["name"] for port in found[0]["spec"]["ports"]}, name
            encrypted = bool(arguments.parse(server(objects)["args"][1:]).https_cert)
            assert endpoint.get("scheme", "http") == ("https" if encrypted else "http"), name


def test_alerts_and_dashboard_are_those_of_the_repository(matrix, root):
    monitoring = root / "deploy" / "monitoring"
    objects = matrix["hpa-values.yaml"]
    expected = yaml.safe_load((monitoring / "alerts.yml").read_text("utf-8"))["groups"]
    for group in expected:
        group["rules"] = [each for each in group["rules"] if each["alert"] != "ShoalLatencyHigh"]
    assert only(objects, "PrometheusRule")["spec"]["groups"] == expected
    dashboard = json.loads(only(objects, "ConfigMap")["data"]["shoal.json"])
    assert dashboard == json.loads((monitoring / "dashboard.json").read_text("utf-8"))
