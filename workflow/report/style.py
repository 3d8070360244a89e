"""Colours and the one style sheet. Pages name it by its hash, so that no other style, and nothing from elsewhere, has any effect."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

INK: Final = "#1f2328"
MUTED: Final = "#57606a"
GRID: Final = "#dfe3e8"
IDEAL: Final = "#8c959f"
# Told apart by people who see colours otherwise, readable on white and on nearly black; shapes say the same a second time.
SERIES: Final = ("#0f6cbd", "#d9730d", "#11875d", "#b4469b", "#c4a000", "#2aa3a3", "#8250df", "#cf4444", "#6b7f1e", "#8a6552")
STEPS: Final = {
    "assign": "#a3a9b2",
    "stage": "#2aa3a3",
    "train": "#0f6cbd",
    "result": "#c4a000",
    "push": "#d9730d",
    "release": "#b4469b",
}

STYLE: Final = f"""
:root {{ color-scheme: light dark; --ink: {INK}; --muted: {MUTED}; --grid: {GRID}; --paper: #ffffff; --raised: #f6f8fa; --accent: #0f6cbd;
  --bad: #b42318; --good: #11734f; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --muted: #9aa4af; --grid: #30363d; --paper: #0d1117; --raised: #161b22; --accent: #58a6ff;
    --bad: #ff7b72; --good: #3fb950; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif; }}
main {{ max-width: 1240px; margin: 0 auto; padding: 1.5rem 1.5rem 4rem; }}
h1, h2, h3, p, li, figcaption, caption {{ overflow-wrap: anywhere; }}
h1 {{ font-size: 1.9rem; line-height: 1.2; margin: .5rem 0 .2rem; letter-spacing: -.01em; }}
h2 {{ font-size: 1.25rem; margin: 2.6rem 0 .8rem; padding-bottom: .3rem; border-bottom: 1px solid var(--grid); }}
h3 {{ font-size: 1rem; margin: 1.4rem 0 .4rem; }}
p {{ margin: .5rem 0; max-width: 80ch; }}
a {{ color: var(--accent); }}
nav ul {{ display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; padding: 0; margin: .8rem 0 0; font-size: .93rem; }}
.lead {{ color: var(--muted); font-size: 1.02rem; }}
:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
.skip {{ position: absolute; left: -999px; }}
.skip:focus {{ position: static; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: .8rem; margin: 1.2rem 0; padding: 0;
  list-style: none; }}
.tiles li {{ background: var(--raised); border: 1px solid var(--grid); border-radius: 8px; padding: .7rem .9rem; }}
.tiles b {{ display: block; font-size: 1.5rem; line-height: 1.3; font-weight: 650; font-variant-numeric: tabular-nums; }}
.tiles span {{ color: var(--muted); font-size: .88rem; }}
.tiles a {{ color: inherit; }}
.tiles a, td a {{ text-decoration-color: var(--muted); text-decoration-thickness: 1px; text-underline-offset: .2em; }}
td a {{ color: inherit; text-decoration-style: dotted; }}
td a:hover, td a:focus {{ color: var(--accent); text-decoration-style: solid; }}
.bad, .tiles .bad {{ color: var(--bad); }}
.good, .tiles .good {{ color: var(--good); }}
figure {{ margin: 1.2rem 0; }}
figcaption, .note {{ color: var(--muted); font-size: .87rem; max-width: 105ch; margin-top: .45rem; }}
.scroll {{ overflow-x: auto; }}
.tall {{ max-height: 85vh; overflow-y: auto; }}
.tall thead th {{ white-space: nowrap; position: sticky; top: 0; background: var(--paper); border-bottom: 0;
  box-shadow: 0 2px var(--muted); }}
.tall tbody th {{ font-weight: 400; }}
.tall :is(:nth-child(4), :nth-child(6), :nth-child(7), :nth-child(8)):is(td, th) {{ text-align: right; }}
.tall td:nth-child(9) {{ white-space: normal; min-width: 8rem; }}
.tall td:nth-child(10) {{ white-space: normal; min-width: 4rem; }}
.tall :is(th, td) {{ padding: .34rem .45rem; }}
.tall tbody th {{ white-space: normal; min-width: 11rem; }}
.tall td:nth-child(3) {{ white-space: normal; min-width: 10rem; }}
.tall td:nth-child(2) {{ white-space: normal; min-width: 6rem; }}
.tall thead th {{ white-space: normal; }}
.tall th button {{ white-space: normal; }}
#table-speedup td.number {{ white-space: normal; min-width: 6.5rem; }}
.folded {{ display: none; }}
#table-failures td:last-child {{ min-width: 20rem; }}
tr:has(:target) {{ background: var(--raised); }}
.tools {{ display: flex; flex-wrap: wrap; gap: .4rem .8rem; align-items: center; margin: .8rem 0; }}
.tools[hidden] {{ display: none; }}
.tools input {{ width: min(24rem, 80vw); }}
.tools output {{ color: var(--muted); }}
input, button {{ font: inherit; color: inherit; background: var(--raised); border: 1px solid var(--muted); border-radius: 6px;
  padding: .2rem .6rem; }}
button {{ cursor: pointer; }}
th button {{ all: unset; cursor: pointer; }}
th button:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
th button::after {{ content: " \u2195"; color: var(--muted); }}
th[aria-sort=ascending] button::after {{ content: " \u2191"; color: var(--accent); }}
th[aria-sort=descending] button::after {{ content: " \u2193"; color: var(--accent); }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }}
caption {{ text-align: left; font-weight: 600; padding: 0 0 .5rem; }}
th, td {{ padding: .34rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); white-space: nowrap; }}
thead th {{ border-bottom: 2px solid var(--muted); font-weight: 600; vertical-align: bottom; white-space: normal; }}
tbody tr:hover {{ background: var(--raised); }}
.number {{ text-align: right; }}
.reason {{ color: var(--bad); }}
td sup {{ color: var(--muted); margin-left: .15em; font-size: .72em; line-height: 0; white-space: nowrap; }}
td.wrap {{ white-space: pre-line; overflow-wrap: anywhere; min-width: 11rem; max-width: 30rem; }}
.notes {{ list-style: none; padding: 0; margin: .3rem 0 0; color: var(--muted); font-size: .87rem; }}
.notes sup {{ font-weight: 600; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 540px), 1fr)); gap: 1.2rem; align-items: start; }}
.plot {{ border: 1px solid var(--grid); border-radius: 8px; padding: .8rem 1.2rem; margin: 0; }}
.plot svg {{ display: block; max-width: 100%; height: auto; margin: 0 auto; overflow: visible; }}
svg text[fill="{INK}"] {{ fill: var(--ink); }}
svg text[fill="{MUTED}"] {{ fill: var(--muted); }}
svg [stroke="{INK}"] {{ stroke: var(--ink); }}
svg [stroke="{MUTED}"] {{ stroke: var(--muted); }}
svg [stroke="{GRID}"] {{ stroke: var(--grid); }}
code, pre {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .9em; }}
pre {{ background: var(--raised); border: 1px solid var(--grid); border-radius: 8px; padding: .8rem 1rem; overflow-x: auto; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0; }}
dt {{ color: var(--muted); }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
details {{ margin: .8rem 0; }}
summary {{ cursor: pointer; color: var(--accent); }}
footer {{ margin-top: 3rem; color: var(--muted); font-size: .87rem; border-top: 1px solid var(--grid); padding-top: .8rem; }}
@media (max-width: 700px) {{
  main {{ padding: 1rem .8rem 3rem; }}
  dl {{ grid-template-columns: 1fr; gap: 0; }}
  dd {{ margin: 0 0 .5rem 1rem; }}
  .plot {{ padding: .4rem; }}
  #table-speedup table {{ font-size: .8rem; }}
  #table-speedup :is(th, td) {{ padding: .3rem .25rem; }}
  #table-speedup td.number {{ min-width: 4.6rem; }}
  .fold {{ display: none; }}
  .folded {{ display: table-cell; white-space: normal; min-width: 6rem; max-width: 9rem; }}
}}
@media print {{
  :root {{ color-scheme: light; --ink: #000000; --muted: #444c56; --grid: #c4cad1; --paper: #ffffff; --raised: #ffffff; --accent: #0f6cbd;
    --bad: #b42318; --good: #11734f; }}
  @page {{ size: landscape; margin: 12mm; }}
  body {{ font-size: 9.5pt; }}
  h1 {{ font-size: 1.5rem; margin: 0; }}
  h2 {{ margin-top: 1.2rem; }}
  p {{ margin: .3rem 0; max-width: 130ch; }}
  figcaption, .note {{ max-width: none; }}
  .tiles {{ margin: .6rem 0; }}
  .tiles li {{ padding: .3rem .7rem; }}
  .tiles b {{ font-size: 1.2rem; }}
  #speedup {{ display: flex; flex-direction: column; }}
  #speedup .plots {{ order: 1; }}
  main {{ max-width: none; padding: 0; }}
  nav, .skip, .tools, .tools[hidden], button#runs-more {{ display: none; }}
  th[data-title] button {{ display: none; }}
  th[data-title]::before {{ content: attr(data-title); }}
  .fold:is(th, td) {{ display: table-cell; }}
  .folded:is(th, td) {{ display: none; }}
  .scroll, .tall, pre {{ overflow: visible; max-height: none; }}
  .tall thead th {{ position: static; box-shadow: none; border-bottom: 2px solid var(--muted); }}
  table {{ font-size: 7pt; }}
  :is(table, .tall, #table-failures, #all-runs) :is(th, td):nth-child(n) {{ padding: .15rem .4rem; white-space: normal; min-width: 0; }}
  #table-times table {{ font-size: 5.8pt; }}
  #table-times :is(th, td):nth-child(n) {{ padding: .12rem .2rem; }}
  table td.wrap {{ white-space: pre-line; }}
  #all-runs tbody :is(th, td):nth-child(n) {{ overflow-wrap: anywhere; }}
  #all-runs tbody :is(td:nth-child(2), td:nth-child(5), td:nth-child(9)) {{ overflow-wrap: normal; }}
  pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
  thead {{ display: table-header-group; }}
  tr, .plot, .tiles li {{ break-inside: avoid; }}
  h2, h3, caption {{ break-after: avoid; }}
  .plots {{ grid-template-columns: 1fr 1fr; }}
  td a, .tiles a {{ text-decoration: none; }}
}}
"""

STYLE_SHA256: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
