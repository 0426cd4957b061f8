"""`results/<profile>/index.html`: one file with tables, figures, claims, provenance and every answer side by side.

It opens without a server and loads nothing: styles, script, figures and data are inside. All text that a model or a
data set wrote goes through `escape` or, in the browser of answers, through textContent; neither can become markup.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from t3lib import results
from t3lib.files import atomic_write, read_json
from t3lib.report import render, tables

LONG = ("tofu_per_seed", "forget_quality", "tofu_by_seeds", "synthetic", "bounds")  # folded until asked for
FIGURES = {
    "architecture": "Figure 1. The base stays frozen; A and B are all that is trained.",
    "temperature": "Forget Quality and MU-ROUGE against the temperature, ours and the paper's.",
    "tradeoff": "Forgetting against keeping: every method, every seed. Top right is best.",
    "per_seed": "Forget Quality seed by seed.",
    "runtime": "Seconds to unlearn.",
}
SETS = ("forget", "retain", "ra", "wf")

STYLE = """
:root{color-scheme:light;--ink:#222;--mute:#666;--line:#ddd;--ours:#e8f0fa}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);max-width:72rem;margin:0 auto;padding:0 1rem 4rem}
h1{margin:1.5rem 0 .2rem}h2{margin:2.5rem 0 .5rem;border-bottom:1px solid var(--line)}
nav a{margin-right:1rem}.mute{color:var(--mute)}.scroll{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:13px}td{border-top:1px solid #eee}caption{caption-side:top;color:var(--mute)}
td{vertical-align:top}
figure{margin:1.5rem 0}figure img{max-width:100%;height:auto}figcaption{color:var(--mute)}
summary{cursor:pointer;color:var(--mute)}
.filters{position:sticky;top:0;background:#fff;padding:.6rem 0;border-bottom:1px solid var(--line);display:flex;
flex-wrap:wrap;gap:.8rem;z-index:1}.filters label{font-size:13px;color:var(--mute)}
.filters select,.filters input{display:block;font:inherit}
.card{border:1px solid var(--line);border-radius:6px;padding:.7rem .9rem;margin:.8rem 0}
.card dl{display:grid;grid-template-columns:8rem 3.2rem 1fr;gap:.15rem .6rem;margin:0;font-size:14px}
.card dt{color:var(--mute)}.card dd{margin:0;overflow-wrap:anywhere}.card .q{font-weight:600;margin-bottom:.4rem}
.T3{background:var(--ours)}.right{color:#00664b}.wrong{color:#9a3412;font-weight:700}
button{font:inherit;padding:.3rem .8rem}
"""

SCRIPT = """
const data = JSON.parse(document.getElementById('answers').textContent);
const $ = id => document.getElementById(id);
const make = (tag, text, kind) => { const e = document.createElement(tag); e.textContent = text;
  if (kind) e.className = kind; return e; };
const option = ([value, text]) => { const e = make('option', text); e.value = value; return e; };
const fill = (id, pairs) => $(id).replaceChildren(...pairs.map(option));
const setNames = {forget: 'forget rows', retain: 'retain rows', ra: 'real authors', wf: 'world facts'};
let shown = 20;
function methods() { return Object.keys((data[$('split').value] || {forget: {by: {}}}).forget.by); }
function draw() {
  const part = (data[$('split').value] || {})[$('set').value];
  const list = $('list'); list.replaceChildren();
  if (!part) { $('count').textContent = 'no generated answers are stored for this choice'; return; }
  const limit = Number($('limit').value), method = $('method').value, want = $('want').value;
  const words = $('find').value.toLowerCase();
  const hits = part.q.map((q, i) => i).filter(i => {
    const by = part.by[method]; if (!by) return false;
    if (want === 'right' && !(by.r[i] >= limit)) return false;
    if (want === 'wrong' && !(by.r[i] < limit)) return false;
    return !words || (part.q[i] + ' ' + part.a[i] + ' ' + by.g[i]).toLowerCase().includes(words);
  });
  $('count').textContent = hits.length + ' of ' + part.q.length + ' rows';
  for (const i of hits.slice(0, shown)) {
    const card = make('div', '', 'card'), lines = document.createElement('dl');
    card.append(make('div', part.q[i], 'q'), lines);
    lines.append(make('dt', 'Truth'), make('dd', ''), make('dd', part.a[i]));
    for (const [name, by] of Object.entries(part.by)) {
      const kind = by.r[i] >= limit ? 'right' : 'wrong', ours = name.startsWith('T3') ? 'T3' : '';
      const score = make('dd', by.r[i].toFixed(2), kind + ' ' + ours);
      lines.append(make('dt', name, ours), score, make('dd', by.g[i], ours));
    }
    list.append(card);
  }
  $('more').hidden = hits.length <= shown;
}
function restart() { shown = 20; draw(); }
function newSplit() {
  fill('method', methods().map(m => [m, m]));
  $('method').value = methods().at(-1) || '';
  restart();
}
fill('split', Object.keys(data).map(s => [s, s]));
fill('set', Object.entries(setNames));
$('split').onchange = newSplit;
for (const id of ['set', 'method', 'want']) $(id).onchange = restart;
for (const id of ['find', 'limit']) $(id).oninput = restart;
$('more').onclick = () => { shown += 50; draw(); };
newSplit();
"""

FILTERS = """<div class="filters">
<label>split<select id="split"></select></label><label>rows<select id="set"></select></label>
<label>method<select id="method"></select></label>
<label>its answer is<select id="want"><option value="all">right or wrong</option><option value="right">right</option>
<option value="wrong">wrong</option></select></label>
<label>right from ROUGE-L<input id="limit" type="number" min="0" max="1" step="0.05" value="0.75"></label>
<label>containing<input id="find" type="search"></label><span id="count" class="mute" role="status"></span></div>
<div id="list"></div><button id="more" hidden>Show more</button>"""


def write_page(folder: str | Path, *, title: str = "T3 companion") -> Path:
    """Build `folder`/index.html from its runs/, tables/*.csv, figures/*.svg and data.json; what is missing is left out.

    A damaged run file is named on the page rather than shown.
    """
    folder = Path(folder)
    corrupt: list[str] = []
    runs = results.read_runs(folder / "runs", corrupt=corrupt)
    texts = read_json(folder / "data.json") if (folder / "data.json").is_file() else {}
    shown = {name: _table(folder / "tables" / f"{name}.csv", caption) for name, caption in tables.CAPTIONS.items()}
    claims, rest = shown.pop("claims"), "\n".join(shown.values())
    figures = "\n".join(_figure(path) for path in _figures(folder / "figures"))
    parts = {
        "claims": ("Claims", claims),
        "tables": ("Tables", rest),
        "figures": ("Figures", figures),
        "answers-of-all": ("Answers side by side", FILTERS if runs and texts else ""),
        "provenance": ("Provenance", _provenance(runs, corrupt)),
    }
    present = {key: part for key, part in parts.items() if part[1].strip()}
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, (name, _) in present.items())
    sections = "".join(f'<h2 id="{key}">{escape(name)}</h2>\n{body}\n' for key, (name, body) in present.items())
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    script = f'<script type="application/json" id="answers">{_embedded(answers(runs, texts))}</script>\n'
    script += f"<script>{SCRIPT}</script>\n" if "answers-of-all" in present else ""
    with atomic_write(folder / "index.html") as handle:
        handle.write(
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">\n'
            f"<style>{STYLE}</style></head><body>\n"
            f'<h1>{escape(title)}</h1>\n<p class="mute">Temper-Then-Tilt unlearning, arXiv 2602.10217: '
            f"{len(runs)} runs.</p>\n<nav>{links}</nav>\n{sections}{script}</body></html>\n"
        )
    return folder / "index.html"


def answers(runs: Sequence[Mapping[str, Any]], texts: Mapping[str, Any]) -> dict[str, Any]:
    """{split: {set: {q, a: texts, by: {method: {g: generations, r: ROUGE-L recalls}}}}} of the runs that keep text.

    T3 appears at the split's tuned T; a run whose rows are not those of `texts` is left out.
    """
    frame = results.tidy(runs)
    found: dict[str, Any] = {}
    for run in runs:
        T = tables.tuned_temperature(frame, run["split"])
        if run["status"] != "ok" or (run["method"] == "T3" and run["T"] != T):
            continue
        label = run["method"] if run["T"] is None else f"{run['method']}, T = {run['T']:g}"
        for name in SETS:
            rows, records = texts.get(run["split"] if name == "forget" else name, []), run["records"].get(name, [])
            if not rows or len(rows) != len(records) or "generation" not in records[0]:
                continue
            entry = found.setdefault(run["split"], {}).setdefault(
                name, {"q": [row["question"] for row in rows], "a": [row["answer"] for row in rows], "by": {}}
            )
            said = {"g": [row["generation"] for row in records], "r": [round(row["rouge"], 3) for row in records]}
            entry["by"].setdefault(label, said)
    return found


def _table(path: Path, caption: str) -> str:
    if not path.is_file():
        return ""
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    if frame.empty:
        return ""
    html = f'<div class="scroll">{render.html(frame, caption=caption)}</div>'
    return f"<details><summary>{escape(caption)}</summary>{html}</details>" if path.stem in LONG else html


def _figures(folder: Path) -> list[Path]:
    order = list(FIGURES)
    known = sorted(folder.glob("*.svg"))
    return sorted(known, key=lambda path: (order.index(path.stem) if path.stem in order else len(order), path.stem))


def _figure(path: Path) -> str:
    source = base64.b64encode(path.read_bytes()).decode("ascii")
    caption = escape(FIGURES.get(path.stem, path.stem.replace("_", " ").replace("--", " ")))
    image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{source}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _provenance(runs: Sequence[Mapping[str, Any]], corrupt: Sequence[str]) -> str:
    """What the runs share and where they differ: each fact with the values that occur."""
    facts: dict[str, set[str]] = {}
    for run in runs:
        origin = run["provenance"] or {}
        for key in ("git_commit", "dirty", "device", "threads", "model", "model_revision", "data"):
            facts.setdefault(key, set()).add(str(origin.get(key)))
        facts.setdefault("date", set()).add(str(origin.get("date"))[:10])
        for name, version in (origin.get("versions") or {}).items():
            facts.setdefault(name, set()).add(str(version))
    values = {key: escape(", ".join(sorted(found))) for key, found in facts.items()}
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{text}</td></tr>" for key, text in values.items())
    failed = [
        f"{results.run_name(run['method'], run['split'], run['T'], run['seed'])}: {run['error']}"
        for run in runs
        if run["status"] == "failed"
    ]
    lost = "".join(f"<li>{escape(line)}</li>" for line in (*failed, *(Path(c).name for c in corrupt)))
    table = f'<div class="scroll"><table>{rows}</table></div>' if rows else ""
    return table + (f"<p>Runs without numbers:</p><ul>{lost}</ul>" if lost else "")


def _embedded(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
