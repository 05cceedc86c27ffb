/* The lanes side by side: live while they are measured, then played back together in true time, aligned by token position. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const SCRUB_MS = 10; // what one move of the scrubber is worth

  /** A lane for people, by its drafter, draft length and settings. */
  D.laneTitle = ({ drafter, gamma, options }) => {
    const name = D.drafterName(drafter);
    return drafter === "null" ? name : [`${name} γ ${gamma}`, ...D.settingNames(options)].join(", ");
  };

  class LaneView {
    constructor(place, lane, decorate) {
      this.title = D.laneTitle(lane);
      this.steps = [];
      this.state = el("p", { class: "db-lane-state" });
      this.medal = el("span", { class: "db-lane-medal", hidden: true });
      this.text = new D.ReplayText(() => {}, decorate);
      this.text.node.setAttribute("aria-label", t("compare.text", { lane: this.title }));
      this.node = el(
        "section",
        { class: `db-lane lane-${place + 1}`, "data-lane": place },
        el("h3", {}, D.laneSign(place), el("span", { text: this.title }), this.medal),
        this.state,
        this.text.node,
      );
      this.reset();
    }

    reset() {
      this.steps.length = 0;
      this.tokens = [];
      this.text.reset(this.steps);
      this.say("compare.state.waiting");
    }

    add(step) {
      step.first = this.tokens.length;
      this.steps.push(step);
      this.tokens.push(...step.emitted);
    }

    say(key, values) {
      D.write(this.state, t(key, values));
      this.node.dataset.state = key.split(".").at(-1);
    }

    /** How many steps are over at a moment. */
    stepsAt(position) {
      let [low, high] = [0, this.steps.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.steps[middle].at <= position) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    get end() {
      return this.steps.at(-1)?.at ?? 0;
    }
  }

  class CompareLanes {
    constructor() {
      this.lanes = [];
      this.grid = el("div", { class: "db-lanes" });
      this.note = el("p", { class: "db-hint db-lanes-note" });
      this.playback = new D.Playback(
        (position) => this.draw(position),
        (playing) => this.controls.setPlaying(playing),
      );
      this.controls = new D.PlayControls({
        playback: this.playback,
        speed: "1",
        step: (direction) => this.step(direction),
        scrub: (value) => this.playback.seek(value * SCRUB_MS),
        chooseSpeed: (value) => (this.playback.speed = Number(value)),
        label: t("compare.scrubber"),
      });
      this.controls.node.hidden = true;
      this.node = el("section", { class: "db-replay-card db-lanes-card", hidden: true }, el("h2", { text: t("compare.board") }), this.controls.node, this.note, this.grid);
      this.grid.addEventListener("mouseover", (event) => this.point(event.target.closest?.(".tk")));
      this.grid.addEventListener("mouseleave", () => this.point(null));
      this.controls.listen();
    }

    /** New lanes, empty. */
    show(lanes, way) {
      this.playback.pause();
      this.ids = null;
      this.lanes = lanes.map((lane, place) => new LaneView(place, lane, (chip, step, i, covered) => this.decorate(place, chip, step, i, covered)));
      this.grid.replaceChildren(...this.lanes.map((lane) => lane.node));
      this.grid.style.setProperty("--lanes", lanes.length);
      this.node.hidden = false;
      this.controls.node.hidden = true;
      D.write(this.note, t(`compare.note.${way}`));
    }

    lane(place) {
      return this.lanes[Number(place)];
    }

    /** Tokens that come while a lane is measured. */
    add(place, events) {
      const lane = this.lane(place);
      for (const event of events) lane.add(D.readReplayStep(event));
      lane.text.show(lane.steps.length);
      lane.say("compare.state.measuring", { n: lane.tokens.length });
    }

    /** All lanes are known: marks where they differ from the reference, and gets ready to play them back. */
    finish(traces, summary) {
      this.lanes.forEach((lane, place) => {
        lane.reset();
        for (const event of traces[place]?.steps ?? []) lane.add(D.readReplayStep(event));
        const rank = summary.ranking.indexOf(place);
        lane.medal.hidden = rank < 0;
        D.write(lane.medal, rank < 0 ? "" : t("compare.rank", { n: rank + 1 }));
        lane.figures = summary.lanes[place];
      });
      const reference = summary.agreement?.reference ?? 0;
      this.reference = reference;
      this.ids = this.lanes[reference].tokens.map((token) => token.id);
      for (const lane of this.lanes) lane.text.reset(lane.steps);
      this.moments = D.distinct(this.lanes.flatMap((lane) => lane.steps.map((step) => step.at)));
      this.playback.length = Math.max(0, ...this.lanes.map((lane) => lane.end));
      this.controls.node.hidden = !this.playback.length;
      this.playback.seek(this.playback.length);
    }

    /** From the beginning, unless the person wants no movement. */
    play() {
      if (D.wantsNoMovement()) return;
      this.playback.seek(0);
      this.playback.play();
    }

    /** Puts its position, or positions, on a chip, and the mark where the reference has another token there. */
    decorate(place, chip, step, i, covered) {
      const last = step.first + i;
      chip.dataset.position = last;
      if (!this.ids || place === this.reference) return;
      const tokens = this.lanes[place].tokens;
      for (let position = last - covered; position <= last; position++)
        if (position < this.ids.length && tokens[position]?.id !== this.ids[position]) chip.classList.add("db-diff");
    }

    /** Lights the same position in all lanes. */
    point(chip) {
      for (const lit of this.grid.querySelectorAll(".db-same")) lit.classList.remove("db-same");
      if (!chip?.dataset.position) {
        D.popover.hide();
        return;
      }
      const position = Number(chip.dataset.position);
      const rows = el("dl", { class: "db-pop-rows" });
      this.lanes.forEach((lane, place) => {
        lane.node.querySelector(`[data-position="${position}"]`)?.classList.add("db-same");
        const token = lane.tokens[position];
        rows.append(el("dt", { text: `${place + 1} ${lane.title}` }), el("dd", { text: token ? D.quote(token.text || `#${token.id}`) : "–" }));
      });
      D.popover.show(chip, el("div", { class: "db-pop-head" }, el("span", { class: "db-pop-text", text: t("compare.position", { n: position }) })), rows);
    }

    step(direction) {
      const { playback, moments } = this;
      if (!Number.isFinite(direction)) playback.seek(direction > 0 ? playback.length : 0);
      else if (direction > 0) playback.seek(moments.find((moment) => moment > playback.position + 0.01) ?? playback.length);
      else playback.seek(moments.findLast((moment) => moment < playback.position - 0.01) ?? 0);
    }

    draw(position) {
      for (const lane of this.lanes) {
        const count = lane.stepsAt(position + 1e-6);
        lane.text.show(count);
        const last = lane.steps[count - 1];
        const n = last ? last.first + last.emitted.length : 0;
        const over = count === lane.steps.length && count > 0;
        if (over) lane.say("compare.state.done", { n, time: D.num(lane.end / 1000, 2), tps: D.num(lane.figures?.tokens_per_s, 1) });
        else lane.say("compare.state.playing", { n });
      }
      const seconds = t("compare.seconds", { at: D.num(position / 1000, 2), all: D.num(this.playback.length / 1000, 2) });
      this.controls.show(Math.round(position / SCRUB_MS), Math.round(this.playback.length / SCRUB_MS), seconds);
    }
  }

  D.CompareLanes = CompareLanes;
})();
