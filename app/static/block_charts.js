/* Charts of blocks: stacked or grouped bars, and a heat map. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { svg } = D;
  const HATCHES = ["", "url(#ch-hatch-1)", "url(#ch-hatch-2)", "url(#ch-hatch-3)"];

  /** Patterns over the fills: the second sign beside colour. */
  const hatches = () => {
    const defs = svg("defs");
    const kinds = [
      ["ch-hatch-1", "M0,6 L6,0"],
      ["ch-hatch-2", "M0,3 L6,3"],
      ["ch-hatch-3", "M3,0 L3,6 M0,3 L6,3"],
    ];
    for (const [id, d] of kinds) {
      const pattern = svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" });
      pattern.append(svg("path", { d, stroke: "var(--db-card)", "stroke-width": 1.2, fill: "none" }));
      defs.append(pattern);
    }
    return defs;
  };

  const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);

  /**
   * Bars: groups [{name, bars: [{name, drafter, parts: [values], lines}]}] of parts [{name, ink}]. With `colours`, name → {ink, hatch},
   * every bar has its own `ink` and `hatch`.
   */
  class BarChart extends D.Chart {
    draw(groups, parts, { empty = "", unit = "", reference = null, colours = null } = {}) {
      this.redraw = () => this.draw(groups, parts, { empty, unit, reference, colours });
      this.groups = groups;
      this.parts = parts;
      const bars = groups.flatMap((group) => group.bars);
      if (!bars.length) {
        this.empty(empty);
        return;
      }
      this.clear();
      this.svg.append(hatches());
      const { left, right, top, bottom } = this.box;
      const most = Math.max(...bars.map((bar) => sum(bar.parts)), reference?.value ?? 0);
      const y = D.scale(0, most * 1.08 || 1, bottom, top);
      this.axes(D.scale(0, 1, left, right), y, [], D.ticks(0, y.high));
      const width = (right - left) / groups.length;
      const thick = Math.min(30, (width * 0.84) / Math.max(...groups.map((group) => group.bars.length)));
      groups.forEach((group, i) => {
        const middle = left + width * (i + 0.5);
        this.grid.append(svg("text", { x: middle, y: bottom + 18, "text-anchor": "middle" }, group.name));
        group.bars.forEach((bar, j) => this.bar(bar, middle + (j - group.bars.length / 2) * thick, thick, y, unit, group.name, colours));
      });
      if (reference) this.reference(y, reference.value, reference.text);
      const swatch = (ink, hatch) => [ink, HATCHES[hatch % 4]].filter(Boolean).map((fill) => svg("rect", { x: 8, y: 1, width: 18, height: 12, fill }));
      if (colours) for (const [name, { ink, hatch }] of colours) this.entry(swatch(ink, hatch), name);
      else parts.forEach((part, i) => this.entry(swatch(part.ink, i), part.name));
      for (const drafter of new Set(bars.map((bar) => bar.drafter).filter(Boolean))) this.entry([D.marker(D.shapeOf(drafter), 17, 7, 4, { fill: "none", stroke: D.inkOf(drafter), "stroke-width": 1.6 })], D.drafterName(drafter));
    }

    bar(bar, place, thick, y, unit, group, colours) {
      let from = 0;
      const whole = svg("g", { class: "ch-bar" });
      bar.parts.forEach((value, i) => {
        if (!value) return;
        const rect = { x: place + 1, width: Math.max(1, thick - 2), y: y.at(from + value), height: Math.max(0.5, y.at(from) - y.at(from + value)) };
        whole.append(svg("rect", { ...rect, fill: colours ? bar.ink : this.parts[i].ink }));
        const hatch = colours ? HATCHES[(bar.hatch ?? 0) % 4] : HATCHES[i % 4];
        if (hatch) whole.append(svg("rect", { ...rect, fill: hatch }));
        from += value;
      });
      const lines = this.parts.map((part, i) => `${part.name}: ${D.short(bar.parts[i])} ${unit}`.trim());
      if (bar.drafter && thick > 8) whole.append(D.marker(D.shapeOf(bar.drafter), place + thick / 2, y.at(from) - 8, 3.4, { fill: "none", stroke: D.inkOf(bar.drafter), "stroke-width": 1.6 }));
      this.plot.append(this.explain(whole, [`${group} · ${bar.name}`, ...(bar.lines ?? lines)]));
    }

    rows() {
      const head = [this.xTitle, D.t("chart.series"), ...this.parts.map((part) => part.name)];
      return [head, ...this.groups.flatMap((group) => group.bars.map((bar) => [group.name, bar.name, ...bar.parts]))];
    }
  }

  /** A heat map: values [row][column] with the text of each cell; colours go from nothing to the accent. */
  class HeatMap extends D.Chart {
    draw(columns, rows, cells) {
      this.data = { columns, rows, cells };
      this.redraw = () => this.draw(columns, rows, cells);
      this.clear();
      const { left, right, top, bottom } = this.box;
      const [width, height] = [(right - left) / columns.length, (bottom - top) / rows.length];
      rows.forEach((row, i) => {
        const y = bottom - (i + 1) * height;
        this.grid.append(svg("text", { x: left - 7, y: y + height / 2 + 4, "text-anchor": "end" }, row));
        columns.forEach((column, j) => {
          const cell = cells[i][j];
          const group = svg("g", { class: "ch-cell" });
          group.append(svg("rect", { x: left + j * width, y, width: width - 1, height: height - 1, fill: cell.strong ? "var(--db-accent)" : "var(--db-faint)", "fill-opacity": cell.strong ? 0.12 + 0.75 * cell.strong : 1 }));
          if (width > 22) group.append(svg("text", { x: left + (j + 0.5) * width, y: y + height / 2 + 4, "text-anchor": "middle", class: cell.strong > 0.55 ? "ch-cell-on" : "" }, cell.text));
          this.plot.append(this.explain(group, cell.lines));
        });
      });
      columns.forEach((column, j) => this.grid.append(svg("text", { x: left + (j + 0.5) * width, y: bottom + 18, "text-anchor": "middle" }, column)));
      this.axisTitles();
    }

    rows() {
      const { columns, rows, cells } = this.data;
      return [[`${this.yTitle} \\ ${this.xTitle}`, ...columns], ...rows.map((row, i) => [row, ...cells[i].map((cell) => cell.text)])];
    }
  }

  Object.assign(D, { BarChart, HeatMap });
})();
