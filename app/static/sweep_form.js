/* What to measure: drafters with settings, draft lengths, batch sizes, tasks with weights, prompts; and how long that takes. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t, tOr } = D;
  const ESTIMATE_MS = 350;

  const words = (text) => text.split(/[\s,]+/).filter(Boolean);
  const numbers = (text) => words(text).map((part) => (/^\d+$/.test(part) ? Number(part) : part));

  /** Every combination of one value from each list. */
  const product = (lists) => lists.reduce((all, [name, values]) => all.flatMap((one) => values.map((value) => ({ ...one, [name]: value }))), [{}]);

  class SweepForm {
    /** `offered` is what /sweeps/form gives; `start(form)` begins a sweep. */
    constructor(offered, start) {
      this.offered = offered;
      this.file = null;
      const { defaults } = offered;
      this.gammas = this.field("gammas", defaults.gammas.join(", "));
      this.batches = this.field("batch_sizes", defaults.batch_sizes.join(", "));
      this.repeats = this.field("repeats", defaults.repeats, "number");
      this.maxTokens = this.field("max_tokens", defaults.max_tokens, "number");
      this.cellTokens = this.field("cell_tokens", defaults.cell_tokens, "number");
      this.seed = this.field("seed", defaults.seed, "number");
      this.drafters = offered.drafters.filter((one) => one.name !== "null").map((one) => this.drafter(one));
      this.tasks = this.taskRows(offered.tasks);
      this.upload = el("input", { type: "file", accept: ".jsonl,.csv,.json,text/csv", "aria-label": t("batch.form.upload"), onchange: () => this.readFile() });
      this.fileSays = el("small", { text: t("batch.form.upload.info") });
      this.unload = el("button", { type: "button", class: "db-plain-button", hidden: true, text: t("batch.form.upload.remove"), onclick: () => this.dropFile() });
      this.taskBox = el("div", { class: "sw-tasks" }, ...this.tasks.map((one) => one.node));
      this.says = el("p", { class: "sw-estimate", role: "status" });
      this.refused = el("p", { class: "db-alarm", role: "alert", hidden: true });
      this.go = el("button", { type: "button", class: "db-go sw-start", text: t("batch.form.start") });
      this.go.addEventListener("click", async () => {
        this.go.disabled = true;
        try {
          await start(this.value());
          this.refuse(null);
        } catch (error) {
          this.refuse(error.message);
        } finally {
          this.go.disabled = false;
        }
      });
      const group = (key, ...nodes) => el("fieldset", {}, el("legend", { text: t(`batch.form.${key}`) }), ...nodes);
      this.node = el(
        "form",
        { class: "sw-form", "aria-label": t("batch.form.label"), onsubmit: (event) => event.preventDefault(), oninput: () => this.changed() },
        group("drafters", el("small", { text: t("batch.form.drafters.info") }), ...this.drafters.map((one) => one.node)),
        this.gammas.node,
        this.batches.node,
        group("tasks", el("small", { text: t("batch.form.tasks.info") }), this.taskBox),
        el("div", { class: "sw-upload" }, el("label", { class: "db-field-label", text: t("batch.form.upload") }), this.upload, this.fileSays, this.unload),
        el("div", { class: "sw-numbers" }, this.repeats.node, this.maxTokens.node, this.cellTokens.node, this.seed.node),
        this.says,
        this.refused,
        this.go,
      );
      this.estimate();
    }

    field(key, value, type = "text") {
      const input = el("input", { type, value, name: key, min: type === "number" ? 0 : null, inputmode: "numeric", autocomplete: "off" });
      return { input, node: el("label", { class: "sw-field" }, el("span", { text: t(`batch.form.${key}`) }), el("small", { text: t(`batch.form.${key}.info`) }), input) };
    }

    drafter(one) {
      const box = el("input", { type: "checkbox", name: "drafter", value: one.name, disabled: !one.available });
      box.checked = one.available;
      const options = one.options.map((option) => {
        const input = el("input", { type: "text", placeholder: String(option.default), "data-option": option.name });
        return { option, input, node: el("label", {}, el("span", { text: tOr(`option.${option.name}`, option.label) }), input) };
      });
      const name = D.drafterName(one.name, one.label);
      const head = el("label", { class: one.available ? "" : "off", title: one.available ? tOr(`drafter.${one.name}.summary`, one.summary) : D.whyMissing(one) }, box, D.lineSign(one.name), el("span", { text: name }));
      const more = options.length && one.available ? el("details", { class: "sw-options" }, el("summary", { text: t("batch.form.options") }), ...options.map((option) => option.node)) : null;
      const why = one.available ? null : el("small", { class: "sw-why", text: D.whyMissing(one) });
      const loses = one.defaults?.loses ? D.defaultsHint(one.defaults) : null;
      return { name: one.name, box, options, node: el("div", { class: "sw-drafter" }, head, more, why, loses) };
    }

    taskRows(tasks) {
      return Object.entries(tasks).map(([task, count]) => this.task(task, count));
    }

    task(task, count) {
      const input = el("input", { type: "number", min: 0, step: "any", value: 1, "data-task": task, "aria-label": t("batch.form.weight", { task: D.taskName(task) }) });
      return { task, input, node: el("label", {}, el("span", { text: D.taskName(task) }), el("small", { text: t("batch.form.prompts", { n: count }) }), input) };
    }

    /** The form as the server takes it. */
    value() {
      const choice = ({ options }) => {
        const lists = options.filter(({ input }) => input.value.trim()).map(({ option, input }) => [option.name, words(input.value).map((word) => (option.choices.length || Number.isNaN(Number(word)) ? word : Number(word)))]);
        return product(lists);
      };
      const weights = this.tasks.map(({ task, input }) => [task, input.valueAsNumber]);
      const alike = weights.every(([, weight]) => weight > 0 && weight === weights[0][1]);
      return {
        drafters: this.drafters.filter(({ box }) => box.checked).flatMap((one) => choice(one).map((options) => ({ name: one.name, options }))),
        gammas: numbers(this.gammas.input.value),
        batch_sizes: numbers(this.batches.input.value),
        tasks: alike ? {} : Object.fromEntries(weights.filter(([task, weight]) => task && weight > 0)),
        repeats: this.repeats.input.valueAsNumber,
        max_tokens: this.maxTokens.input.valueAsNumber,
        cell_tokens: this.cellTokens.input.valueAsNumber,
        seed: this.seed.input.valueAsNumber,
        prompts: this.file,
      };
    }

    changed() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.estimate(), ESTIMATE_MS);
    }

    async estimate() {
      try {
        const { cells, measurements, seconds, prompts } = await D.ask("sweeps/estimate", this.value());
        const time = D.known(seconds) ? t("batch.estimate.time", { time: D.duration(seconds) }) : t("batch.estimate.unknown");
        this.says.textContent = `${t("batch.estimate", { cells, measurements, prompts })} ${time}`;
        this.refuse(null);
      } catch (error) {
        this.says.textContent = "";
        this.refuse(error.message);
      }
    }

    refuse(sentence) {
      this.refused.hidden = !sentence;
      this.refused.textContent = sentence ?? "";
    }

    /** The server reads the file; what it cannot read it refuses with the line. */
    async readFile() {
      const [file] = this.upload.files;
      if (!file) return;
      const given = { name: file.name, text: await file.text() };
      try {
        const { tasks } = await D.ask("sweeps/prompts", given);
        this.file = given;
        this.showTasks(tasks, file.name);
      } catch (error) {
        this.dropFile();
        this.refuse(error.message);
      }
    }

    dropFile() {
      this.file = null;
      this.upload.value = "";
      this.showTasks(this.offered.tasks);
    }

    /** The tasks of the built-in prompts, or of the file with this name. */
    showTasks(tasks, name = null) {
      this.tasks = this.taskRows(tasks);
      this.unload.hidden = !name;
      this.fileSays.textContent = name ?? t("batch.form.upload.info");
      this.taskBox.replaceChildren(...this.tasks.map((one) => one.node));
      this.changed();
    }
  }

  /** The colour and shape of a drafter, as its lines have them. */
  D.lineSign = (drafter) => {
    const sign = D.svg("svg", { viewBox: "0 0 16 14", width: 16, height: 14, "aria-hidden": "true" });
    const shape = D.shapeOf(drafter);
    sign.append(D.marker(shape, 8, 7, 4.5, { fill: shape === "ring" ? "none" : D.inkOf(drafter), stroke: D.inkOf(drafter) }));
    return sign;
  };

  /** Seconds as people say them. */
  D.duration = (seconds) => {
    if (seconds < 90) return t("time.seconds", { n: D.num(seconds, 0) });
    return seconds < 5400 ? t("time.minutes", { n: D.num(seconds / 60, 0) }) : t("time.hours", { n: D.num(seconds / 3600, 1) });
  };

  D.SweepForm = SweepForm;
})();
