#!/usr/bin/env python3
"""Makes one HTML file from what the figures' programs left in a folder, or checks one.

report.py RESULTS OUTPUT            RESULTS holds figNN.json, their .svg, and perhaps reliability_grid.md
report.py --check RESULTS OUTPUT    exit status 1 when OUTPUT has a leftover or lacks something
"""
import datetime
import html
import json
import os
import pathlib
import platform
import re
import sys
from html.parser import HTMLParser

STYLE = """
:root { --ink: #1a1a1a; --soft: #555; --line: #bbb; --paper: #fff; --band: #f3f4f6; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 76rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: .2rem 0 .6rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; border-top: 2px solid var(--ink); padding-top: .6rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { max-width: 50rem; margin: .5rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
#summary { min-width: 44rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .5rem; border-bottom: 1px solid var(--line); }
th { background: var(--band); }
.grid td, .grid th { white-space: nowrap; font-variant-numeric: tabular-nums; }
code { font: .88em ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.verdict { font-weight: 700; border: 1.5px solid; border-radius: 3px; padding: 0 .3rem; white-space: nowrap; }
.PASS { color: #00603c; } .NOTE { color: #444; border-style: dashed; } .FAIL { color: #fff; background: #a01010; border-color: #a01010; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: .4rem 1.5rem; margin: .5rem 0; }
.two p { margin: .1rem 0; }
.label { color: var(--soft); font-size: .8rem; text-transform: uppercase; letter-spacing: .04em; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); gap: 1rem; margin: .8rem 0; }
figure { margin: 0; border: 1px solid var(--line); padding: .3rem; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { font-size: .88rem; padding: .2rem .3rem; }
ul { padding-left: 1.2rem; margin: .4rem 0; }
.soft { color: var(--soft); font-size: .9rem; }
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  h2 { break-after: avoid; } figure, tr, .two { break-inside: avoid; }
  .pictures { grid-template-columns: 1fr 1fr; } .scroll { overflow: visible; } #summary { min-width: 0; font-size: 8.5pt; }
  .grid table, table.grid { font-size: 7pt; } .FAIL { color: #000; background: none; border-color: #000; text-decoration: underline; }
}
"""


def cpu_name():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def inlined(svg, prefix):
    """An SVG as it can stand in a page beside others: no prolog, ids of its own."""
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<title>.*?</title>|<desc>.*?</desc>", "", svg, flags=re.S)
    svg = re.sub(r"""\bid=(["'])(.+?)\1""", rf"id=\1{prefix}-\2\1", svg)
    svg = re.sub(r"""href=(["'])#(.+?)\1""", rf"href=\1#{prefix}-\2\1", svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)


def markdown(text):
    """What reliability_grid writes: headings, tables and lines."""
    out, rows = [], []

    def flush():
        if not rows:
            return
        head, *body = [r for r in rows if not set(r.replace("|", "").strip()) <= {"-"}]
        cells = lambda row: [html.escape(c.strip()) for c in row.strip().strip("|").split("|")]
        out.append('<div class="scroll"><table class="grid"><tr>' + "".join(f"<th>{c}</th>" for c in cells(head)) + "</tr>")
        out.extend("<tr>" + "".join(f"<td>{c}</td>" for c in cells(row)) + "</tr>" for row in body)
        out.append("</table></div>")
        rows.clear()

    for line in text.splitlines():
        if line.startswith("|"):
            rows.append(line)
            continue
        flush()
        if line.startswith("## "):
            out.append(f"<h3>{html.escape(line[3:])}</h3>")
        elif line.strip():
            out.append(f"<p>{html.escape(line)}</p>")
    flush()
    return "\n".join(out)


def figure_section(results, figure):
    e = html.escape
    name = figure["name"]
    pictures = []
    for i, picture in enumerate(figure["pictures"]):
        svg = inlined((results / picture["file"]).read_text(), f"{name}-{i}")
        pictures.append(f'<figure role="img" aria-label="{e(picture["caption"], quote=True)}">{svg}'
                        f'<figcaption>{e(picture["caption"])}</figcaption></figure>')
    checks = "".join(f'<li>{"met" if c["met"] else "<strong>missed</strong>"}: {e(c["text"])}</li>' for c in figure["checks"])
    return f"""<section id="{name}"><h2>Figure {int(name[3:])}: {e(figure["title"])} <span class="verdict {figure["verdict"]}">{figure["verdict"]}</span></h2>
<div class="two"><div><p class="label">Published</p><p>{e(figure["published"])}</p></div>
<div><p class="label">Ours</p><p>{e(figure["ours"])}</p></div></div>
<div class="pictures">{"".join(pictures)}</div>
<p><span class="label">Setting</span> {e(figure["setting"])}</p>
<p><span class="label">What differs, and why</span> {e(figure["differs"])}</p>
<ul>{checks}</ul>
<p class="soft"><code>{e(figure["command"])}</code>, {figure["seconds"]:.0f} s; data in <code>{name}.csv</code></p></section>"""


