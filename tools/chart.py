"""Write the table of values into the README of the Helm chart: `tools/chart.py [--check]`.

    values.yaml: `# -- ` above a value, its default   -.
    values.schema.json: its type                       +--> README.md, between the two markers

Values and schema must have the same names, and every value a description; else the exit status is
1. --check only compares.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "shoal"
BEGIN = "<!-- values: written by tools/chart.py from values.yaml -->\n"
END = "<!-- end of values -->\n"
OF_PARENTS = "global"  # values that a chart gets from one that depends on it

_KEY = re.compile(r"( *)([A-Za-z]\w*):(.*)")
_DESCRIPTION = re.compile(r" *# -- (.*)")


class Value(NamedTuple):
    """A row of the table: the path of a value, its type, default and description."""

    path: str
    type: str
    default: str
    description: str


def descriptions(text: str) -> dict[str, str]:
    """The text of each `# -- ` by the path of the value below it."""
    found: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    description = ""
    for line in text.splitlines():
        if comment := _DESCRIPTION.fullmatch(line):
            description = comment[1]
        elif key := _KEY.fullmatch(line):
            indent, name = len(key[1]), key[2]
            parents = [*(each for each in parents if each[0] < indent), (indent, name)]
            if description:
                found[".".join(name for _, name in parents)] = description
                description = ""
    return found


def leaves(values: Mapping[str, Any], described: Mapping[str, str], prefix: str = "") -> list[str]:
    """The paths of values that are rows: those with a description, and those that lack one."""
    paths = []
    for name, value in values.items():
        path = f"{prefix}{name}"
        if path not in described and isinstance(value, dict) and value:
            paths += leaves(value, described, f"{path}.")
        else:
            paths.append(path)
    return paths


def resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with what its `$ref` and `allOf` say."""
    merged = dict(schema)
    if "$ref" in merged:
        merged |= resolved(definitions[merged.pop("$ref").rpartition("/")[2]], definitions)
    for part in merged.pop("allOf", ()):
        merged |= resolved(part, definitions)
    return merged


def properties(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    """The paths of all properties that a schema names, without those inside lists."""
    for name, part in schema.get("properties", {}).items():
        below = list(properties(resolved(part, definitions), definitions))
        yield from (f"{name}.{path}" for path in below) if below else [name]


def type_of(schema: Mapping[str, Any]) -> str:
    """The type of a value in words."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" if value else "empty" for value in schema["enum"])
    if "anyOf" in schema:
        return "number or text"
    names = {"object": "map", "array": "list", "boolean": "boolean", "string": "text"}
    return names.get(schema.get("type", ""), "number")


def table(values_text: str, schema: Mapping[str, Any]) -> list[Value]:
    """The rows. Raises ValueError where a value has no description, or values and schema differ."""
    values = yaml.safe_load(values_text)
    described = descriptions(values_text)
    definitions = schema["definitions"]
    rows, problems = [], []
    for path in leaves(values, described):
        part, value = resolved(schema, definitions), values
        for name in path.split("."):
            part = resolved(part.get("properties", {}).get(name, {}), definitions)
            value = value[name]
        if path not in described:
            problems.append(f"values.yaml: {path} has no description; write '# -- …' above it")
        if not part:
            problems.append(f"values.schema.json: {path} of values.yaml is missing")
        default = json.dumps(value, ensure_ascii=False)
        rows.append(Value(path, type_of(part), default, described.get(path, "")))
    whole = tuple(f"{row.path}." for row in rows)
    known = {row.path for row in rows}
    problems += [
        f"values.yaml: {path} of values.schema.json is missing"
        for path in properties(schema, definitions)
        if path not in known and path != OF_PARENTS and not path.startswith(whole)
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return rows


def markdown(rows: list[Value]) -> str:
    """The table, a section for each group of values; those without a group are the last."""
    groups: dict[str, list[Value]] = {}
    for row in rows:
        groups.setdefault(row.path.partition(".")[0] if "." in row.path else "", []).append(row)
    groups["Others"] = groups.pop("", [])
    lines = []
    for title, members in groups.items():
        lines += [f"### {title}", "", "| value | type | default | |", "|---|---|---|---|"]
        for row in members:
            cells = (f"`{row.path}`", row.type, f"`{row.default}`", row.description)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def with_table(page: str, rows: list[Value]) -> str:
    """The page with what is between the markers replaced. ValueError where one is missing."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{markdown(rows)}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the table, or with --check only compare it; the exit status."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    readme = CHART / "README.md"
    written = readme.read_text("utf-8")
    try:
        current = with_table(written, table((CHART / "values.yaml").read_text("utf-8"), schema))
    except ValueError as error:
        print(error)
        return 1
    if arguments == ["--check"]:
        if current != written:
            print(f"{readme.relative_to(ROOT)}: its values are not current; run `make chart`")
        return int(current != written)
    readme.write_text(current, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
