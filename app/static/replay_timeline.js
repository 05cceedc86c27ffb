/* A stored trace as a timeline: when each phase of each step happens, in teaching time and in true time. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const PHASES = ["draft", "pass", "verdict", "outcome", "commit"];
  // Teaching time at 1x, milliseconds: slow enough to read a card, whatever the machine measured.
  const PACE = { draft: 110, pass: 450, verdict: 320, outcome: 420, commit: 420 };
  const PLAIN_PACE = [0, 200, 0, 0, 120]; // a step without a draft has little to say
  const MOST_CARDS = 12; // a tree's tokens arrive in as many beats at most

  /** Draft tokens in the order in which the target's rule looks at them: the accepted ones and those that were refused. */
  const testedOf = (step) => step.drafts.filter((draft) => draft.fate === "A" || draft.fate === "R");

  /** A step event of a stored run with what only the replay shows: tested tokens, the window, KV slots written and freed. */
  const readStep = (event) => {
    const step = D.readStep(event);
    const [ids, texts] = event.win ?? [[], []];
    step.at = event.at;
    step.tested = testedOf(step);
    step.windowIds = ids;
    step.windowTexts = texts;
    step.last = step.emitted.at(-1) ?? null;
    step.kept = 1 + step.accepted;
    step.freed = step.drafts.length + step.window - step.accepted;
    step.slots = event.kv;
    return step;
  };

  /** How long the phases of a step take in teaching time. */
  const teaching = (step) => {
    if (!step.drafts.length) return PLAIN_PACE;
    const outcome = step.last && step.last.role !== "accepted" ? PACE.outcome : 0;
    return [PACE.draft * Math.min(step.drafts.length, MOST_CARDS), PACE.pass, PACE.verdict * step.tested.length, outcome, PACE.commit];
  };

  /** The measured times: what is not drafting or the pass is sampling and commit, here in equal parts over the phases that it covers. */
  const measured = (step, before) => {
    const rest = Math.max(0, step.at - before - step.draftMs - step.verifyMs);
    if (!step.drafts.length) return [0, step.draftMs + step.verifyMs, 0, 0, rest];
    return [step.draftMs, step.verifyMs, rest / 3, rest / 3, rest / 3];
  };

  class Timeline {
    /** `kind` is "teach" or "true". */
    constructor(steps, kind) {
      this.steps = steps;
      this.spans = [];
      this.ends = [];
      let at = 0;
      for (const step of steps) {
        const spans = kind === "true" ? measured(step, at) : teaching(step);
        const sum = spans.reduce((total, span) => total + span, 0);
        at = kind === "true" ? Math.max(step.at, at) : at + sum;
        this.spans.push(spans);
        this.ends.push(at);
      }
      this.length = at;
    }

    start(index) {
      return index > 0 ? this.ends[index - 1] : 0;
    }

    /** The step that a moment belongs to: a moment at the end of a step still belongs to it, 0 to none. */
    stepAt(position) {
      if (position <= 0) return -1;
      let [low, high] = [0, this.ends.length - 1];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.ends[middle] >= position - 1e-6) high = middle;
        else low = middle + 1;
      }
      return low;
    }

    /** Where a moment is: step, phase (0 to 4, 5 when the step is over) and the share of the phase that has passed. */
    locate(position) {
      const index = this.stepAt(position);
      if (index < 0) return { index, phase: 5, share: 1 };
      if (position >= this.ends[index] - 1e-6) return { index, phase: 5, share: 1 };
      const spans = this.spans[index];
      let left = position - this.ends[index] + spans.reduce((total, span) => total + span, 0);
      for (let phase = 0; phase < spans.length; phase++) {
        if (left < spans[phase]) return { index, phase, share: Math.max(0, left) / spans[phase] };
        left -= spans[phase];
      }
      return { index, phase: 4, share: 1 };
    }

    /** The end of a phase of a step. */
    endOf(index, phase) {
      const spans = this.spans[index];
      return this.ends[index] - spans.slice(phase + 1).reduce((total, span) => total + span, 0);
    }

    /** The next or the last moment at which a phase that takes time ends. */
    neighbour(position, direction) {
      const near = Math.max(0, this.stepAt(position));
      const moments = [0];
      for (let index = Math.max(0, near - 1); index <= Math.min(this.ends.length - 1, near + 1); index++)
        for (let phase = 0; phase < PHASES.length; phase++) if (this.spans[index][phase] > 0) moments.push(this.endOf(index, phase));
      if (direction > 0) return moments.find((moment) => moment > position + 0.01) ?? this.length;
      return moments.findLast((moment) => moment < position - 0.01) ?? 0;
    }

    /** The same step and share of it in another timeline, so that a change of pace does not jump. */
    translate(position, other) {
      const index = this.stepAt(position);
      if (index < 0) return 0;
      const [start, end] = [this.start(index), this.ends[index]];
      const share = end > start ? (position - start) / (end - start) : 1;
      return other.start(index) + share * (other.ends[index] - other.start(index));
    }
  }

  /** The n-grams that each step put into Lookahead's pool: its window's columns, ended by what the target said in the next step's window. */
  D.collectedNgrams = (steps) => {
    const first = steps.find((step) => step.windowIds.length);
    if (!first) return null;
    const width = first.windowIds.length;
    const rows = Math.max(...steps.map((step) => step.windowIds.length)) / width;
    const known = new Set();
    return {
      width,
      rows,
      steps: steps.map((step, index) => {
        const next = steps[index + 1];
        const full = step.windowIds.length === width * rows && next?.windowIds.length === width * rows;
        const grams = [];
        for (let column = 0; full && column < width; column++) {
          const places = Array.from({ length: rows }, (_, row) => row * width + column);
          const ids = [...places.map((place) => step.windowIds[place]), next.windowIds[(rows - 1) * width + column]];
          const texts = [...places.map((place) => step.windowTexts[place]), next.windowTexts[(rows - 1) * width + column]];
          grams.push({ texts, fresh: !known.has(ids.join()) });
          known.add(ids.join());
        }
        return { grams, size: known.size };
      }),
    };
  };

  D.REPLAY_PHASES = PHASES;
  D.readReplayStep = readStep;
  D.Timeline = Timeline;
})();
