/* The list of steps: one row a target pass, its fates as small squares. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const TAIL_ROWS = 14; // as many as can be seen

  class StepList {
    constructor(onStep) {
      this.onStep = onStep;
      this.body = el("div", { class: "db-steps-body", role: "list", "aria-label": t("steps.label"), tabindex: "0" });
      const head = el("div", { class: "db-step head", "aria-hidden": "true" });
      for (const key of ["index", "fates", "accepted", "text", "ms"]) head.append(el("span", { text: t(`steps.${key}`), title: t(`def.steps.${key}`) }));
      this.node = el("section", { class: "db-steps" }, el("h2", { text: t("steps.title") }), head, this.body);
      this.body.addEventListener("pointerenter", () => this.fill());
      this.body.addEventListener("focus", () => this.fill());
      this.body.addEventListener("mouseover", (event) => this.point(event.target.closest?.(".db-step")));
      this.body.addEventListener("mouseleave", () => this.point(null));
      this.body.addEventListener("keydown", (event) => this.onKey(event));
      this.body.addEventListener("blur", () => this.point(null));
      this.visible = false;
      new IntersectionObserver((entries) => {
        this.visible = entries.at(-1).isIntersecting;
        if (this.visible) this.draw();
      }).observe(this.body);
      this.reset();
    }

    reset() {
      this.rows = new Map();
      this.pending = [];
      this.full = false;
      this.lit = null;
      this.body.classList.remove("tail");
      this.body.replaceChildren(el("p", { class: "db-hint", text: t("steps.empty") }));
    }

    /** Takes steps, which `draw` shows. */
    addAll(steps) {
      for (const step of steps) this.pending.push(step);
    }

    /** While a run goes on, the last rows only, and nothing out of sight: rows that nobody looks at cost the engine its time. */
    draw(done = false) {
      if (!this.pending.length) return;
      if (done || this.full) this.fill();
      else if (this.visible) {
        this.body.classList.add("tail");
        this.body.replaceChildren(...this.pending.slice(-TAIL_ROWS).map((step) => this.row(step)));
      }
    }

    /** Every row, now and for the rest of the run: somebody is in the list, or the run is over. */
    fill() {
      this.full = true;
      if (!this.pending.length) return;
      if (!this.rows.size) this.body.replaceChildren();
      const follows = this.body.scrollHeight - this.body.scrollTop - this.body.clientHeight < 40;
      this.body.classList.remove("tail");
      for (const step of this.pending) {
        const row = this.row(step);
        this.rows.set(step.index, row);
        this.body.append(row);
      }
      this.pending = [];
      if (follows) this.body.scrollTop = this.body.scrollHeight;
    }

    row(step) {
      const fates = el("span", { class: "db-fates", "aria-hidden": "true" });
      for (const draft of step.drafts.slice(0, 24)) fates.append(el("i", { class: draft.fate }));
      const last = step.emitted.at(-1);
      if (last && last.role !== "accepted") fates.append(el("i", { class: last.role }));
      const text = step.emitted.map((token) => token.text).join("");
      const spent = t("steps.times", { draft: D.ms(step.draftMs), verify: D.ms(step.verifyMs), other: D.ms(step.commitMs + step.otherMs) });
      const times = step.noDraft ? `${spent} · ${t("phase.draft.why", { reason: step.noDraft })}` : spent;
      const node = el(
        "div",
        { class: "db-step", role: "listitem", "data-step": step.index, title: times },
        el("span", { class: "i", text: String(step.index) }),
        fates,
        el("span", { class: "n", text: step.drafts.length ? `${step.accepted}/${step.drafts.length}` : "–" }),
        el("span", { class: "tx", text: text ? D.quote(text) : "" }),
        el("span", { class: "ms", text: D.num(step.ms, 1) }),
      );
      const aria = { step: step.index, drafted: step.drafts.length, accepted: step.accepted, text, ms: D.num(step.ms, 1) };
      node.setAttribute("aria-label", t("steps.aria", aria));
      return node;
    }

    point(row) {
      const index = row ? Number(row.dataset.step) : null;
      this.highlight(index, false);
      this.onStep(index);
    }

    highlight(index, reveal = true) {
      if (this.lit === index) return;
      if (index !== null) this.fill();
      this.rows.get(this.lit)?.classList.remove("on");
      const row = this.rows.get(index);
      row?.classList.add("on");
      this.lit = index;
      if (row && reveal) {
        const [top, bottom] = [row.offsetTop, row.offsetTop + row.offsetHeight];
        if (top < this.body.scrollTop) this.body.scrollTop = top;
        else if (bottom > this.body.scrollTop + this.body.clientHeight) this.body.scrollTop = bottom - this.body.clientHeight;
      }
    }

    onKey(event) {
      const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!move || !this.rows.size) return;
      event.preventDefault();
      const indices = [...this.rows.keys()];
      const at = indices.indexOf(this.lit);
      const next = indices[Math.min(indices.length - 1, Math.max(0, at < 0 ? 0 : at + move))];
      this.highlight(next);
      this.onStep(next);
    }
  }

  D.StepList = StepList;
})();
