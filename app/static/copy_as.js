/* A run as something to paste elsewhere: our command, a program, vLLM's flags. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t } = D;
  const FORMS = ["command", "python", "vllm"];

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
      const found = await D.answer(`runs/${encodeURIComponent(id)}/copy?url=${encodeURIComponent(base)}`);
      if (this.run !== id) return; // another one was opened meanwhile
      this.found = found;
      this.draw();
    }

    draw() {
      for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.dataset.form === this.form));
      const { text = "", notes = [] } = this.found?.[this.form] ?? { text: this.found?.error ?? "" };
      this.text.textContent = text;
      this.button.disabled = !this.found || Boolean(this.found.error);
      this.notes.replaceChildren(...notes.map((note) => el("li", { text: note })));
      this.notes.hidden = !notes.length;
    }
  };
})();
