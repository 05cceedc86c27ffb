/* The form of a comparison: prompt or prompt set, the way to measure, two to five lanes, sampling. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const NUMBERS = [
    ["temperature", 0, 0, 10, 0.1],
    ["max_tokens", 128, 1, null, 1],
    ["top_k", 0, 0, null, 1],
    ["top_p", 1, 0, 1, 0.05],
    ["seed", 0, 0, null, 1],
  ];
  const FIRST = ["null", "ngram", "lookahead"];
  const TRAINED = ["eagle", "medusa", "draft_model"]; // one of them joins the first lanes where there is one

  /** A segmented choice; `choose(value)` hears it. */
  const radios = (name, label, values, choose) => {
    const inputs = values.map(([value, text]) => {
      const input = el("input", { type: "radio", name: `db-${name}`, value });
      input.addEventListener("change", () => choose(value));
      return el("label", {}, input, el("span", { text }));
    });
    const node = el("div", { class: "db-drafters", role: "radiogroup", "aria-label": label }, ...inputs);
    const set = (value) => node.querySelectorAll("input").forEach((input) => (input.checked = input.value === value));
    return { node, set, inputs: node.querySelectorAll("input") };
  };

  /** The number of a lane in its colour. */
  D.laneSign = (place) => el("i", { class: "db-lane-sign", "aria-hidden": "true", text: String(place + 1) });

  const field = (label, input, hint) => el("label", { class: "db-field" }, el("span", { class: "db-field-label", text: label }), input, hint ? el("small", { text: hint }) : null);

  class CompareForm {
    /** `start(values)` and `stop()` are pressed here. */
    constructor({ start, stop }) {
      Object.assign(this, { source: "prompt", way: "race", lanes: [], offer: null });
      this.task = el("select", { "aria-label": t("form.task") });
      this.preset = el("select", { "aria-label": t("form.preset") });
      this.prompt = el("textarea", { id: "prompt", rows: 5, placeholder: t("form.prompt.placeholder") });
      this.run = el("button", { type: "submit", id: "run", class: "db-go db-primary", text: t("compare.run"), title: t("form.run.title") });
      this.stop = el("button", { type: "button", id: "stop", text: t("form.stop"), disabled: true });
      this.error = el("p", { class: "db-alarm", role: "alert", hidden: true });
      this.sources = radios("source", t("compare.source"), [["prompt", t("compare.source.prompt")], ["set", t("compare.source.set")]], (value) => this.chooseSource(value));
      this.ways = radios("way", t("compare.way"), [["race", t("compare.way.race")], ["together", t("compare.way.together")]], (value) => this.chooseWay(value));
      this.about = el("p", { class: "db-about" });
      this.rows = el("ol", { class: "db-lane-rows", "aria-label": t("compare.lanes") });
      this.add = el("button", { type: "button", class: "db-link", text: t("compare.add") });
      this.add.addEventListener("click", () => this.addLane());
      this.tasks = el("div", { class: "db-task-boxes", role: "group", "aria-label": t("compare.tasks") });
      this.perTask = el("input", { type: "number", min: 1, value: 3, step: 1 });
      this.numbers = Object.fromEntries(NUMBERS.map(([name, value, min, max, step]) => [name, el("input", { type: "number", name, value, min, max, step })]));
      this.chat = el("input", { type: "checkbox", checked: true });
      const presets = el("div", { class: "db-presets" }, field(t("form.task"), this.task), field(t("form.preset"), this.preset));
      this.single = el("div", { class: "db-stack" }, presets, field(t("form.prompt"), this.prompt));
      this.set = el("div", { class: "db-stack", hidden: true }, this.tasks, field(t("compare.pertask"), this.perTask));
      this.node = el(
        "form",
        { class: "db-compare-form", "aria-label": t("form.label"), novalidate: true },
        this.sources.node,
        this.single,
        this.set,
        el("div", { class: "db-actions" }, this.run, this.stop),
        this.error,
        el("span", { class: "db-field-label", text: t("compare.lanes") }),
        this.rows,
        this.add,
        el("span", { class: "db-field-label", text: t("compare.way") }),
        this.ways.node,
        this.about,
        el("div", { class: "db-sampling" }, ...NUMBERS.map(([name]) => field(t(`form.${name}`), this.numbers[name], t(`form.${name}.info`)))),
        el("label", { class: "db-check" }, this.chat, el("span", { text: t("form.chat") })),
      );
      this.node.addEventListener("submit", (event) => {
        event.preventDefault();
        this.say(null);
        start(this.values());
      });
      this.stop.addEventListener("click", stop);
      this.task.addEventListener("input", () => this.fillPresets());
      this.preset.addEventListener("input", () => this.takePreset());
      this.chooseSource("prompt");
      this.busy(false);
      D.whenEngine(() => this.ready());
    }

    get drafters() {
      return D.engine?.info?.drafters ?? [];
    }

    /** The engine is known: its drafters can be chosen. */
    ready() {
      this.busy(this.working);
      if (!this.drafters.length) return;
      if (!this.lanes.length) this.lanes = this.firstLanes();
      this.drawLanes();
    }

    firstLanes() {
      const available = (name) => this.drafters.some((one) => one.name === name && one.available);
      const names = [...FIRST.filter(available), ...TRAINED.filter(available).slice(0, 1)];
      return names.map((name) => this.lane(this.drafters.find((one) => one.name === name)));
    }

    /** A lane with the defaults of a drafter. */
    lane(drafter) {
      return { drafter: drafter.name, gamma: drafter.gamma, options: {} };
    }

    /** What the server offers: prompts by task and the limits. */
    take(offer) {
      this.offer = offer;
      this.perTask.max = offer.max_per_task;
      this.task.replaceChildren(...Object.keys(offer.presets).map((task) => el("option", { value: task, text: D.taskName(task) })));
      this.tasks.replaceChildren(
        ...Object.keys(offer.presets).map((task, place) => el("label", { class: "db-check" }, el("input", { type: "checkbox", value: task, checked: place < 2 }), el("span", { text: D.taskName(task) }))),
      );
      this.fillPresets();
    }

    fillPresets() {
      const none = el("option", { value: "", text: t("form.preset.none") });
      this.preset.replaceChildren(none, ...this.offer.presets[this.task.value].map((one) => el("option", { value: one.id, text: one.title[D.lang] ?? one.title.en })));
    }

    takePreset() {
      const chosen = this.offer.presets[this.task.value].find((one) => one.id === this.preset.value);
      if (chosen) this.prompt.value = chosen.prompt;
    }

    chooseSource(source) {
      this.source = source;
      this.sources.set(source);
      this.single.hidden = source !== "prompt";
      this.set.hidden = source !== "set";
      for (const input of this.ways.inputs) if (input.value === "together") input.disabled = source === "set";
      this.chooseWay(source === "set" ? "race" : this.way);
    }

    chooseWay(way) {
      this.way = way;
      this.ways.set(way);
      D.write(this.about, t(`compare.way.${way}.about`));
    }

    addLane() {
      const used = this.lanes.map((lane) => lane.drafter);
      const next = this.drafters.find((one) => one.available && !used.includes(one.name)) ?? this.drafters.find((one) => one.available && one.name !== "null");
      this.lanes.push(this.lane(next));
      this.drawLanes();
      this.rows.lastElementChild.querySelector("select").focus();
    }

    drawLanes() {
      if (!this.drafters.length) return; // drawn when the engine is known
      this.rows.replaceChildren(...this.lanes.map((lane, place) => this.row(lane, place)));
      this.add.hidden = this.lanes.length >= (this.offer?.max_lanes ?? 5);
    }

    row(lane, place) {
      const name = t("compare.lane", { n: place + 1 });
      const drafter = el("select", { "aria-label": `${name}: ${t("drafter.title")}` });
      for (const one of this.drafters) {
        const text = D.drafterName(one.name, one.label);
        drafter.append(el("option", { value: one.name, text, disabled: !one.available, title: one.available ? null : D.whyMissing(one) }));
      }
      drafter.value = lane.drafter;
      const gamma = el("input", { type: "number", min: 0, max: 16, step: 1, value: lane.gamma, disabled: lane.drafter === "null", "aria-label": `${name}: ${t("form.gamma")}` });
      const remove = el("button", { type: "button", class: "db-remove", "aria-label": t("compare.remove", { n: place + 1 }), title: t("compare.remove", { n: place + 1 }), text: "×" });
      remove.disabled = this.lanes.length <= (this.offer?.min_lanes ?? 2);
      drafter.addEventListener("input", () => {
        Object.assign(lane, this.lane(this.drafters.find((one) => one.name === drafter.value)));
        this.drawLanes();
        this.rows.children[place].querySelector("select").focus();
      });
      gamma.addEventListener("input", () => (lane.gamma = gamma.valueAsNumber));
      remove.addEventListener("click", () => {
        this.lanes.splice(place, 1);
        this.drawLanes();
      });
      const chosen = this.drafters.find((one) => one.name === lane.drafter);
      const options = chosen?.options ?? [];
      const lossy = el("span", { class: "db-badge lossy", text: t("drafter.lossy"), title: t("drafter.lossy.title") });
      const judge = () => (lossy.hidden = (chosen?.lossless ?? true) && !options.some((option) => option.lossy.includes(lane.options[option.name] ?? option.default)));
      judge();
      return el(
        "li",
        { class: `lane-${place + 1}` },
        D.laneSign(place),
        drafter,
        el("span", { class: "db-lane-gamma", "aria-hidden": "true", text: "γ" }),
        gamma,
        remove,
        options.length ? this.options(lane, options, judge) : null,
        lossy,
        chosen?.defaults?.loses ? D.defaultsHint(chosen.defaults) : null,
      );
    }

    /** The drafter's settings; `changed()` hears of every change. */
    options(lane, options, changed) {
      const rows = options.map((option) => D.optionField(option, lane.options, changed));
      return el("details", { class: "db-lane-options", open: Object.keys(lane.options).length > 0 }, el("summary", { text: t("compare.options") }), ...rows);
    }

    /** What is sent to the server; an empty number is null, which it refuses with a sentence. */
    values() {
      const numbers = Object.fromEntries(Object.entries(this.numbers).map(([name, input]) => [name, Number.isNaN(input.valueAsNumber) ? null : input.valueAsNumber]));
      const tasks = [...this.tasks.querySelectorAll("input:checked")].map((input) => input.value);
      const source = this.source === "set" ? { tasks, per_task: this.perTask.valueAsNumber || 0 } : { prompt: this.prompt.value };
      const lanes = this.lanes.map(({ drafter, gamma, options }) => ({ drafter, gamma: Number.isNaN(gamma) ? null : gamma, options: { ...options } }));
      return { ...source, ...numbers, chat_template: this.chat.checked, way: this.way, lanes };
    }

    /** The settings of a stored comparison. */
    restore(params) {
      this.lanes = params.lanes.map((lane) => ({ ...lane, options: { ...lane.options } }));
      this.drawLanes();
      for (const [name, input] of Object.entries(this.numbers)) if (D.known(params[name])) input.value = params[name];
      if (typeof params.chat_template === "boolean") this.chat.checked = params.chat_template;
      this.chooseSource(params.set?.length ? "set" : "prompt");
      this.chooseWay(params.way);
      if (params.prompt) this.prompt.value = params.prompt;
      for (const box of this.tasks.querySelectorAll("input")) if (params.tasks?.length) box.checked = params.tasks.includes(box.value);
      if (params.per_task) this.perTask.value = params.per_task;
    }

    busy(on) {
      this.working = on;
      document.body.classList.toggle("db-busy", on);
      this.run.disabled = on || D.engine?.state !== "ready";
      this.stop.disabled = !on;
    }

    say(error) {
      this.error.hidden = !error;
      D.write(this.error, error ?? "");
    }
  }

  D.CompareForm = CompareForm;
})();
