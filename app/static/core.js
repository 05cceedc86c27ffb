/* Shared by all parts of the page: texts, elements, questions to the server, copying, numbers and the one popover. Token text goes in by textContent only. */
(() => {
  "use strict";
  const D = (window.Draftboard = window.Draftboard || { lang: "en", texts: {} });
  const COPIED_MS = 1800;

  /** The text of a key in the page's language, with {name} filled in from values. */
  D.t = (key, values = {}) => {
    const text = D.texts[key] ?? key;
    return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
  };

  /** The text of a key, or the fallback when the language has none (names that the engine brings along). */
  D.tOr = (key, fallback) => D.texts[key] ?? fallback;

  /** An element: attributes as given, text by textContent, children appended. */
  D.el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "text") node.textContent = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children) if (child !== null && child !== undefined) node.append(child);
    return node;
  };

  /** Writes a text, or an attribute, only when it differs: the same again would be laid out and painted again. */
  D.write = (node, text, attribute) => {
    if (attribute) {
      if (node.getAttribute(attribute) !== text) node.setAttribute(attribute, text);
    } else if (node.textContent !== text) node.textContent = text;
  };

  /** Calls `draw` at most once in `ms`, at once where the last time is long enough ago, and always after the last `ask`. */
  D.Pace = class {
    constructor(ms, draw) {
      Object.assign(this, { ms, draw, last: -Infinity, timer: null });
    }

    ask(now = false) {
      const wait = this.last + this.ms - performance.now();
      if (!now && wait > 0) {
        this.timer ??= setTimeout(() => this.ask(true), wait + this.ms / 2); // the next delta is mostly sooner, and saves a frame
        return;
      }
      clearTimeout(this.timer);
      this.timer = null;
      this.last = performance.now();
      this.draw();
    }
  };

  /** Asks the server, with a POST when there is a body: a value, or a file as it is. A refusal is thrown as an Error with its sentence. */
  D.ask = async (address, body) => {
    const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: body instanceof Blob ? body : JSON.stringify(body) };
    const answer = await fetch(address, body === undefined ? {} : post).catch(() => null);
    const value = await answer?.json().catch(() => null);
    if (!answer?.ok || !value || value.error) throw new Error(value?.error ?? D.t("app.unreachable"));
    return value;
  };

  /** The same for those who show a refusal in the place of the answer: {error: sentence}. */
  D.answer = (address, body) => D.ask(address, body).catch((error) => ({ error: error.message }));

  /** Copies a text; where the clipboard is not to be had (an address without https), a selection and the old command stand in. */
  const copyText = async (text, within) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = D.el("textarea", { "aria-hidden": "true", tabindex: "-1", class: "db-copy-aside" });
      area.value = text;
      within.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };

  /** A button that copies what `read` gives, and says so for a moment. */
  D.copyButton = (label, read, attributes = { class: "db-button" }) => {
    const button = D.el("button", { type: "button", text: label, ...attributes });
    let timer = null;
    button.addEventListener("click", async () => {
      await copyText(read(), button.parentNode);
      button.textContent = D.t("run.copied");
      clearTimeout(timer);
      timer = setTimeout(() => (button.textContent = label), COPIED_MS);
    });
    return button;
  };

  /** A button that copies the address which opens a run on this page. */
  D.copyLink = (runId) => {
    const read = () => new URL(`?${new URLSearchParams({ run: runId() })}`, location.origin + location.pathname).href;
    return D.copyButton(D.t("run.link"), read, { class: "db-link", hidden: true, title: D.t("run.link.title") });
  };

  /** Says of a run that it was recorded elsewhere and comes with the program. */
  D.recordedBadge = (attributes = {}) => D.el("span", { class: "db-badge recorded", text: D.t("replay.recorded"), title: D.t("replay.recorded.title"), ...attributes });

  /** Whether a click on a link asks for nothing but to follow it here: not in another tab or window. */
  D.isPlain = (click) => !(click.metaKey || click.ctrlKey || click.shiftKey || click.button);

  D.wantsNoMovement = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  const SVG = "http://www.w3.org/2000/svg";
  D.svg = (tag, attributes = {}, text) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };

  /** Every number once, the smallest first. */
  D.distinct = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);

  const DASH = "–";
  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  D.known = known;
  const formats = new Map(); // making one costs more than a hundred numbers
  const format = (digits) => {
    if (!formats.has(digits)) formats.set(digits, new Intl.NumberFormat(D.lang, { minimumFractionDigits: digits, maximumFractionDigits: digits }));
    return formats.get(digits);
  };
  D.num = (value, digits = 2) => (known(value) ? format(digits).format(value) : DASH);
  D.percent = (value, digits = 0) => (known(value) ? `${D.num(100 * value, digits)} %` : DASH);
  D.ms = (value) => {
    if (!known(value)) return DASH;
    if (value >= 10000) return `${D.num(value / 1000, 1)} s`;
    return `${D.num(value, value >= 100 ? 0 : value >= 10 ? 1 : 2)} ms`;
  };
  D.probability = (value) => (known(value) ? (value !== 0 && value < 0.0001 ? value.toExponential(1) : D.num(value, 4)) : DASH);

  /** Whitespace made visible, for places that quote a token. */
  D.quote = (text) => text.replace(/ /g, "·").replace(/\t/g, "→").replace(/\n/g, "↵").replace(/\r/g, "␍") || "∅";

  /** Special tokens by how they are written: <|im_end|>, <s>, </s>, [INST]-like names stay ordinary text. */
  D.isSpecial = (text) => /^<\|[^<>|\s]{1,60}\|>$|^<\/?(s|unk|pad|bos|eos)>$/.test(text);

  D.store = {
    get(key) {
      try {
        return localStorage.getItem(`draftboard.${key}`);
      } catch {
        return null;
      }
    },
    set(key, value) {
      try {
        localStorage.setItem(`draftboard.${key}`, value);
      } catch {
        /* a browser that keeps nothing still runs the page */
      }
    },
  };

  /** One popover for tokens and definitions; it never takes the focus, and Escape closes it. */
  class Popover {
    constructor() {
      this.node = D.el("div", { class: "db-popover", role: "tooltip", id: "db-popover", hidden: true });
      this.anchor = null;
      document.addEventListener("keydown", (event) => {
        if (event.key === "Escape") this.hide();
      });
      const moved = (event) => {
        if (this.anchor && event.target.contains?.(this.anchor)) this.hide();
      };
      document.addEventListener("scroll", moved, { capture: true, passive: true });
      document.addEventListener("pointerdown", (event) => {
        if (this.anchor && !this.anchor.contains(event.target)) this.hide();
      });
    }

    show(anchor, ...content) {
      if (!this.node.isConnected) document.body.append(this.node);
      this.anchor?.removeAttribute("aria-describedby");
      this.anchor = anchor;
      anchor.setAttribute("aria-describedby", "db-popover");
      this.node.replaceChildren(...content);
      this.node.hidden = false;
      const rects = anchor.getClientRects();
      const box = rects.length ? rects[rects.length - 1] : anchor.getBoundingClientRect();
      const { offsetWidth: width, offsetHeight: height } = this.node;
      const left = Math.min(Math.max(8, box.left), Math.max(8, document.documentElement.clientWidth - width - 8));
      const below = box.bottom + 8 + height <= window.innerHeight || box.top < height + 16;
      this.node.style.left = `${left}px`;
      this.node.style.top = `${below ? box.bottom + 8 : box.top - height - 8}px`;
    }

    hide(anchor) {
      if (anchor && anchor !== this.anchor) return;
      this.anchor?.removeAttribute("aria-describedby");
      this.anchor = null;
      this.node.hidden = true;
    }
  }
  D.popover = new Popover();

  /** Makes an element explain itself on hover, focus and tap. */
  D.explain = (node, key) => {
    const show = () => D.popover.show(node, D.el("div", { class: "db-def", text: D.t(key) }));
    node.tabIndex = 0;
    node.classList.add("db-explained");
    node.addEventListener("mouseenter", show);
    node.addEventListener("focus", show);
    node.addEventListener("click", show);
    node.addEventListener("mouseleave", () => D.popover.hide(node));
    node.addEventListener("blur", () => D.popover.hide(node));
    return node;
  };
})();
