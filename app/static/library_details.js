/* What opens below a run of the list: its figures, tags, notes, files, and the forms in which it is copied. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const SAVE_MS = 700;

  /** The address of a file with these runs. */
  D.runFile = (ids, form) => `runs/file?${new URLSearchParams([...ids.map((id) => ["run", id]), ["form", form]])}`;

  D.RunDetails = class {
    /** `on` has change(path, values), changed(row), remove(ids). */
    constructor(row, on) {
      this.row = row;
      this.on = on;
      const { run } = row;
      this.tags = el("div", { class: "db-edit-tags" });
      this.tag = el("input", { type: "text", maxlength: "40", placeholder: t("library.tag.add"), "aria-label": t("library.tag.add"), list: "library-tags" });
      const form = el("form", { class: "db-tag-form" }, this.tags, this.tag, el("button", { class: "db-button", text: t("library.tag.button") }));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        if (this.tag.value.trim()) this.edit([this.tag.value], []);
      });
      this.saved = el("span", { class: "db-saved", role: "status" });
      this.notes = el("textarea", { rows: "3", maxlength: "10000", placeholder: t("library.notes.hint"), "aria-label": t("library.notes") });
      this.notes.value = run.notes;
      this.notes.addEventListener("input", () => {
        clearTimeout(this.timer);
        this.saved.textContent = "";
        this.timer = setTimeout(() => this.keep(), SAVE_MS);
      });
      this.notes.addEventListener("blur", () => this.keep());
      this.copy = new D.CopyAs();
      this.copy.show(run.id);
      const link = (href, key, more = {}) => el("a", { class: "db-button", href, text: t(key), ...more });
      const remove = el("button", { type: "button", class: "db-button db-danger", text: t("library.delete") });
      remove.addEventListener("click", () => on.remove([run.id]));
      this.node = el(
        "div",
        { class: "db-run-details" },
        this.facts(run),
        el("div", { class: "db-details-edit" }, el("b", { text: t("library.tags") }), form, el("b", {}, `${t("library.notes")} `, this.saved), this.notes),
        this.copy.node,
        el(
          "div",
          { class: "db-details-actions" },
          link(D.runLink(run.id), "library.open"),
          run.kind === "sweep" ? null : link(`replay?run=${encodeURIComponent(run.id)}`, "library.replay"),
          D.copyButton(t("run.link"), () => new URL(D.runLink(run.id), document.baseURI).href),
          link(D.runFile([run.id], "json"), "library.json", { download: "" }),
          link(D.runFile([run.id], "csv"), "library.csv", { download: "" }),
          remove,
        ),
      );
      this.draw();
    }

    facts(run) {
      const uses = run.drafters.map(([name, gamma, tps]) => `${D.filterName("drafter", name)}${name === "null" ? "" : ` γ ${gamma}`}: ${D.figure(tps, 1, ` ${t("unit.tps")}`)}`);
      const rows = [
        ["library.column.target", run.target],
        ["library.device", run.device],
        ["library.task", run.tasks.map((task) => D.filterName("task", task)).join(", ")],
        ["library.requests", run.requests ? `${uses.join("; ")}` : ""],
        ["library.tokens", run.tokens ? D.num(run.tokens, 0) : ""],
        ["library.finding", run.summary.finding ?? ""],
        ["library.imported", run.imported ? D.when(run.imported) : ""],
        ["library.id", run.id],
      ];
      const shown = rows.filter(([, value]) => value);
      return el("dl", { class: "db-facts" }, ...shown.flatMap(([key, value]) => [el("dt", { text: t(key) }), el("dd", { text: value })]));
    }

    draw() {
      const { run } = this.row;
      const chips = run.tags.map((tag) => {
        const button = el("button", { type: "button", class: "db-tag", "aria-label": t("library.tag.remove", { tag }), text: `${tag} ×` });
        button.addEventListener("click", () => this.edit([], [tag]));
        return button;
      });
      this.tags.replaceChildren(...chips);
      this.tags.hidden = !chips.length;
    }

    async edit(add, remove) {
      const { run } = this.row;
      if (!(await this.on.change("tag", { runs: [run.id], add, remove }))) return;
      const clean = add.map((tag) => tag.normalize("NFKC").toLowerCase().trim().replace(/\s+/g, " "));
      run.tags = [...new Set([...run.tags, ...clean])].filter((tag) => !remove.includes(tag)).sort();
      this.tag.value = "";
      this.draw();
      this.on.changed(this.row);
    }

    async keep() {
      clearTimeout(this.timer);
      const { run } = this.row;
      const notes = this.notes.value.trim();
      if (notes === run.notes) return;
      if (!(await this.on.change("notes", { run: run.id, notes }))) return;
      run.notes = notes;
      this.saved.textContent = t("library.saved");
      this.on.changed(this.row);
    }
  };
})();
