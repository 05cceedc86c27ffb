/* What the list of runs shows: words, filters, order, page; all of it is in the page's address. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const CHOICES = ["kind", "status", "target", "drafter", "task", "device", "tag"];
  const SORTS = ["-created", "created", "-tokens_per_s", "-speedup", "title", "target"];
  const NAMES = ["search", ...CHOICES, "since", "until", "sort", "page"];
  const TYPING_MS = 250;

  /** How a value of a filter is called. */
  const named = (filter, value) => {
    if (filter === "drafter") return D.drafterName(value);
    if (filter === "kind") return D.tOr(`kind.${value}`, value);
    if (filter === "status") return D.tOr(`status.${value}`, value);
    if (filter === "task") return D.tOr(`task.${value}`, value);
    return value;
  };
  D.filterName = named;

  D.LibraryFilters = class {
    /** `changed(pushes)` is called when something else is to be listed; `pushes` when Back should undo it. */
    constructor(changed) {
      this.changed = changed;
      this.page = 0;
      this.search = el("input", { type: "search", id: "library-search", placeholder: t("library.search"), "aria-label": t("library.search"), autocomplete: "off" });
      let timer = null;
      this.search.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(() => this.turned(false), TYPING_MS);
      });
      this.choices = Object.fromEntries(CHOICES.map((name) => [name, this.choice(name)]));
      this.dates = Object.fromEntries(["since", "until"].map((name) => [name, this.date(name)]));
      this.sort = el("select", { "aria-label": t("library.sort"), id: "library-sort" }, ...SORTS.map((sort) => el("option", { value: sort, text: t(`library.sort.${sort}`) })));
      this.sort.addEventListener("change", () => this.turned(true));
      this.clear = el("button", { type: "button", class: "db-button", text: t("library.clear"), hidden: true });
      this.clear.addEventListener("click", () => this.reset());
      const label = (name, control) => el("label", { class: "db-filter" }, el("span", { text: t(`library.${name}`) }), control);
      const fields = [
        ...CHOICES.map((name) => label(name, this.choices[name])),
        label("since", this.dates.since),
        label("until", this.dates.until),
      ];
      this.more = el("details", { class: "db-filters" }, el("summary", {}, el("span", { text: t("library.filters") }), (this.count = el("b", {}))), el("div", { class: "db-filter-fields" }, ...fields));
      this.node = el("search", { class: "db-library-find" }, el("div", { class: "db-library-top" }, this.search, label("sort", this.sort), this.clear), this.more);
      this.more.open = window.matchMedia("(min-width: 700px)").matches;
    }

    choice(name) {
      const node = el("select", { id: `library-${name}` }, el("option", { value: "", text: t("library.any") }));
      node.addEventListener("change", () => this.turned(true));
      return node;
    }

    date(name) {
      const node = el("input", { type: "date", id: `library-${name}` });
      node.addEventListener("change", () => this.turned(true));
      return node;
    }

    turned(pushes) {
      this.page = 0;
      this.changed(pushes);
    }

    reset() {
      this.write({});
      this.turned(true);
      this.search.focus();
    }

    /** What can be chosen, with how many runs each has. */
    offer(facets) {
      for (const name of CHOICES) {
        const node = this.choices[name];
        const chosen = node.value;
        const options = (facets[name] ?? []).map(([value, number]) => el("option", { value, text: `${named(name, value)} (${number})` }));
        node.replaceChildren(node.firstElementChild, ...options);
        this.choose(node, chosen, name);
      }
    }

    /** Chooses a value, also one that no run has. */
    choose(node, value, name) {
      if (value && ![...node.options].some((option) => option.value === value)) node.append(el("option", { value, text: named(name, value) }));
      node.value = value;
    }

    /** The filters by name, without those that ask for nothing. */
    read() {
      const values = { search: this.search.value.trim(), sort: this.sort.value, page: String(this.page || "") };
      for (const name of CHOICES) values[name] = this.choices[name].value;
      for (const name of ["since", "until"]) values[name] = this.dates[name].value;
      if (values.sort === SORTS[0]) values.sort = "";
      return Object.fromEntries(NAMES.filter((name) => values[name]).map((name) => [name, values[name]]));
    }

    /** Shows filters, of an address for instance. */
    write(values) {
      this.search.value = values.search ?? "";
      this.sort.value = SORTS.includes(values.sort) ? values.sort : SORTS[0];
      this.page = Math.max(0, Number.parseInt(values.page ?? "0", 10) || 0);
      for (const name of CHOICES) this.choose(this.choices[name], values[name] ?? "", name);
      for (const name of ["since", "until"]) this.dates[name].value = values[name] ?? "";
    }

    /** The question to the server; days begin and end where the person is. */
    question(size) {
      const values = this.read();
      const query = new URLSearchParams();
      for (const [name, value] of Object.entries(values)) if (name !== "page") query.set(name, value);
      if (values.since) query.set("since", new Date(`${values.since}T00:00`).toISOString());
      if (values.until) query.set("until", new Date(new Date(`${values.until}T00:00`).getTime() + 24 * 3600e3).toISOString());
      query.set("limit", size);
      query.set("offset", this.page * size);
      return query;
    }

    /** How many filters are set, the words included. */
    draw() {
      const values = this.read();
      const set = Object.keys(values).filter((name) => name !== "sort" && name !== "page");
      const folded = set.filter((name) => name !== "search").length;
      this.clear.hidden = !set.length;
      this.count.textContent = folded ? String(folded) : "";
      return set.length;
    }
  };

  D.LibraryFilters.NAMES = NAMES;
})();
