/* The header of all pages: name, navigation, engine, language, theme; and the key that starts what the page starts. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const STATUS_MS = 500;
  const SWEEP_MS = 5000;
  const LANGUAGES = [
    ["en", "English"],
    ["ko", "한국어"],
  ];

  /** Asks how the engine is until it is ready or has failed; everybody else listens to `draftboard:engine`. */
  const watchEngine = async (server) => {
    for (;;) {
      let status = null;
      try {
        status = JSON.parse(await server.status([]));
      } catch {
        /* the server restarts: ask again */
      }
      if (status) {
        D.engine = status;
        document.dispatchEvent(new CustomEvent("draftboard:engine"));
        if (status.state !== "loading") return;
      }
      await new Promise((done) => setTimeout(done, STATUS_MS));
    }
  };

  /** Calls `draw` now, if the engine was asked already, and whenever it was. */
  D.whenEngine = (draw) => {
    document.addEventListener("draftboard:engine", draw);
    if (D.engine) draw();
  };

  /** Links to all pages; the language, the theme and the engine are the same on each. */
  const navigation = () => {
    const link = ({ path, title }) =>
      el("a", { href: path || "./", "aria-current": path === D.page ? "page" : null, text: t(title) });
    return el("nav", { class: "db-nav", "aria-label": t("nav.label") }, ...D.pages.map(link));
  };

  /** A link to the sweep that measures, wherever one is: runs of other pages wait for it. */
  const sweepSign = () => {
    const link = el("a", { class: "db-sweeping", hidden: true });
    const look = async () => {
      if (!document.hidden) {
        const [first] = await D.ask("sweeps/active").catch(() => []);
        link.hidden = !first;
        if (first) {
          link.href = `batch?run=${encodeURIComponent(first.run_id)}`;
          D.write(link, t("header.sweep", { percent: Math.round(100 * first.fraction) }));
        }
      }
      setTimeout(look, SWEEP_MS);
    };
    look();
    return link;
  };

  /** A GPU by its name, which tells more than "cuda". */
  const shortDevice = ({ device, device_name }) => (device === "cpu" ? device : device_name || device);

  const longDevice = ({ device, device_name }) => [device, device_name].filter(Boolean).join(" · ");

  D.mountHeader = ({ element, server }) => {
    const engine = el("span", { class: "db-engine" });
    const alarm = el("p", { class: "db-alarm", role: "alert", hidden: true });
    const meter = el("div", { class: "db-meter", hidden: true }, el("span"));
    const languages = el("div", { class: "db-switch", role: "group", "aria-label": t("app.language") });
    for (const [code, name] of LANGUAGES) {
      const button = el("button", { type: "button", lang: code, "aria-pressed": String(code === D.lang), text: name });
      button.addEventListener("click", () => {
        document.cookie = `draftboard_lang=${code}; path=/; max-age=31536000; SameSite=Lax`;
        location.reload();
      });
      languages.append(button);
    }
    const theme = el("button", { type: "button", class: "db-theme", "aria-label": t("app.theme"), title: t("app.theme"), text: "◐" });
    theme.addEventListener("click", () => {
      const dark = document.body.classList.toggle("dark");
      D.store.set("theme", dark ? "dark" : "light");
    });
    const kept = D.store.get("theme");
    if (kept && !new URLSearchParams(location.search).has("__theme")) document.body.classList.toggle("dark", kept === "dark");
    element.querySelector(".db-header").replaceChildren(
      el("div", { class: "db-brand" }, el("h1", { text: "Draftboard" }), el("p", { text: t("app.tagline") })),
      navigation(),
      el("div", { class: "db-tools" }, sweepSign(), engine, languages, theme),
      meter,
      alarm,
    );
    D.whenEngine(() => {
      const { state, message, progress, info } = D.engine;
      const percent = Math.round(100 * progress);
      meter.hidden = state !== "loading";
      meter.firstChild.style.width = `${percent}%`;
      const failures = info ? info.kernel_failures : [];
      alarm.hidden = state !== "failed" && !failures.length;
      if (state === "failed") alarm.textContent = t("header.failed", { message });
      else if (failures.length) alarm.textContent = t("header.kernels", { failures: failures.join("; ") });
      engine.textContent = state === "loading" ? t("header.loading", { message, percent }) : info ? t("header.engine", { ...info, device: shortDevice(info) }) : "";
      if (info) engine.title = t("header.engine.title", { ...info, device: longDevice(info), parameters: D.num(info.parameters / 1e6, 0) });
    });
    document.title = `${t(D.pages.find((page) => page.path === D.page).title)} · Draftboard`;
    watchEngine(server);
    document.addEventListener("keydown", onKey);
  };

  /** Ctrl or Cmd + Enter presses the page's main button, wherever the focus is. */
  const onKey = (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.repeat) return;
    event.preventDefault();
    // The prompt is sent to Gradio on input; leaving the field commits number fields too.
    if (document.activeElement instanceof HTMLInputElement) document.activeElement.blur();
    document.querySelector(".db-go")?.click();
  };
})();
