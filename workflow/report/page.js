"use strict";
// Sorts and filters the table of all runs. Without it the table is all there, in the study's order.
(() => {
  const STEP = 500; // rows drawn at once, as in page.py: thousands make every click slow
  const table = document.getElementById("all-runs");
  if (!table) return;
  const region = table.parentElement, body = table.tBodies[0];
  const folded = document.getElementById("runs-folded");
  const rows = [...body.rows, ...(folded ? folded.content.querySelectorAll("tr") : [])];
  const heads = [...table.tHead.rows[0].cells];
  const tools = document.getElementById("runs-tools");
  const [filter, all, said] = ["input", "button", "output"].map((name) => tools.querySelector(name));
  const more = document.getElementById("runs-more");
  const order = new Intl.Collator("en", { numeric: true });
  const texts = new Map(); // row -> its text in small letters, made when first asked for
  let sorted = rows, by = null, descending = false, limit = STEP, place = "";

  const NUMBER = /^\d[\d.e+]*$/;
  const textOf = (row) => {
    if (!texts.has(row)) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" | ").toLowerCase();
      texts.set(row, [text, text.match(/\||[^\s,;:()|\u00d7-]+/g) || []]);
    }
    return texts.get(row);
  };
  // A word is the beginning of one, or a part of a name where it has a hyphen. A number is a whole one, and stands beside the word that
  // was typed beside it: `batch 8` and `1 node` are in the text as they are typed, not anywhere.
  const hasWord = (row, word, before, after) => {
    const [text, parts] = textOf(row);
    if (word.includes("-") || word.includes("/")) return text.includes(word);
    if (!NUMBER.test(word)) return parts.some((part) => part.startsWith(word));
    const beside = (part, other) => other && part && part.startsWith(other);
    return parts.some((part, at) => part === word && ((!before && !after) || beside(parts[at - 1], before) || beside(parts[at + 1], after)));
  };
  const matching = () => {
    const words = filter.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const fits = (row) => words.every((word, at) => hasWord(row, word, words[at - 1], words[at + 1]));
    const here = (row) => !place || row.dataset.in.split(" ").includes(place);
    return sorted.filter((row) => here(row) && fits(row));
  };
  const draw = () => {
    const found = matching();
    body.replaceChildren(...found.slice(0, limit));
    const drawn = Math.min(limit, found.length);
    const first = drawn < found.length ? `, the first ${drawn} shown` : "";
    const where = place && found.length ? ", by the link that was followed" : "";
    said.value = `${found.length} of ${rows.length} runs${where}${first}`;
    all.hidden = !place && !filter.value;
    more.hidden = drawn === found.length;
    more.textContent = `Show ${Math.min(STEP, found.length - drawn)} more`;
  };
  const sort = (head) => {
    descending = by === head && !descending;
    by = head;
    const number = head.dataset.sort === "number", sign = descending ? -1 : 1;
    const keyed = rows.map((row) => {
      const text = row.cells[head.cellIndex].textContent, value = number ? parseFloat(text) : text;
      return [row, value, number ? Number.isNaN(value) : !text];
    });
    const compare = number ? (a, b) => a - b : order.compare;
    keyed.sort((a, b) => a[2] - b[2] || (a[2] ? 0 : sign * compare(a[1], b[1]))); // what is missing comes last, either way
    sorted = keyed.map(([row]) => row);
    for (const one of heads) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    draw();
  };
  const follow = () => {
    const wanted = location.hash.slice(1);
    place = rows.some((row) => row.dataset.in.split(" ").includes(wanted)) ? wanted : "";
    if (place) filter.value = "";
    limit = STEP;
    draw();
    if (place) region.focus({ preventScroll: true });
    if (place) document.getElementById("runs").scrollIntoView();
    if (place) region.scrollTop = 0; // the browser has gone to the first row, below the head
    if (wanted === filter.id) filter.focus();
  };

  for (const head of heads.filter((one) => one.dataset.sort !== "plain")) {
    head.dataset.title = head.textContent; // for paper, where the browser repeats no button on the next page
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head));
    head.append(button);
  }
  filter.addEventListener("input", () => { limit = STEP; draw(); });
  all.addEventListener("click", () => {
    filter.value = "";
    filter.focus();
    if (place) location.hash = "runs"; else draw();
  });
  more.addEventListener("click", () => { limit += STEP; draw(); });
  addEventListener("hashchange", follow);
  addEventListener("load", follow); // a browser goes to the first row itself, after the page is read
  tools.hidden = false;
  follow();
})();
