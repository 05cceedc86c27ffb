/* The Batch page: the form, the sweep under way, the chosen sweep with those laid over it, and what-if curves. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const POLL_MS = 1000;
  const SLOW_POLL_MS = 4000;

  /** Published figures with names and sources in the page's language, where there are such texts. */
  const inWords = ({ curves, tasks }) => ({
    curves: curves.map((one) => ({ ...one, name: D.tOr(`curve.${one.id}.name`, one.name), source: D.tOr(`curve.${one.id}.source`, one.source) })),
    tasks: { ...tasks, source: D.tOr("curve.tasks.source", tasks.source) },
  });

  class Batch {
    constructor(root, offered) {
      this.form = new D.SweepForm(offered, async (form) => {
        const { run_id } = await D.ask("sweeps", form);
        await this.open(run_id);
        this.live.scrollIntoView({ block: "start" });
        this.refreshList();
      });
      const published = inWords(offered.published);
      this.charts = new D.SweepCharts(published);
      this.tables = new D.SweepTables(published);
      this.whatIf = new D.WhatIf();
      this.offered = offered;
      this.over = new Map();
      this.finding = el("p", { class: "sw-finding", role: "status" });
      this.origin = el("p", { class: "sw-origin" });
      this.state = el("p", { class: "sw-state", role: "status", "aria-live": "polite" });
      this.meter = el("div", { class: "db-meter", role: "progressbar", "aria-label": t("batch.progress"), "aria-valuemin": 0, "aria-valuemax": 100 }, el("span"));
      this.share = el("p", { class: "sw-share", text: t("batch.share"), hidden: true });
      this.stop = el("button", { type: "button", class: "sw-stop", text: t("batch.stop"), onclick: () => this.act("stop") });
      this.again = el("button", { type: "button", class: "sw-resume", text: t("batch.resume"), onclick: () => this.act("resume") });
      this.exports = el("span", { class: "sw-exports" });
      this.refused = el("p", { class: "db-alarm", role: "alert", hidden: true });
      this.live = el("section", { class: "sw-card sw-live", "aria-label": t("batch.live"), hidden: true }, el("div", { class: "sw-live-row" }, this.state, this.stop, this.again, this.exports), this.meter, this.share, this.refused);
      this.list = el("ul", { class: "sw-list" });
      this.sizes = el("div", { class: "db-switch sw-sizes", role: "group", "aria-label": t("batch.sizes") });
      this.empty = el("div", { class: "db-empty" }, el("p", { class: "db-empty-title", text: t("batch.empty.title") }), el("p", { text: t("batch.empty.text") }));
      const [first, ...others] = this.charts.all.map((chart) => chart.node);
      this.results = el("div", { class: "sw-results", hidden: true }, el("section", { class: "sw-card sw-head" }, this.finding, this.origin, this.tables.notes), el("div", { class: "sw-wide" }, first), el("div", { class: "sw-bar" }, el("span", { class: "db-field-label", text: t("batch.sizes") }), this.sizes), el("div", { class: "sw-grid" }, ...others), this.tables.node);
      root.replaceChildren(
        el("aside", { class: "sw-side" }, el("section", { class: "sw-card" }, el("h2", { text: t("batch.form.label") }), this.form.node), el("section", { class: "sw-card" }, el("h2", { text: t("batch.list") }), el("p", { class: "ch-note", text: t("batch.list.note") }), this.list)),
        el("div", { class: "sw-main" }, this.live, this.empty, this.results, this.whatIf.node),
      );
      this.whatIf.take(offered.cost_model);
      this.begin();
    }

    async begin() {
      const query = new URLSearchParams(location.search);
      const asked = query.get("run");
      for (const other of query.getAll("over")) if (other !== asked) await this.layOver(other).catch((error) => this.refuse(error.message));
      const { sweeps, active } = await this.refreshList();
      const run = asked ?? active[0]?.run_id ?? sweeps.find((one) => one.status !== "failed")?.run_id;
      if (run) await this.open(run, Boolean(asked));
      for (;;) {
        await new Promise((done) => setTimeout(done, this.busy && !document.hidden ? POLL_MS : SLOW_POLL_MS));
        if (this.busy) await this.refresh();
      }
    }

    /** Shows a sweep; `keep` writes its address. */
    async open(run, keep = true) {
      this.run = run;
      this.version = -1;
      this.document = null;
      this.over.delete(run);
      if (keep) this.keepAddress();
      await this.refresh();
    }

    /** The address opens what is shown: the chosen sweep and those laid over it. */
    keepAddress() {
      const url = new URL(location.href);
      url.searchParams.set("run", this.run);
      url.searchParams.delete("over");
      for (const one of this.over.keys()) url.searchParams.append("over", one);
      history.replaceState(null, "", url);
    }

    async layOver(run) {
      this.over.set(run, (await D.ask(`sweeps/${encodeURIComponent(run)}`)).document);
    }

    async refresh() {
      const { run } = this;
      try {
        const { live, version, document } = await D.ask(`sweeps/${encodeURIComponent(run)}?after=${this.version}`);
        if (run !== this.run) return; // another one was opened meanwhile
        this.version = version;
        const before = this.document?.status;
        if (document) this.document = document;
        this.showState(live);
        if (document) {
          this.whatIf.take(document.cost_model ?? this.offered.cost_model, document.cells, run);
          this.draw();
        }
        if (before && before !== this.document.status) this.refreshList();
      } catch (error) {
        this.live.hidden = false;
        this.refuse(error.message);
        this.busy = Boolean(this.document) && this.document.status === "running";
      }
    }

    showState(live) {
      const { status, measured, planned } = this.document;
      const running = live ? live.state !== "ended" : status === "running";
      this.busy = running;
      this.live.hidden = false;
      this.refuse(null);
      const fraction = live && running ? live.fraction : measured / planned;
      this.meter.hidden = status === "done";
      this.meter.firstChild.style.width = `${(100 * fraction).toFixed(1)}%`;
      this.meter.setAttribute("aria-valuenow", Math.round(100 * fraction));
      this.stop.hidden = !(live && running);
      this.stop.disabled = this.stopping === this.run;
      this.again.hidden = running || status === "done";
      this.share.hidden = !running;
      D.write(this.state, this.stateText(live, running));
      this.live.dataset.state = running ? (live?.state ?? "elsewhere") : status;
      const link = (kind) => el("a", { href: `sweeps/${encodeURIComponent(this.run)}/export.${kind}`, download: "", text: kind.toUpperCase(), "aria-label": t("batch.export", { kind: kind.toUpperCase() }) });
      if (this.exports.dataset.run !== this.run) this.exports.replaceChildren(link("json"), link("csv"));
      this.exports.dataset.run = this.run;
    }

    stateText(live, running) {
      const { status, measured, planned } = this.document;
      if (!running) return t(`batch.state.${status}`, { measured, planned });
      if (!live) return t("batch.state.elsewhere", { measured, planned });
      if (this.stopping === this.run) return t("batch.state.stopping");
      const cell = live.cell ? `${D.lineName({ ...live.cell, options: {} })} · ${t("axis.batch")} ${live.cell.batch_size}` : "";
      const left = D.known(live.left_s) ? t("batch.left", { time: D.duration(live.left_s) }) : "";
      const values = { number: live.number, total: live.total, cell, ahead: live.ahead, message: live.message };
      return [t(`batch.state.${live.state}`, values), left].filter(Boolean).join(" · ");
    }

    async act(what) {
      this.stopping = what === "stop" ? this.run : null;
      try {
        await D.ask(`sweeps/${encodeURIComponent(this.run)}/${what}`, {});
        await this.refresh();
      } catch (error) {
        this.refuse(error.message);
      }
    }

    refuse(sentence) {
      this.refused.hidden = !sentence;
      this.refused.textContent = sentence ?? "";
    }

    draw() {
      const { document } = this;
      if (document.status !== "running") this.stopping = null;
      const some = document.cells.length > 0;
      this.empty.hidden = some;
      this.results.hidden = !some;
      if (!some) return;
      D.write(this.finding, D.findingText(document));
      const { model, dtype, device, threads } = document.origin;
      this.origin.textContent = [model, dtype, device, threads ? t("batch.threads", { n: threads }) : null, D.day(document.at), t("batch.measured", document)].filter(Boolean).join(" · ");
      this.charts.draw([document, ...this.over.values()]);
      this.tables.draw(document, this.charts.batch);
      this.drawSizes();
    }

    /** Which batch size the charts of one batch show. */
    drawSizes() {
      const sizes = D.distinct(this.document.cells.map((cell) => cell.batch_size));
      const button = (size) => el("button", { type: "button", "aria-pressed": String(size === this.charts.batch), text: String(size), onclick: () => {
        this.charts.chosenBatch = size;
        this.draw();
      } });
      this.sizes.replaceChildren(...sizes.map(button));
    }

    async refreshList() {
      const answer = await D.ask("sweeps").catch(() => ({ sweeps: [], active: [] }));
      this.list.replaceChildren(...answer.sweeps.map((one) => this.row(one)));
      if (!answer.sweeps.length) this.list.append(el("li", { class: "db-hint", text: t("batch.list.empty") }));
      return answer;
    }

    row({ run_id, title, status, at, model }) {
      const over = el("input", { type: "checkbox", "aria-label": t("batch.over", { title }), title: t("batch.over", { title }) });
      over.checked = this.over.has(run_id);
      over.addEventListener("change", () => this.lay(run_id, over));
      const link = el("a", { href: `?run=${encodeURIComponent(run_id)}` }, el("b", { text: title }), el("small", { text: [D.day(at), model, D.tOr(`status.${status}`, status)].filter(Boolean).join(" · ") }));
      link.addEventListener("click", (event) => {
        if (!D.isPlain(event)) return;
        event.preventDefault();
        this.open(run_id);
      });
      return el("li", { "data-run": run_id }, over, link);
    }

    async lay(run, box) {
      if (!box.checked) this.over.delete(run);
      else if (run !== this.run) {
        try {
          await this.layOver(run);
        } catch (error) {
          box.checked = false;
          this.refuse(error.message);
        }
      }
      if (this.run) this.keepAddress();
      if (this.document?.cells.length) this.draw();
    }
  }

  /** Called when Gradio has put the container on the page; the form needs the engine's drafters. */
  D.mountBatch = (element) => {
    const root = element.querySelector(".db-batch");
    let made = false;
    root.replaceChildren(el("div", { class: "db-empty" }, el("p", { text: t("batch.waiting") })));
    D.whenEngine(async () => {
      if (made || D.engine.state !== "ready") return;
      made = true;
      try {
        D.batch = new Batch(root, await D.ask("sweeps/form"));
      } catch (error) {
        root.replaceChildren(el("p", { class: "db-alarm", role: "alert", text: error.message }));
      }
    });
  };
})();
