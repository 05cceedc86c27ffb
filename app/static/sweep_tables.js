/* What a sweep says in words and tables: the finding, the flags, acceptance by task beside the article's, all cells. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;

  /** The finding as a sentence in the page's language. */
  D.findingText = ({ finding }) => {
    const { state, line, batch_size: crossed, first, last, top } = finding;
    if (!line) return t("finding.unknown");
    const times = ([, value]) => `${D.num(value, 2)}×`;
    const values = { name: D.lineName(line), first: first[0], last: last[0], top: top[0], at_first: times(first), at_last: times(last), at_top: times(top), crossed: D.known(crossed) ? Math.floor(crossed) : "", loss: D.num(100 * (1 - last[1]), 0) };
    if (state === "falls") return t(last[1] < 1 ? "finding.falls" : "finding.dips", values);
    return t(`finding.${state}`, values);
  };

  const named = (cell) => el("span", { class: "sw-name" }, D.lineSign(cell.drafter), el("span", { text: D.lineName(cell) }));

  const table = (head, rows, label) =>
    el(
      "div",
      { class: "sw-scroll", tabindex: 0, role: "region", "aria-label": label },
      el("table", {}, el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, ...rows.map(({ cells, kind }) => el("tr", { class: kind }, ...cells.map((cell) => (cell instanceof Node ? el("td", {}, cell) : el("td", { text: cell }))))))),
    );

  class SweepTables {
    constructor(published) {
      this.published = published;
      this.tasks = el("div");
      this.cells = el("div");
      this.notes = el("ul", { class: "sw-notes" });
      this.node = el(
        "div",
        { class: "sw-tables" },
        el("section", { class: "sw-card" }, el("h3", { text: t("table.tasks") }), el("p", { class: "ch-note", text: t("table.tasks.note", { source: published.tasks.source }) }), this.tasks),
        el("section", { class: "sw-card" }, el("details", {}, el("summary", { text: t("table.cells") }), this.cells)),
      );
    }

    draw(document, batch) {
      this.drawNotes(document);
      this.drawTasks(document, batch);
      this.drawCells(document);
    }

    drawNotes({ notes, flags, error, cells }) {
      const reasons = (cell) => Object.entries(cell.passes_without_draft ?? {});
      const without = cells.flatMap((cell) => reasons(cell).map(([reason, n]) => t("batch.nodraft", { cell: D.lineName(cell), batch: cell.batch_size, n, passes: cell.num_target_passes, reason })));
      const said = flags.map(({ kind, batch_sizes }) => t(`flag.${kind}`, { batches: batch_sizes.join(", ") }));
      this.notes.replaceChildren(...[error, ...said, ...without, ...notes].filter(Boolean).map((text) => el("li", { text })));
      this.notes.hidden = !this.notes.childElementCount;
    }

    drawTasks({ cells }, batch) {
      const chosen = cells.filter((cell) => cell.batch_size === batch && cell.drafter !== "null");
      const tasks = [...new Set(chosen.flatMap((cell) => Object.keys(cell.by_task)))];
      const said = (task) => this.published.tasks.rates[task];
      const rows = chosen.map((cell) => ({ cells: [named(cell), ...tasks.map((task) => (cell.by_task[task] ? `${D.num(cell.by_task[task].draft_acceptance_rate, 2)} · ${D.num(cell.by_task[task].mean_acceptance_length, 2)}` : "–"))] }));
      rows.push({ kind: "article", cells: [t("chart.article"), ...tasks.map((task) => (D.known(said(task)) ? D.num(said(task), 2) : "–"))] });
      this.tasks.replaceChildren(chosen.length ? table([t("table.curve"), ...tasks.map((task) => D.taskName(task))], rows, t("table.tasks")) : el("p", { class: "db-hint", text: t("chart.nothing") }));
    }

    drawCells({ cells }) {
      const head = ["batch", "curve", "rate", "speedup", "interval", "predicted", "acceptance", "length", "alpha", "draft", "verify", "other", "waste", "n"].map((key) => t(`table.${key}`));
      const row = (cell) => ({
        kind: cell.drafter === "null" ? "plain" : cell.speedup < 1 ? "slower" : "",
        cells: [
          String(cell.batch_size),
          named(cell),
          D.num(cell.tokens_per_s, 1),
          D.known(cell.speedup) ? `${D.num(cell.speedup, 2)}×${cell.speedup < 1 ? " ▼" : ""}` : "–",
          cell.drafter === "null" || !D.known(cell.ci_low) ? "–" : `${D.num(cell.ci_low, 2)}–${D.num(cell.ci_high, 2)}`,
          D.known(cell.predicted_speedup) ? `${D.num(cell.predicted_speedup, 2)}×` : "–",
          D.num(cell.draft_acceptance_rate, 2),
          D.num(cell.mean_acceptance_length, 2),
          D.num(cell.alpha, 2),
          D.num(cell.draft_ms, 1),
          D.num(cell.verify_ms, 1),
          D.known(cell.step_ms) ? D.num(cell.commit_ms + cell.other_ms, 1) : "–",
          D.percent(cell.wasted_draft_fraction),
          String(cell.n.steps),
        ],
      });
      this.cells.replaceChildren(table(head, cells.map(row), t("table.cells")));
    }
  }

  D.SweepTables = SweepTables;
})();
