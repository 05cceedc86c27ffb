/* The draft tokens of a step as cards: first their q, then the target's p, then the verdict with the draw that decided it. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const SIGNS = { A: "✓", R: "✗", U: "–", I: "–" };
  const MOST = 20; // cards of tokens that nobody tested beyond that are only counted

  const bar = (draw, bound) => {
    const fill = el("i", { class: "fill" });
    fill.style.width = `${100 * bound}%`;
    const tick = el("i", { class: "tick" });
    tick.style.left = `${100 * draw}%`;
    return el("span", { class: "db-draw", "aria-hidden": "true" }, fill, tick);
  };

  class ReplayCards {
    constructor() {
      this.list = el("ol", { class: "db-cards" });
      this.more = el("p", { class: "db-hint db-cards-more" });
      this.node = el("div", { class: "db-cards-box" }, this.list, this.more);
      this.cards = [];
    }

    /** Builds the cards of a step: of a chain all, of a tree those that were tested, in the order of the test. */
    build(step, lane) {
      this.cards = [];
      this.last = null;
      this.more.textContent = "";
      if (!step?.drafts.length) {
        this.list.replaceChildren(el("li", { class: "db-hint", text: t(step ? "cards.none" : "cards.start") }));
        return;
      }
      const shown = step.tree ? step.tested : step.drafts.slice(0, MOST);
      this.cards = shown.map((draft, place) => this.card(draft, place, step, lane));
      const hidden = step.drafts.length - shown.length;
      if (hidden) this.more.textContent = t(step.tree ? "cards.beside" : "cards.more", { n: hidden });
      this.list.replaceChildren(...this.cards.map((card) => card.node));
      if (step.last && step.last.role !== "accepted") this.list.append(this.outcome(step.last));
    }

    card(draft, place, step, lane) {
      const text = D.quote(draft.text || `#${draft.id}`);
      const tested = draft.fate === "A" || draft.fate === "R";
      const rows = el("dl", {});
      const row = (name, label, value) => rows.append(el("div", { class: name }, el("dt", { text: label }), el("dd", { text: value })));
      row("q", "q", D.probability(draft.q));
      row("p", "p", D.probability(draft.p));
      const bound = D.drawBound(draft);
      const verdict = el("div", { class: "verdict" });
      if (bound !== null) {
        verdict.append(bar(draft.u, bound), el("span", { class: "db-card-rule", text: `u ${D.num(draft.u, 2)} ${draft.u <= bound ? "≤" : ">"} ${D.num(bound, 2)}` }));
      } else if (tested && lane.greedy) {
        verdict.append(el("span", { class: "db-card-rule", text: t(draft.fate === "A" ? "cards.best" : "cards.notbest") }));
      }
      verdict.append(el("b", { class: "db-card-fate", text: `${SIGNS[draft.fate]} ${t(`role.${D.fateName(draft)}`)}` }));
      const node = el(
        "li",
        { class: `db-card ${draft.fate}`, "data-state": "hidden", "aria-label": t("cards.aria", { place: place + 1, token: text }) },
        el("span", { class: "db-card-text", text }),
        rows,
        verdict,
      );
      return { node, draft, tested };
    }

    outcome(token) {
      const rows = el("dl", {}, el("div", { class: "p" }, el("dt", { text: "p" }), el("dd", { text: D.probability(token.p) })));
      this.last = el(
        "li",
        { class: `db-card outcome ${token.role}`, "data-state": "hidden" },
        el("span", { class: "db-card-text", text: D.quote(token.text || `#${token.id}`) }),
        rows,
        el("div", { class: "verdict" }, el("b", { class: "db-card-fate", text: t(`role.${token.role}`) })),
      );
      return this.last;
    }

    /** Shows as much as is known at this moment of the step. */
    reveal(phase, share) {
      const arrived = phase > 0 ? this.cards.length : Math.ceil(share * this.cards.length);
      const tested = this.cards.filter((card) => card.tested).length;
      const judged = phase > 2 ? this.cards.length : phase === 2 ? Math.ceil(share * tested) : 0;
      this.cards.forEach((card, place) => {
        const decided = place < judged;
        const state = place >= arrived ? "hidden" : decided ? "judged" : phase >= 2 ? "scored" : "drafted";
        D.write(card.node, state, "data-state");
      });
      if (this.last) D.write(this.last, phase >= 3 ? "judged" : "hidden", "data-state");
      return { arrived, judged };
    }
  }

  D.ReplayCards = ReplayCards;
})();