def load(results):
    figures = [json.loads(path.read_text()) for path in sorted(results.glob("fig[0-9][0-9].json"))]
    if not figures:
        sys.exit(f"report.py: there is no figNN.json in {results}: run scripts/experiments")
    return figures


def make(results, output):
    e = html.escape
    figures = load(results)
    grid = results / "reliability_grid.json"
    grid = json.loads(grid.read_text()) if grid.exists() else None
    rows = [(f'<a href="#{f["name"]}">{int(f["name"][3:])}</a>', e(f["published"]), e(f["ours"]), f["verdict"], f["command"]) for f in figures]
    if grid:
        rows.append(('<a href="#grid">grid</a>', "not published: what our own scheme is held to, near the bound at every size and loss", e(grid["ours"]),
                     grid["verdict"], grid["command"]))
    table = "".join(f'<tr><td>{n}</td><td>{p}</td><td>{o}</td><td><span class="verdict {v}">{v}</span></td><td><code>{e(c)}</code></td></tr>'
                    for n, p, o, v, c in rows)
    quick = any(f["quick"] for f in figures)
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    section = ""
    if grid:
        section = (f'<section id="grid"><h2>Tables of results: auto over sizes and losses <span class="verdict {grid["verdict"]}">{grid["verdict"]}'
                   f'</span></h2><p>{e(grid["note"])}</p>{markdown((results / "reliability_grid.md").read_text())}</section>')
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Farhaul: published figures, and ours</title><style>{STYLE}</style></head><body>
<h1>Farhaul: published figures, and ours</h1>
<div class="scroll"><table id="summary"><tr><th>Figure</th><th>Published claim</th><th>Our figure</th><th>Verdict</th><th>Command</th></tr>{table}</table></div>
<p class="soft">{"A quick run: few runs per point, some points left out, tails of few runs are their maximum. " if quick else ""}{e(cpu_name())}, {os.cpu_count()} cores, {e(platform.system())} {e(platform.release())}, {now}.
<code>make experiments</code> runs all of it (<code>QUICK=1</code>: in two minutes).</p>
<p>Published claims are those of SDR-RDMA (SC '25, arXiv 2505.05366), in our words. Figures 3 to 13 run Farhaul's protocol code in virtual time;
figures 14 to 16 and the encoding of figure 11 measure this host and say by what ratio it differs: NOTE, and FAIL only below a sane floor.
Loss always means loss of packets; where a chunk is one packet the two are the same.
The bound is bytes / rate / (1 - loss) + RTT.</p>
{"".join(figure_section(results, f) for f in figures)}
{section}
</body></html>
"""
    temporary = output.with_suffix(".tmp")
    temporary.write_text(page)
    temporary.replace(output)


class Outline(HTMLParser):
    """The elements of a page, in order, with what is open around each and the text of the page."""

    VOID = {"meta", "br", "hr", "img", "link", "input"}

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.ids, self.text, self.errors = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, tuple(self.open)))
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for key in ("src", "href", "xlink:href"):
            if re.match(r"(https?:)?//", attributes.get(key) or ""):
                self.errors.append(f"not self-contained: {attributes[key]}")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.errors.append(f"</{tag}> closes {self.open[-1] if self.open else 'nothing'}")
        else:
            self.open.pop()

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def check(results, output):
    text = output.read_text()
    page = Outline()
    page.feed(text)
    page.close()
    errors = page.errors
    if page.open:
        errors.append(f"left open: {page.open}")
    tags = [tag for tag, _ in page.seen]
    first_table = tags.index("table") if "table" in tags else len(tags)
    if "h2" in tags[:first_table] or "svg" in tags[:first_table] or first_table == len(tags):
        errors.append("the page does not open with the table")
    for heading in ("Published claim", "Our figure", "Verdict", "Command"):
        if heading not in text:
            errors.append(f"the table has no column '{heading}'")
    for figure in load(results):
        start = text.find(f'<section id="{figure["name"]}">')
        section = text[start:text.find("</section>", start)] if start >= 0 else ""
        if not figure["pictures"] or section.count("<svg") != len(figure["pictures"]):
            errors.append(f'{figure["name"]}: not every picture is in the report')
        for field in ("published", "ours", "differs", "command"):
            if html.escape(figure[field]) not in section:
                errors.append(f'{figure["name"]}: the report lacks what is {field}')
    for duplicate in sorted({i for i in page.ids if page.ids.count(i) > 1}):
        errors.append(f"the id {duplicate} occurs more than once")
    words = " ".join(page.text)
    for leftover in (r"\bnan\b", r"\binf\b", r"\bTODO\b", r"\bNone\b", r"\{[a-z_:.]*\}"):
        for found in re.findall(leftover, words, flags=re.I if "nan" in leftover else 0):
            errors.append(f"leftover: {found}")
    for error in errors:
        print(f"report.py: {output}: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    checking = arguments[:1] == ["--check"]
    arguments = arguments[checking:]
    if len(arguments) != 2:
        sys.exit(__doc__)
    folder, page = map(pathlib.Path, arguments)
    sys.exit(check(folder, page) if checking else make(folder, page))
