/* Compare: starts a comparison, follows it, finds it again after a reload, and shows what it found. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const LOST_MS = 1500; // before the events are asked for again
  const RECORDED = "recorded-comparison";

  class Compare {
    constructor(root) {
      this.run = null;
      this.source = null;
      this.form = new D.CompareForm({ start: (values) => this.start(values), stop: () => this.stop() });
      this.lanes = new D.CompareLanes();
      this.result = new D.CompareResult();
      this.status = el("p", { class: "db-status", role: "status", "aria-live": "polite" });
      this.badge = D.recordedBadge({ hidden: true });
      this.replay = el("a", { class: "db-link", hidden: true, text: t("nav.replay") });
      this.link = D.copyLink(() => this.run.id);
      const top = el("div", { class: "db-replay-card db-compare-top" }, this.badge, this.status, this.replay, this.link);
      root.replaceChildren(this.form.node, el("div", { class: "db-compare-output" }, top, this.result.node, this.lanes.node));
      this.say("compare.idle");
    }

    /** The run of the address: running or stored; without one the recorded comparison. */
    async load() {
      const offer = await D.answer("board/compare");
      if (offer.error) {
        this.form.say(offer.error);
        return;
      }
      this.form.take(offer);
      if (this.run) return; // somebody was quicker
      const asked = new URLSearchParams(location.search).get("run");
      if (asked && (await this.follow(asked))) return;
      await this.open(asked ?? RECORDED);
    }

    say(key, values) {
      D.write(this.status, t(key, values));
      this.status.dataset.state = key.replace("compare.", "");
    }

    async start(values) {
      this.form.busy(true);
      this.say("compare.starting");
      const answer = await D.answer("board/compare", values);
      if (answer.error) {
        this.form.busy(false);
        this.form.say(answer.error);
        this.say("compare.idle");
        return;
      }
      history.pushState(null, "", `?run=${encodeURIComponent(answer.run_id)}`);
      await this.follow(answer.run_id);
    }

    async stop() {
      if (!this.run) return;
      this.say("compare.stopping");
      await D.answer(`board/compare/${encodeURIComponent(this.run.id)}/stop`, {});
    }

    /** Listens to a comparison of this server process; false when it is none. */
    follow(id) {
      this.opening = null;
      this.source?.close();
      this.run = { id, seq: 0, done: false };
      return new Promise((found) => {
        const source = new EventSource(`board/events/${encodeURIComponent(id)}?after=0`);
        this.source = source;
        source.onmessage = (event) => {
          found(true);
          this.take(JSON.parse(event.data), source);
        };
        source.onerror = () => {
          source.close();
          if (this.source !== source || this.run.done) return;
          if (!this.run.seq) found(false);
          else setTimeout(() => this.source === source && this.again(id), LOST_MS);
        };
      });
    }

    /** The connection broke: goes on with the comparison when it still runs, else shows what is stored. */
    async again(id) {
      if (!(await this.follow(id))) await this.open(id);
    }

    take(message, source) {
      if (source !== this.source) return;
      const fresh = message.ev.slice(Math.max(0, this.run.seq + 1 - message.from));
      this.run.seq = message.seq;
      const steps = new Map();
      for (const event of fresh) {
        if (event.k === "s") {
          if (!steps.has(event.l)) steps.set(event.l, []);
          steps.get(event.l).push(event);
        } else this.note(event, steps);
      }
      this.flush(steps);
    }

    flush(steps) {
      for (const [lane, events] of steps) this.lanes.add(lane, events);
      steps.clear();
    }

    note(event, steps) {
      const run = this.run;
      const lane = event.l === undefined ? null : Number(event.l);
      switch (event.k) {
        case "cmp":
          Object.assign(run, { asked: event, cells: 0 });
          this.badge.hidden = true;
          this.form.busy(true);
          this.form.restore(event.params);
          this.result.hide();
          this.replay.hidden = true;
          this.link.hidden = false;
          this.lanes.show(event.lanes, event.way);
          this.lanes.node.hidden = event.prompts > 1;
          break;
        case "hold":
          this.say("compare.holding", { lane: lane + 1 });
          break;
        case "lane":
          this.flush(steps);
          if (event.attempt > 1) this.lanes.lane(lane).reset();
          if (run.asked.prompts > 1) this.say("compare.cell", { n: run.cells + 1, all: run.asked.prompts * run.asked.lanes.length, title: this.lanes.lane(lane).title });
          else this.say(`compare.measuring.${run.asked.way}`, { n: lane + 1, all: run.asked.lanes.length, title: this.lanes.lane(lane).title });
          break;
        case "cell":
          run.cells += 1;
          break;
        case "odd":
          this.say(event.again ? "compare.odd.again" : "compare.odd", { lane: lane + 1 });
          break;
        case "fin":
          this.flush(steps);
          run.done = true;
          this.source?.close();
          this.open(run.id, true);
          break;
      }
    }

    /** A stored comparison; one that was just measured is played back at once. */
    async open(id, play = false) {
      const opening = (this.opening = {});
      const trace = await D.answer(`board/trace/${encodeURIComponent(id)}`);
      if (this.opening !== opening) return; // another was started or opened meanwhile
      this.form.busy(false);
      if (trace.error || !trace.params?.labels) {
        if (id !== RECORDED) this.form.say(trace.error ?? t("compare.other"));
        this.say("compare.idle");
        return;
      }
      this.run = { id, done: true };
      const { params, summary } = trace;
      if (id !== RECORDED) this.form.restore(params);
      const lanes = params.lanes;
      this.lanes.show(lanes, params.way);
      this.badge.hidden = !trace.recorded;
      this.link.hidden = trace.recorded;
      this.replay.hidden = false;
      this.replay.href = `replay?run=${encodeURIComponent(id)}`;
      if (trace.recorded) this.say("compare.recorded", { title: trace.title });
      else this.say(`compare.${trace.status}`, { n: lanes.length });
      if (summary.lanes) {
        this.result.show(summary, params);
        const single = !params.set.length;
        this.lanes.node.hidden = !single;
        if (single) {
          this.lanes.finish(summary.lanes.map((lane) => trace.lanes[lane.request] ?? null), summary);
          if (play) this.lanes.play();
        }
      }
    }
  }

  D.mountCompare = ({ element }) => {
    const compare = new Compare(element.querySelector(".db-compare"));
    compare.load();
    window.addEventListener("popstate", () => location.reload());
  };
})();
