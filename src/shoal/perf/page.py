"""The HTML of reports: one self-contained page with a light and a dark theme."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from html import escape

import shoal

_STYLE = """
:root { --ink: #1f2933; --soft: #66737f; --line: #e1e6ea; --paper: #ffffff; --card: #f7f9fa;
  --c0: #0b7285; --c1: #e8590c; --c2: #9c36b5; --c3: #2b8a3e; --c4: #1971c2; --c5: #c2a100;
  --c6: #868e96; --c7: #e64980; --bad: #c92a2a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaed; --soft: #9aa7b2; --line: #323c44;
  --paper: #14191d; --card: #1c2328; --c0: #3bc9db; --c1: #ffa94d; --c2: #da77f2; --c3: #69db7c;
  --c4: #74c0fc; --c5: #ffe066; --c6: #adb5bd; --c7: #faa2c1;
  --bad: #ff8787; } }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 940px; margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.about { color: var(--soft); margin: .2rem 0 1.4rem; }
ul.verdict { background: var(--card); border-left: 4px solid var(--c0); border-radius: 4px;
  padding: .8rem 1rem .8rem 2rem; }
ul.verdict.unmet { border-color: var(--bad); }
pre { background: var(--card); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; }
figure { margin: 0 0 .9rem; background: var(--card); border-radius: 6px; padding: .6rem; }
figcaption { color: var(--soft); font-size: .85rem; padding: 0 .4rem .3rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .9rem; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; } tr.chosen td { color: var(--c0); font-weight: 600; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .tick, svg .title { fill: var(--soft); font-size: 11.5px; }
svg .label { font-size: 11px; } svg .grid { stroke: var(--line); }
svg .line { fill: none; stroke-width: 2.2; }
svg .mark { stroke: var(--c1); stroke-dasharray: 4 3; }
svg .limit { stroke: var(--bad); stroke-dasharray: 4 3; }
svg .front { fill: none; stroke: var(--c6); stroke-width: 1.4; }
svg .tried { fill: var(--c6); } svg .over { fill: none; stroke: var(--bad); }
svg .chosen { fill: var(--c0); } svg .start { fill: var(--c1); }
"""
_COLOURS = "\n".join(
    f"svg .s{index} {{ fill: var(--c{index}); stroke: var(--c{index}); }} "
    f"svg .bar.s{index} {{ stroke: none; }} svg .line.s{index} {{ fill: none; }}"
    for index in range(8)
)


def page(title: str, body: str) -> str:
    """The whole page."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}{_COLOURS}</style></head>
<body>
<h1>{escape(title)}</h1>
{body}
</body></html>
"""


def about(sentence: str) -> str:
    """The line below the title: what was measured, when and by which version."""
    now = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f'<p class="about">{escape(sentence)} · measured {now} with Shoal '
        f"{escape(shoal.__version__)}</p>"
    )


def verdict(sentences: Sequence[str], *, met: bool = True) -> str:
    """The conclusions; `met` is false where the goal was not reached."""
    return bullets(sentences).replace("<ul", f'<ul class="verdict{"" if met else " unmet"}"', 1)


def bullets(sentences: Sequence[str]) -> str:
    """A list."""
    return f"<ul>{''.join(f'<li>{escape(line.strip())}</li>' for line in sentences)}</ul>"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    chosen: Collection[int] = (),
) -> str:
    """A table of numbers after a first column of text. `notes` are a last column of text, one for
    each row; `chosen` are the indexes of rows to highlight."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in (*head, *([""] if notes else [])))
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        note = f'<td class="text">{escape(notes[index])}</td>' if notes else ""
        kind = ' class="chosen"' if index in chosen else ""
        lines.append(f"<tr{kind}>{cells}{note}</tr>")
    body = "\n".join(lines)
    return f'<div class="scroll"><table><tr>{top}</tr>\n{body}</table></div>'


def figure(chart: str, caption: str) -> str:
    """A chart with its caption."""
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"
