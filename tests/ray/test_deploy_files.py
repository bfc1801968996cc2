"""deploy/ray: Ray, Kubernetes and Shoal accept the files."""

from pathlib import Path

import pytest

from shoal.ray.config import from_dict

yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[2] / "deploy" / "ray"
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray, which has many


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.fixture(scope="module")
def service():
    return documents("rayservice.yaml")[0]


@pytest.fixture
def serve_configs(service):
    """The config of Ray Serve that the manifest holds, and the one in a file."""
    return [yaml.safe_load(service["spec"]["serveConfigV2"]), *documents("cluster.yaml")]


def test_ray_serve_accepts_the_configs(serve_configs):
    from ray.serve.schema import ServeDeploySchema

    for config in serve_configs:
        (application,) = ServeDeploySchema.model_validate(config).applications
        assert application.import_path == "shoal.ray:app"
        assert from_dict(application.args).ingress.node_labels
    # They differ in the label only.
    for config in serve_configs:
        config["applications"][0]["args"]["ingress"].pop("node_labels")
    assert serve_configs[0] == serve_configs[1]


def test_ray_builds_the_application(serve_configs):
    from shoal.ray import app

    (application,) = serve_configs[0]["applications"]
    assert app(application["args"])._bound_deployment.name == "Ingress"


def test_kubernetes_accepts_the_pods_and_the_service(service):
    validate = pytest.importorskip("kubernetes_validate").validate
    validate(documents("rayservice.yaml")[1], "1.36", strict=True)
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        validate({"metadata": {"name": "pod"}, **pod}, "1.36", strict=True)


def test_clients_reach_the_node_of_the_ingress(service, serve_configs):
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]
    ingress = from_dict(serve_configs[0]["applications"][0]["args"]).ingress
    assert ingress.node_labels == {"ray.io/node-group": "headgroup"}
    (container,) = head["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    names = ("http", "grpc", "metrics")
    assert ports == {name: getattr(ingress, f"{name}_port") for name in names}
    clients = documents("rayservice.yaml")[1]["spec"]
    assert clients["selector"].items() <= head["template"]["metadata"]["labels"].items()
    assert {port["targetPort"] for port in clients["ports"]} == set(names)


def test_replicas_fit_into_their_pods(service, serve_configs):
    (group,) = from_dict(serve_configs[0]["applications"][0]["args"]).groups
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert float(container["resources"]["requests"]["cpu"]) >= group.cpus
    assert workers["maxReplicas"] >= group.max_replicas
    grace_secs = workers["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_secs >= group.drain_secs + group.exit_timeout_secs
    assert "readinessProbe" in container  # KubeRay's own asks Ray Serve's proxy
    (values,) = documents("values.yaml")
    assert values["image"] == {"repository": "shoal-ray", "tag": "2.60.0"}
    assert f"{values['image']['repository']}:{values['image']['tag']}" == container["image"]
    assert values["head"]["rayVersion"] == service["spec"]["rayClusterConfig"]["rayVersion"]
