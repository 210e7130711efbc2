"""A statement as Markdown, and as one HTML page that needs nothing else and fits on paper."""

from __future__ import annotations

import html
import re

from paraaegis.statement.page import Section, Statement

_STYLE = """
@page { size: A4; margin: 11mm 15mm }
body { font: 10pt/1.35 "Liberation Sans", Arial, sans-serif; max-width: 178mm; margin: 0 auto; padding: 1em }
h1 { font-size: 15pt; margin: 0 0 .4em } h2 { font-size: 11pt; margin: .9em 0 .25em; break-after: avoid }
p, ul { margin: .25em 0 } ul { padding-left: 1.3em } table { border-collapse: collapse; width: 100%; margin: .3em 0 }
th, td { border: 1px solid #999; padding: .2em .45em; text-align: left; vertical-align: top }
tr { break-inside: avoid } th { background: #eee } code { font-size: 9pt; overflow-wrap: anywhere }
.simulation p:first-of-type { font-weight: bold }
@media print {
  body { padding: 0; font-size: 8.5pt; line-height: 1.28; max-width: none }
  code { font-size: 8pt } h2 { margin-top: .7em }
}
"""


def as_markdown(statement: Statement) -> str:
    """The statement as Markdown."""
    return "\n\n".join([f"# {statement.title}", *map(_markdown, statement.sections)]) + "\n"


def _markdown(section: Section) -> str:
    blocks = [f"## {section.title}", *section.text]
    if section.rows:
        blocks.append(_markdown_table(section))
    if section.items:
        blocks.append("\n".join(f"- {item}" for item in section.items))
    return "\n\n".join(blocks)


def _markdown_table(table: Section) -> str:
    width = len(table.rows[0])
    rows = [table.headings or [""] * width, ["---"] * width, *table.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def as_html(statement: Statement) -> str:
    """The statement as a page."""
    kind = "simulation" if statement.simulation else ""
    title, body = html.escape(statement.title), "\n".join(map(_html, statement.sections))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<style>{_STYLE}</style></head>\n<body class="{kind}"><h1>{title}</h1>\n{body}\n</body></html>\n'
    )


def _html(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>", *(f"<p>{_inline(text)}</p>" for text in section.text)]
    if section.rows:
        parts.append(_html_table(section))
    if section.items:
        parts.append(f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in section.items)}</ul>")
    return "\n".join(parts)


def _html_table(table: Section) -> str:
    head = "".join(f"<th>{_inline(name)}</th>" for name in table.headings)
    body = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
