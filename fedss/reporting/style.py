"""The style sheet of a report: quiet, readable, light or dark as the reader's system is; prints well."""

from __future__ import annotations

from fedss.reporting.chart_style import DARK_SERIES, FAINT, GRID, INK, SERIES


def style_sheet() -> str:
    light = _variables(
        SERIES, ink=INK, faint=FAINT, grid=GRID, paper="#ffffff", card="#f6f8fa", mark="#fff3c4"
    )
    dark = _variables(
        DARK_SERIES,
        ink="#e6edf3",
        faint="#9198a1",
        grid="#30363d",
        paper="#0d1117",
        card="#161b22",
        mark="#3d3211",
    )
    return (
        f":root {{{light}}}\n@media screen and (prefers-color-scheme: dark) {{ :root {{{dark}}} }}\n{_RULES}"
    )


def _variables(series: tuple[str, ...], **colours: str) -> str:
    named = colours | {f"series-{number}": colour for number, colour in enumerate(series)}
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


_RULES = """
:root { color-scheme: light dark; --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 var(--font); }
main { max-width: 62rem; margin: 0 auto; padding: 3rem 1.5rem 5rem; }
header p { color: var(--faint); margin: 0; }
h1 { font-size: 2rem; line-height: 1.2; letter-spacing: -0.02em; margin: 0 0 .4rem; }
h2 { font-size: 1.3rem; letter-spacing: -0.01em; margin: 3.2rem 0 .8rem; padding-top: 1.4rem;
  border-top: 1px solid var(--grid); }
p { max-width: 46rem; }
nav { margin: 1.4rem 0 0; display: flex; flex-wrap: wrap; gap: .35rem 1.2rem; font-size: .92rem; }
nav a, a { color: var(--series-0); text-decoration: none; }
a:hover { text-decoration: underline; }
.headlines { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .9rem; margin: 1.8rem 0 0; }
.headlines div { background: var(--card); border-radius: .6rem; padding: .9rem 1.1rem; }
.headlines b { display: block; font-size: 1.55rem; line-height: 1.25; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums; }
.headlines span { color: var(--faint); font-size: .86rem; line-height: 1.35; display: block; }
.note { background: var(--mark); border-radius: .5rem; padding: .6rem 1rem; max-width: none; }
figure { margin: 1.2rem 0 1.8rem; }
figure svg { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption { color: var(--faint); font-size: .88rem; margin: .5rem auto 0; max-width: 46rem; text-align: center; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--faint); border-bottom: 1.5px solid var(--ink);
  white-space: nowrap; vertical-align: bottom; }
th, td { padding: .32rem .95rem .32rem 0; }
td { border-bottom: 1px solid var(--grid); vertical-align: top; }
tbody tr:hover td { background: var(--card); }
.number { text-align: right; white-space: nowrap; }
tr.differs td { background: var(--mark); }
tr.differs td:first-child { box-shadow: -.5rem 0 var(--mark); }
code, pre { font: .86rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: var(--card); border-radius: .5rem; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--series-0); }
footer { margin-top: 4rem; color: var(--faint); font-size: .86rem; }
@media (max-width: 42rem) { figure { overflow-x: auto; } figure svg { max-width: none; } }
@media print { main { max-width: none; padding: 0; } section { break-inside: avoid-page; } nav { display: none; } }
"""
