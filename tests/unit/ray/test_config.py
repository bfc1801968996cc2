import dataclasses
import re
from pathlib import Path

import pytest

from shoal.errors import InvalidArgument
from shoal.ray.config import (
    ClusterConfig,
    GroupConfig,
    IngressConfig,
    ScalingConfig,
    from_dict,
    to_dict,
)


def test_defaults():
    config = from_dict({"repository": "s3://bucket/models"})
    assert config.repository == ("s3://bucket/models",)
    assert config.groups == (GroupConfig(),)
    assert config.ingress.http_port == 8000


def test_a_config_survives_its_document():
    config = from_dict(
        {
            "repository": ["/a", "/b"],
            "groups": [
                {
                    "name": "gpu",
                    "models": ["resnet"],
                    "max_replicas": 4,
                    "gpus": 1,
                    "labels": {"accelerator": "h200"},
                    "runtime_env": {"env_vars": {"A": "1"}},
                    "options": ["--frontend-processes=2"],
                    "scaling": {"target_utilisation": 0.5},
                },
                {"name": "others", "min_replicas": 2, "max_replicas": 2},
            ],
            "ingress": {"balance": "model"},
        }
    )
    assert isinstance(config, ClusterConfig)
    assert config.groups[0].gpus == 1.0
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"repository": []}, "'repository' is missing"),
        ({"groups": []}, "'groups' is empty"),
        ({"grups": []}, "'grups' is not a field; did you mean 'groups'?"),
        ({"groups": [{"min_replica": 2}]}, r"'groups\[0\].min_replica' is not a field; did you"),
        ({"groups": [{"min_replicas": "2"}]}, r"'groups\[0\].min_replicas' must be a whole number"),
        ({"groups": [{"min_replicas": True}]}, "must be a whole number, found True"),
        ({"groups": [{"min_replicas": 3}]}, r"groups\[0\].max_replicas is 1, which is below"),
        ({"groups": [{"min_replicas": 0}]}, "min_replicas is 0; it may be from 1 to"),
        ({"groups": [{"cpus": float("nan")}]}, "cpus is nan; it may be from 0"),
        ({"groups": [{"models": "a"}]}, r"'groups\[0\].models' must be a list, found 'a'"),
        ({"groups": [{"name": "a b"}]}, "name is 'a b'; use letters"),
        ({"groups": [{"options": ["grpc-port=1"]}]}, "write options of `shoal serve` as"),
        ({"groups": [{"options": ["--http-port=1"]}]}, "has --http-port: every replica chooses"),
        ({"groups": [{"options": ["--allow-grpc=false"]}]}, "needs all three of its ports"),
        ({"groups": [{"options": ["--grpc-use-ssl=1"]}]}, "TLS ends at the ingress"),
        ({"groups": [{"name": "Ingress"}]}, "and not 'Ingress'"),
        ({"groups": [{"models": ["a b"]}]}, "has 'a b'; names with spaces"),
        ({"groups": [{"models": ["a\nbackend x"]}]}, "names with spaces"),
        ({"groups": [{"models": ["a\0b"]}]}, "names with spaces"),
        ({"ingress": {"host": "0.0.0.0\n"}}, "which is no address"),
        ({"ingress": {"sequence_header": "a b"}}, "which is no name of a header"),
        ({"ingress": {"http_port": 8001}}, "the same port twice: 8001, 8001, 8002"),
        ({"groups": [{}, {}]}, "two groups are named 'default'"),
        ({"groups": [{"name": "a"}, {"name": "b"}]}, "several groups have no 'models'"),
        (
            {"groups": [{"name": "a", "models": ["m"]}, {"name": "b", "models": ["m"]}]},
            "model 'm' is in the groups 'a' and 'b'",
        ),
        ({"ingress": {"balance": "random"}}, "balance is 'random'; it may be"),
        ({"ingress": {"tls_key": "k"}}, "needs both tls_certificate and tls_key"),
        ({"ingress": None}, "'ingress' must be an object, found nothing"),
        ({"groups": [{"scaling": {"target_utilisation": 0}}]}, "may be from 0.05 to 1"),
    ],
)
def test_what_cannot_work_is_an_error_that_says_so(change, text):
    with pytest.raises(InvalidArgument, match=text):
        from_dict({"repository": "/models", **change})


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("The application", ClusterConfig),
        ("A group", GroupConfig),
        ("Scaling", ScalingConfig),
        ("The ingress", IngressConfig),
    ],
)
def test_the_page_has_every_field_and_its_default(heading, kind):
    page = (Path(__file__).parents[3] / "docs/deploy/ray.md").read_text()
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|(?: ([^|]*))? \|", section, re.MULTILINE))
    assert list(rows) == [field.name for field in dataclasses.fields(kind)]
    for name, value in dataclasses.asdict(kind()).items():
        if name not in ("repository", "groups", "ingress", "scaling"):
            plain = [] if value == () else value
            assert rows[name] == (f"`{plain}`" if plain != "" else ""), name
