/* What would happen: speed-up curves from fitted costs for any acceptance, draft length, batch and context; nothing is measured. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const BATCHES = [1, 2, 4, 8, 16, 32, 64];
  const FINE = Array.from({ length: 49 }, (_, i) => 2 ** (i / 8));
  const ALPHAS = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
  const MOST_GAMMA = 8;

  class WhatIf {
    constructor() {
      this.sliders = {
        alpha: this.slider("alpha", 0, 1, 0.01, 0.7, 2),
        gamma: this.slider("gamma", 1, 16, 1, 4, 0),
        batch: this.slider("batch", 0, 6, 0.25, 3, 0, (value) => 2 ** value),
        context: this.slider("context", 16, 2048, 16, 128, 0),
      };
      this.drafter = el("select", { "aria-label": t("drafter.title"), onchange: () => this.draw() });
      this.curve = new D.LineChart({ key: "whatif", title: t("whatif.curve"), note: t("whatif.curve.note"), x: t("axis.batch"), y: t("axis.speedup"), xLog: 2 });
      this.heat = new D.HeatMap({ key: "best-gamma", title: t("whatif.heat"), note: t("whatif.heat.note"), x: t("axis.batch"), y: t("axis.alpha") });
      this.figures = el("dl", { class: "sw-figures" });
      this.missing = el("p", { class: "db-hint", text: t("whatif.missing") });
      this.body = el(
        "div",
        { hidden: true },
        el("div", { class: "sw-sliders" }, el("label", { class: "sw-field" }, el("span", { text: t("drafter.title") }), this.drafter), ...Object.values(this.sliders).map((one) => one.node)),
        this.figures,
        el("div", { class: "sw-pair" }, this.curve.node, this.heat.node),
      );
      this.node = el("section", { class: "sw-card sw-whatif", "aria-label": t("whatif.title") }, el("h2", { text: t("whatif.title") }), el("p", { class: "ch-note", text: t("whatif.note") }), this.missing, this.body);
    }

    slider(key, min, max, step, value, digits, shown = (one) => one) {
      const input = el("input", { type: "range", min, max, step, name: key });
      input.value = value;
      const output = el("output");
      const slider = { input, get value() { return shown(Number(input.value)); } };
      const write = () => {
        output.textContent = D.num(slider.value, digits);
        input.setAttribute("aria-valuetext", output.textContent);
      };
      input.addEventListener("input", () => {
        slider.moved = true;
        write();
        this.draw();
      });
      slider.begin = (known) => {
        if (slider.moved || !D.known(known)) return;
        input.value = known;
        write();
      };
      write();
      slider.node = el("label", { class: "sw-slider" }, el("span", { text: t(`whatif.${key}`) }), input, output);
      return slider;
    }

    /** Takes fitted costs; the cells of a sweep give the acceptance and the context where the person chose none for this sweep. */
    take(fitted, cells = [], run = null) {
      this.missing.hidden = Boolean(fitted);
      this.body.hidden = !fitted;
      if (!fitted) return;
      if (this.run !== run) for (const one of Object.values(this.sliders)) one.moved = false;
      this.run = run;
      this.model = new D.CostModel(fitted);
      const before = this.drafter.value;
      this.drafter.replaceChildren(...this.model.drafters.map((label) => el("option", { value: label, text: labelName(label) })));
      if (this.model.drafters.includes(before)) this.drafter.value = before;
      this.sliders.context.begin(fitted.context);
      this.sliders.alpha.begin(cells.find((cell) => cell.drafter === this.drafter.value && D.known(cell.alpha))?.alpha);
      this.draw();
    }

    draw() {
      const label = this.drafter.value;
      if (!this.model || !label) return;
      const { alpha, gamma, batch, context } = Object.fromEntries(Object.entries(this.sliders).map(([key, one]) => [key, one.value]));
      const { model } = this;
      const line = (predict, lines) => FINE.map((x) => ({ x, y: predict(x), lines }));
      const curve = line((b) => model.speedup(label, b, gamma, alpha, context));
      const here = model.speedup(label, batch, gamma, alpha, context);
      const crossed = D.crossing(curve.map((point) => [point.x, point.y]));
      const ink = D.inkOf(label.split(":")[0]);
      const series = [
        { name: t("whatif.predicted", { gamma }), ink, shape: "circle", thin: true, points: curve },
        { name: t("whatif.textbook"), ink: "var(--db-soft)", shape: "ring", dash: "6 4", thin: true, points: line((b) => model.textbook(label, b, gamma, alpha, context)) },
        { name: t("whatif.best"), ink: "var(--ch-3)", shape: "square", dash: "2 3", thin: true, points: line((b) => model.bestGamma(label, b, alpha, context, MOST_GAMMA).speedup) },
        { name: t("whatif.here"), ink, shape: D.shapeOf(label.split(":")[0]), scatter: true, points: [{ x: batch, y: here, lines: [`${t("axis.batch")} ${D.num(batch, 0)}: ${D.num(here, 2)}×`] }] },
      ];
      const marks = D.known(crossed) ? [{ x: crossed, y: 1, ink, text: t("chart.crossing", { name: labelName(label), batch: D.num(crossed, 1) }) }] : [];
      this.curve.draw(series, { marks, reference: { value: 1, text: t("chart.even") }, xTicks: BATCHES });
      const cells = ALPHAS.map((a) => BATCHES.map((b) => {
        const best = model.bestGamma(label, b, a, context, MOST_GAMMA);
        return { text: String(best.gamma), strong: best.gamma / MOST_GAMMA, lines: [best.gamma ? t("whatif.cell", { gamma: best.gamma, speedup: D.num(best.speedup, 2) }) : t("whatif.cell.none"), `${t("axis.batch")} ${b}, α ${D.num(a, 1)}`] };
      }));
      this.heat.draw(BATCHES.map(String), ALPHAS.map((a) => D.num(a, 1)), cells);
      const even = model.breakEven(label, batch, gamma, context);
      const best = model.bestGamma(label, batch, alpha, context, MOST_GAMMA);
      this.figures.replaceChildren(
        ...[
          ["speedup", `${D.num(here, 2)}×`],
          ["textbook", `${D.num(model.textbook(label, batch, gamma, alpha, context), 2)}×`],
          ["even", D.known(even) ? D.num(even, 2) : t("whatif.even.none")],
          ["crossover", D.known(crossed) ? D.num(crossed, 1) : t(curve[0].y < 1 ? "whatif.never" : "whatif.always")],
          ["gamma_best", best.gamma ? `γ ${best.gamma} (${D.num(best.speedup, 2)}×)` : t("whatif.cell.none")],
        ].map(([key, value]) => el("div", { "data-figure": key }, el("dt", { text: t(`whatif.figure.${key}`) }), el("dd", { text: value }))),
      );
    }
  }

  const labelName = (label) => {
    const [name, ...settings] = label.split(":");
    return [D.drafterName(name), ...settings].join(" ");
  };

  D.WhatIf = WhatIf;
})();
