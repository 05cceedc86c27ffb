/* The Drafters page: links to the cards, and the cards, as soon as the engine knows its drafters. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;

  const GAP = 12; // pixels below a card

  class DraftersPage {
    constructor(root) {
      this.about = el("p", { class: "db-cards-about", text: t("drafters.about") });
      this.state = el("p", { class: "db-cards-state", role: "status", text: t("drafter.waiting") });
      this.index = el("nav", { class: "db-cards-index", "aria-label": t("drafters.index"), hidden: true });
      this.list = el("div", { class: "db-cards" });
      this.heights = new ResizeObserver((entries) => {
        for (const { target } of entries) target.style.gridRowEnd = `span ${Math.ceil(target.offsetHeight) + GAP}`;
      });
      root.replaceChildren(this.about, this.index, this.state, this.list);
      D.whenEngine(() => this.load());
    }

    async load() {
      if (D.engine.state !== "ready" || this.loading) return;
      this.loading = true;
      const found = await D.answer("board/drafters");
      if (found.error) this.state.textContent = found.error;
      else this.draw(found);
      this.loading = false;
    }

    draw(found) {
      this.state.hidden = true;
      this.index.hidden = false;
      this.index.replaceChildren(...found.cards.map((card) => this.link(card)));
      this.heights.disconnect();
      this.list.replaceChildren(...found.cards.map((card) => D.drafterCard(card, found)));
      for (const card of this.list.children) {
        card.style.gridRowEnd = `span ${card.offsetHeight + GAP}`;
        this.heights.observe(card);
      }
      // The cards were not there when the browser looked for the address's part behind the #.
      const named = document.getElementById(location.hash.slice(1));
      if (named && this.list.contains(named)) this.show(named);
    }

    link(card) {
      const name = D.drafterName(card.name, card.label);
      const off = card.available ? null : el("small", { text: t("drafters.off") });
      const link = el("a", { href: `#${card.name}`, class: card.available ? "" : "off" }, name, off);
      link.addEventListener("click", (event) => {
        event.preventDefault();
        history.replaceState(null, "", `#${card.name}`);
        this.show(document.getElementById(card.name));
      });
      return link;
    }

    show(card) {
      for (const other of this.list.children) other.classList.toggle("chosen", other === card);
      card.scrollIntoView({ block: "start" });
      card.focus({ preventScroll: true });
    }
  }

  D.mountDrafters = ({ element }) => new DraftersPage(element.querySelector(".db-cards-page"));
})();
