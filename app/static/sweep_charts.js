/* The charts of measured sweeps: one document, or several laid over each other. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { t } = D;
  const PARTS = ["draft", "verify", "commit", "other"];
  const PART_INKS = ["var(--ch-5)", "var(--ch-1)", "var(--ch-4)", "var(--ch-6)"];
  const OWNERS = ["target", "drafter", "draft_tokens"];

  /** A curve's name: drafter, draft length, settings. */
  D.lineName = ({ drafter, gamma, options }) => {
    return [D.drafterName(drafter), ...(drafter === "null" ? [] : [`γ=${gamma}`]), ...D.settingNames(options)].join(" ");
  };

  const keyOf = ({ drafter, gamma, options }) => JSON.stringify([drafter, gamma, options]);

  /** The curves of a document: [{cells by batch, name, ink, shape, dash}]. */
  const curves = (document) => {
    const lines = new Map();
    for (const cell of document.cells) {
      if (!lines.has(keyOf(cell))) lines.set(keyOf(cell), []);
      lines.get(keyOf(cell)).push(cell);
    }
    const gammas = D.distinct(document.cells.filter((cell) => cell.drafter !== "null").map((cell) => cell.gamma));
    return [...lines.values()].map((cells) => ({ cells, name: D.lineName(cells[0]), drafter: cells[0].drafter, gamma: cells[0].gamma, ink: D.inkOf(cells[0].drafter), shape: D.shapeOf(cells[0].drafter), dash: D.dashOf(Math.max(0, gammas.indexOf(cells[0].gamma))) }));
  };

  const counts = (cell) => t("chart.n", cell.n);

  class SweepCharts {
    constructor(published) {
      this.published = published;
      const line = (key, options) => new D.LineChart({ key, title: t(`chart.${key}`), note: t(`chart.${key}.note`), x: t("axis.batch"), xLog: 2, ...options });
      this.speedup = line("speedup", { y: t("axis.speedup"), height: 380 });
      this.residual = line("residual", { y: t("axis.residual"), height: 260 });
      this.rate = line("rate", { y: t("axis.rate") });
      this.positions = line("positions", { x: t("axis.position"), y: t("axis.acceptance"), xLog: 0 });
      this.roofline = line("roofline", { x: t("axis.intensity"), y: t("axis.flops"), xLog: 10, yLog: 10 });
      const bars = (key, options) => new D.BarChart({ key, title: t(`chart.${key}`), note: t(`chart.${key}.note`), ...options });
      this.time = bars("time", { x: t("axis.batch"), y: t("axis.ms") });
      this.memory = bars("memory", { x: t("axis.batch"), y: t("axis.mib") });
      this.tasks = bars("tasks", { x: t("axis.task"), y: t("axis.acceptance") });
      this.gammaTasks = bars("gammas", { x: t("axis.task"), y: t("axis.length") });
      this.all = [this.speedup, this.residual, this.rate, this.time, this.positions, this.tasks, this.gammaTasks, this.memory, this.roofline];
      this.batch = null;
      this.chosenBatch = null; // the person's
      const source = ({ name, source: text }) => D.el("li", { text: `${name}: ${text}` });
      this.speedup.node.append(D.el("details", { class: "ch-data ch-sources" }, D.el("summary", { text: t("chart.sources") }), D.el("ul", {}, ...published.curves.map(source))));
    }

    /** `documents`: the chosen one first, then those laid over it. */
    draw(documents) {
      const [first] = documents;
      const sizes = D.distinct(documents.flatMap((one) => one.cells.map((cell) => cell.batch_size)));
      if (!sizes.includes(this.chosenBatch)) this.chosenBatch = null;
      this.batch = this.chosenBatch ?? (sizes.includes(8) ? 8 : sizes[0]);
      this.drawCurves(documents, sizes);
      this.drawTime(first);
      this.drawPositions(first);
      this.drawTasks(first);
      this.drawMemory(first);
      this.drawRoofline(first);
    }

    series(documents, y, more = () => ({})) {
      return documents.flatMap((document, place) => {
        const origin = place ? ` (${document.origin.model} · ${D.day(document.at)})` : "";
        return curves(document).map((curve) => ({
          ...curve,
          name: `${curve.name}${origin}`,
          faint: place > 0,
          shape: place ? "ring" : curve.shape,
          points: curve.cells.map((cell) => ({ x: cell.batch_size, y: y(cell), lines: [`${t("axis.batch")} ${cell.batch_size}`, `${D.num(y(cell), 2)}`, counts(cell)], ...more(cell) })),
        }));
      });
    }

    drawCurves(documents, sizes) {
      const empty = t("chart.nothing");
      const drafting = (all) => all.filter((one) => one.drafter !== "null");
      const measured = drafting(
        this.series(documents, (cell) => cell.speedup, (cell) => ({
          low: cell.ci_low,
          high: cell.ci_high,
          lines: [`${t("axis.batch")} ${cell.batch_size}: ${D.num(cell.speedup, 2)}× (${D.num(cell.ci_low, 2)}–${D.num(cell.ci_high, 2)})`, D.known(cell.predicted_speedup) ? t("chart.predicted.value", { value: D.num(cell.predicted_speedup, 2), error: D.percent(cell.prediction_error) }) : null, counts(cell)].filter(Boolean),
        })),
      ).map((one) => ({ ...one, band: true }));
      const predicted = drafting(this.series(documents.slice(0, 1), (cell) => cell.predicted_speedup))
        .filter((one) => one.points.some((point) => D.known(point.y)))
        .map((one) => ({ ...one, name: t("chart.predicted", { name: one.name }), family: t("chart.predictions"), thin: true, dash: "1 3" }));
      const overlays = this.published.curves.map((curve) => ({ name: curve.name, ink: "var(--db-soft)", dash: "5 3", shape: "ring", faint: true, quiet: true, points: curve.points.map(([x, y]) => ({ x, y, lines: [`${t("axis.batch")} ${x}: ${D.num(y, 2)}×`, curve.source] })) }));
      const marks = documents[0].crossings.filter((one) => D.known(one.batch_size)).map((one) => ({ x: one.batch_size, y: 1, ink: D.inkOf(one.drafter), text: t("chart.crossing", { name: D.lineName(one), batch: D.num(one.batch_size, 1) }) }));
      const ticks = [...new Set([...sizes, ...(measured.length ? [] : [1, 2, 4, 8, 16, 32])])];
      this.speedup.draw([...measured, ...predicted, ...(measured.length ? overlays : [])], { marks, reference: { value: 1, text: t("chart.even") }, xTicks: ticks, empty });
      const errors = drafting(this.series(documents.slice(0, 1), (cell) => (D.known(cell.prediction_error) ? 100 * Math.abs(cell.prediction_error) : null)));
      this.residual.draw(errors, { xTicks: sizes, reference: { value: 10, text: "10 %" }, empty: t("chart.noprofile") });
      this.rate.draw(this.series(documents, (cell) => cell.tokens_per_s), { xTicks: sizes, empty });
    }

    drawTime(document) {
      const groups = this.groups(document, (cell) => ({ parts: PARTS.map((part) => cell[`${part}_ms`] ?? 0), known: D.known(cell.step_ms), lines: [...PARTS.map((part) => `${t(`part.${part}`)}: ${D.ms(cell[`${part}_ms`])}`), counts(cell)] }));
      this.time.draw(groups, PARTS.map((part, i) => ({ name: t(`part.${part}`), ink: PART_INKS[i] })), { unit: "ms", empty: t("chart.nothing") });
    }

    drawMemory(document) {
      const groups = this.groups(document, (cell) => ({ parts: OWNERS.map((owner) => (cell.kv_bytes[owner] ?? 0) / 2 ** 20), known: true }));
      this.memory.draw(groups, OWNERS.map((owner, i) => ({ name: t(`owner.${owner}`), ink: PART_INKS[[1, 0, 2][i]] })), { unit: "MiB", empty: t("chart.nothing") });
    }

    /** Bars by batch size: plain decoding and each drafter at its best draft length there. */
    groups(document, bar) {
      const sizes = D.distinct(document.cells.map((cell) => cell.batch_size));
      return sizes.map((size) => {
        const best = new Map();
        for (const cell of document.cells.filter((one) => one.batch_size === size)) {
          const key = `${cell.drafter} ${JSON.stringify(cell.options)}`;
          if (!best.has(key) || (cell.speedup ?? 0) > (best.get(key).speedup ?? 0)) best.set(key, cell);
        }
        return { name: String(size), bars: [...best.values()].map((cell) => ({ name: D.lineName(cell), drafter: cell.drafter, ...bar(cell) })).filter((one) => one.known) };
      });
    }

    /** Cells of the batch size that the person chose, drafting ones only. */
    chosen(document) {
      return document.cells.filter((cell) => cell.batch_size === this.batch && cell.drafter !== "null");
    }

    drawPositions(document) {
      const lines = curves({ cells: this.chosen(document) }).map((curve) => ({ ...curve, points: curve.cells[0].by_position.filter((row) => row.tested).map((row) => ({ x: row.position, y: row.conditional, lines: [t("chart.position.value", { position: row.position, rate: D.percent(row.conditional) }), t("chart.position.all", { rate: D.percent(row.unconditional) }), `n = ${row.tested}`] })) }));
      const places = D.distinct(lines.flatMap((one) => one.points.map((point) => point.x)));
      this.positions.draw(lines, { xTicks: places, empty: t("chart.nothing") });
    }

    drawTasks(document) {
      const cells = this.chosen(document);
      const tasks = [...new Set(cells.flatMap((cell) => Object.keys(cell.by_task)))];
      const fastest = [...new Map([...cells].sort((a, b) => (a.speedup ?? 0) - (b.speedup ?? 0)).map((cell) => [cell.drafter, cell])).values()];
      const { rates, source } = this.published.tasks;
      const article = (task) => (D.known(rates[task]) ? [{ name: t("chart.article"), ink: "var(--db-soft)", hatch: 2, parts: [rates[task]], lines: [D.num(rates[task], 2), source] }] : []);
      this.drawByTask(this.tasks, t("axis.acceptance"), tasks, fastest, "draft_acceptance_rate", article, t("chart.nothing"));
      const pair = cells.filter((cell) => [4, 8].includes(cell.gamma)).sort((a, b) => a.drafter.localeCompare(b.drafter) || a.gamma - b.gamma);
      const both = new Set(pair.map((cell) => cell.gamma)).size === 2;
      this.drawByTask(this.gammaTasks, t("axis.length"), tasks, both ? pair : [], "mean_acceptance_length", () => [], t("chart.nogammas"));
    }

    /** Grouped bars: for each task one bar a cell, and what else belongs beside them. */
    drawByTask(chart, unit, tasks, cells, figure, beside, empty) {
      const bar = (task) => (cell) => {
        const value = cell.by_task[task]?.[figure];
        return D.known(value) ? [{ name: D.lineName(cell), ink: D.inkOf(cell.drafter), hatch: cell.gamma === 8 ? 1 : 0, parts: [value], lines: [D.num(value, 2), t("chart.tokens", { n: cell.by_task[task].num_output_tokens })] }] : [];
      };
      const groups = cells.length ? tasks.map((task) => ({ name: D.taskName(task), bars: [...cells.flatMap(bar(task)), ...beside(task)] })) : [];
      const colours = new Map(groups.flatMap((group) => group.bars.map((one) => [one.name, one])));
      chart.draw(groups.filter((group) => group.bars.length), [{ name: unit, ink: "" }], { colours, empty });
    }

    drawRoofline(document) {
      const roof = document.roofline;
      if (!roof?.points.length) {
        this.roofline.draw([], { empty: t("chart.noprofile") });
        return;
      }
      const { ridge, bytes_per_s: bytes, flops_per_s: flops } = roof;
      const all = roof.points.map((point) => point.intensity);
      const [low, high] = [Math.min(...all, ridge / 4) / 1.5, Math.max(...all, ridge * 3) * 1.5];
      const ceiling = { name: t("roofline.ceiling"), ink: "var(--db-text)", dash: "", thin: true, points: [low, ridge, high].map((x) => ({ x, y: Math.min(flops, x * bytes) })) };
      const byDrafter = new Map();
      for (const point of roof.points) byDrafter.set(point.drafter, [...(byDrafter.get(point.drafter) ?? []), point]);
      const dots = [...byDrafter].map(([drafter, points]) => ({ name: D.drafterName(drafter), ink: D.inkOf(drafter), shape: D.shapeOf(drafter), scatter: true, points: points.map((point) => ({ x: point.intensity, y: point.flops_per_s, lines: [`${t("axis.batch")} ${point.batch_size}, ${t("roofline.tokens", { n: D.num(point.tokens, 1) })}`, t("roofline.share", { share: D.percent(point.share), bound: t(`roofline.${point.bound}`) }), t("roofline.rates", { flops: D.short(point.flops_per_s), bytes: D.short(point.bytes_per_s) })] })) }));
      const shades = [
        { from: 0, to: ridge, text: t("roofline.memory"), kind: "memory" },
        { from: ridge, to: Infinity, text: t("roofline.compute"), kind: "compute" },
      ];
      const ticks = [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].filter((value) => value >= low && value <= high);
      this.roofline.draw([ceiling, ...dots], { shades, xTicks: ticks });
    }
  }

  D.SweepCharts = SweepCharts;
})();
