/* One run in the list of runs. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const BADGE = { running: "●", done: "✓", cancelled: "■", failed: "✕", interrupted: "!" };

  /** The address that opens a run on the page of its kind. */
  D.runLink = (id) => `./?run=${encodeURIComponent(id)}`;

  D.figure = (value, digits, unit) => (D.known(value) ? `${D.num(value, digits)}${unit}` : "–");

  /** Names of the drafters; null stands beside others only as the baseline, which goes without saying. */
  D.drafterNames = (run) => {
    const names = run.names.filter((name) => name !== "null");
    return (names.length ? names : run.names).map((name) => D.filterName("drafter", name)).join(", ");
  };

  /** Draft lengths of the requests that drafted. */
  D.draftLengths = (run) => [...new Set(run.drafters.filter(([name]) => name !== "null").map(([, gamma]) => gamma))].join(", ");

  D.RunRow = class {
    /** `on` has open(row, opens), select(row, selected), tag(name). */
    constructor(run, on) {
      this.run = run;
      this.on = on;
      this.check = el("input", { type: "checkbox", "aria-label": t("library.select", { title: run.title || run.id }) });
      this.check.addEventListener("change", () => on.select(this, this.check.checked));
      this.link = el("a", { class: "db-run-title", href: D.runLink(run.id), "data-run": run.id });
      this.tags = el("span", { class: "db-run-tags" });
      this.toggle = el("button", { type: "button", class: "db-run-more", "aria-expanded": "false", text: t("library.details") });
      this.toggle.addEventListener("click", () => on.open(this, this.toggle.getAttribute("aria-expanded") !== "true"));
      const gammas = D.draftLengths(run);
      const cell = (name, ...content) => el("span", { class: `db-cell db-cell-${name}` }, el("span", { class: "db-cell-name", text: t(`library.column.${name}`) }), ...content);
      this.node = el(
        "li",
        { class: "db-run", "data-run": run.id, "data-status": run.status },
        el("span", { class: "db-run-check" }, this.check),
        el("span", { class: "db-run-name" }, this.link, this.tags),
        cell("kind", D.filterName("kind", run.kind)),
        cell("drafter", `${D.drafterNames(run)}${gammas ? ` γ ${gammas}` : ""}` || "–"),
        cell("target", el("span", { class: "db-clip", title: `${run.target}\n${run.device}`, text: run.target || "–" })),
        cell("speed", D.figure(run.summary.tokens_per_s, 1, "")),
        cell("speedup", D.figure(run.summary.speedup, 2, "×")),
        cell("date", el("time", { datetime: run.at, text: D.when(run.at) })),
        cell("status", el("span", { class: "db-run-status" }, el("span", { "aria-hidden": "true", text: `${BADGE[run.status] ?? ""} ` }), D.filterName("status", run.status))),
        this.toggle,
      );
      this.draw();
    }

    draw() {
      const { run } = this;
      this.link.textContent = run.title || t("library.untitled");
      const chips = run.tags.map((tag) => {
        const chip = el("button", { type: "button", class: "db-tag", text: tag, title: t("library.tag.show", { tag }) });
        chip.addEventListener("click", () => this.on.tag(tag));
        return chip;
      });
      const marks = [];
      if (run.notes) marks.push(el("span", { class: "db-run-mark", title: run.notes, text: `✎ ${t("library.noted")}` }));
      if (run.imported) marks.push(el("span", { class: "db-run-mark", title: t("library.imported.at", { at: D.when(run.imported) }), text: `↓ ${t("library.imported")}` }));
      this.tags.replaceChildren(...chips, ...marks);
    }

    expand(node) {
      this.toggle.setAttribute("aria-expanded", String(Boolean(node)));
      this.node.classList.toggle("open", Boolean(node));
      this.node.querySelector(".db-run-details")?.remove();
      if (node) this.node.append(node);
    }

    select(selected) {
      this.check.checked = selected;
      this.node.classList.toggle("selected", selected);
    }
  };
})();
