/* What the Playground shows before anything was run: the recorded run, written once at its own pace, while the model loads. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const TICK_MS = 100; // as often as a real run is drawn; no frames are asked for in between

  class Teaser {
    constructor() {
      this.badge = D.recordedBadge();
      this.about = el("span", {});
      this.text = el("p", { class: "db-teaser-text", "aria-hidden": "true" });
      this.node = el(
        "figure",
        { class: "db-teaser", hidden: true },
        el("figcaption", {}, this.badge, this.about, el("a", { href: "replay", text: t("teaser.link") })),
        el("div", { class: "db-teaser-box" }, this.text),
      );
      if (!new URLSearchParams(location.search).has("run")) this.load();
    }

    async load() {
      const run = await D.answer("board/trace/recorded");
      if (run.error) return;
      const lane = run.lanes.find((one) => one.drafter !== "null") ?? run.lanes[0];
      D.write(this.about, t("teaser.about", { drafter: D.drafterName(lane.drafter), gamma: lane.gamma, tps: D.num(lane.m.tps, 0) }));
      this.steps = lane.steps.map(D.readStep);
      this.ends = lane.steps.map((event) => event.at);
      this.node.hidden = false;
      this.begin = performance.now();
      this.next = 0;
      this.tick(D.wantsNoMovement() ? Infinity : 0);
    }

    /** Writes the steps that are over; ends with the text, or when a run takes its place. */
    tick(elapsed) {
      if (this.node.offsetParent === null && this.next) return;
      const fresh = [];
      for (; this.next < this.steps.length && this.ends[this.next] <= elapsed; this.next++)
        for (const token of this.steps[this.next].emitted) if (token.text) fresh.push(el("span", { class: `mark ${token.role}`, text: token.text }));
      this.text.append(...fresh);
      if (this.next < this.steps.length) setTimeout(() => this.tick(performance.now() - this.begin), TICK_MS);
    }
  }

  D.Teaser = Teaser;
})();
