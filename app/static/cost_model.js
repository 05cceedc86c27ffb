/* The fitted costs of a model on a machine, as `engine/cost_model.py` has them: predictions without asking the server. */
(() => {
  "use strict";
  const D = window.Draftboard;

  /** 1 at place i, 0 at its neighbours, straight lines between; behind the last place the last line goes on. */
  const hat = (n, places, i) => {
    if (places.length === 1) return 1;
    const last = i === places.length - 1;
    const left = i > 0 ? (n - places[i - 1]) / (places[i] - places[i - 1]) : 1;
    const right = last ? 1 : (places[i + 1] - n) / (places[i + 1] - places[i]);
    if (last) return Math.max(0, left);
    if (n > places[places.length - 1]) return i === places.length - 2 ? right : 0;
    return Math.max(0, Math.min(left, right));
  };

  const dot = (features, weights) => features.reduce((sum, value, i) => sum + value * weights[i], 0);

  D.expectedTokens = (alpha, gamma) => {
    let expected = 1;
    for (let i = 0; i < gamma; i++) expected = 1 + alpha * expected;
    return expected;
  };

  class CostModel {
    /** `fitted` is {passes: {kind, places, weights}, steps: {label: {draft, overhead}}}. */
    constructor(fitted) {
      this.passes = fitted.passes;
      this.steps = fitted.steps;
    }

    get drafters() {
      return Object.keys(this.steps).filter((label) => label !== "null");
    }

    passSeconds(rows, tokens, context) {
      const { kind, places, weights } = this.passes;
      const n = rows * tokens;
      const size = kind === "knee" ? [1, n, Math.max(0, n - places[0])] : places.map((_, i) => hat(n, places, i));
      return dot([...size, rows * context, n * context], weights);
    }

    stepSeconds(label, rows, gamma, nodes, context) {
      const step = this.steps[label];
      const features = [1, gamma, rows, rows * gamma];
      return dot(features, step.draft) + this.passSeconds(rows, 1 + nodes, context) + dot(features, step.overhead);
    }

    /** Tokens of a pass × time of a plain step ÷ time of the drafter's step. */
    speedup(label, rows, gamma, alpha, context) {
      if (gamma === 0) return 1;
      return (D.expectedTokens(alpha, gamma) * this.stepSeconds("null", rows, 0, 0, context)) / this.stepSeconds(label, rows, gamma, gamma, context);
    }

    /** The same as if verifying a draft cost no more than a plain pass: what benchmark sheets assume. */
    textbook(label, rows, gamma, alpha, context) {
      const plain = this.stepSeconds("null", rows, 0, 0, context);
      return (D.expectedTokens(alpha, gamma) * plain) / (dot([1, gamma, rows, rows * gamma], this.steps[label].draft) + plain);
    }

    /** The least acceptance with a speed-up of 1; null where even full acceptance does not reach it. */
    breakEven(label, rows, gamma, context) {
      const needed = this.stepSeconds(label, rows, gamma, gamma, context) / this.stepSeconds("null", rows, 0, 0, context);
      if (needed <= 1) return 0;
      if (needed > gamma + 1) return null;
      let [low, high] = [0, 1];
      for (let i = 0; i < 50; i++) {
        const middle = (low + high) / 2;
        if (D.expectedTokens(middle, gamma) >= needed) high = middle;
        else low = middle;
      }
      return high;
    }

    /** The draft length from 1 to most with the largest speed-up, 0 where none exceeds 1. */
    bestGamma(label, rows, alpha, context, most) {
      let best = { gamma: 0, speedup: 1 };
      for (let gamma = 1; gamma <= most; gamma++) {
        const speedup = this.speedup(label, rows, gamma, alpha, context);
        if (speedup > best.speedup) best = { gamma, speedup };
      }
      return best;
    }
  }

  /** Where (batch, speed-up) points last fall through 1, straight lines over log2(batch); null where they do not. */
  D.crossing = (points) => {
    for (let i = points.length - 1; i > 0; i--) {
      const [[left, high], [right, low]] = [points[i - 1], points[i]];
      if (high >= 1 && low < 1) return 2 ** (Math.log2(left) + ((high - 1) / (high - low)) * (Math.log2(right) - Math.log2(left)));
    }
    return null;
  };

  D.CostModel = CostModel;
})();
