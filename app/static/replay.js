/* Replay: a stored run step by step. Everything is in the browser; nothing is asked of the server while it plays. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const TRUE_TIME = "true";
  const RECORDED = "recorded";
  const STAGE_MS = 120; // cards that nobody could read are not built

  /** A lane by its drafter and draft length. */
  const laneName = (lane) => {
    const name = D.drafterName(lane.drafter);
    return lane.drafter === "null" ? name : `${name} γ ${lane.gamma}`;
  };

  /** Sums up to each step: tokens, passes and accepted draft tokens. */
  const runningSums = (steps) => {
    let [tokens, accepted, drafted] = [0, 0, 0];
    return steps.map((step) => {
      tokens += step.emitted.length;
      accepted += step.accepted;
      drafted += step.drafts.length;
      return { tokens, accepted, drafted };
    });
  };

  class Replay {
    constructor(root) {
      this.root = root;
      this.title = el("p", { class: "db-replay-title" });
      this.badge = D.recordedBadge({ hidden: true });
      this.origin = el("p", { class: "db-hint db-replay-origin" });
      this.prompt = el("pre", { class: "db-replay-prompt" });
      this.lanes = el("div", { class: "db-switch db-replay-lanes", role: "group", "aria-label": t("replay.lanes") });
      this.caption = el("p", { class: "db-replay-caption", "aria-live": "polite" });
      this.text = new D.ReplayText((index) => this.jump(index));
      this.phases = new D.ReplayPhases();
      this.cards = new D.ReplayCards();
      this.tree = new D.DraftTree((step, draft) => this.describe(draft));
      this.window = new D.ReplayWindow();
      this.playback = new D.Playback(
        (position) => this.draw(position),
        (playing) => this.playing(playing),
      );
      this.speed = D.store.get("replay.speed") ?? "1";
      if (this.speed !== TRUE_TIME && !D.SPEEDS.includes(Number(this.speed))) this.speed = "1";
      this.controls = new D.PlayControls({
        playback: this.playback,
        more: [[TRUE_TIME, t("play.true")]],
        speed: this.speed,
        step: (direction) => this.step(direction),
        scrub: (value) => this.jump(value - 1),
        chooseSpeed: (value) => this.chooseSpeed(value),
        label: t("replay.scrubber"),
      });
      this.build();
      this.controls.listen();
    }

    build() {
      const head = el("div", { class: "db-replay-head" }, this.badge, this.title, this.lanes);
      const prompt = el("details", { class: "db-replay-ask" }, el("summary", { text: t("replay.prompt") }), this.prompt);
      const main = el("section", { class: "db-replay-card db-replay-main" }, head, this.origin, prompt, this.controls.node, this.caption, this.text.node);
      const stage = el("section", { class: "db-replay-card db-replay-stage" }, el("h2", { text: t("replay.stage") }), this.cards.node);
      const side = el("div", { class: "db-replay-side" }, this.phases.node, this.window.node);
      this.root.replaceChildren(main, stage, this.tree.node, side, el("p", { class: "db-hint db-replay-keys", text: t("replay.keys") }));
    }

    /** Loads the run of the address, or the recorded one; plays the latter by itself, as nobody asked for anything yet. */
    async load() {
      const asked = new URLSearchParams(location.search).get("run");
      const run = await D.answer(`board/trace/${encodeURIComponent(asked ?? RECORDED)}`);
      if (run.error) {
        this.root.replaceChildren(el("p", { class: "db-alarm", role: "alert", text: run.error }), el("p", {}, el("a", { href: "replay", text: t("replay.instead") })));
        return;
      }
      this.show(run);
      if (!asked && !D.wantsNoMovement()) this.playback.play();
    }

    show(run) {
      this.run = run;
      this.badge.hidden = !run.recorded;
      D.write(this.title, run.title);
      const place = [run.device, run.dtype].filter(Boolean).join(" · ");
      D.write(this.origin, t("replay.origin", { model: run.model || "–", at: D.when(run.at), place: place || "–" }));
      const playable = run.lanes.filter((lane) => lane.steps.length);
      this.lanes.hidden = playable.length < 2;
      const names = new Set(playable.map(laneName));
      this.lanes.replaceChildren(
        ...playable.map((lane) => {
          const text = names.size === playable.length ? laneName(lane) : lane.label || laneName(lane); // a prompt set has a lane many times
          const button = el("button", { type: "button", text, title: lane.label || null });
          button.addEventListener("click", () => this.choose(lane));
          lane.button = button;
          return button;
        }),
      );
      this.choose(playable.find((lane) => lane.drafter !== "null") ?? playable[0]);
    }

    choose(lane) {
      this.playback.pause();
      for (const button of this.lanes.children) button.setAttribute("aria-pressed", String(button === lane.button));
      this.lane = lane;
      this.steps = lane.read ??= lane.steps.map(D.readReplayStep);
      this.sums = runningSums(this.steps);
      this.timelines = { teach: new D.Timeline(this.steps, "teach"), [TRUE_TIME]: new D.Timeline(this.steps, TRUE_TIME) };
      D.write(this.prompt, lane.prompt);
      this.text.reset(this.steps);
      this.tree.reset();
      this.window.reset(this.steps);
      this.staged = { at: -Infinity };
      this.pace();
      this.playback.seek(0);
    }

    get timeline() {
      return this.timelines[this.speed === TRUE_TIME ? TRUE_TIME : "teach"];
    }

    pace() {
      this.playback.length = this.timeline.length;
      this.playback.speed = this.speed === TRUE_TIME ? 1 : Number(this.speed);
    }

    chooseSpeed(value) {
      const before = this.timeline;
      this.speed = value;
      D.store.set("replay.speed", value);
      const position = before.translate(this.playback.position, this.timeline);
      this.pace();
      this.playback.seek(position);
    }

    playing(on) {
      this.controls.setPlaying(on);
      this.caption.setAttribute("aria-live", on ? "off" : "polite"); // a screen reader hears steps, not a film
      if (!on) this.draw(this.playback.position);
    }

    /** A whole step forward or back, half ones are phases, infinite ones the ends. */
    step(direction) {
      const { timeline, playback } = this;
      if (!Number.isFinite(direction)) playback.seek(direction > 0 ? timeline.length : 0);
      else if (Math.abs(direction) < 1) playback.seek(timeline.neighbour(playback.position, direction));
      else {
        const done = this.done();
        this.jump((direction > 0 ? done + 1 : this.at.phase < 5 ? done : done - 1) - 1);
      }
    }

    /** How many steps are over. */
    done() {
      const { index, phase } = this.at;
      return phase >= 5 ? index + 1 : index;
    }

    /** To the end of a step, -1 to the beginning of all. */
    jump(index) {
      this.playback.seek(index < 0 ? 0 : this.timeline.ends[Math.min(index, this.steps.length - 1)]);
    }

    draw(position) {
      const { index, phase, share } = this.timeline.locate(position);
      this.text.show(phase >= 5 ? index + 1 : Math.max(0, index));
      this.at = { index, phase };
      this.controls.show(this.done(), this.steps.length, this.where(position));
      if (index === this.staged.index || !this.playback.playing || performance.now() - this.staged.at > STAGE_MS) this.drawStage(index, phase, share);
      else this.text.hang([]);
    }

    /** The step under way: built once, then revealed bit by bit. */
    drawStage(index, phase, share) {
      const step = this.steps[index] ?? null;
      const before = this.staged;
      const fresh = index !== before.index;
      if (fresh) {
        this.cards.build(step, this.lane);
        this.phases.describe(step, this.lane);
        if (step?.tree) this.tree.show(step);
        else this.tree.node.hidden = true;
        this.window.show(step, index);
      }
      const { arrived, judged } = this.cards.reveal(phase, share);
      const turned = fresh || phase !== before.phase;
      if (turned || arrived !== before.arrived || judged !== before.judged) this.text.hang(this.hanging(step, phase, arrived, judged));
      if (turned) this.turn(step, index, phase);
      this.staged = { index, phase, arrived, judged, at: fresh ? performance.now() : before.at };
    }

    turn(step, index, phase) {
      this.phases.mark(phase, step !== null);
      this.text.mark(phase >= 5 ? index : -1);
      this.tree.node.classList.toggle("undecided", phase < 2);
      D.write(this.caption, step ? D.replayCaption(step, this.lane, phase) : t("replay.start"));
      if (!step) {
        this.phases.figure({});
        return;
      }
      const { tokens, accepted, drafted } = this.sums[index];
      this.phases.figure({
        step: t("replay.of", { n: index + 1, all: this.steps.length }),
        time: D.ms(step.at),
        passes: t("replay.passes", { n: index + 1, tokens: D.num(tokens / (index + 1), 2) }),
        tokens: String(tokens),
        accepted: drafted ? t("replay.accepted", { accepted, drafted, share: D.percent(accepted / drafted) }) : "–",
        kv: this.kv(step),
      });
    }

    kv(step) {
      const bytes = this.run.kv_bytes ? ` · ${D.num((step.slots * this.run.kv_bytes) / 2 ** 20, 1)} MiB` : "";
      return `${t("replay.kv", { slots: step.slots })}${bytes}`;
    }

    /** The draft behind the text: of a tree the tested path, which is only known with the verdict. */
    hanging(step, phase, arrived, judged) {
      if (!step || phase >= 5) return [];
      const state = (draft, place) => (place < judged ? { A: "accepted", R: "rejected" }[draft.fate] ?? "untested" : "drafted");
      const cards = this.cards.cards.slice(0, step.tree ? judged : arrived);
      const tokens = cards.map(({ draft }, place) => [draft.text || `#${draft.id}`, state(draft, place)]);
      if (phase >= 3 && step.last && step.last.role !== "accepted" && step.drafts.length) tokens.push([step.last.text, step.last.role]);
      return tokens;
    }

    where(position) {
      const step = t("replay.of", { n: this.done(), all: this.steps.length });
      return this.speed === TRUE_TIME ? `${D.num(position / 1000, 2)} s · ${step}` : step;
    }

    describe(draft) {
      const rows = el("dl", { class: "db-pop-rows" });
      for (const [label, value] of [["token.id", draft.id], ["token.q", D.probability(draft.q)], ["token.p", D.probability(draft.p)]])
        rows.append(el("dt", { text: t(label) }), el("dd", { text: String(value) }));
      return [el("div", { class: "db-pop-head" }, el("span", { class: "db-pop-text", text: D.quote(draft.text) }), el("span", { text: t(`role.${D.fateName(draft)}`) })), rows];
    }
  }

  D.mountReplay = ({ element }) => new Replay(element.querySelector(".db-replay")).load();
})();
