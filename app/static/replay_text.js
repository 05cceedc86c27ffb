/* The text of a replay: what is committed so far, and behind it the draft tokens of the step under way. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const BLOCK_STEPS = 8;
  const STEPS_A_FRAME = 40; // a jump over a long text is drawn in several frames

  class ReplayText {
    /**
     * `onPick(index)` hears which step the person clicked; `decorate(chip, step, place, covered)` may add to a chip, which shows the
     * token at that place of the step and `covered` pieces of characters before it.
     */
    constructor(onPick, decorate) {
      this.decorate = decorate;
      this.frame = null;
      this.body = el("div", { class: "db-replay-lines" });
      this.pending = el("span", { class: "db-replay-pending" });
      this.node = el("div", { class: "db-replay-text", tabindex: "0", role: "region", "aria-label": t("replay.text") }, this.body);
      this.body.addEventListener("click", (event) => {
        const group = event.target.closest?.(".st");
        if (group) onPick(Number(group.dataset.step));
      });
      this.reset([]);
    }

    reset(steps) {
      this.steps = steps;
      this.pieces = 0;
      this.groups = [];
      this.shown = 0;
      this.wanted = 0;
      this.block = null;
      this.lit = null;
      this.body.replaceChildren(this.pending);
      this.pending.replaceChildren();
    }

    /** Shows the committed text of the first `count` steps, of a long jump in as many frames as it takes. */
    show(count) {
      this.wanted = count;
      let left = STEPS_A_FRAME;
      while (this.shown < count && left-- > 0) this.append();
      while (this.shown > count && left-- > 0) this.remove();
      if (this.shown !== count) this.frame ??= requestAnimationFrame(() => this.goOn());
    }

    goOn() {
      this.frame = null;
      this.show(this.wanted);
    }

    append() {
      const index = this.shown++;
      this.groups[index] ??= this.group(this.steps[index], index);
      this.groups[index].classList.toggle("on", index === this.lit); // marked before a long jump came to it
      if (!this.block || (this.block.childElementCount >= BLOCK_STEPS && this.groups[index - 1]?.textContent.endsWith("\n"))) {
        this.block = el("div", { role: "presentation" });
        this.body.append(this.block);
      }
      this.block.append(this.groups[index], this.pending);
    }

    remove() {
      this.groups[--this.shown].remove();
      if (!this.block.querySelector(".st")) {
        this.pending.remove();
        this.block.remove();
        this.block = this.body.lastElementChild;
      }
      (this.block ?? this.body).append(this.pending);
    }

    group(step, index) {
      const group = el("span", { class: "st", "data-step": index });
      step.emitted.forEach((token, place) => {
        if (!token.text) {
          this.pieces += 1; // a piece of a character that a later token completes, or the end token
          return;
        }
        const chip = el("span", { class: `tk ${token.role}`, text: token.text });
        this.decorate?.(chip, step, place, this.pieces);
        this.pieces = 0;
        group.append(chip);
      });
      return group;
    }

    /** The step that the stage shows. */
    mark(index) {
      if (this.lit === index) return;
      this.groups[this.lit]?.classList.remove("on");
      this.groups[index]?.classList.add("on");
      this.lit = index;
    }

    /** Draft tokens that hang behind the committed text: [text, state]. */
    hang(tokens) {
      if (!tokens.length && !this.pending.firstChild) return;
      this.pending.replaceChildren(...tokens.map(([text, state]) => el("span", { class: `tk ${state}`, text })));
    }
  }

  D.ReplayText = ReplayText;
})();
