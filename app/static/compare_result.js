/* What a comparison found: a sentence, bars by lane in the order of measured tokens/s, and a table of tasks for a prompt set. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;

  const bytes = (value) => (D.known(value) ? `${D.num(value / 2 ** 20, 1)} MiB` : "–");
  const COLUMNS = [
    { key: "tokens_per_s", text: (lane) => D.num(lane.tokens_per_s, 1), more: true },
    { key: "mean_acceptance_length", text: (lane) => D.num(lane.mean_acceptance_length, 2), more: true },
    { key: "target_passes", text: (lane) => D.num(lane.target_passes, 0) },
    { key: "drafted", text: (lane) => `${lane.drafted} / ${lane.wasted}`, part: (lane) => lane.wasted },
    { key: "kv_bytes", text: (lane) => bytes(lane.kv_bytes) },
  ];

  class CompareResult {
    constructor() {
      this.sentence = el("p", { class: "db-compare-sentence", role: "status" });
      this.notes = el("ul", { class: "db-compare-notes" });
      this.table = el("div", { class: "db-compare-scroll", tabindex: "0", role: "group", "aria-label": t("compare.figures") });
      this.tasks = el("div", { class: "db-compare-scroll", tabindex: "0", role: "group", "aria-label": t("compare.tasks.title"), hidden: true });
      this.node = el("section", { class: "db-replay-card db-compare-result", hidden: true }, el("h2", { text: t("compare.result") }), this.sentence, this.notes, this.table, this.tasks);
    }

    hide() {
      this.node.hidden = true;
    }

    show(summary, params) {
      this.node.hidden = false;
      D.write(this.sentence, this.words(summary));
      this.notes.replaceChildren(...this.remarks(summary, params).map(([kind, text]) => el("li", { class: kind, text })));
      this.table.replaceChildren(this.figures(summary));
      this.tasks.hidden = !summary.tasks;
      if (summary.tasks) this.tasks.replaceChildren(this.taskTable(summary));
    }

    words({ lanes, ranking, baseline }) {
      if (!ranking.length) return t("compare.none");
      const best = lanes[ranking[0]];
      const values = { lane: D.laneTitle(best), tps: D.num(best.tokens_per_s, 1), ratio: D.num(best.speedup, 2) };
      if (baseline === null) {
        const second = lanes[ranking[1]];
        return second ? t("compare.best.bare", { ...values, ratio: D.num(best.tokens_per_s / second.tokens_per_s, 2), second: D.laneTitle(second) }) : t("compare.best.only", values);
      }
      if (ranking[0] === baseline) return t("compare.best.plain", values);
      if (best.speedup < 1 + D.SAME_SPEED) return t("compare.best.same", values);
      return t("compare.best.faster", values);
    }

    /** Agreement of the texts, and what makes a figure doubtful: [kind, sentence]. */
    remarks({ lanes, agreement }, params) {
      const out = [];
      if (agreement) {
        const differing = Object.entries(agreement.lanes).filter(([, found]) => !found.same);
        const reference = agreement.reference + 1;
        if (agreement.same) {
          const n = Math.max(...Object.values(agreement.lanes).map((found) => found.n));
          out.push(["same", t(agreement.must ? "compare.agree.must" : "compare.agree", { n })]);
        }
        for (const [place, found] of differing) {
          const gap = D.known(found.gap) ? D.num(found.gap, 4) : "–";
          const values = { lane: Number(place) + 1, reference, pos: found.pos, main: D.quote(found.main), plain: D.quote(found.plain), gap };
          out.push([found.must ? "differs" : "may", t(found.must ? "compare.differ.must" : "compare.differ", values)]);
        }
      }
      lanes.forEach((lane, place) => {
        if (lane.disturbed) out.push(["differs", t("compare.disturbed", { lane: place + 1 })]);
        else if (lane.again) out.push(["may", t("compare.again", { lane: place + 1 })]);
        if (!lane.finished) out.push(["may", t("compare.unfinished", { lane: place + 1 })]);
        for (const note of lane.notes ?? []) out.push(["may", t("compare.note.lane", { lane: place + 1, note })]);
        if (!lane.lossless) out.push(["may", t("compare.lossy", { lane: place + 1 })]);
      });
      if (params.way === "together") out.push(["may", t("compare.note.together")]);
      return out;
    }

    figures({ lanes, ranking }) {
      const order = [...ranking, ...[...lanes.keys()].filter((place) => !ranking.includes(place))];
      const head = el("tr", {}, el("th", { scope: "col", text: t("compare.column.lane") }), ...COLUMNS.map(({ key }) => el("th", { scope: "col" }, this.label(key))));
      const most = Object.fromEntries(COLUMNS.map(({ key }) => [key, Math.max(0, ...lanes.map((lane) => lane[key] ?? 0))]));
      const rows = order.map((place, rank) => {
        const lane = lanes[place];
        const speed = D.known(lane.speedup) ? ` · ${D.num(lane.speedup, 2)}×` : "";
        const cells = COLUMNS.map((column) => this.cell(column, lane, most[column.key], column.key === "tokens_per_s" ? speed : ""));
        const name = el("th", { scope: "row" }, D.laneSign(place), el("span", { text: `${rank + 1}. ${D.laneTitle(lane)}` }));
        return el("tr", { class: `lane-${place + 1}`, "data-lane": place }, name, ...cells);
      });
      return el("table", { class: "db-compare-table" }, el("caption", { text: t("compare.figures") }), el("thead", {}, head), el("tbody", {}, ...rows));
    }

    label(key) {
      return D.explain(el("span", { text: t(`compare.column.${key}`) }), `def.compare.${key}`);
    }

    cell(column, lane, most, suffix) {
      const value = lane[column.key];
      const bar = el("span", { class: "db-hbar", "aria-hidden": "true" });
      if (most > 0 && value > 0) {
        const whole = el("i", {});
        whole.style.width = `${(100 * value) / most}%`;
        bar.append(whole);
        if (column.part) {
          const part = el("i", { class: "part" });
          part.style.width = `${(100 * column.part(lane)) / most}%`;
          bar.append(part);
        }
      }
      return el("td", { "data-figure": column.key }, el("span", { class: "db-hbar-value", text: column.text(lane) + suffix }), bar);
    }

    /** Drafters × tasks: tokens/s with the 95 % interval over prompts; the best of a task is marked. */
    taskTable({ lanes, tasks }) {
      const head = el("tr", {}, el("th", { scope: "col", text: t("compare.column.task") }), ...lanes.map((lane, place) => el("th", { scope: "col", class: `lane-${place + 1}` }, D.laneSign(place), el("span", { text: D.laneTitle(lane) }))));
      const rows = tasks.map((task) => {
        const cells = lanes.map((lane, place) => {
          const cell = task.cells[place];
          if (!cell) return el("td", { text: "–" });
          const won = task.winner === place;
          const range = D.known(cell.low) ? `${D.num(cell.low, 1)}–${D.num(cell.high, 1)}` : t("compare.nointerval");
          const mark = won ? t(task.clear ? "compare.winner" : "compare.winner.near") : null;
          return el("td", { class: won ? "won" : "" }, el("b", { text: D.num(cell.tokens_per_s, 1) }), el("small", { text: range }), mark ? el("span", { class: "db-won", text: mark }) : null);
        });
        const name = t("compare.task", { task: D.taskName(task.task), n: task.prompts });
        return el("tr", { "data-task": task.task }, el("th", { scope: "row", text: name }), ...cells);
      });
      return el("table", { class: "db-compare-table tasks" }, el("caption", { text: t("compare.tasks.title") }), el("thead", {}, head), el("tbody", {}, ...rows));
    }
  }

  D.CompareResult = CompareResult;
})();
