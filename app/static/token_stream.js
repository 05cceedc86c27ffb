/* The token stream: every step of the target as chips, each with its fate, and the popover of a chip. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const ROLES = { a: "accepted", c: "correction", b: "bonus", p: "plain" };
  const FATES = { A: "accepted", R: "rejected", U: "untested", I: "ignored" };
  D.fateName = (draft) => FATES[draft.fate];
  const BLOCK_STEPS = 8;
  const MARKS = ["accepted", "rejected", "correction", "bonus", "plain", "untested"];

  /** A step event in the shape that the views read: drafts and emitted tokens as objects. */
  D.readStep = (event) => {
    const [ids, roles, texts, places, p, gaps] = event.e;
    const drafts = [];
    if (event.d) {
      const [draftIds, parents, fates, q, draftP, u, draftTexts, confidences] = event.d;
      for (let i = 0; i < draftIds.length; i++) {
        const parent = parents[i];
        const depth = parent < 0 ? 0 : drafts[parent].depth + 1;
        const values = { q: q[i], p: draftP[i], u: u[i], confidence: confidences?.[i] ?? null };
        drafts.push({ id: draftIds[i], parent, depth, fate: fates[i], text: draftTexts[i], ...values });
      }
    }
    const emitted = ids.map((id, i) => ({ id, role: ROLES[roles[i]], text: texts[i], draft: drafts[places[i]] ?? null, p: p[i], gap: gaps[i] }));
    const [draftMs, verifyMs, commitMs, otherMs] = event.t;
    const ms = draftMs + verifyMs + commitMs + otherMs;
    const accepted = drafts.filter((draft) => draft.fate === "A").length;
    const tree = drafts.some((draft, i) => draft.parent !== i - 1);
    return { index: event.i, drafts, emitted, accepted, tree, draftMs, verifyMs, commitMs, otherMs, ms, batch: event.b ?? 1, window: event.w ?? 0, noDraft: event.nd ?? "" };
  };

  /** What the draw of a tested token had to stay below; null where none was drawn. */
  D.drawBound = ({ p, q, u }) => (D.known(u) && D.known(p) && q > 0 ? Math.min(1, p / q) : null);

  class TokenStream {
    /** `onStep(index or null)` hears which step the person points at. */
    constructor(onStep) {
      this.onStep = onStep;
      this.marked = false;
      this.node = el("div", { class: "db-stream", role: "listbox", "aria-label": t("stream.label"), tabindex: "-1" });
      this.node.addEventListener("mouseover", (event) => this.point(event.target.closest?.(".tk")));
      this.node.addEventListener("mouseleave", () => this.point(null));
      this.node.addEventListener("focusin", (event) => this.point(event.target.closest?.(".tk")));
      this.node.addEventListener("focusout", () => this.point(null));
      this.node.addEventListener("keydown", (event) => this.onKey(event));
      this.reset();
    }

    reset(greedy = true) {
      this.greedy = greedy;
      this.pending = [];
      this.chips = [];
      this.steps = new Map();
      this.count = 0;
      this.follows = false;
      this.active = null;
      this.lit = null;
      this.node.replaceChildren();
      this.turn();
      D.popover.hide();
    }

    /** Appends steps; `settle` brings the end into view unless the person had scrolled up. */
    addAll(steps) {
      this.follows = this.node.scrollHeight - this.node.scrollTop - this.node.clientHeight < 40; // before anything changes it is free
      for (const step of steps) this.add(step);
    }

    /** The one forced layout of an update: called when everything else is written. */
    settle() {
      if (this.follows) this.node.scrollTop = this.node.scrollHeight;
      this.follows = false;
    }

    add(step) {
      const group = el("span", { class: "st", "data-step": step.index });
      this.steps.set(step.index, group);
      const split = step.emitted.findIndex((token) => token.role !== "accepted");
      const kept = split < 0 ? step.emitted : step.emitted.slice(0, split);
      for (const token of kept) this.emit(group, step, token);
      for (const draft of step.drafts) if (draft.fate !== "A") group.append(this.draftChip(step, draft));
      if (split >= 0) for (const token of step.emitted.slice(split)) this.emit(group, step, token);
      this.block.append(group);
      this.turn(group);
    }

    /** Begins a new block at a line break once the last is long, so that the browser lays out only the end of a long text. */
    turn(group) {
      if (group && (this.block.childElementCount < BLOCK_STEPS || !group.lastElementChild?.draftboard.text.endsWith("\n"))) return;
      this.block = el("div", { role: "presentation" });
      this.node.append(this.block);
    }

    /** Shows the tokens without a text when the run is over: the end token, or pieces of a character that never was complete. */
    flush(ended) {
      const group = this.block.lastElementChild ?? this.block;
      this.pending.forEach((piece, i) => {
        const name = piece.token.draft?.text ?? "";
        const isEnd = ended && i === this.pending.length - 1;
        const text = D.isSpecial(name) ? name : isEnd ? t("token.eos") : `#${piece.token.id}`;
        const chip = this.chip([piece], text, piece.token.role, true);
        chip.classList.add("loose"); // a name, not a part of the text
        group?.append(chip);
      });
      this.pending = [];
    }

    emit(group, step, token) {
      this.pending.push({ step, token, position: this.count++ });
      if (!token.text) return;
      group.append(this.chip(this.pending, token.text, token.role, D.isSpecial(token.text)));
      this.pending = [];
    }

    chip(pieces, text, role, boxed) {
      const mixed = new Set(pieces.map((piece) => piece.token.role)).size > 1;
      const node = el("span", { class: `tk ${role}${boxed ? " boxed" : ""}${mixed ? " mixed" : ""}` });
      return this.finish(node, text, { pieces, text, role, boxed });
    }

    draftChip(step, draft) {
      const fate = FATES[draft.fate];
      const boxed = D.isSpecial(draft.text);
      const node = el("span", { class: `tk draft ${fate === "ignored" ? "untested" : fate}${boxed ? " boxed" : ""}` });
      return this.finish(node, draft.text || `#${draft.id}`, { step, draft, text: draft.text, role: fate, boxed });
    }

    finish(node, text, record) {
      record.shown = text;
      fill(node, text, Boolean(record.draft), this.marked);
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", "false");
      node.setAttribute("aria-label", `${D.quote(text)}: ${t(`role.${record.role}`)}`);
      node.tabIndex = this.chips.length ? -1 : 0;
      if (!this.active) this.active = node;
      record.node = node;
      record.index = this.chips.length;
      node.draftboard = record;
      this.chips.push(record);
      return node;
    }

    /** Shows marks for blanks, or takes them away: an unmarked chip is one piece of text, since every element in it is paid for at each frame. */
    mark(on) {
      this.marked = on;
      for (const { node, shown, draft } of this.chips) {
        if (!/[ \t\n\r]/.test(shown)) continue;
        node.replaceChildren();
        fill(node, shown, Boolean(draft), on);
      }
    }

    point(chip) {
      const record = chip?.draftboard;
      if (record) D.popover.show(chip, ...this.describe(record));
      else if (D.popover.anchor?.classList.contains("tk")) D.popover.hide();
      const step = record ? (record.step ?? record.pieces.at(-1).step).index : null;
      this.highlight(step);
      this.onStep(step);
    }

    highlight(index) {
      if (this.lit === index) return;
      this.steps.get(this.lit)?.classList.remove("on");
      this.steps.get(index)?.classList.add("on");
      this.lit = index;
    }

    onKey(event) {
      const here = event.target.draftboard;
      if (!here) return;
      const shown = (record) => record.node.offsetParent !== null;
      let next = null;
      if (event.key === "ArrowRight") next = this.chips.slice(here.index + 1).find(shown);
      else if (event.key === "ArrowLeft") next = this.chips.slice(0, here.index).findLast(shown);
      else if (event.key === "Home") next = this.chips.find(shown);
      else if (event.key === "End") next = this.chips.findLast(shown);
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") next = this.neighbour(here, event.key === "ArrowDown");
      else return;
      event.preventDefault();
      if (!next) return;
      here.node.tabIndex = -1;
      this.active = next.node;
      next.node.tabIndex = 0;
      next.node.focus({ preventScroll: false });
    }

    /** The first chip of the next step, or of the step before. */
    neighbour(here, forward) {
      const index = Number(here.node.parentElement.dataset.step);
      const other = this.steps.get(forward ? index + 1 : index - 1);
      return other?.querySelector(".tk")?.draftboard;
    }

    describe(record) {
      const head = el(
        "div",
        { class: "db-pop-head" },
        el("span", { class: "db-pop-text", text: record.text ? D.quote(record.text) : t("token.partial") }),
        el("span", { class: `db-tag ${record.role}`, text: t(`role.${record.role}`) }),
      );
      const rows = el("dl", { class: "db-pop-rows" });
      const row = (label, value) => rows.append(el("dt", { text: label }), el("dd", { text: value }));
      if (record.draft) {
        this.draftRows(row, record.step, record.draft);
        return [head, rows, el("p", { class: "db-pop-note", text: t(`fate.${record.role}.note`) })];
      }
      const { step, token, position } = record.pieces.at(-1);
      row(t("token.id"), record.pieces.map((piece) => piece.token.id).join(" + "));
      row(t("token.p"), D.probability(token.p ?? token.draft?.p));
      if (token.draft) {
        row(t("token.q"), D.probability(token.draft.q));
        this.drawRow(row, token.draft);
      }
      if (D.known(token.gap)) row(t("token.gap"), D.num(token.gap, 3));
      row(t("token.position"), t("token.position.value", { position, step: step.index }));
      row(t("token.times"), `${D.ms(step.draftMs)} / ${D.ms(step.verifyMs)}`);
      const notes = [t(`role.${token.role}.note`)];
      if (record.pieces.length > 1) notes.push(t("token.merged", { n: record.pieces.length }));
      return [head, rows, ...notes.map((text) => el("p", { class: "db-pop-note", text }))];
    }

    draftRows(row, step, draft) {
      row(t("token.id"), String(draft.id));
      row(t("token.p"), D.probability(draft.p));
      row(t("token.q"), D.probability(draft.q));
      if (D.known(draft.confidence)) row(t("token.confidence"), D.probability(draft.confidence));
      if (draft.fate === "R") this.drawRow(row, draft);
      row(t("token.position"), t("token.depth.value", { depth: draft.depth + 1, step: step.index }));
      row(t("token.times"), `${D.ms(step.draftMs)} / ${D.ms(step.verifyMs)}`);
    }

    drawRow(row, draft) {
      const bound = D.drawBound(draft);
      if (bound === null) row(t("token.draw"), t(this.greedy ? "token.draw.greedy" : "token.draw.none"));
      else row(t("token.draw"), `${D.num(draft.u, 4)} ${draft.fate === "A" ? "≤" : ">"} ${D.num(bound, 4)}`);
    }
  }

  /** Puts text into a chip; where they are `marked`, and in drafts, blanks become elements that show a mark without moving the text. */
  function fill(node, text, inline, marked) {
    if (!(marked || inline) || !/[ \t\n\r]/.test(text)) {
      node.textContent = text;
      return;
    }
    const blank = !text.trim();
    for (const part of text.split(/([ \t\n\r])/)) {
      if (!part) continue;
      if (part === "\n") {
        const mark = el("span", { class: "ws nl", "data-mark": "↵" });
        if (inline) mark.classList.add("always");
        node.append(mark);
        if (!inline) node.append("\n");
      } else if (part === " " || part === "\t" || part === "\r") {
        node.append(el("span", { class: "ws", "data-mark": part === " " ? (blank ? "␣" : "·") : part === "\t" ? "→" : "␍", text: part }));
      } else {
        node.append(part);
      }
    }
  }

  /** A switch for one class of the stream; the browser keeps the choice. */
  function toggle(stream, key, label, on, className, sample, changed = () => {}) {
    const button = el("button", { type: "button", class: `db-key ${className}`, title: t("legend.toggle") });
    button.append(el("span", { class: `db-sample mark ${className}`, text: sample, "aria-hidden": "true" }), el("span", { text: label }));
    const apply = (value) => {
      button.setAttribute("aria-pressed", String(value));
      stream.classList.toggle(`no-${key}`, !value);
      D.store.set(`show.${key}`, value ? "1" : "0");
      changed(value);
    };
    const kept = D.store.get(`show.${key}`);
    apply(kept === null ? on : kept === "1");
    button.addEventListener("click", () => apply(button.getAttribute("aria-pressed") !== "true"));
    return button;
  }

  /** The legend: the marks as they look in the stream, each a switch. */
  D.legend = (stream) => {
    const node = el("div", { class: "db-legend", role: "group", "aria-label": t("legend.label") });
    for (const mark of MARKS) node.append(toggle(stream, mark, t(`role.${mark}`), mark !== "untested", mark, "abc"));
    return node;
  };

  /** The switch for visible blanks. */
  D.blanksSwitch = (stream) => toggle(stream.node, "blanks", t("legend.blanks"), false, "blanks", "·↵", (on) => stream.mark(on));

  D.TokenStream = TokenStream;
})();
