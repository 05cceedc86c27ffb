/* Before Gradio starts: its own texts and the page's follow the same language, and its timers leave the processor alone. */
(() => {
  "use strict";
  const lang = window.Draftboard.lang;
  Object.defineProperty(navigator, "language", { get: () => lang, configurable: true });
  Object.defineProperty(navigator, "languages", { get: () => [lang], configurable: true });
  document.documentElement.lang = lang;

  // Gradio's loading timers tick on every frame, and that of the page itself never ends: sixty frames a second for nothing.
  const TICK_MS = 250;
  const onFrame = window.requestAnimationFrame.bind(window);
  const isTimer = (draw) => /performance\.now\(\)[^;]*1e3/.test(Function.prototype.toString.call(draw));
  window.requestAnimationFrame = (draw) => (isTimer(draw) ? setTimeout(() => draw(performance.now()), TICK_MS) : onFrame(draw));
})();
