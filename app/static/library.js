/* The Library: finds runs, opens, tags, exports, imports and deletes them. The address holds what is listed. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const PAGE = 50;
  const UNDO_MS = 15000;

  class Library {
    constructor(element) {
      this.asked = 0;
      this.rows = [];
      this.opened = null;
      this.filters = new D.LibraryFilters((pushes) => this.show(pushes));
      this.selection = new D.LibrarySelection({
        tag: (ids, tag) => this.tagAll(ids, tag),
        compare: (runs) => element.querySelector(".db-library").append(D.compareRuns(runs)),
        remove: (ids) => this.remove(ids),
        cleared: () => this.rows.forEach((row) => row.select(false)),
      });
      this.total = el("p", { class: "db-library-total", role: "status" });
      this.all = el("input", { type: "checkbox", "aria-label": t("library.select.all") });
      this.all.addEventListener("change", () => this.rows.forEach((row) => this.select(row, this.all.checked)));
      this.list = el("ol", { class: "db-runs", "aria-label": t("library.list") });
      this.empty = el("div", { class: "db-library-empty", hidden: true });
      this.newer = this.step(-1, "library.newer");
      this.older = this.step(1, "library.older");
      this.place = el("span", {});
      this.pages = el("nav", { class: "db-library-pages", "aria-label": t("library.pages"), hidden: true }, this.newer, this.place, this.older);
      this.toast = el("div", { class: "db-undo", role: "status", hidden: true });
      this.alarm = el("p", { class: "db-alarm", role: "alert", hidden: true });
      this.known = el("datalist", { id: "library-tags" });
      const columns = ["name", "kind", "drafter", "target", "speed", "speedup", "date", "status"];
      this.head = el("div", { class: "db-runs-head", "aria-hidden": "true" }, ...columns.map((name) => el("span", { class: `db-head-${name}`, text: t(`library.column.${name}`) })));
      element.querySelector(".db-library").replaceChildren(
        el("div", { class: "db-library-bar" }, el("h2", { text: t("library.title") }), this.total, this.importButton()),
        this.alarm,
        this.filters.node,
        el("div", { class: "db-runs-box" }, el("label", { class: "db-select-all" }, this.all, el("span", { text: t("library.select.page") })), this.head, this.list),
        this.empty,
        this.pages,
        this.selection.node,
        this.toast,
        this.known,
      );
      this.list.addEventListener("keydown", (event) => this.onKey(event));
      document.addEventListener("keydown", (event) => {
        if (event.key === "/" && !event.target.closest?.("input, textarea, select, [contenteditable]")) {
          event.preventDefault();
          this.filters.search.focus();
        }
      });
      window.addEventListener("popstate", () => this.restore());
      this.drop(element);
      this.facets();
      this.restore();
    }

    step(by, key) {
      const button = el("button", { type: "button", class: "db-button", text: t(key) });
      button.addEventListener("click", () => {
        this.filters.page += by;
        this.show(true);
        window.scrollTo({ top: 0 });
      });
      return button;
    }

    importButton() {
      const input = el("input", { type: "file", accept: ".json,application/json", multiple: true, id: "library-import", class: "db-aside" });
      input.addEventListener("change", async () => {
        await this.takeIn([...input.files]);
        input.value = "";
      });
      return el("label", { class: "db-button db-import", title: t("library.import.title") }, input, el("span", { text: t("library.import") }));
    }

    /** Files may be dropped anywhere on the page. */
    drop(element) {
      element.addEventListener("dragover", (event) => event.preventDefault());
      element.addEventListener("drop", (event) => {
        event.preventDefault();
        if (event.dataTransfer.files.length) this.takeIn([...event.dataTransfer.files]);
      });
    }

    /** Asks the server; a mistake is shown in its own sentence, and null comes back. */
    async ask(path, body) {
      const found = await D.answer(`runs${path}`, body);
      this.alarm.hidden = !found.error;
      this.alarm.textContent = found.error ?? "";
      return found.error ? null : found;
    }

    change(path, values) {
      return this.ask(`/${path}`, values);
    }

    async facets() {
      const facets = await this.ask("/facets");
      if (!facets) return;
      this.filters.offer(facets);
      this.known.replaceChildren(...facets.tag.map(([value]) => el("option", { value })));
    }

    /** Lists what the address says. */
    restore() {
      const query = new URLSearchParams(location.search);
      this.filters.write(Object.fromEntries(D.LibraryFilters.NAMES.map((name) => [name, query.get(name) ?? ""])));
      this.load();
    }

    /** Lists what the filters say, and puts it into the address. */
    show(pushes) {
      const url = new URL(location.pathname, location.origin);
      for (const [name, value] of Object.entries(this.filters.read())) url.searchParams.set(name, value);
      if (url.href !== location.href) history[pushes ? "pushState" : "replaceState"](null, "", url);
      return this.load();
    }

    async load() {
      const number = ++this.asked;
      const set = this.filters.draw();
      const found = await this.ask(`?${this.filters.question(PAGE)}`);
      if (!found || number !== this.asked) return; // a later question is under way
      if (!found.runs.length && found.total && this.filters.page) {
        this.filters.page = Math.ceil(found.total / PAGE) - 1; // the last page lost its last run
        await this.show(false);
        return;
      }
      this.draw(found, set);
    }

    draw({ runs, total }, set) {
      const on = { open: (row, opens) => this.open(row, opens), select: (row, selected) => this.select(row, selected), tag: (tag) => this.only(tag) };
      const opened = this.opened?.run.id;
      this.opened = null;
      this.rows = runs.map((run) => new D.RunRow(run, on));
      this.list.replaceChildren(...this.rows.map((row) => row.node));
      for (const row of this.rows) row.select(this.selection.has(row.run.id));
      const again = this.rows.find((row) => row.run.id === opened);
      if (again) this.open(again, true);
      this.all.checked = false;
      this.list.parentNode.hidden = !runs.length;
      this.total.textContent = total ? t(total === 1 ? "library.total.one" : "library.total", { n: D.num(total, 0) }) : "";
      this.pages.hidden = total <= PAGE;
      const { page } = this.filters;
      const last = Math.ceil(total / PAGE) - 1;
      this.newer.disabled = page <= 0;
      this.older.disabled = page >= last;
      this.place.textContent = t("library.page", { from: page * PAGE + 1, to: Math.min(total, (page + 1) * PAGE), n: D.num(total, 0) });
      this.drawEmpty(runs.length, set);
    }

    drawEmpty(shown, set) {
      this.empty.hidden = shown > 0;
      if (shown) return;
      const clear = el("button", { type: "button", class: "db-button", text: t("library.clear") });
      clear.addEventListener("click", () => this.filters.reset());
      const first = [el("b", { text: t("library.empty.title") }), el("p", { text: t("library.empty.text") }), el("a", { class: "db-button db-primary", href: "./", text: t("library.empty.go") })];
      this.empty.replaceChildren(...(set ? [el("b", { text: t("library.none") }), el("p", { text: t("library.none.text") }), clear] : first));
    }

    select(row, selected) {
      row.select(selected);
      this.selection.set(row.run, selected);
    }

    open(row, opens) {
      this.opened?.expand(null);
      this.opened = opens ? row : null;
      if (!opens) return;
      const on = { change: (path, values) => this.change(path, values), changed: (one) => this.changed(one), remove: (ids) => this.remove(ids) };
      row.expand(new D.RunDetails(row, on).node);
    }

    changed(row) {
      row.draw();
      this.facets();
    }

    only(tag) {
      this.filters.choose(this.filters.choices.tag, tag, "tag");
      this.filters.turned(true);
    }

    async tagAll(ids, tag) {
      const done = await this.change("tag", { runs: ids, add: [tag], remove: [] });
      if (done) {
        this.facets();
        await this.load();
      }
      return done;
    }

    async remove(ids) {
      const done = await this.change("delete", { runs: ids });
      if (!done) return;
      for (const id of ids) this.selection.set({ id }, false);
      if (ids.includes(this.opened?.run.id)) this.opened = null;
      this.offerUndo(done.deleted);
      this.facets();
      await this.load();
    }

    offerUndo(ids) {
      const undo = el("button", { type: "button", class: "db-button", text: t("library.undo") });
      undo.addEventListener("click", async () => {
        this.toast.hidden = true;
        if (!(await this.change("restore", { runs: ids }))) return;
        this.facets();
        await this.load();
      });
      this.toast.replaceChildren(el("span", { text: t(ids.length === 1 ? "library.deleted.one" : "library.deleted", { n: ids.length }) }), undo);
      this.tell(this.toast);
    }

    tell(toast) {
      toast.hidden = false;
      clearTimeout(this.toastTimer);
      this.toastTimer = setTimeout(() => {
        if (toast.matches(":hover, :focus-within")) this.tell(toast);
        else toast.hidden = true;
      }, UNDO_MS);
    }

    async takeIn(files) {
      const counts = { added: 0, skipped: 0, restored: 0 };
      for (const file of files) {
        const found = await this.ask("/import", file);
        if (!found) return;
        for (const name of Object.keys(counts)) counts[name] += found[name].length;
      }
      const said = Object.entries(counts).filter(([, number]) => number);
      this.toast.replaceChildren(...said.map(([name, n]) => el("span", { text: t(`library.import.${name}`, { n }) })));
      this.tell(this.toast);
      this.facets();
      await this.load();
    }

    /** Arrows move between runs, Home and End to the first and last, Delete deletes, X selects. */
    onKey(event) {
      const place = this.rows.findIndex((row) => row.link === event.target);
      if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
      const row = this.rows[place];
      const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: this.rows.length - 1 }[event.key];
      if (to !== undefined) this.rows[Math.min(Math.max(to, 0), this.rows.length - 1)].link.focus();
      else if (event.key === "Delete") this.remove([row.run.id]);
      else if (event.key === "x") this.select(row, !row.check.checked);
      else return;
      event.preventDefault();
    }
  }

  D.mountLibrary = ({ element }) => new Library(element);
})();
