/* How drafters, tasks, settings and moments are called, and the field in which a setting is chosen. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, tOr } = D;

  /** Below 2 % nobody should speak of faster or slower. */
  D.SAME_SPEED = 0.02;

  D.drafterName = (name, label = name) => tOr(`drafter.${name}.label`, label);

  /** Why a drafter cannot be chosen; the engine's own words where there are no others. */
  D.whyMissing = ({ name, reason }) => D.t("drafter.unavailable", { reason: tOr(`drafter.${name}.missing`, reason) });

  D.taskName = (task) => tOr(`task.${task}`, task || D.t("batch.task.none"));

  /** Settings of a drafter, each as a name and a value. */
  D.settingNames = (options) => Object.entries(options ?? {}).map(([name, value]) => `${tOr(`option.${name}`, name)} ${tOr(`choice.${value}`, value)}`);

  /** Why a drafter has these defaults on this machine, and on what its acceptance rests; see `app/default_lines.py`. */
  D.whyDefaults = (defaults) => {
    if (defaults.problem) return D.t("defaults.assumed", { reason: defaults.problem });
    const values = { wide: defaults.wide_rows, passes: D.num(defaults.wide_cost, 1), tokens: D.num(defaults.tokens), cost: D.num(defaults.cost), speedup: D.num(defaults.speedup) };
    const why = defaults.loses ? D.t("defaults.loses", values) : D.t("defaults.why", values);
    return `${why} ${D.t(`defaults.basis.${defaults.basis}`)}`;
  };

  /** γ and the settings that were chosen, in words. */
  D.defaultSettings = (defaults) => [`γ ${defaults.gamma}`, ...D.settingNames(defaults.options)].join(", ");

  /** A line below the settings of a form; null of a drafter for which nothing was chosen. */
  D.defaultsHint = (defaults) => {
    if (!defaults) return null;
    const line = [D.t("defaults.here", { settings: D.defaultSettings(defaults) }), D.whyDefaults(defaults)].join(" ");
    return el("p", { class: `db-defaults${defaults.loses ? " loses" : ""}`, text: line });
  };

  const time = (format) => (at) => new Date(at).toLocaleString(D.lang, { ...format, hourCycle: "h23" });
  D.when = time({ dateStyle: "medium", timeStyle: "short" });
  D.day = time({ month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });

  /** The field of a drafter's setting: `options` holds those that differ from their defaults, `changed()` hears of every change. */
  D.optionField = (option, options, changed, hint = null) => {
    const { name, choices } = option;
    const input = choices.length
      ? el("select", {}, ...choices.map((choice) => el("option", { value: choice, text: tOr(`choice.${choice}`, choice) })))
      : el("input", { type: "number", min: option.low, max: option.high, step: option.whole ? 1 : "any" });
    input.value = options[name] ?? option.default;
    input.dataset.option = name;
    input.addEventListener("input", () => {
      const typed = choices.length ? input.value : input.valueAsNumber;
      if (Number.isNaN(typed) || typed === option.default) delete options[name];
      else options[name] = typed;
      changed();
    });
    return el("label", {}, el("span", { text: tOr(`option.${name}`, option.label) }), input, hint);
  };
})();
