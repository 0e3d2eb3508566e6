"""The report as one HTML page: text, tables and figures in it, nothing beside it.

Sections come as plain data; figures are PNG files that are inlined. Works without
scripts and without a network.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from profiling.tables import Table

__all__ = ["Section", "page", "prose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One experiment of the page.

    Args:
        name: What links to it; unique.
        title: Its headline.
        question: What was asked, in a sentence.
        finding: What was found, in a sentence or two; empty if nothing is there yet.
        method: How it was measured: paragraphs parted by empty lines.
        facts: What is to be known of the run, such as the machine, by name.
        tables: The numbers.
        figures: PNG files.
        printed: What the experiment's own `draw` says, tables in text.
        command: What makes the result, or made it.
        problem: Why there is nothing to show; None if there is.
    """

    name: str
    title: str
    question: str
    finding: str = ""
    method: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Path, ...] = ()
    printed: str = ""
    command: str = ""
    problem: str | None = None


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """The whole page.

    Example:
        >>> one = Section(name="a", title="A", question="Why?", problem="No result.")
        >>> "No result." in page("Report", "", [one])
        True
    """
    links = "".join(
        f'<li{_state(s)}><a href="#{escape(s.name)}">{_inline(s.title)}</a></li>'
        for s in sections
    )
    return _PAGE.substitute(
        title=escape(title),
        introduction=prose(introduction),
        links=links,
        sections="".join(map(_section, sections)),
    )


def prose(text: str) -> str:
    """Paragraphs, lists and indented blocks of a docstring as HTML.

    Example:
        >>> prose("One `a`.")
        '<p>One <code>a</code>.</p>'
        >>> prose("    as it is")
        '<pre>as it is</pre>'
    """
    blocks = [block for block in re.split(r"\n\s*\n", text.strip("\n")) if block]
    return "".join(map(_block, blocks))


def _block(block: str) -> str:
    lines = block.split("\n")
    if all(line.startswith("    ") for line in lines):
        return f"<pre>{escape(chr(10).join(line[4:] for line in lines))}</pre>"
    if all(line.startswith(("- ", "  ")) for line in lines):
        items = re.split(r"\n- ", block[2:])
        return f"<ul>{''.join(f'<li>{_inline(i)}</li>' for i in items)}</ul>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _inline(text: str) -> str:
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\b(\d+)\^3", r"\1³", marked)


def _state(section: Section) -> str:
    return "" if section.problem is None else ' class="missing"'


def _section(section: Section) -> str:
    parts = [f'<h2 id="{escape(section.name)}">{_inline(section.title)}</h2>']
    parts.append(f'<p class="question">{_inline(section.question)}</p>')
    if section.problem is not None:
        parts.append(f'<p class="problem">{_inline(section.problem)}</p>')
    if section.finding:
        parts.append(f'<p class="finding">{_inline(section.finding)}</p>')
    parts += [_figure(path, section.title) for path in section.figures]
    parts += [_table(table) for table in section.tables]
    if section.facts:
        parts.append(_facts(section))
    if section.method:
        parts.append(_details("How it was measured", prose(section.method)))
    if section.printed.strip():
        text = f"<pre>{escape(section.printed.rstrip())}</pre>"
        parts.append(_details("What `draw` prints, claims and all", text))
    return f"<section>{''.join(parts)}</section>"


def _figure(path: Path, title: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    label = escape(f"{title}: {path.stem}")
    return f'<img src="data:image/png;base64,{data}" alt="{label}">'


def _table(table: Table) -> str:
    title, head, rows = table
    names = "".join(f"<th>{_inline(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{_inline(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table><caption>{_inline(title)}</caption>'
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _facts(section: Section) -> str:
    items = [*section.facts, ("made by", f"`{section.command}`")]
    body = "".join(f"<dt>{escape(k)}</dt><dd>{_inline(v)}</dd>" for k, v in items)
    return f"<dl>{body}</dl>"


def _details(title: str, body: str) -> str:
    return f"<details><summary>{_inline(title)}</summary>{body}</details>"


_PAGE = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { --ink: #222; --muted: #666; --line: #ddd; --accent: #0072b2; --warm: #d55e00; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 5rem; color: var(--ink);
  background: #fff; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 2rem; margin: 0 0 .5rem; }
h2 { font-size: 1.35rem; margin: 0 0 .3rem; }
nav ul { columns: 2; padding-left: 1.2rem; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
.missing a { color: var(--muted); }
.missing::after { content: " - no result yet"; color: var(--muted); font-size: .85rem; }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 2rem; }
.question { color: var(--muted); margin: 0 0 .8rem; }
.finding { border-left: 4px solid var(--accent); padding-left: .9rem; }
.problem { border-left: 4px solid var(--warm); padding-left: .9rem; }
img { display: block; max-width: 100%; height: auto; margin: 1.2rem auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th { border-bottom: 2px solid var(--ink); text-align: right; font-weight: 600; }
td { border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th, td { padding: .25rem .7rem; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem;
  font-size: .85rem; color: var(--muted); }
dt { font-weight: 600; }
dd { margin: 0; }
details { font-size: .9rem; margin: .6rem 0; }
summary { cursor: pointer; color: var(--accent); }
pre { background: #f6f6f6; overflow-x: auto; padding: .8rem; line-height: 1.25;
  font-size: .78rem; }
code { background: #f3f3f3; padding: 0 .2em; font-size: .92em; }
pre code { background: none; }
@media (max-width: 40rem) { nav ul { columns: 1; } dl { grid-template-columns: 1fr; } }
</style>
</head>
<body>
<h1>$title</h1>
$introduction
<nav><ul>$links</ul></nav>
$sections
</body>
</html>
"""
)
