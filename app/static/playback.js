/* A clock that plays a recorded thing, and its controls: play, steps, scrubber, speed, keys. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, svg, t } = D;
  const LONGEST_FRAME_MS = 250; // a tab that was in the background goes on where it was
  D.SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
  const ICONS = {
    play: "M4 2.5v11l9-5.5z",
    pause: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z",
    back: "M3 2.5h2v11H3zM13 2.5v11L6 8z",
    forward: "M11 2.5h2v11h-2zM3 2.5v11L10 8z",
  };

  class Playback {
    /** `onChange(position)` hears every new position, in milliseconds of the recording; `onState(playing)` when it starts or stops. */
    constructor(onChange, onState) {
      Object.assign(this, { onChange, onState, length: 0, position: 0, speed: 1, playing: false, last: 0 });
      this.tick = this.tick.bind(this);
    }

    play() {
      if (this.playing || !this.length) return;
      if (this.position >= this.length) this.seek(0);
      this.playing = true;
      this.last = performance.now();
      this.onState(true);
      requestAnimationFrame(this.tick);
    }

    pause() {
      if (!this.playing) return;
      this.playing = false;
      this.onState(false);
    }

    toggle() {
      if (this.playing) this.pause();
      else this.play();
    }

    seek(position) {
      this.position = Math.min(this.length, Math.max(0, position));
      this.onChange(this.position);
    }

    tick(now) {
      if (!this.playing) return;
      const passed = Math.min(LONGEST_FRAME_MS, Math.max(0, now - this.last));
      this.last = now;
      this.seek(this.position + passed * this.speed);
      if (this.position >= this.length) this.pause();
      else requestAnimationFrame(this.tick);
    }
  }

  const icon = (name) => {
    const picture = svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" });
    picture.append(svg("path", { d: ICONS[name] }));
    return picture;
  };

  class PlayControls {
    /**
     * `playback` is the clock; `more` are [value, label] of speeds beside the usual ones; `step(direction)` and `scrub(value)` move it, `chooseSpeed(value)` sets
     * its pace. The scrubber counts from 0 to `max`.
     */
    constructor({ playback, more = [], speed, step, scrub, chooseSpeed, label }) {
      Object.assign(this, { playback, step });
      const button = (name, key, act) => {
        const node = el("button", { type: "button", class: `db-play-button ${name}`, "aria-label": t(key), title: t(key) }, icon(name));
        node.addEventListener("click", act);
        return node;
      };
      this.toggle = button("play", "play.play", () => playback.toggle());
      this.scrubber = el("input", { type: "range", min: 0, max: 0, step: 1, value: 0, class: "db-scrubber", "aria-label": label });
      this.scrubber.addEventListener("input", () => {
        playback.pause();
        scrub(this.scrubber.valueAsNumber);
      });
      this.where = el("output", { class: "db-play-where" });
      const speeds = [...D.SPEEDS.map((value) => [String(value), `${value}×`]), ...more];
      this.speed = el("select", { class: "db-play-speed", "aria-label": t("play.speed") }, ...speeds.map(([value, text]) => el("option", { value, text })));
      this.speed.value = speed;
      this.speed.addEventListener("input", () => chooseSpeed(this.speed.value));
      this.node = el(
        "div",
        { class: "db-play", role: "group", "aria-label": t("play.label") },
        button("back", "play.back", () => this.move(-1)),
        this.toggle,
        button("forward", "play.forward", () => this.move(1)),
        this.scrubber,
        this.where,
        el("label", { class: "db-play-speed-box" }, el("span", { text: t("play.speed") }), this.speed),
      );
    }

    move(direction) {
      this.playback.pause();
      this.step(direction);
    }

    setPlaying(playing) {
      const key = playing ? "play.pause" : "play.play";
      this.toggle.replaceChildren(icon(playing ? "pause" : "play"));
      this.toggle.setAttribute("aria-label", t(key));
      this.toggle.title = t(key);
    }

    /** Writes where the recording is: the scrubber's value, and a text for people. */
    show(value, max, text) {
      if (this.scrubber.max !== String(max)) this.scrubber.max = max;
      if (this.scrubber.value !== String(value)) this.scrubber.value = value;
      D.write(this.where, text);
      D.write(this.scrubber, text, "aria-valuetext");
    }

    /** Space, arrows, Home and End from anywhere on the page, except where the focus needs them itself. */
    listen() {
      document.addEventListener("keydown", (event) => {
        const target = event.target;
        if (!this.playback.length || this.node.hidden) return;
        if (event.ctrlKey || event.metaKey || event.altKey || target.closest?.("textarea, select, [contenteditable], input:not([type=range])")) return;
        const own = target.closest?.("button, a, summary, [role=option]"); // space presses what has the focus
        const onScrubber = target === this.scrubber;
        if (event.key === " " && !own) this.playback.toggle();
        else if (event.key === "ArrowRight" && !onScrubber) this.move(event.shiftKey ? 0.5 : 1);
        else if (event.key === "ArrowLeft" && !onScrubber) this.move(event.shiftKey ? -0.5 : -1);
        else if (event.key === "Home" && !onScrubber) this.move(-Infinity);
        else if (event.key === "End" && !onScrubber) this.move(Infinity);
        else return;
        event.preventDefault();
      });
    }
  }

  D.Playback = Playback;
  D.PlayControls = PlayControls;
})();
