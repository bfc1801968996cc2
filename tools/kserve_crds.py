"""Check deploy/kserve against KServe's own schemas: `python tools/kserve_crds.py path/to/kserve`.

    a clone of github.com/kserve/kserve --config/crd/full--> schemas --> deploy/kserve/**/*.yaml

The schemas are those that a cluster has. A cluster drops fields that they do not know; here these
are errors, because they are misspelled ones. Prints each document; the exit status is 1 if one is
wrong. `tests/deploy/test_kserve.py` checks the files without a clone, by KServe's Python package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "deploy" / "kserve"
SCHEMAS = Path("config", "crd", "full")


def schemas(clone: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The schemas of a clone, by `apiVersion` and `kind`."""
    found = {}
    for file in sorted((clone / SCHEMAS).glob("*.yaml")):
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
            continue
        spec = document["spec"]
        for version in spec["versions"]:
            key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found[key] = strict(version["schema"]["openAPIV3Schema"])
    return found


def strict(schema: Any) -> Any:
    """The schema with unknown fields as errors, where it lists those that it knows."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not open_ended:
        made.setdefault("additionalProperties", False)
    return made


def documents(folder: Path = EXAMPLES) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each document of KServe below a folder, after its place."""
    for file in sorted(folder.rglob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            name = document["metadata"]["name"]
            yield f"{file.relative_to(folder)}: {document['kind']} {name}", document


def errors(document: dict[str, Any], known: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """What is wrong with a document."""
    schema = known.get((document["apiVersion"], document["kind"]))
    if schema is None:
        return [f"there is no schema of {document['apiVersion']} {document['kind']}"]
    found = Draft202012Validator(schema).iter_errors(document)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def main(arguments: list[str]) -> int:
    """Check all documents; the exit status."""
    if len(arguments) != 1:
        print(__doc__)
        return 2
    known = schemas(Path(arguments[0]))
    if not known:
        print(f"there are no schemas in {Path(arguments[0], SCHEMAS)}; name a clone of KServe")
        return 2
    wrong = 0
    for place, document in documents():
        found = errors(document, known)
        wrong += bool(found)
        print(f"{'WRONG' if found else 'ok':6}{place}")
        for line in found:
            print(f"      {line}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
