/* Selected runs side by side: figures with bars, and the settings in which they differ. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;

  const figures = [
    ["library.column.speed", (run) => run.summary.tokens_per_s, 1, ""],
    ["library.column.speedup", (run) => run.summary.speedup, 2, "×"],
    ["metric.rate", (run) => (D.known(run.summary.draft_acceptance_rate) ? 100 * run.summary.draft_acceptance_rate : null), 0, " %"],
    ["metric.len", (run) => run.summary.mean_acceptance_length, 2, ""],
    ["library.tokens", (run) => run.tokens || null, 0, ""],
  ];
  const SETTINGS = 6; // the first of the facts: what a difference of figures may come from
  const facts = [
    ["library.kind", (run) => D.filterName("kind", run.kind)],
    ["library.drafter", (run) => D.drafterNames(run)],
    ["library.gamma", (run) => D.draftLengths(run)],
    ["library.target", (run) => run.target],
    ["library.device", (run) => run.device],
    ["library.task", (run) => run.tasks.map((task) => D.filterName("task", task)).join(", ")],
    ["library.status", (run) => D.filterName("status", run.status)],
    ["library.column.date", (run) => D.when(run.at)],
    ["library.tags", (run) => run.tags.join(", ")],
    ["library.finding", (run) => run.summary.finding ?? ""],
    ["library.notes", (run) => run.notes],
  ];

  /** A dialog with a column a run; bars are lengths of the largest of their row, what differs is marked. */
  D.compareRuns = (runs) => {
    const head = (run) => el("th", { scope: "col" }, el("a", { href: D.runLink(run.id), text: run.title || run.id }));
    const figure = ([key, read, digits, unit]) => {
      const values = runs.map(read);
      if (!values.some(D.known)) return null;
      const most = Math.max(...values.filter(D.known));
      const cells = values.map((value) => {
        const bar = el("span", { class: "db-compare-bar", "aria-hidden": "true" });
        bar.style.width = D.known(value) && most > 0 ? `${(100 * value) / most}%` : "0";
        const best = D.known(value) && value === most && runs.length > 1 && key !== "library.tokens";
        return el("td", { class: best ? "best" : null }, el("span", { text: `${D.figure(value, digits, unit)}${best ? " ★" : ""}` }), bar);
      });
      return el("tr", {}, el("th", { scope: "row", text: t(key) }), ...cells);
    };
    const fact = ([key, read], place) => {
      const values = runs.map(read);
      if (!values.some(Boolean)) return null;
      const differs = place < SETTINGS && new Set(values).size > 1;
      const name = el("th", { scope: "row" }, t(key), differs ? el("span", { class: "db-differs", title: t("library.differs"), text: " ≠" }) : null);
      return el("tr", { class: differs ? "differs" : null }, name, ...values.map((value) => el("td", { text: value || "–" })));
    };
    const close = el("button", { type: "button", class: "db-button", text: t("library.close"), autofocus: true });
    const table = el("table", {}, el("thead", {}, el("tr", {}, el("td", {}), ...runs.map(head))), el("tbody", {}, ...figures.map(figure), ...facts.map(fact)));
    const dialog = el("dialog", { class: "db-compare-runs", "aria-label": t("library.compare.title") }, el("div", { class: "db-copy-top" }, el("b", { text: t("library.compare.title") }), close), el("div", { class: "db-compare-table", tabindex: "0", role: "group", "aria-label": t("library.compare.title") }, table));
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    queueMicrotask(() => dialog.showModal()); // when it is in the page
    return dialog;
  };
})();
