"""Directives that show what the code says, so that the documentation does not say it again.

    {option-table}    shoal.config.options.TABLE: one section per group, one entry per flag
    {perf-option-table}   the same of shoal.perf.options.TABLE
    {route-table}     the declared routes of frontends/http: method, path, summary, API kind
    {parameter-table}   shoal.config.parameter_table.TABLE: the rows of a backend, or of all models
    {unused-fields}   shoal.config.rules.support: the fields of config.pbtxt that only warn

What `shoal serve --help` says about a flag is said here in the same words.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

from shoal.cli.help import _description, _placeholder
from shoal.config.options import TABLE, Option
from shoal.config.options.checks import CATEGORIES
from shoal.config.parameter_table import TABLE as TABLE_OF_PARAMETERS
from shoal.config.rules.support import _NOT_ACTED_ON
from shoal.frontends.http.routes import HttpEndpoint, endpoints
from shoal.perf.options import TABLE as PERF_TABLE


class OptionTable(Directive):
    """Takes no arguments; stands where sections may stand."""

    def run(self) -> list[nodes.Node]:
        """One section per group, in the order of the table."""
        groups = groupby(TABLE, key=lambda option: option.group)
        return [_section(title, list(options)) for title, options in groups]


class PerfOptionTable(Directive):
    """Takes no arguments; stands where sections may stand."""

    def run(self) -> list[nodes.Node]:
        """One section per group, in the order of the table."""
        groups = groupby(PERF_TABLE, key=lambda option: option.group)
        return [_section(title, list(options)) for title, options in groups]


class RouteTable(Directive):
    """Takes no arguments."""

    def run(self) -> list[nodes.Node]:
        """One row per method and path, by API kind."""
        kinds = {kind: index for index, kind in enumerate(CATEGORIES)}
        rows = sorted(
            endpoints(),
            key=lambda endpoint: (kinds.get(endpoint.api, len(kinds)), endpoint.template),
        )
        table = ["| method and path | what it does | API kind |", "|---|---|---|"]
        parsed = nodes.container()
        lines = StringList([*table, *map(_route_row, rows)], source="routes")
        self.state.nested_parse(lines, 0, parsed)
        return parsed.children


class ParameterTable(Directive):
    """Takes the name of a backend; without one, the parameters for all models."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """One row per parameter: its names, values, default and effect."""
        backend = self.arguments[0] if self.arguments else ""
        lines = ["| parameter | values | default | effect |", "|---|---|---|---|"]
        for row in TABLE_OF_PARAMETERS:
            if backend in row.backends if backend else not row.backends:
                names = ", ".join(f"`{name}`" for name in (row.name, *row.aliases))
                where = "" if row.in_config else "Only with `--backend-config`. "
                cells = (names, row.type.expected, row.default, f"{where}{row.help}")
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parsed = nodes.Element()
        self.state.nested_parse(StringList(lines, ""), self.content_offset, parsed)
        return parsed.children


class UnusedFields(Directive):
    """Takes no arguments."""

    def run(self) -> list[nodes.Node]:
        """One line per field."""
        listed = nodes.bullet_list()
        for name in _NOT_ACTED_ON:
            line = nodes.paragraph("", "", nodes.literal(text=name))
            listed += nodes.list_item("", line)
        return [listed]


def _route_row(endpoint: HttpEndpoint) -> str:
    path = re.sub(r"\{\w+:(\w+)\}", r"\1", endpoint.template)
    text = f"[{endpoint.summary}]({endpoint.page}.md)" if endpoint.page else endpoint.summary
    more = f". {endpoint.description}" if endpoint.description else ""
    kind = f"`{endpoint.api}`" if endpoint.api else ""
    return f"| `{endpoint.method} {path}` | {text}{more} | {kind} |"


def _section(title: str, options: list[Option]) -> nodes.section:
    name = nodes.fully_normalize_name(title)
    section = nodes.section(ids=[nodes.make_id(f"options-{title}")], names=[name])
    section += nodes.title(text=title)
    reasons = {option.no_effect for option in options}
    shared = reasons.pop() if len(reasons) == 1 else ""
    if shared:
        section += nodes.paragraph(text=f"Accepted, and without effect: {shared}.")
    listed = nodes.definition_list()
    for option in options:
        term = nodes.term()
        names = [option.flag] if option.flag.startswith("--") else option.flags
        term += nodes.literal(text=f"{', '.join(names)} {_placeholder(option)}".strip())
        item = nodes.definition_list_item("", term)
        item += nodes.definition("", nodes.paragraph(text=_description(option, "", shared)))
        listed += item
    section += listed
    return section


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("option-table", OptionTable)
    app.add_directive("perf-option-table", PerfOptionTable)
    app.add_directive("route-table", RouteTable)
    app.add_directive("parameter-table", ParameterTable)
    app.add_directive("unused-fields", UnusedFields)
    return {"parallel_read_safe": True}
