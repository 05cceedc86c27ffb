/* Before Gradio starts: its own texts and the page's follow the same language. */
(() => {
  "use strict";
  const lang = window.Draftboard.lang;
  Object.defineProperty(navigator, "language", { get: () => lang, configurable: true });
  Object.defineProperty(navigator, "languages", { get: () => [lang], configurable: true });
  document.documentElement.lang = lang;
})();
