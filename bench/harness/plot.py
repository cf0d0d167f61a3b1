"""The figure: one panel per case, a bar per contender, a line from the least to the most of the rounds."""

from html import escape

from .plan import CONTENDERS, OURS, PLAN

WIDTH, BAR, GAP, LEFT, RIGHT, TOP = 860, 16, 8, 330, 90, 30
HEADS = {"embedded": "Embedded or single node", "postgres": "On PostgreSQL", "drain": "Draining a full queue, PostgreSQL"}

# Readable on white and on black; where the viewer says which of them it is, better.
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #767676 }
.head { font-weight: 600; font-size: 13px }
.ours { fill: #2f81c7 } .peer { fill: #9aa0a6 }
.spread { stroke: #5b6066; stroke-width: 1.5 }
@media (prefers-color-scheme: light) { text { fill: #3d4248 } }
@media (prefers-color-scheme: dark) { text { fill: #c3c8ce } .peer { fill: #757c84 } .spread { stroke: #d4d8dc } }
"""


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def panels(results):
    for case in (part.case for part in PLAN):
        rows = []
        for name in CONTENDERS:
            if summary := results.summary(case, name, "per_second"):
                rows.append((name, summary))
        if rows:
            yield case, rows


def svg(results):
    y, body = TOP, []
    for case, rows in panels(results):
        # Linear, and from zero: a bar ten times as long is ten times as many.
        scale = (WIDTH - LEFT - RIGHT) / max(most for _, (_, _, most, _) in rows)
        body.append(f'<text class="head" x="10" y="{y}">{escape(HEADS[case.group])}: {escape(case.title)}, completed per second</text>')
        y += 12
        for name, (middle, least, most, _) in rows:
            kind = "ours" if name.startswith(OURS) else "peer"
            center = y + BAR / 2
            body.append(f'<text x="{LEFT - 8}" y="{center + 4}" text-anchor="end">{escape(CONTENDERS[name].title)}</text>')
            body.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{max(1, middle * scale):.1f}" height="{BAR}" rx="2"/>')
            if most > least:
                body.append(f'<line class="spread" x1="{LEFT + least * scale:.1f}" x2="{LEFT + most * scale:.1f}" y1="{center}" y2="{center}"/>')
            body.append(f'<text x="{LEFT + most * scale + 8:.1f}" y="{center + 4}">{number(middle)}</text>')
            y += BAR + GAP
        y += 30
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">'
    title = "<title>Completed work per second: medians of the rounds, lines from the least to the most</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *body, "</svg>", ""])
