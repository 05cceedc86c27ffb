/* Several runs at once: tag, compare, export, delete; the bar at the end of the window. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const MOST_COMPARED = 8;

  /** The Batch page with the first sweep, and the curves of the others over it. */
  D.overlayLink = ([first, ...others]) => `batch?${new URLSearchParams([["run", first], ...others.map((id) => ["over", id])])}`;

  D.LibrarySelection = class {
    /** `on` has tag(ids, tag), compare(runs), remove(ids), cleared(). */
    constructor(on) {
      this.runs = new Map();
      this.on = on;
      this.count = el("b", { role: "status" });
      this.tag = el("input", { type: "text", maxlength: "40", placeholder: t("library.tag.add"), "aria-label": t("library.tag.add"), list: "library-tags" });
      const form = el("form", { class: "db-tag-form" }, this.tag, el("button", { class: "db-button", text: t("library.tag.button") }));
      form.addEventListener("submit", async (event) => {
        event.preventDefault();
        if (this.tag.value.trim() && (await on.tag(this.ids(), this.tag.value))) this.tag.value = "";
      });
      const button = (key, press, more = "") => {
        const node = el("button", { type: "button", class: `db-button ${more}`, text: t(key) });
        node.addEventListener("click", press);
        return node;
      };
      this.compare = button("library.compare", () => {
        if (this.sweeps()) location.href = D.overlayLink(this.ids());
        else on.compare([...this.runs.values()]);
      });
      this.json = el("a", { class: "db-button", download: "", text: t("library.json") });
      this.csv = el("a", { class: "db-button", download: "", text: t("library.csv") });
      const clear = button("library.unselect", () => this.clear());
      this.node = el("div", { class: "db-selection", role: "region", "aria-label": t("library.selection"), hidden: true }, this.count, form, this.compare, this.json, this.csv, button("library.delete", () => on.remove(this.ids()), "db-danger"), clear);
    }

    ids() {
      return [...this.runs.keys()];
    }

    /** Whether all are sweeps, whose curves the Batch page lays over each other. */
    sweeps() {
      return [...this.runs.values()].every((run) => run.kind === "sweep");
    }

    has(id) {
      return this.runs.has(id);
    }

    set(run, selected) {
      if (selected) this.runs.set(run.id, run);
      else this.runs.delete(run.id);
      this.draw();
    }

    clear() {
      this.runs.clear();
      this.draw();
      this.on.cleared();
    }

    draw() {
      const ids = this.ids();
      const runs = [...this.runs.values()];
      this.node.hidden = !ids.length;
      document.body.classList.toggle("db-selecting", ids.length > 0);
      this.count.textContent = t("library.selected", { n: ids.length });
      this.compare.disabled = ids.length < 2 || ids.length > MOST_COMPARED;
      this.compare.textContent = t(this.sweeps() ? "library.overlay" : "library.compare");
      this.compare.title = this.compare.disabled ? t("library.compare.hint", { most: MOST_COMPARED }) : "";
      const mixed = new Set(runs.map((run) => run.kind === "sweep")).size > 1;
      this.json.href = D.runFile(ids, "json");
      this.csv.hidden = mixed; // rows of sweeps have other columns
      this.csv.href = D.runFile(ids, "csv");
    }
  };
})();
