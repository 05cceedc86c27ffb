/* The last runs of the store. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;

  /** One link a run; a plain click opens one of this page without leaving it, the server sends the others to theirs. */
  class RecentRuns {
    constructor(server, open) {
      this.server = server;
      this.open = open;
      this.list = el("div", { class: "db-recent-list" });
      this.node = el("section", { class: "db-recent" }, el("h2", { text: t("recent.title") }), this.list);
      this.refresh();
    }

    async refresh() {
      try {
        this.draw(JSON.parse(await this.server.recent([])));
      } catch {
        this.draw([]);
      }
    }

    draw(rows) {
      if (!rows.length) {
        this.list.replaceChildren(el("p", { class: "db-hint", text: t("recent.empty") }));
        return;
      }
      this.list.replaceChildren(...rows.map((row) => this.row(row)));
    }

    row(row) {
      const when = new Date(row.at);
      const page = D.pages.find(({ kinds }) => kinds.includes(row.kind)) ?? D.pages[0];
      const figures = D.known(row.gamma) ? [D.drafterName(row.drafter), `γ ${row.gamma}`] : [t(page.title)];
      if (D.known(row.tps)) figures.push(`${D.num(row.tps, 1)} ${t("unit.tps")}`);
      if (D.known(row.speedup)) figures.push(`${D.num(row.speedup, 2)}×`);
      if (row.status !== "done") figures.push(D.tOr(`status.${row.status}`, row.status));
      const link = el(
        "a",
        { class: "db-recent-row", href: `?run=${encodeURIComponent(row.id)}`, "data-run": row.id },
        el("time", { datetime: when.toISOString(), text: when.toLocaleTimeString(D.lang, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }), title: when.toLocaleString(D.lang) }),
        el("span", { class: "db-recent-prompt", text: row.prompt }),
        el("span", { class: "db-recent-figures", text: figures.join(" · ") }),
      );
      link.addEventListener("click", (event) => {
        if (!D.isPlain(event) || page.path !== D.page) return;
        event.preventDefault();
        this.open(row.id);
      });
      return link;
    }
  }

  D.RecentRuns = RecentRuns;
})();
