/* The board: listens to a run's numbered deltas, draws them once, and asks for what it missed. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const POLL_MS = 900;
  const SILENT_MS = 15000; // a stream that is open may be silent that long: a run can wait or read a long prompt
  const LOST_AFTER = 4;
  // Every frame costs the engine on the same machine. The server tells of tokens as fast as anybody reads (app/cadence.py); what changes
  // more slowly is drawn with every second or fourth of its messages, never between them.
  const NUMBERS_MS = 450;
  const STEPS_MS = 950;
  const PLOTS_MS = 950;

  const newRun = (id) => ({
    id,
    seq: 0,
    ask: {},
    metrics: {},
    ended: {},
    lane: null,
    batch: 1,
    comparison: null,
    done: false,
    heard: performance.now(),
  });

  class Board {
    /** `server` has snapshot(run, after) and recent(); `open(id)` asks for a stored run and its settings. */
    constructor(element, server, open) {
      this.server = server;
      this.seen = new Set();
      this.run = null;
      this.fetching = false;
      this.source = null;
      this.paces = [
        new D.Pace(NUMBERS_MS, () => this.drawNumbers()),
        new D.Pace(STEPS_MS, () => this.steps.draw(this.run.done)),
        new D.Pace(PLOTS_MS, () => this.panel.drawPlots(this.run)),
        new D.Pace(PLOTS_MS, () => this.tree.draw()),
      ];
      this.stream = new D.TokenStream((index) => this.point(index, this.steps));
      this.steps = new D.StepList((index) => this.point(index, this.stream));
      this.tree = new D.DraftTree((step, draft) => this.stream.describe({ step, draft, text: draft.text, role: D.fateName(draft) }));
      this.panel = new D.Panel();
      this.recent = new D.RecentRuns(server, open);
      this.status = el("p", { class: "db-status", role: "status", "aria-live": "polite" });
      this.link = D.copyLink(() => this.run.id);
      this.replay = el("a", { class: "db-link", hidden: true, text: t("nav.replay"), title: t("run.replay.title") });
      this.meter = el("div", { class: "db-meter", hidden: true }, el("span"));
      this.unsaved = el("p", { class: "db-unsaved", role: "alert", hidden: true });
      this.without = el("ul", { class: "db-without", hidden: true });
      this.empty = this.emptyState();
      this.plainText = el("pre", { class: "db-plain-text" });
      this.plainHead = el("span", { class: "db-plain-head" });
      this.plain = el("details", { class: "db-plain", hidden: true }, el("summary", {}, el("b", { text: t("plain.title") }), this.plainHead), this.plainText);
      this.copy = new D.CopyAs();
      this.copies = el("details", { class: "db-plain", hidden: true }, el("summary", {}, el("b", { text: t("copy.title") })), this.copy.node);
      this.copies.addEventListener("toggle", () => this.copies.open && this.copy.show(this.run.id));
      element.replaceChildren(
        el(
          "div",
          { class: "db-main" },
          el("div", { class: "db-top" }, this.status, this.replay, this.link, D.blanksSwitch(this.stream)),
          this.meter,
          this.unsaved,
          this.without,
          D.legend(this.stream.node),
          el("div", { class: "db-stream-box" }, this.empty, this.stream.node),
          this.plain,
          this.copies,
        ),
        this.panel.node,
        this.tree.node,
        this.steps.node,
        this.recent.node,
      );
      this.say("state.idle");
      document.addEventListener("click", (event) => {
        if (event.target.closest?.("#run")) this.asked();
        else if (event.target.closest?.("#stop") && document.body.classList.contains("db-busy")) {
          this.stopAsked = !this.answered; // the server may not know the run yet: asked again when it does
          this.say("state.stopping");
        }
      });
      setInterval(() => this.poll(), POLL_MS);
    }

    /** Shows a step that the person points at in the other places. */
    point(index, other) {
      other.highlight(index);
      this.tree.point(index);
    }

    emptyState() {
      const words = [el("p", { class: "db-empty-title", text: t("empty.title") }), el("p", { text: t("empty.text") })];
      return el("div", { class: "db-empty" }, ...words, new D.Teaser().node);
    }

    say(key, values) {
      this.status.textContent = t(key, values);
      this.status.dataset.state = key.replace("state.", "");
    }

    /** Takes what the server sent: a notice before a run exists, a delta, or a snapshot. */
    take(text) {
      if (!text) return;
      const message = JSON.parse(text);
      if (!message.run) {
        this.notice(message);
        return;
      }
      if (message.open) this.show(message.run);
      if (!this.run || this.run.id !== message.run) {
        if (this.seen.has(message.run)) return; // an earlier run of this page that still sends
        if (message.from > 1) {
          this.show(message.run);
          this.catchUp();
          return;
        }
        this.show(message.run);
      }
      this.apply(message);
      this.follow();
    }

    /** Listens to the run until its end; while the stream is down, or another process runs it, the poll stands in. */
    follow() {
      const run = this.run;
      if (run.done || this.source) return;
      const source = new EventSource(`board/events/${encodeURIComponent(run.id)}?after=${run.seq}`);
      source.onmessage = (event) => this.take(event.data);
      source.onerror = () => this.unfollow(source);
      this.source = source;
    }

    unfollow(source = this.source) {
      source?.close();
      if (this.source === source) this.source = null;
    }

    /** The person pressed Run: Stop works from now on, whatever the server does meanwhile. */
    asked() {
      this.answered = false;
      this.stopAsked = false;
      this.busy(true);
      this.say("state.starting");
    }

    /** The first sign of the run that was asked for. */
    answer() {
      this.answered = true;
      if (this.stopAsked) {
        this.stopAsked = false;
        setTimeout(() => document.querySelector("#stop")?.click());
      }
    }

    notice({ state, message, progress }) {
      if (state !== "idle") this.answer();
      this.busy(state !== "idle");
      this.meter.hidden = state !== "loading";
      if (state === "loading") {
        this.meter.firstChild.style.width = `${Math.round(100 * progress)}%`;
        this.say("state.loading", { message, percent: Math.round(100 * progress) });
      } else this.say(`state.${state}`);
    }

    show(id) {
      this.unfollow();
      this.seen.add(id);
      this.run = newRun(id);
      this.stream.reset();
      this.steps.reset();
      this.tree.reset();
      this.panel.reset();
      this.plainText.textContent = "";
      this.plainHead.textContent = "";
      this.plain.hidden = true;
      this.plain.open = false;
      this.copies.hidden = true;
      this.copies.open = false;
      this.meter.hidden = true;
      this.link.hidden = true;
      this.replay.hidden = true;
      this.unsaved.hidden = true;
      this.without.hidden = true;
    }

    apply(message) {
      const run = this.run;
      run.heard = performance.now();
      if (message.from > run.seq + 1) {
        this.catchUp();
        return;
      }
      const fresh = message.ev.slice(run.seq + 1 - message.from);
      if (!fresh.length) return;
      Object.assign(run.metrics, message.m);
      const steps = [];
      let turned = false;
      for (const event of fresh) {
        if (event.k === "s" && event.l === "main") steps.push(D.readStep(event));
        else this.note(event);
        if (event.k === "s") {
          run.lane = event.l;
          run.batch = Math.max(run.batch, event.b ?? 1);
        } else turned = true;
      }
      run.seq = message.seq;
      if (steps.length) {
        this.empty.hidden = true;
        this.stream.addAll(steps);
        this.steps.addAll(steps);
        this.tree.addAll(steps);
      }
      if (run.done) {
        this.unfollow();
        this.stream.flush(run.ended.main === "stop");
      }
      for (const pace of this.paces) pace.ask(turned);
      this.stream.settle();
    }

    drawNumbers() {
      this.panel.drawNumbers(this.run);
      this.drawWithout(this.run.metrics.main);
      this.describe();
    }

    /** Why the drafter could not draft in some passes: what the figures beside cannot tell. */
    drawWithout(metrics) {
      const reasons = metrics?.nodraft ?? [];
      this.without.hidden = !reasons.length;
      this.without.replaceChildren(...reasons.map(([reason, n]) => el("li", { text: t("run.nodraft", { n, passes: metrics.passes, reason }) })));
    }

    note(event) {
      const run = this.run;
      switch (event.k) {
        case "run":
          run.ask = event;
          this.stream.greedy = event.greedy;
          this.empty.hidden = true;
          this.keepAddress(event);
          if (matchMedia("(max-width: 860px)").matches) this.status.scrollIntoView({ block: "start" });
          break;
        case "wait":
          run.waiting = event.ahead;
          break;
        case "go":
          run.lane = event.l;
          run.waiting = null;
          run.promptTokens = event.n;
          break;
        case "back":
          run.waiting = 0;
          break;
        case "s":
          this.plain.hidden = false;
          this.plainText.append(event.e[2].join(""));
          break;
        case "end":
          run.ended[event.l] = event.why;
          if (event.err) run.error = event.err;
          break;
        case "fin":
          run.done = true;
          run.status = event.status;
          run.comparison = event.cmp;
          run.speedup = event.speedup;
          run.error = event.error ?? run.error;
          this.unsaved.hidden = !event.warn;
          if (event.warn) this.unsaved.textContent = t("toast.unsaved", { reason: event.warn });
          this.recent.refresh();
          break;
      }
    }

    describe() {
      const run = this.run;
      const n = run.metrics.main?.n ?? run.metrics.plain?.n ?? 0;
      this.busy(!run.done);
      if (run.done) {
        this.copies.hidden = !run.ask.saved;
        this.replay.hidden = !run.ask.saved || !n;
        this.replay.href = `replay?run=${encodeURIComponent(run.id)}`;
        const stoppedPlain = run.status === "cancelled" && run.ended.main && run.ended.main !== "cancelled";
        if (stoppedPlain) this.say("state.plainstopped", { n });
        else if (run.status === "failed") this.say("state.failed", { error: run.error ?? "" });
        else if (run.status === "cancelled") this.say("state.cancelled", { n });
        else if (run.status === "interrupted") this.say("state.interrupted", { n });
        else this.say(`state.done.${run.ended.main ?? "stop"}`, { n });
      } else if (D.known(run.waiting)) this.say("state.waiting", { ahead: run.waiting });
      else if (run.lane === "plain") this.say("state.plain", { n: run.metrics.plain?.n ?? 0 });
      else if (n === 0) this.say("state.prefill", { n: run.promptTokens ?? 0 });
      else this.say("state.running", { n });
      const plain = run.metrics.plain;
      if (plain && !this.plain.hidden) this.plainHead.textContent = t("plain.head", { tps: D.num(plain.tps, 1), n: plain.n });
    }

    busy(on) {
      document.body.classList.toggle("db-busy", on);
      const stop = document.querySelector("#stop");
      if (stop) stop.disabled = !on;
    }

    keepAddress(ask) {
      this.link.hidden = !ask.saved;
      if (!ask.saved) return;
      const url = new URL(location.href);
      url.searchParams.set("run", this.run.id);
      history.replaceState(null, "", url);
    }

    /** Asks for the events that are missing: after a gap, and while another page or an earlier load of this one runs it. */
    async catchUp() {
      if (this.fetching || !this.run) return;
      this.fetching = true;
      const { id, seq } = this.run;
      try {
        const text = await this.server.snapshot([id, seq]);
        this.failures = 0;
        if (text && this.run?.id === id) {
          this.apply(JSON.parse(text));
          this.follow();
        }
      } catch {
        // The next poll tries again; a server that is gone for longer is said.
        this.failures = (this.failures ?? 0) + 1;
        if (this.failures >= LOST_AFTER) this.say("state.lost");
      } finally {
        this.fetching = false;
        if (this.run?.id === id) this.run.heard = performance.now();
      }
    }

    poll() {
      this.busy(document.body.classList.contains("db-busy")); // the Stop button may have been drawn after us
      const patience = this.source?.readyState === EventSource.OPEN ? SILENT_MS : POLL_MS;
      if (this.run && !this.run.done && performance.now() - this.run.heard > patience) this.catchUp();
    }
  }

  /** Called when Gradio has put the component on the page. */
  D.mountBoard = ({ element, props, watch, server, open }) => {
    const root = element.querySelector(".db-board");
    const board = new Board(root, server, open);
    board.busy(false);
    watch("value", () => board.take(props.value));
    board.take(props.value);
  };
})();
