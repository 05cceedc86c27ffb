/* The numbers beside the stream: every one with its unit and its definition. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, svg, t, write } = D;
  const PARTS = ["draft", "verify", "other"];

  const figure = (key) => {
    const value = el("span", { class: "db-value", text: "–" });
    const label = D.explain(el("span", { class: "db-label", text: t(`metric.${key}`) }), `def.${key}`);
    return { value, node: el("div", { class: "db-figure", "data-metric": key }, label, value) };
  };

  const withUnit = (value, digits, unit) => (D.known(value) ? `${D.num(value, digits)} ${t(unit)}` : "–");

  class Panel {
    constructor() {
      this.tps = figure("tps");
      this.speedup = figure("speedup");
      this.words = el("p", { class: "db-words" });
      this.small = Object.fromEntries(["rate", "len", "tpp", "ttft", "waste", "tokens"].map((key) => [key, figure(key)]));
      this.bar = el("div", { class: "db-bar", role: "img" });
      this.barKey = el("div", { class: "db-bar-key" });
      this.positions = el("div", { class: "db-positions" });
      this.exact = el("p", { class: "db-exact", hidden: true });
      const section = (key, ...nodes) =>
        el("section", { class: "db-block" }, D.explain(el("h2", { text: t(`panel.${key}`) }), `def.${key}`), ...nodes);
      this.node = el(
        "aside",
        { class: "db-panel", "aria-label": t("panel.label") },
        el("div", { class: "db-big" }, this.tps.node, this.speedup.node),
        this.words,
        this.exact,
        el("div", { class: "db-small" }, ...Object.values(this.small).map((one) => one.node)),
        section("time", this.bar, this.barKey),
        section("positions", this.positions),
      );
      this.reset();
    }

    reset() {
      for (const one of [this.tps, this.speedup, ...Object.values(this.small)]) write(one.value, "–");
      this.exact.hidden = true;
      write(this.words, t("speed.notyet"));
      this.words.className = "db-words";
      this.speedup.node.className = "db-figure";
      this.drawTime([0, 0, 0, 0]);
      this.drawPositions([], 0);
    }

    /** The metrics that stand for the run: the drafter's, or those of plain decoding when that is what was asked for. */
    shown(run) {
      return run.metrics.main ?? (run.ask.drafter === "null" ? run.metrics.plain : null);
    }

    /** Writes the numbers of the run and what is known of plain decoding. */
    drawNumbers(run) {
      const shown = this.shown(run);
      if (shown) {
        write(this.tps.value, D.num(shown.tps, 1));
        write(this.small.rate.value, D.percent(shown.rate));
        write(this.small.len.value, withUnit(shown.len, 2, "unit.len"));
        write(this.small.tpp.value, withUnit(shown.tpp, 2, "unit.tpp"));
        write(this.small.ttft.value, D.ms(shown.ttft));
        write(this.small.waste.value, D.known(shown.waste) ? `${D.percent(shown.waste)} · ${D.ms(shown.waste_ms)}` : "–");
        write(this.small.tokens.value, `${shown.n} ${t("unit.tokens")}`);
      }
      this.drawSpeedup(run);
      this.drawExact(run);
    }

    drawPlots(run) {
      const shown = this.shown(run);
      if (!shown) return;
      this.drawTime(shown.time);
      this.drawPositions(shown.pos, shown.steps);
    }

    drawSpeedup(run) {
      const { main, plain } = run.metrics;
      const measured = run.ended.plain === "stop" || run.ended.plain === "length";
      const ratio = run.speedup ?? (measured && main?.tps && plain?.tps ? main.tps / plain.tps : null);
      let words;
      let tone = "";
      if (run.ask.plain === "self") words = t("speed.self");
      else if (ratio !== null) {
        const percent = D.num(100 * Math.abs(ratio - 1), 0);
        tone = Math.abs(ratio - 1) < D.SAME_SPEED ? "same" : ratio > 1 ? "faster" : "slower";
        words = t(`speed.${tone}`, { percent, plain: D.num(plain.tps, 1) });
        if (run.ended.main === undefined) words += ` ${t("speed.sofar")}`;
        if (run.batch > 1) words += ` ${t("speed.shared", { n: run.batch })}`;
      } else if (run.ask.plain === "off") words = t("speed.off");
      else if (run.lane === "plain" && !run.done) words = t("speed.measuring", { plain: D.num(plain?.tps, 1) });
      else if (run.done) words = t("speed.never");
      else words = t("speed.notyet");
      write(this.speedup.value, ratio === null ? "–" : `${D.num(ratio, 2)}×`);
      write(this.speedup.node, `db-figure ${tone}`, "class");
      write(this.words, `db-words ${tone}`, "class");
      write(this.words, words);
    }

    drawExact(run) {
      const found = run.comparison;
      const sampled = run.done && !run.ask.greedy && run.ended.main !== undefined && run.ended.plain !== undefined;
      this.exact.hidden = !found && !sampled;
      if (sampled) {
        this.exact.className = "db-exact";
        this.exact.textContent = t("exact.sampled");
      }
      if (!found) return;
      this.exact.className = `db-exact ${found.same ? "same" : "differs"}`;
      const gap = D.known(found.gap) ? D.num(found.gap, 4) : "–";
      this.exact.textContent = found.same
        ? t(found.complete ? "exact.same" : "exact.prefix", { n: found.n })
        : t("exact.differs", { pos: found.pos, main: D.quote(found.main), plain: D.quote(found.plain), gap });
    }

    drawTime([draft, verify, commit, other]) {
      const parts = { draft, verify, other: commit + other };
      const total = draft + verify + commit + other;
      const share = (part) => (total ? parts[part] / total : 0);
      this.bar.replaceChildren(
        ...PARTS.filter((part) => share(part) > 0).map((part) => {
          const piece = el("span", { class: `db-part ${part}` });
          piece.style.flexGrow = String(share(part));
          return piece;
        }),
      );
      this.bar.setAttribute("aria-label", PARTS.map((part) => `${t(`time.${part}`)} ${D.percent(share(part))}`).join(", "));
      this.barKey.replaceChildren(
        ...PARTS.map((part) =>
          el(
            "span",
            { class: "db-bar-item" },
            el("i", { class: `db-part ${part}`, "aria-hidden": "true" }),
            el("span", { text: t(`time.${part}`) }),
            el("b", { text: total ? `${D.ms(parts[part])} · ${D.percent(share(part))}` : "–" }),
          ),
        ),
      );
    }

    /** Bars: accepted of all steps; rings: accepted of those tested there; n: how often it was tested. */
    drawPositions(rows, steps) {
      if (!rows.length || !steps) {
        this.positions.replaceChildren(el("p", { class: "db-hint", text: t("positions.empty") }));
        return;
      }
      const [width, height, left, top, bottom] = [280, 112, 30, 8, 30];
      const plot = height - top - bottom;
      const y = (share) => top + plot * (1 - share);
      const slot = (width - left) / Math.max(rows.length, 4);
      const label = rows
        .map(([, tested, accepted], i) => t("positions.aria", { position: i + 1, share: D.percent(accepted / steps), n: tested }))
        .join("; ");
      const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
      for (const share of [0, 0.5, 1]) {
        root.append(svg("line", { x1: left, x2: width, y1: y(share), y2: y(share), class: "grid" }));
        root.append(svg("text", { x: left - 4, y: y(share) + 3, class: "axis", "text-anchor": "end" }, `${100 * share}%`));
      }
      rows.forEach(([, tested, accepted], i) => {
        const centre = left + slot * (i + 0.5);
        const wide = Math.min(22, slot * 0.6);
        const share = accepted / steps;
        const group = svg("g");
        const hazard = tested ? accepted / tested : null;
        const tip = t("positions.tip", { position: i + 1, all: D.percent(share), accepted, steps, tested, conditional: D.percent(hazard) });
        group.append(svg("title", {}, tip));
        group.append(svg("rect", { x: centre - wide / 2, y: y(share), width: wide, height: Math.max(0.5, plot * share), class: "share" }));
        if (hazard !== null) group.append(svg("circle", { cx: centre, cy: y(hazard), r: 3, class: "hazard" }));
        group.append(svg("text", { x: centre, y: height - bottom + 12, class: "axis", "text-anchor": "middle" }, String(i + 1)));
        if (slot > 15) group.append(svg("text", { x: centre, y: height - 5, class: "axis n", "text-anchor": "middle" }, String(tested)));
        root.append(group);
      });
      root.append(svg("text", { x: left - 4, y: height - 5, class: "axis n", "text-anchor": "end" }, "n"));
      const key = el(
        "p",
        { class: "db-plot-key" },
        el("i", { class: "share", "aria-hidden": "true" }),
        el("span", { text: t("positions.share") }),
        el("i", { class: "hazard", "aria-hidden": "true" }),
        el("span", { text: t("positions.hazard") }),
      );
      this.positions.replaceChildren(root, key);
    }
  }

  D.Panel = Panel;
})();
