/* A run as something to paste elsewhere: our command, a program, vLLM's flags. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const FORMS = ["command", "python", "vllm"];
  const SHOWN_MS = 1500;

  /** Copies a text; where the clipboard is not to be had (an address without https), a selection and the old command stand in. */
  D.copyText = async (text, within = document.body) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = el("textarea", { "aria-hidden": "true", tabindex: "-1", class: "db-copy-aside" });
      area.value = text;
      within.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };

  /** A button that copies what `read` gives, and says so for a moment. */
  D.copyButton = (label, read) => {
    const button = el("button", { type: "button", class: "db-button", text: label });
    let timer = null;
    button.addEventListener("click", async () => {
      await D.copyText(await read(), button.parentNode);
      button.textContent = t("run.copied");
      clearTimeout(timer);
      timer = setTimeout(() => (button.textContent = label), SHOWN_MS);
    });
    return button;
  };

  /** Three forms of one run; what they hold is asked for when the first is opened. */
  D.CopyAs = class {
    constructor() {
      this.run = null;
      this.form = D.store.get("copy_as") ?? FORMS[0];
      if (!FORMS.includes(this.form)) this.form = FORMS[0];
      this.tabs = FORMS.map((form) => this.tab(form));
      this.text = el("pre", { class: "db-copy-text", tabindex: "0", "aria-label": t("copy.text") });
      this.notes = el("ul", { class: "db-copy-notes" });
      this.button = D.copyButton(t("copy.copy"), () => this.text.textContent);
      this.node = el(
        "section",
        { class: "db-copy", "aria-label": t("copy.title") },
        el("div", { class: "db-copy-top" }, el("b", { text: t("copy.title") }), el("div", { class: "db-switch", role: "group", "aria-label": t("copy.title") }, ...this.tabs), this.button),
        this.text,
        this.notes,
      );
    }

    tab(form) {
      const button = el("button", { type: "button", text: t(`copy.${form}`), "data-form": form });
      button.addEventListener("click", () => {
        this.form = form;
        D.store.set("copy_as", form);
        this.draw();
      });
      return button;
    }

    /** Shows a run. */
    async show(id) {
      if (this.run === id) return;
      this.run = id;
      this.found = null;
      this.draw();
      const base = new URL(".", location.href).href;
      try {
        const answer = await fetch(`runs/${encodeURIComponent(id)}/copy?url=${encodeURIComponent(base)}`);
        const found = await answer.json();
        if (this.run === id) this.found = answer.ok ? found : { failed: found.error };
      } catch {
        this.found = { failed: t("library.unreachable") };
      }
      this.draw();
    }

    draw() {
      for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.dataset.form === this.form));
      const { text = "", notes = [] } = this.found?.[this.form] ?? { text: this.found?.failed ?? "" };
      this.text.textContent = text;
      this.button.disabled = !this.found || Boolean(this.found.failed);
      this.notes.replaceChildren(...notes.map((note) => el("li", { text: note })));
      this.notes.hidden = !notes.length;
    }
  };
})();
