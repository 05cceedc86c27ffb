/* The part of the form that Gradio has no widget for: the drafter picker. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t, tOr } = D;

  /** Segmented radios with a badge, one line of explanation and the settings of the chosen drafter only. */
  class DrafterPicker {
    constructor(root, props) {
      this.props = props;
      this.chosen = { drafter: "ngram", options: {} };
      this.choices = el("div", { class: "db-drafters", role: "radiogroup", "aria-label": t("drafter.title") });
      this.about = el("p", { class: "db-about", "aria-live": "polite" });
      this.options = el("div", { class: "db-options" });
      this.hint = el("div", { class: "db-defaults-place" });
      this.own = true; // γ is still to be set to that of the drafter: nobody has chosen one
      document.getElementById("gamma")?.addEventListener("input", () => (this.own = false));
      root.replaceChildren(el("span", { class: "db-field-label", text: t("drafter.title") }), this.choices, this.about, this.options, this.hint);
      this.read();
      D.whenEngine(() => this.draw());
    }

    get known() {
      return D.engine?.info?.drafters ?? [];
    }

    /** Takes the value that the server set (a stored run's). */
    read() {
      if (this.props.value) {
        this.chosen = JSON.parse(this.props.value);
        this.own = false; // γ comes along
      }
      this.draw();
    }

    write() {
      this.props.value = JSON.stringify(this.chosen);
      document.body.classList.toggle("db-no-draft", this.chosen.drafter === "null");
    }

    draw() {
      if (!this.known.length) {
        this.about.textContent = t("drafter.waiting");
        return;
      }
      this.choices.replaceChildren(...this.known.map((one) => this.choice(one)));
      this.explain(this.known.find((one) => one.name === this.chosen.drafter));
      this.drawOptions();
      if (this.own) this.takeGamma();
      document.body.classList.toggle("db-no-draft", this.chosen.drafter === "null");
    }

    choice(one) {
      const input = el("input", { type: "radio", name: "db-drafter", value: one.name });
      input.checked = one.name === this.chosen.drafter;
      if (!one.available) input.setAttribute("aria-disabled", "true");
      input.addEventListener("change", () => {
        if (one.available) {
          this.chosen = { drafter: one.name, options: {} };
          this.write();
          this.drawOptions();
          this.takeGamma();
        } else this.choices.querySelectorAll("input").forEach((other) => (other.checked = other.value === this.chosen.drafter));
        this.explain(one);
      });
      const label = el("label", { class: one.available ? "" : "off" }, input, el("span", { text: D.drafterName(one.name, one.label) }));
      if (!one.available) label.title = D.whyMissing(one);
      return label;
    }

    explain(one) {
      if (!one) {
        this.about.replaceChildren();
        return;
      }
      const chosenLossy = one.options.some((option) => option.lossy.includes(this.chosen.options[option.name] ?? option.default));
      const kind = one.lossless && !chosenLossy ? "lossless" : "lossy";
      const badge = el("span", { class: `db-badge ${kind}`, text: t(`drafter.${kind}`), title: t(`drafter.${kind}.title`) });
      const text = one.available ? tOr(`drafter.${one.name}.summary`, one.summary) : D.whyMissing(one);
      const title = t("drafters.card.title", { drafter: D.drafterName(one.name, one.label) });
      // In another tab: this one keeps what was typed.
      const card = el("a", { class: "db-card-link", href: `drafters#${one.name}`, target: "_blank", rel: "noopener", title, text: t("drafters.card") });
      this.about.replaceChildren(badge, el("span", { text }), " ", card);
    }

    drawOptions() {
      const one = this.known.find((known) => known.name === this.chosen.drafter);
      this.options.replaceChildren(...(one?.options ?? []).map((option) => this.option(option)));
      this.hint.replaceChildren(...[D.defaultsHint(one?.defaults)].filter(Boolean));
    }

    /** Sets γ to the default of the chosen drafter, as the settings are. */
    takeGamma() {
      const one = this.known.find((known) => known.name === this.chosen.drafter);
      const input = document.querySelector("#gamma input[type=number]");
      this.own = !input;
      if (!input || !one || one.name === "null") return;
      input.value = one.gamma;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }

    option(option) {
      const range = D.known(option.low) && D.known(option.high) ? el("small", { text: `${option.low}–${option.high}` }) : null;
      const changed = () => {
        this.explain(this.known.find((known) => known.name === this.chosen.drafter));
        this.write();
      };
      return D.optionField(option, this.chosen.options, changed, range);
    }
  }

  D.mountDrafter = ({ element, props, watch }) => {
    const picker = new DrafterPicker(element.querySelector(".db-drafter"), props);
    watch("value", () => picker.read());
  };
})();
