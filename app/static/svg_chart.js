/* A chart as SVG: title, axes with units, reference lines, a legend, and its numbers as a table for those who do not see it. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, svg, t } = D;
  const WIDTH = 640; // before the chart is laid out
  const LEAST_WIDTH = 320;
  const MOST_WIDTH = 1200;
  const RESIZE_MS = 120;
  const HEIGHT = 330;
  const MARGIN = { top: 14, right: 18, bottom: 46, left: 58 };
  // Colour-blind safe (Okabe and Ito), readable on white and on black; shapes and names say the same.
  const SIGNS = {
    ngram: ["var(--ch-1)", "circle"],
    lookahead: ["var(--ch-2)", "square"],
    draft_model: ["var(--ch-3)", "triangle"],
    eagle: ["var(--ch-4)", "diamond"],
    medusa: ["var(--ch-5)", "cross"],
    null: ["var(--ch-6)", "ring"],
    ngram_eagle: ["var(--ch-7)", "down"],
    ngram_draft_model: ["var(--ch-8)", "bow"],
  };
  const HINTS = [1, -1].flatMap((side) => [...Array(11).keys()].map((place) => [place / 10, side])); // where a reference line is named
  const DASHES = ["", "7 4", "2 3", "10 3 2 3", "4 2 1 2", "1 4"];

  D.inkOf = (drafter) => (SIGNS[drafter] ?? SIGNS.ngram)[0];
  D.shapeOf = (drafter) => (SIGNS[drafter] ?? SIGNS.ngram)[1];
  D.dashOf = (place) => DASHES[place % DASHES.length];

  /** A marker of a drafter's shape around (x, y). */
  D.marker = (shape, x, y, size, attributes = {}) => {
    const points = {
      square: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
      triangle: [[0, -1.25], [1.15, 0.85], [-1.15, 0.85]],
      down: [[0, 1.25], [1.15, -0.85], [-1.15, -0.85]],
      bow: [[-1.2, -1], [1.2, 1], [1.2, -1], [-1.2, 1]],
      diamond: [[0, -1.35], [1.35, 0], [0, 1.35], [-1.35, 0]],
      cross: [[-1, -0.4], [-0.4, -0.4], [-0.4, -1], [0.4, -1], [0.4, -0.4], [1, -0.4], [1, 0.4], [0.4, 0.4], [0.4, 1], [-0.4, 1], [-0.4, 0.4], [-1, 0.4]],
    }[shape];
    if (!points) return svg("circle", { cx: x, cy: y, r: size, ...(shape === "ring" ? { "stroke-width": 2, fill: "none" } : {}), ...attributes });
    return svg("polygon", { points: points.map(([dx, dy]) => `${(x + dx * size).toFixed(1)},${(y + dy * size).toFixed(1)}`).join(" "), ...attributes });
  };

  /** Round numbers of a linear axis that reaches from low to high. */
  D.ticks = (low, high, about = 6) => {
    const raw = (high - low || 1) / about;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
    const found = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
    return found;
  };

  /** A number as short as an axis needs it. */
  D.short = (value) => {
    if (!D.known(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e12) return `${D.num(value / 1e12, size >= 1e13 ? 0 : 1)} T`;
    if (size >= 1e9) return `${D.num(value / 1e9, size >= 1e10 ? 0 : 1)} G`;
    if (size >= 1e6) return `${D.num(value / 1e6, size >= 1e7 ? 0 : 1)} M`;
    if (size >= 1e4) return `${D.num(value / 1e3, 0)} k`;
    const digits = size === 0 || size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 0.095 ? 2 : 3;
    const text = D.num(value, digits);
    return digits ? text.replace(/0+$/, "").replace(/[.,]$/, "") : text;
  };

  /** A scale: linear, or with `log` (2 or 10) logarithmic; `at(value)` is a place between from and to. */
  D.scale = (low, high, from, to, log = 0) => {
    const f = log ? Math.log : (value) => value;
    const span = f(high) - f(low) || 1;
    return { low, high, at: (value) => from + ((f(value) - f(low)) / span) * (to - from) };
  };

  /** The frame of a chart; a subclass draws into `plot` and gives `rows()` for the table. */
  class Chart {
    /** `key` names it; `title`, `note`, `x` and `y` (axis titles with units) are texts. */
    constructor({ key, title, note = "", x = "", y = "", height = HEIGHT }) {
      Object.assign(this, { key, title, xTitle: x, yTitle: y, width: WIDTH, height });
      this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": title, class: "ch-svg" });
      this.svg.addEventListener("keydown", (event) => this.step(event));
      this.legend = el("ul", { class: "ch-legend" });
      this.table = el("div", { class: "ch-table", tabindex: 0, role: "region", "aria-label": t("chart.data") });
      const details = el("details", { class: "ch-data" }, el("summary", { text: t("chart.data") }), this.table);
      details.addEventListener("toggle", () => details.open && this.fillTable());
      this.details = details;
      this.tools = D.chartTools(this);
      this.body = el("div", { class: "ch-body" }, this.svg);
      this.node = el(
        "figure",
        { class: "ch-chart", "data-chart": key },
        el("figcaption", {}, el("h3", { text: title }), this.tools),
        this.legend,
        this.body,
        el("p", { class: "ch-note", text: note }),
        details,
      );
      this.redraw = () => {};
      const resized = new D.Pace(RESIZE_MS, () => this.fit() && this.redraw());
      new ResizeObserver(() => resized.ask()).observe(this.body);
    }

    /** Takes the width of its place, so that letters keep their size; false when it has it already. */
    fit() {
      const width = Math.round(Math.min(MOST_WIDTH, Math.max(LEAST_WIDTH, this.body.clientWidth || WIDTH)));
      if (width === this.width) return false;
      this.width = width;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
      return true;
    }

    get box() {
      return { left: MARGIN.left, right: this.width - MARGIN.right, top: MARGIN.top, bottom: this.height - MARGIN.bottom };
    }

    clear() {
      this.fit();
      this.svg.replaceChildren();
      this.marks = 0;
      this.legend.replaceChildren();
      this.grid = svg("g", { class: "ch-grid" });
      this.plot = svg("g", { class: "ch-plot" });
      this.svg.append(this.grid, this.plot);
      if (this.details.open) queueMicrotask(() => this.fillTable());
    }

    /** Says in place of the drawing why there is none. */
    empty(text) {
      this.clear();
      this.svg.append(svg("text", { x: this.width / 2, y: this.height / 2, "text-anchor": "middle", class: "ch-empty" }, text));
    }

    /** Lines and numbers of both axes; ticks are values, or [value, text]. */
    axes(x, y, xTicks, yTicks) {
      const { left, right, top, bottom } = this.box;
      for (const tick of yTicks) {
        const [value, text] = Array.isArray(tick) ? tick : [tick, D.short(tick)];
        const place = y.at(value);
        this.grid.append(svg("line", { x1: left, x2: right, y1: place, y2: place }), svg("text", { x: left - 7, y: place + 4, "text-anchor": "end" }, text));
      }
      for (const tick of xTicks) {
        const [value, text] = Array.isArray(tick) ? tick : [tick, D.short(tick)];
        const place = x.at(value);
        this.grid.append(svg("line", { x1: place, x2: place, y1: bottom, y2: bottom + 5, class: "ch-tick" }), svg("text", { x: place, y: bottom + 18, "text-anchor": "middle" }, text));
      }
      this.grid.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "ch-axis" }));
      this.axisTitles();
    }

    axisTitles() {
      const { left, right, top, bottom } = this.box;
      this.grid.append(
        svg("text", { x: (left + right) / 2, y: this.height - 8, "text-anchor": "middle", class: "ch-title" }, this.xTitle),
        svg("text", { x: 14, y: (top + bottom) / 2, "text-anchor": "middle", class: "ch-title", transform: `rotate(-90 14 ${(top + bottom) / 2})` }, this.yTitle),
      );
    }

    /** A horizontal line that means something, such as 1.0×; its name stands where fewest of the `taken` places are. */
    reference(y, value, text, taken = []) {
      const { left, right } = this.box;
      const place = y.at(value);
      const name = svg("text", { class: "ch-reference-text" }, text);
      this.plot.append(svg("line", { x1: left, x2: right, y1: place, y2: place, class: "ch-reference" }), name);
      const length = name.getComputedTextLength();
      const start = (share) => left + 5 + share * Math.max(0, right - left - 10 - length);
      const crowd = ([share, side]) => {
        const from = start(share) - 5;
        const near = ([x, height]) => x > from && x < from + length + 10 && (height - place) * side > -4 && (height - place) * side < 20;
        return taken.filter(near).length;
      };
      const [share, side] = HINTS.reduce((best, one) => (crowd(one) < crowd(best) ? one : best));
      name.setAttribute("x", start(share));
      name.setAttribute("y", place + (side > 0 ? 14 : -6));
    }

    /** One entry of the legend; `toggle(on)` makes it a button that hides the series. */
    entry(sign, text, toggle) {
      const picture = svg("svg", { viewBox: "0 0 34 14", width: 34, height: 14, "aria-hidden": "true" });
      picture.append(...sign);
      if (!toggle) {
        this.legend.append(el("li", {}, picture, el("span", { text })));
        return;
      }
      const button = el("button", { type: "button", "aria-pressed": "true" }, picture, el("span", { text }));
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        toggle(on);
      });
      this.legend.append(el("li", {}, button));
    }

    /** Makes a mark explain itself on hover and focus: lines of text, the first one strong. */
    explain(mark, lines) {
      mark.setAttribute("tabindex", this.marks++ ? "-1" : "0"); // one stop a chart, arrows go on from there
      mark.setAttribute("aria-label", lines.join(", "));
      mark.setAttribute("role", "img");
      const show = () => D.popover.show(mark, el("div", { class: "ch-tip" }, ...lines.map((line, i) => el(i ? "span" : "b", { text: line }))));
      mark.addEventListener("mouseenter", show);
      mark.addEventListener("focus", show);
      mark.addEventListener("mouseleave", () => D.popover.hide(mark));
      mark.addEventListener("blur", () => D.popover.hide(mark));
      return mark;
    }

    /** Left and right go from mark to mark. */
    step(event) {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const marks = [...this.plot.querySelectorAll("[tabindex]")];
      const place = marks.indexOf(event.target);
      const next = marks[place + by];
      if (!by || place < 0 || !next) return;
      event.preventDefault();
      this.plot.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    }

    fillTable() {
      const [head, ...rows] = this.rows();
      const cell = (tag) => (value) => el(tag, { text: typeof value === "number" ? D.short(value) : (value ?? "–"), ...(tag === "th" ? { scope: "col" } : {}) });
      this.table.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...head.map(cell("th")))), el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell("td")))))));
    }
  }

  D.Chart = Chart;
})();
