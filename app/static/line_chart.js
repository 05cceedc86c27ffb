/* Lines over batch sizes or other numbers: bands, markers, a second (predicted) line, references and marked places. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { svg } = D;
  const SIZE = 4.2;

  /** What the legend calls a series; those of one `family` are switched together. */
  const nameOf = (one) => one.family ?? one.name;

  /**
   * Series: {name, family, ink, shape, dash, points: [{x, y, low, high, lines}], band, thin, quiet}. `thin` draws no markers, `quiet` starts
   * hidden; `lines` are the words of a point's hint.
   */
  class LineChart extends D.Chart {
    constructor(options) {
      super(options);
      this.options = options;
      this.hidden = new Set();
      this.known = new Set();
      this.series = [];
      this.redraw = () => this.extra && this.paint();
    }

    /** `marks` are [{x, y, text, ink}], `shades` [{from, to, text}] in x; both may be empty. */
    draw(series, { marks = [], shades = [], reference = null, xTicks = null, empty = "" } = {}) {
      this.series = series;
      this.extra = { marks, shades, reference, xTicks, empty };
      for (const one of series) if (one.quiet && !this.known.has(nameOf(one))) this.hidden.add(nameOf(one));
      for (const one of series) this.known.add(nameOf(one));
      this.paint();
    }

    paint() {
      const { marks, shades, reference, xTicks, empty } = this.extra;
      const points = this.series.flatMap((one) => (this.hidden.has(nameOf(one)) ? [] : one.points)).filter((point) => D.known(point.y));
      if (!points.length && this.hidden.size < this.known.size) {
        this.empty(empty);
        return;
      }
      if (!points.length) points.push({ x: 1, y: 1 }, { x: 2, y: 1 }); // everything is switched off: the frame stays
      this.clear();
      this.listed = new Set();
      const { left, right, top, bottom } = this.box;
      const { xLog = 0, yLog = 0 } = this.options;
      const xs = points.map((point) => point.x);
      const ys = points.flatMap((point) => [point.y, point.low, point.high]).filter(D.known);
      if (reference) ys.push(reference.value);
      let [x0, x1] = [Math.min(...xs), Math.max(...xs)];
      if (x0 === x1) [x0, x1] = xLog ? [x0 / 2, x1 * 2] : [x0 - 1, x1 + 1];
      const pad = xLog ? (x1 / x0) ** 0.04 : (x1 - x0) * 0.03;
      const x = D.scale(xLog ? x0 / pad : x0 - pad, xLog ? x1 * pad : x1 + pad, left, right, xLog);
      const most = Math.max(...ys);
      const least = yLog ? Math.min(...ys) : 0;
      const y = yLog ? D.scale(least / 1.3, most * 1.3, bottom, top, yLog) : D.scale(0, most * 1.06 || 1, bottom, top);
      const yTicks = yLog ? logTicks(y.low, y.high) : D.ticks(0, y.high);
      const between = xTicks ?? (xLog ? D.distinct(xs) : D.ticks(x.low, x.high));
      for (const shade of shades) this.shade(shade, x);
      this.axes(x, y, between.filter((tick) => (tick[0] ?? tick) >= x.low && (tick[0] ?? tick) <= x.high), yTicks);
      if (reference) this.reference(y, reference.value, reference.text, this.places(x, y));
      for (const one of this.series) this.line(one, x, y);
      for (const mark of marks) this.mark(mark, x, y);
    }

    /** Points of the shown curves, close enough to each other that none passes a word unseen. */
    places(x, y) {
      return this.series.filter((one) => !this.hidden.has(nameOf(one))).flatMap((one) => {
        const points = one.points.filter((point) => D.known(point.y)).map((point) => [x.at(point.x), y.at(point.y)]).sort((a, b) => a[0] - b[0]);
        const between = (place) => ([x0, y0], i) => [x0 + place * ((points[i + 1]?.[0] ?? x0) - x0), y0 + place * ((points[i + 1]?.[1] ?? y0) - y0)];
        return [0, 0.2, 0.4, 0.6, 0.8].flatMap((place) => points.map(between(place)));
      });
    }

    shade({ from, to, text, kind }, x) {
      const { top, bottom } = this.box;
      const a = x.at(Math.max(from, x.low));
      const b = x.at(Math.min(to, x.high));
      if (b <= a) return;
      this.grid.append(svg("rect", { x: a, y: top, width: b - a, height: bottom - top, class: `ch-shade ${kind}` }));
      const name = svg("text", { x: (a + b) / 2, y: bottom - 8, "text-anchor": "middle", class: "ch-shade-text" }, text);
      this.grid.append(name);
      if (name.getComputedTextLength() > b - a) name.remove();
    }

    line(one, x, y) {
      const sign = [svg("line", { x1: 1, x2: 33, y1: 7, y2: 7, stroke: one.ink, "stroke-width": one.thin ? 1.6 : 2, "stroke-dasharray": one.dash ?? "", "stroke-opacity": one.faint ? 0.7 : 1 })];
      if (one.scatter) sign.length = 0;
      if (!one.thin) sign.push(D.marker(one.shape, 17, 7, SIZE, { fill: one.shape === "ring" ? "none" : one.ink, stroke: one.ink }));
      const group = svg("g", { "data-series": one.name });
      const name = nameOf(one);
      const shown = !this.hidden.has(name);
      if (!this.listed.has(name)) {
        this.listed.add(name);
        this.entry(sign, name, (on) => {
          if (on) this.hidden.delete(name);
          else this.hidden.add(name);
          this.paint();
          [...this.legend.querySelectorAll("button")].find((button) => button.textContent === name)?.focus();
        });
        if (!shown) this.legend.lastChild.firstChild.setAttribute("aria-pressed", "false");
      }
      if (!shown) return;
      const points = one.points.filter((point) => D.known(point.y)).sort((a, b) => a.x - b.x);
      const at = (point, value = point.y) => `${x.at(point.x).toFixed(1)},${y.at(value).toFixed(1)}`;
      const banded = points.filter((point) => D.known(point.low));
      if (one.band && banded.length > 1) {
        const way = [...banded.map((point) => at(point, point.high)), ...banded.reverse().map((point) => at(point, point.low))];
        group.append(svg("polygon", { points: way.join(" "), fill: one.ink, class: "ch-band" }));
      }
      if (!one.scatter) group.append(svg("polyline", { points: points.map((point) => at(point)).join(" "), fill: "none", stroke: one.ink, "stroke-width": one.thin ? 1.6 : 2.2, "stroke-dasharray": one.dash ?? "", "stroke-linejoin": "round", "stroke-opacity": one.faint ? 0.7 : 1 }));
      for (const point of one.thin ? [] : points) {
        if (D.known(point.low) && one.band) group.append(svg("line", { x1: x.at(point.x), x2: x.at(point.x), y1: y.at(point.low), y2: y.at(point.high), stroke: one.ink, class: "ch-whisker" }));
        const mark = D.marker(one.shape, x.at(point.x), y.at(point.y), SIZE, { fill: one.shape === "ring" ? "var(--db-card)" : one.ink, stroke: one.ink, class: "ch-mark" });
        group.append(this.explain(mark, [one.name, ...(point.lines ?? [`${D.short(point.x)}: ${D.short(point.y)}`])]));
      }
      this.plot.append(group);
    }

    mark({ x: place, y: height, text, ink }, x, y) {
      if (place < x.low || place > x.high) return;
      const [left, top] = [x.at(place), y.at(height)];
      const mark = svg("g", { class: "ch-place" });
      mark.append(svg("line", { x1: left, x2: left, y1: top, y2: this.box.bottom, stroke: ink, "stroke-dasharray": "1 3" }), svg("circle", { cx: left, cy: top, r: 6.5, fill: "none", stroke: ink, "stroke-width": 1.6 }));
      this.plot.append(this.explain(mark, [text]));
    }

    rows() {
      const interval = this.series.some((one) => one.points.some((point) => D.known(point.low)));
      const head = [D.t("chart.series"), this.xTitle, this.yTitle, ...(interval ? [D.t("chart.low"), D.t("chart.high")] : [])];
      const row = (one) => (point) => [one.name, point.x, point.y, ...(interval ? [point.low ?? null, point.high ?? null] : [])];
      return [head, ...this.series.flatMap((one) => [...one.points].sort((a, b) => a.x - b.x).map(row(one)))];
    }
  }

  const logTicks = (low, high) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const digit of high / low > 300 ? [1] : [1, 2, 5]) if (digit * 10 ** power >= low && digit * 10 ** power <= high) found.push(digit * 10 ** power);
    }
    return found;
  };

  D.LineChart = LineChart;
})();
