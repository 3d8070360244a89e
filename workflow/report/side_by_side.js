"use strict";
// Puts two runs, two cells or two studies side by side. Every text of the data is set as text, never as markup.
(() => {
  const template = document.getElementById("compare-data");
  if (!template) return;
  const data = JSON.parse(template.content.textContent);
  const tools = document.getElementById("compare-tools"), result = document.getElementById("compare-result");
  const [first, second] = tools.querySelectorAll("select");
  const SVG = "http://www.w3.org/2000/svg", SIDES = ["A", "B"];

  const make = (name, attributes = {}, ...children) => {
    const svg = ["svg", "path", "line", "text", "rect", "g", "title"].includes(name);
    const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const text = (number) => data.texts[number];
  const short = (value) => (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e7) ? String(+value.toPrecision(4)) : value.toExponential(2));
  const plain = (found) => ({ text: found });

  // -- what can be chosen: a study, a cell or a run

  const choices = new Map(); // key -> what it is
  data.cells.forEach((cell) => { cell.runs = []; });
  data.runs.forEach((run, place) => { run.key = `run-${place}`; run.origin = [...run.own, ...data.common[run.common]]; data.cells[run.cell].runs.push(run); });
  const studies = data.sources.length > 1 ? data.sources.map((name, place) => ({ key: `study-${place}`, name, place })) : [];
  for (const study of studies) {
    study.cells = data.cells.filter((cell) => cell.source === study.place);
    study.runs = study.cells.flatMap((cell) => cell.runs);
  }
  const ofCell = (cell) => ({ kind: "cell", key: cell.key, name: cell.name, cells: [cell], runs: cell.runs, cell });
  const ofRun = (run) => ({ kind: "run", key: run.key, name: run.name, cells: [data.cells[run.cell]], runs: [run], run });
  const GROUPS = {
    Studies: studies.map((study) => ({ kind: "study", ...study })),
    Cells: data.cells.map(ofCell),
    Runs: data.runs.map(ofRun),
  };
  for (const group of Object.values(GROUPS)) for (const one of group) choices.set(one.key, one);
  for (const select of [first, second]) {
    select.append(make("option", { value: "" }, "none"));
    for (const [label, group] of Object.entries(GROUPS)) {
      if (group.length) select.append(make("optgroup", { label }, ...group.map((one) => make("option", { value: one.key }, one.name))));
    }
  }

  // -- the table of both sides. A row is chapter, name and for each side { text, value?, low?, high? }.

  const MOST = 4; // values of one thing that are shown
  const several = (values, most = MOST) => {
    const found = [...new Set(values.filter(Boolean))], more = found.length > most ? ` and ${found.length - most} more` : "";
    return plain(found.slice(0, most).join("; ") + more);
  };
  const numbers = (runs, place) => {
    const values = runs.map((run) => run.numbers[place]).filter((value) => value !== null);
    if (!values.length) return plain("");
    const low = Math.min(...values), high = Math.max(...values);
    if (low === high) return { text: short(low), value: low };
    return { text: `${short(low)} to ${short(high)}`, value: values.reduce((sum, value) => sum + value, 0) / values.length, low, high };
  };
  const estimate = (found) => (found ? { text: found[0], value: found[1], low: found[2], high: found[3] } : plain(""));
  const rows = (one) => {
    if (!one) return new Map();
    const found = new Map();
    const add = (chapter, name, value) => found.set(`${chapter}: ${name}`, { chapter, name, value });
    if (one.kind === "run") add("Results", "end", plain(text(one.run.end)));
    else add("Results", "runs measured", plain(`${sum(one.cells, (cell) => cell.measured[0])} of ${sum(one.cells, (cell) => cell.measured[1])}`));
    data.numbers.forEach((name, place) => {
      const own = one.cell && { 0: one.cell.rate, 1: one.cell.step }[place];
      if (one.kind !== "study" || place > 2) add("Results", name, own ? estimate(own) : numbers(one.runs, place));
    });
    add("Results", "marks", several(one.runs.flatMap((run) => text(run.marks).split(", ")), Infinity));
    data.configuration.forEach((name, place) => add("Configuration", name, several(one.cells.map((cell) => text(cell.values[place])))));
    const shared = one.kind === "run" ? 0 : data.runs.length && data.runs[0].own.length; // what is of each run alone says nothing of several
    data.origin.forEach((name, place) => { if (place >= shared) add("Provenance", name, several(one.runs.map((run) => text(run.origin[place])))); });
    return found;
  };
  const sum = (values, of) => values.reduce((all, value) => all + of(value), 0);
  const ratio = (a, b) => {
    if (!a || !b || !(a.value > 0) || !(b.value > 0)) return "";
    const unsure = a.low != null && b.low != null && a.low <= b.high && b.low <= a.high;
    return unsure ? "ranges overlap" : `\u00d7${short(+(b.value / a.value).toPrecision(3))}`;
  };
  // Rows of several chapters, which their first value names, stand in groups.
  const table = (found, columns, caption) => {
    const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
    const body = found.flatMap(([chapter, name, ...values], place) => [
      ...(chapter && (!place || found[place - 1][0] !== chapter) ? [make("tr", {}, make("th", { scope: "rowgroup", colspan: columns.length, class: "chapter" }, chapter))] : []),
      make("tr", {}, make("th", { scope: "row" }, name), ...values.map((value) => make("td", { class: "wrap" }, value))),
    ]);
    const inner = make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
    return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption }, inner);
  };
  const sideBySide = (a, b) => {
    const [left, right] = [rows(a), rows(b)], order = [...new Set([...left.keys(), ...right.keys()])];
    const differing = [], same = [];
    for (const key of order) {
      const [one, other] = [left.get(key), right.get(key)], { chapter, name } = one || other;
      const texts = [one, other].map((row) => (row ? row.value.text : ""));
      if (!texts[0] && !texts[1]) continue;
      const line = [chapter, name, ...texts, data.ratios.includes(name) ? ratio(one && one.value, other && other.value) : ""];
      (texts[0] === texts[1] ? same : differing).push(line);
    }
    const found = [table(differing, ["", "A", "B", "B to A"], differing.length ? "What differs" : "Nothing differs")];
    if (a.kind === "run" && b.kind === "run") found.push(make("p", { class: "note" }, "Two runs have no interval: their cells say how much runs differ by chance."));
    if (same.length) {
      const inner = table(same.map(([chapter, name, value]) => [chapter, name, value]), ["", "A and B"], "What is the same");
      found.push(make("details", {}, make("summary", {}, `${same.length} values are the same`), inner));
    }
    return found;
  };
  const alone = (one) => table([...rows(one).values()].filter((row) => row.value.text).map((row) => [row.chapter, row.name, row.value.text]), ["", "A"], one.name);
  const cellsOf = (a, b) => {
    const bare = (cell) => cell.values.join(" ");
    const others = new Map(b.cells.map((cell) => [bare(cell), cell]));
    const found = a.cells.filter((cell) => others.has(bare(cell))).map((cell) => {
      const [one, other] = [estimate(cell.rate), estimate(others.get(bare(cell)).rate)];
      return ["", cell.name, one.text, other.text, ratio(one, other)];
    });
    const only = a.cells.length + b.cells.length - 2 * found.length;
    return table(found, ["Cell", "A, per second", "B, per second", "B to A"], `Cells that both have${only ? `; ${only} only one has` : ""}`);
  };

  // -- curves. A line is { side, label, points: [[x, y], ...], most?: [[x, y], ...] }.

  const WIDTH = 620, HEIGHT = 250, LEFT = 64, BOTTOM = 38, TOP = 24, RIGHT = 12;
  const ticksOf = (low, high, count) => {
    const power = 10 ** Math.floor(Math.log10((high - low) / count || 1));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => (high - low) / one <= count);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high * (1 + 1e-9); at += step) found.push(+at.toPrecision(6));
    return found;
  };
  const chart = (title, yTitle, note, lines, marks = []) => {
    const points = lines.flatMap((line) => [...line.points, ...(line.most || [])]);
    const ys = points.map(([, y]) => y).filter((y) => Number.isFinite(y));
    if (!ys.length) return [];
    const most = Math.max(...points.map(([x]) => x), 1), low = Math.min(...ys), high = Math.max(...ys);
    const log = low > 0 && high > 15 * low;
    const [begin, end] = log ? [low / 1.1, high * 1.1] : [Math.min(0, low), high * 1.05 || 1];
    const x = (value) => LEFT + (value / most) * (WIDTH - LEFT - RIGHT);
    const part = log ? (value) => Math.log(value / begin) / Math.log(end / begin) : (value) => (value - begin) / (end - begin);
    const y = (value) => HEIGHT - BOTTOM - part(value) * (HEIGHT - BOTTOM - TOP);
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title, tabindex: "0", class: "curves" });
    const decades = [];
    for (let power = Math.floor(Math.log10(begin)); log && 10 ** power <= end; power += 1) {
      for (const digit of high > 100 * low ? [1] : [1, 2, 5]) decades.push(digit * 10 ** power);
    }
    for (const at of log ? decades.filter((value) => value >= begin && value <= end) : ticksOf(begin, end, 5)) {
      svg.append(make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(at), y2: y(at), class: "grid" }));
      svg.append(make("text", { x: LEFT - 6, y: y(at) + 4, "text-anchor": "end" }, short(at)));
    }
    for (const at of ticksOf(0, most, 6)) svg.append(make("text", { x: x(at), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, short(at)));
    svg.append(make("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "step"));
    svg.append(make("text", { x: 4, y: 12 }, yTitle + (log ? ", logarithmic" : "")));
    for (const mark of marks) {
      const at = x(mark.x), height = { warmup: HEIGHT - BOTTOM - TOP, evaluation: 14, checkpoint: 14 }[mark.kind];
      const line = make("line", { x1: at, x2: at, y1: HEIGHT - BOTTOM - height, y2: HEIGHT - BOTTOM, class: `${mark.kind} side-${mark.side}` });
      line.append(make("title", {}, mark.text));
      svg.append(line);
    }
    const path = (found) => found.filter(([, value]) => Number.isFinite(value) && (!log || value > 0)).map(([at, value], place) => `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    for (const line of lines) {
      if (line.most) svg.append(make("path", { d: path(line.most), class: `most side-${line.side}` }));
      svg.append(make("path", { d: path(line.points), class: `side-${line.side}` }, make("title", {}, line.label)));
    }
    const cursor = make("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor", visibility: "hidden" });
    svg.append(cursor);
    const readout = make("output", { class: "note" }, "Move over the picture, or use the arrow keys in it, to read values.");
    let at = 0;
    const read = (value) => {
      at = Math.max(0, Math.min(most, value));
      cursor.setAttribute("x1", x(at));
      cursor.setAttribute("x2", x(at));
      cursor.setAttribute("visibility", "visible");
      const nearest = (line) => line.points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
      readout.textContent = lines.slice(0, 8).map((line) => { const [where, found] = nearest(line); return `${line.label}: ${short(found)} at ${short(where)}`; }).join("; ");
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      read((((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * most);
    });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) { read(at + step * most / 80); event.preventDefault(); }
    });
    return [make("figure", { class: "plot" }, make("h3", {}, title), svg, make("p", { class: "note" }, note), readout)];
  };
  const curvesOf = (sides) => {
    const steps = [], losses = [], marks = [];
    sides.forEach((one, index) => {
      const side = SIDES[index];
      for (const run of one && one.kind !== "study" ? one.runs : []) {
        const curves = run.curves || {}, label = one.kind === "run" ? side : `${side}, ${run.name}`;
        if (curves.ms) {
          const each = Math.ceil(curves.steps / curves.ms.length);
          const placed = (values) => values.map((value, place) => [Math.min(curves.steps - 1, place * each + (each - 1) / 2), value]);
          steps.push({ side, label, points: placed(curves.ms), most: curves.most_ms && placed(curves.most_ms) });
          if (one.kind === "run" && curves.warmup) marks.push({ kind: "warmup", side, x: curves.warmup, text: `${side}: the window begins at step ${curves.warmup}` });
          for (const [step, seconds] of (one.kind === "run" && curves.evaluations) || []) marks.push({ kind: "evaluation", side, x: step, text: `${side}: evaluation of ${short(seconds)} s before step ${step}` });
          for (const step of (one.kind === "run" && curves.checkpoints) || []) marks.push({ kind: "checkpoint", side, x: step, text: `${side}: checkpoint before step ${step}` });
        }
        if (curves.losses) losses.push({ side, label, points: curves.losses });
      }
    });
    const bunched = steps.some((line) => line.most) ? "Bold: the median of a bunch of steps, pale: the longest of the bunch. " : "";
    const explained = marks.length ? "Upright, dashed: the window begins; short: an evaluation (whole) or a checkpoint (dashed)." : "";
    const found = [...chart("Time of each step of rank 0", "ms", bunched + explained, steps, marks), ...chart("Training loss", "loss", "", losses)];
    if (!found.length) return [make("p", { class: "note" }, "The page holds no curves of these runs: their events lie beside their records.")];
    const legend = sides[1] ? [make("p", { class: "note" }, "A: blue. B: orange, dashed.")] : [];
    return [...legend, make("div", { class: "plots" }, ...found)];
  };

  // -- choosing

  let picks = ["", ""];
  const boxes = new Map(); // key -> boxes of the rows that stand for it
  const bar = make("p", { class: "compare-bar", role: "status" });
  bar.hidden = true;
  document.querySelector("main").append(bar);
  const show = (chosen) => {
    const [a, b] = (picks = chosen[0] ? chosen : [chosen[1], ""]).map((key) => choices.get(key));
    [first, second].forEach((select, side) => { select.value = picks[side]; });
    for (const [key, those] of boxes) for (const box of those) box.checked = picks.includes(key);
    const named = [a, b].map((one, side) => (one ? `${SIDES[side]}: ${one.name}` : "")).filter(Boolean);
    bar.hidden = !a;
    bar.replaceChildren(`${named.join(" \u00b7 ")}${b ? "" : "; choose a second row"} `, make("a", { href: "#compare" }, b ? "Compare" : "Show"));
    if (!a) result.replaceChildren();
    else if (!b) result.replaceChildren(...curvesOf([a]), alone(a));
    else result.replaceChildren(...(a.kind === "study" && b.kind === "study" ? [cellsOf(a, b)] : []), ...sideBySide(a, b), ...curvesOf([a, b]));
  };
  const pick = (key, on) => {
    const left = picks.filter((one) => one && one !== key);
    show(on ? [...left, key].slice(-2).concat("").slice(0, 2) : [...left, "", ""].slice(0, 2));
  };
  const addBox = (row, key) => {
    // On a narrow screen the first cell stands for several of those after it; only one of the two is shown.
    for (const place of [...row.cells].slice(0, row.cells[0].classList.contains("folded") ? 2 : 1)) {
      const box = make("input", { type: "checkbox", class: "pick", "aria-label": `Compare ${choices.get(key).name}` });
      box.addEventListener("change", () => pick(key, box.checked));
      boxes.set(key, [...(boxes.get(key) || []), box]);
      place.prepend(box);
    }
  };
  const all = document.getElementById("all-runs"), folded = document.getElementById("runs-folded");
  const runRows = all ? [...all.tBodies[0].rows, ...(folded ? folded.content.querySelectorAll("tr") : [])] : [];
  runRows.slice(0, data.runs.length).forEach((row, place) => addBox(row, `run-${place}`));
  for (const row of document.querySelectorAll("figure.table tbody tr")) {
    const cells = new Set([...row.querySelectorAll('a[href^="#cell-"]')].map((link) => link.getAttribute("href").slice(1)));
    if (cells.size === 1 && choices.has([...cells][0])) addBox(row, [...cells][0]);
  }
  first.addEventListener("change", () => show([first.value, second.value]));
  second.addEventListener("change", () => show([first.value, second.value]));
  tools.querySelector("button").addEventListener("click", () => show([picks[1], picks[0]]));
  document.getElementById("compare-note").hidden = true;
  tools.hidden = false;
})();
