// Charts: values under the pointer and by arrow keys, legends that switch lines, and a large view to zoom in. Vega's own library for
// this is 0.9 MB for each page. Without scripts a chart is a picture, and a screen reader reads the sentence of each mark.
(() => {
  const plots = [...document.querySelectorAll(".plot")].filter((plot) => plot.querySelector("svg"));
  if (!plots.length) return;
  const NEAR = 24; // points from the pointer to the mark that it means
  const MOST_ZOOM = 16;
  const SKIP = ".role-axis, .role-legend, .role-title";
  const tip = Object.assign(document.createElement("div"), { id: "tip", hidden: true });
  tip.setAttribute("role", "status");
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", "Large view");
  document.body.append(tip, dialog);
  let chosen = null;

  const choose = (mark) => {
    if (chosen) chosen.classList.remove("chosen");
    chosen = mark;
    tip.hidden = !mark;
    if (!mark) return;
    mark.classList.add("chosen");
    tip.textContent = mark.getAttribute("aria-label");
    (dialog.open ? dialog : document.body).append(tip);
    const box = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, box.left + box.width / 2 - own.width / 2), document.documentElement.clientWidth - own.width - 4);
    tip.style.left = `${left}px`;
    tip.style.top = `${box.top > own.height + 12 ? box.top - own.height - 8 : box.bottom + 8}px`;
  };

  const button = (text, act, label) => {
    const one = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    if (label) one.setAttribute("aria-label", label);
    one.addEventListener("click", act);
    return one;
  };

  for (const plot of plots) {
    const svg = plot.querySelector("svg");
    const marks = [...svg.querySelectorAll("[role=graphics-symbol][aria-label]")].filter((one) => !one.closest(SKIP));
    const visible = () => marks.filter((one) => !one.closest(".off"));
    svg.setAttribute("role", "group"); // its parts are read, and not it alone
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}: arrow keys go through its ${marks.length} values`);
    svg.addEventListener("pointermove", (event) => {
      const away = (one) => {
        const box = one.getBoundingClientRect();
        return Math.hypot(Math.max(box.left - event.clientX, 0, event.clientX - box.right),
          Math.max(box.top - event.clientY, 0, event.clientY - box.bottom));
      };
      let best = null, least = NEAR;
      for (const one of visible()) { const far = away(one); if (far < least) [best, least] = [one, far]; }
      choose(best);
    });
    svg.addEventListener("pointerleave", () => choose(null));
    svg.addEventListener("blur", () => choose(null));

    let scale = 1;
    const zoom = (to) => {
      scale = Math.min(Math.max(to, 1), MOST_ZOOM);
      svg.style.width = dialog.contains(svg) ? `${100 * scale}%` : "";
      svg.style.height = dialog.contains(svg) ? `calc(${scale} * (94vh - 5rem))` : "";
      choose(null);
    };

    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key], shown = visible();
      if (event.target !== svg) return;
      if (dialog.open && "+-".includes(event.key)) zoom(scale * (event.key === "+" ? 1.25 : 0.8));
      if (!step || !shown.length) return;
      event.preventDefault();
      const at = shown.indexOf(chosen), next = shown[at < 0 ? (step > 0 ? 0 : shown.length - 1) : (at + step + shown.length) % shown.length];
      if (dialog.open) next.scrollIntoView({ block: "center", inline: "center" });
      choose(next);
    });

    for (const symbol of svg.querySelectorAll(".role-legend-symbol path")) {
      const entry = symbol.closest(".role-scope > g"), colour = [symbol.getAttribute("fill"), symbol.getAttribute("stroke")];
      const own = colour.find((one) => one && one !== "none" && one !== "transparent");
      const drawn = [...svg.querySelectorAll(`[fill="${own}"], [stroke="${own}"]`)].filter((one) => !one.closest(SKIP));
      if (!entry || !drawn.length) continue;
      for (const [name, value] of [["role", "checkbox"], ["tabindex", "0"], ["aria-checked", "true"], ["aria-label", entry.textContent]]) {
        entry.setAttribute(name, value);
      }
      const turn = () => {
        const off = entry.classList.toggle("out");
        entry.setAttribute("aria-checked", String(!off));
        for (const one of drawn) one.classList.toggle("off", off);
        choose(null);
      };
      entry.addEventListener("click", turn);
      entry.addEventListener("keydown", (event) => {
        if (event.key !== " " && event.key !== "Enter") return;
        event.preventDefault();
        turn();
      });
    }
    const legend = svg.querySelector(".role-legend");
    if (legend) for (const [name, value] of [["role", "group"], ["aria-label", "Lines that are shown"]]) legend.setAttribute(name, value);

    const open = button("Enlarge", () => {
      const buttons = document.createElement("div");
      buttons.className = "zoom";
      buttons.append(button("+", () => zoom(scale * 1.25), "Zoom in"), button("\u2212", () => zoom(scale * 0.8), "Zoom out"),
        button("Close", () => dialog.close()));
      dialog.replaceChildren(buttons, svg);
      dialog.onclose = () => { plot.prepend(svg); zoom(1); open.focus(); };
      dialog.showModal();
      zoom(1);
      svg.focus();
    }, `Enlarge ${plot.querySelector("svg").getAttribute("aria-label").split(":")[0]}`);
    open.className = "enlarge";
    plot.append(open);
  }
})();
