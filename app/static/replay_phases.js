/* The five phases of a step, each with one line that says what it does here, and the figures of the step. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const FACTS = ["step", "time", "passes", "tokens", "accepted", "kv"];

  const draftWords = (step, lane) => {
    const drafter = D.drafterName(lane.drafter);
    if (step.noDraft) return t("phase.draft.why", { reason: step.noDraft });
    if (!step.drafts.length) return t(lane.drafter === "null" ? "phase.draft.plain" : "phase.draft.none");
    const values = { drafter, n: step.drafts.length, ms: D.ms(step.draftMs) };
    return t(step.tree ? "phase.draft.tree" : "phase.draft.chain", values);
  };

  const passWords = (step) => {
    const values = { n: 1 + step.drafts.length + step.window, ms: D.ms(step.verifyMs) };
    if (step.window) return t("phase.pass.window", { ...values, window: step.window });
    return t(step.drafts.length ? "phase.pass.draft" : "phase.pass.plain", values);
  };

  const verdictWords = (step, lane) => {
    if (!step.drafts.length) return t("phase.verdict.none");
    const rule = t(lane.lossless === false ? "phase.verdict.lossy" : lane.greedy ? "phase.verdict.greedy" : "phase.verdict.sampled");
    return `${rule} ${t("phase.verdict.count", { accepted: step.accepted, n: step.drafts.length })}`;
  };

  const outcomeWords = (step) => {
    const { last } = step;
    if (!last || last.role === "accepted") return t("phase.outcome.cut");
    const tree = step.tree && last.role !== "plain" ? ".tree" : "";
    return t(`phase.outcome.${last.role}${tree}`, { token: D.quote(last.text || `#${last.id}`) });
  };

  const commitWords = (step) => {
    const values = { n: step.emitted.length, kept: step.kept, freed: step.freed };
    return t(step.freed ? "phase.commit.freed" : "phase.commit.kept", values);
  };

  const WORDS = { draft: draftWords, pass: passWords, verdict: verdictWords, outcome: outcomeWords, commit: commitWords };

  class ReplayPhases {
    constructor() {
      this.items = D.REPLAY_PHASES.map((name) => {
        const words = el("span", { class: "db-phase-words" });
        const node = el("li", { class: "db-phase", "data-phase": name }, el("b", { text: t(`phase.${name}`) }), words);
        return { name, words, node };
      });
      this.list = el("ol", { class: "db-phases" }, ...this.items.map((one) => one.node));
      this.facts = Object.fromEntries(FACTS.map((name) => [name, el("dd", {})]));
      this.node = el(
        "section",
        { class: "db-replay-card db-replay-phases" },
        el("h2", { text: t("replay.phases") }),
        this.list,
        el("dl", { class: "db-replay-facts" }, ...FACTS.map((name) => el("div", {}, el("dt", { text: t(`replay.fact.${name}`) }), this.facts[name]))),
      );
    }

    /** The words of a step; null before the first. */
    describe(step, lane) {
      for (const { name, words } of this.items) D.write(words, step ? WORDS[name](step, lane) : t(`phase.${name}.about`));
    }

    /** Marks the phases that are over and the one under way; 5 is the end of the step. */
    mark(phase, started) {
      this.items.forEach(({ node }, place) => {
        const state = !started || place > phase ? "later" : place === phase ? "now" : "past";
        D.write(node, state, "data-state");
        if (state === "now") node.setAttribute("aria-current", "step");
        else node.removeAttribute("aria-current");
      });
    }

    /** Writes the figures of a step: all sums are over the steps up to it. */
    figure(values) {
      for (const name of FACTS) D.write(this.facts[name], values[name] ?? "–");
    }
  }

  D.ReplayPhases = ReplayPhases;
  D.replayCaption = (step, lane, phase) => WORDS[D.REPLAY_PHASES[Math.min(phase, 4)]](step, lane);
})();
