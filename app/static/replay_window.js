/* Lookahead's other half: the window that the same pass moves on, and the n-grams that it leaves in the pool. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;

  class ReplayWindow {
    constructor() {
      this.table = el("table", { class: "db-window" });
      this.grams = el("ul", { class: "db-grams" });
      this.poolHead = el("h3", {});
      this.node = el(
        "section",
        { class: "db-replay-card db-replay-window", hidden: true },
        el("h2", { text: t("window.title") }),
        el("p", { class: "db-hint", text: t("window.about") }),
        el("div", { class: "db-window-box", tabindex: "0", role: "group", "aria-label": t("window.title") }, this.table),
        this.poolHead,
        this.grams,
      );
      this.collected = null;
    }

    reset(steps) {
      this.collected = D.collectedNgrams(steps);
      this.node.hidden = !this.collected;
    }

    /** The window that went through the step's pass, oldest guesses on top, and what the pool got from it. */
    show(step, index) {
      if (!this.collected || !step) return;
      const { width, rows } = this.collected;
      const filled = step.windowTexts.length / width;
      const line = (row) => {
        const texts = step.windowTexts.slice(row * width, (row + 1) * width);
        return el("tr", {}, el("th", { scope: "row", text: t("window.row", { n: rows - filled + row + 1 }) }), ...texts.map((text) => el("td", { text: D.quote(text) })));
      };
      const head = Array.from({ length: width }, (_, column) => el("th", { scope: "col", text: t("window.column", { n: column + 1 }) }));
      this.table.replaceChildren(el("tr", {}, el("td", {}), ...head), ...Array.from({ length: filled }, (_, row) => line(row)));
      const { grams, size } = this.collected.steps[index];
      D.write(this.poolHead, t("window.pool", { n: grams.filter((gram) => gram.fresh).length, size }));
      this.grams.replaceChildren(
        ...grams.map((gram) => el("li", { class: gram.fresh ? "fresh" : "" }, ...gram.texts.map((text) => el("span", { text: D.quote(text) })))),
      );
      if (!grams.length) this.grams.replaceChildren(el("li", { class: "db-hint", text: t("window.filling") }));
    }
  }

  D.ReplayWindow = ReplayWindow;
})();
