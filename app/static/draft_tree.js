/* The draft tree of one step: a node a draft token, depth to the right, the accepted path thick. Chains need no picture. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, svg, t } = D;
  const COLUMN = 112;
  const ROW = 24;
  const BOX = { width: 92, height: 18 };
  const ROOT_X = 14;
  const LONGEST = 12; // characters of a token that fit its box

  /** Places of the nodes: leaves in rows from top to bottom, a parent in the middle of its children. */
  const layOut = (drafts) => {
    const children = new Map([[-1, []]]);
    drafts.forEach((draft, i) => {
      children.set(i, []);
      children.get(draft.parent).push(i);
    });
    const places = new Map();
    let rows = 0;
    const place = (node, depth) => {
      const own = children.get(node);
      const ys = own.map((child) => place(child, depth + 1));
      const y = ys.length ? (ys[0] + ys.at(-1)) / 2 : rows++ * ROW + ROW / 2;
      places.set(node, { x: depth === 0 ? ROOT_X : ROOT_X + 16 + (depth - 1) * COLUMN, y, depth });
      return y;
    };
    place(-1, 0);
    return { places, rows, depth: Math.max(...[...places.values()].map((at) => at.depth)) };
  };

  class DraftTree {
    /** `describe(step, draft)` gives the content of a node's popover. */
    constructor(describe) {
      this.describe = describe;
      this.caption = el("span", { class: "db-tree-caption" });
      this.picture = el("div", { class: "db-tree-picture", tabindex: "0", role: "group" });
      this.node = el("section", { class: "db-tree", hidden: true }, el("h2", {}, t("tree.title"), this.caption), this.picture);
      this.reset();
    }

    reset() {
      this.latest = null;
      this.pointed = null;
      this.trees = new Map(); // by number of the step
      this.shown = null;
      this.node.hidden = true;
      this.picture.replaceChildren();
    }

    /** Takes new steps; `draw` shows the last tree unless a step is pointed at. */
    addAll(steps) {
      for (const step of steps) {
        if (!step.tree) continue;
        this.trees.set(step.index, step);
        this.latest = step;
      }
    }

    draw() {
      if (this.latest && !this.pointed) this.show(this.latest);
    }

    /** Shows the tree of the step with this number, which the person points at; null goes back to the last one. */
    point(index) {
      this.pointed = this.trees.get(index) ?? null;
      if (this.pointed) this.show(this.pointed);
      else this.draw();
    }

    show(step) {
      if (this.shown === step) return;
      this.shown = step;
      this.node.hidden = false;
      const { places, rows, depth } = layOut(step.drafts);
      const words = { step: step.index, nodes: step.drafts.length, depth, accepted: step.accepted };
      this.caption.textContent = t("tree.caption", words);
      this.picture.setAttribute("aria-label", t("tree.aria", words));
      const width = ROOT_X + 20 + depth * COLUMN;
      const picture = svg("svg", { width, height: rows * ROW, viewBox: `0 0 ${width} ${rows * ROW}`, "aria-hidden": "true" });
      const edges = svg("g", { class: "edges" });
      const nodes = svg("g");
      const root = places.get(-1);
      nodes.append(svg("circle", { cx: root.x - 6, cy: root.y, r: 5, class: "root" }));
      step.drafts.forEach((draft, i) => {
        const [from, to] = [places.get(draft.parent), places.get(i)];
        const x = draft.parent < 0 ? from.x : from.x + BOX.width;
        const middle = (x + to.x) / 2;
        edges.append(svg("path", { d: `M${x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`, class: draft.fate }));
        nodes.append(this.box(step, draft, to));
      });
      picture.append(edges, nodes);
      this.picture.replaceChildren(picture);
    }

    box(step, draft, { x, y }) {
      const text = D.quote(draft.text || `#${draft.id}`);
      const group = svg("g", { class: `tree-node ${draft.fate}`, transform: `translate(${x} ${y - BOX.height / 2})` });
      group.append(
        svg("rect", { ...BOX, rx: 4 }),
        svg("text", { x: 6, y: 13 }, text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text),
      );
      group.addEventListener("mouseenter", () => D.popover.show(group, ...this.describe(step, draft)));
      group.addEventListener("mouseleave", () => D.popover.hide(group));
      return group;
    }
  }

  D.DraftTree = DraftTree;
})();
