/* One drafter's card. All that comes from a card file goes in by textContent. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, t, tOr, num, percent, known } = D;
  const ALL = "all";
  const UNITS = ["B", "KB", "MB", "GB", "TB"];

  /** Bytes in powers of 1000, as model cards give them. */
  const bytes = (value) => {
    const power = value >= 1000 ? Math.min(UNITS.length - 1, Math.floor(Math.log10(value) / 3)) : 0;
    const scaled = value / 1000 ** power;
    return `${num(scaled, power && scaled < 100 ? 1 : 0)} ${UNITS[power]}`;
  };

  const count = (value) => {
    if (!known(value)) return num(value);
    return value >= 1e6 ? t("drafters.million", { n: num(value / 1e6, 1) }) : num(value, 0);
  };

  const taskName = (task) => (task === ALL ? t("drafters.all") : D.taskName(task));

  /** A table with a caption; cells are texts or elements, those of the first column head their rows. */
  const table = (caption, heads, rows) => {
    const cell = (content, tag, number) =>
      el(tag, { scope: tag === "th" ? "row" : null, class: number ? "num" : null }, content instanceof Node ? content : String(content));
    const head = el("tr", {}, ...heads.map((text, i) => el("th", { scope: "col", class: i ? "num" : null, text })));
    const body = rows.map((row) => el("tr", {}, ...row.map((content, i) => cell(content, i ? "td" : "th", i > 0))));
    const inner = el("table", {}, el("caption", { text: caption }), el("thead", {}, head), el("tbody", {}, ...body));
    return el("div", { class: "db-card-table" }, inner);
  };

  const facts = (rows) => el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })]));

  const section = (title, ...content) => el("section", {}, el("h3", { text: title }), ...content);

  const badges = (card) => {
    const kind = card.lossless ? "lossless" : "lossy";
    const list = [el("span", { class: `db-badge ${kind}`, text: t(`drafter.${kind}`), title: t(`drafter.${kind}.title`) })];
    for (const { option, choice } of card.lossy) {
      const values = { option: tOr(`option.${option}`, option), choice: tOr(`choice.${choice}`, choice) };
      list.push(el("span", { class: "db-badge lossy", text: t("drafters.lossy.choice", values), title: t("drafter.lossy.title") }));
    }
    if (!card.available) list.push(el("span", { class: "db-badge off", text: t("drafters.off") }));
    return list;
  };

  const papers = (card) => {
    if (!card.papers.length) return null;
    const one = ({ title, arxiv }) => {
      const link = arxiv ? el("a", { href: `https://arxiv.org/abs/${arxiv}`, target: "_blank", rel: "noopener noreferrer", text: `arXiv ${arxiv}` }) : null;
      return el("li", {}, link ? `${title}, ` : title, link);
    };
    return el("ul", { class: "db-card-papers", "aria-label": t("drafters.papers") }, ...card.papers.map(one));
  };

  /** The settings that were chosen for this machine, and why; that they lose is said above. */
  const defaults = (card) => {
    if (!card.defaults) return null;
    const why = card.defaults.loses ? [] : [[t("defaults.reason"), D.whyDefaults(card.defaults)]];
    return section(t("defaults.title"), facts([[t("defaults.settings"), D.defaultSettings(card.defaults)], ...why]));
  };

  /** What the drafter holds: weights, keys and values, temporary tokens, each with how it comes about. */
  const storage = (card, engine) => {
    const held = card.storage;
    if (!held) return null;
    const used = [`γ ${held.gamma}`, ...D.settingNames(held.settings)].join(", ");
    const temporary = held.draft_tokens
      ? t("drafters.temporary.some", { n: held.draft_tokens, bytes: bytes(held.temporary_bytes), settings: used })
      : t("drafters.none");
    return section(t("drafters.stores"), facts([
      [t("drafters.parameters"), held.parameters ? t("drafters.parameters.some", { n: count(held.parameters), bytes: bytes(held.weight_bytes), share: percent(held.parameters / engine.parameters, 1) }) : t("drafters.none")],
      [t("drafters.kv"), held.kv_bytes_per_token ? t("drafters.kv.some", { bytes: bytes(held.kv_bytes_per_token), target: bytes(engine.kv_bytes_per_token) }) : t("drafters.none")],
      [t("drafters.temporary"), temporary],
      ...(held.context_bytes ? [[t("drafters.context"), t("drafters.context.some", { bytes: bytes(held.context_bytes) })]] : []),
    ]));
  };

  const costs = (card) => {
    if (!card.storage || card.name === "null") return null;
    if (!card.costs.length) return section(t("drafters.cost"), el("p", { class: "db-card-soft", text: t("drafters.cost.none") }));
    const rows = card.costs.map((cost) => [`${cost.label}, γ ${cost.gamma}`, percent(cost.per_step, 1), percent(cost.per_token, 1)]);
    const heads = [t("drafters.setting"), t("drafters.cost.step"), t("drafters.cost.token")];
    return section(t("drafters.cost"), table(t("drafters.cost.about"), heads, rows));
  };

  const training = (card) => {
    const made = card.training;
    if (!made && !card.source) return null;
    const from = [t("drafters.source"), card.source ?? ""];
    if (!made) return section(t("drafters.training"), facts([from]), el("p", { class: "db-card-soft", text: t("drafters.card.none") }));
    const rows = [
      from,
      [t("drafters.target"), made.target],
      [t("drafters.data"), known(made.answer_tokens) ? t("drafters.data.some", { sequences: num(made.sequences, 0), tokens: num(made.answer_tokens, 0), held: num(made.held_out_sequences, 0) }) : ""],
      [t("drafters.time"), known(made.hours) ? t("drafters.time.some", { hours: num(made.hours, made.hours < 1 ? 2 : 1), steps: num(made.steps, 0), seed: num(made.seed, 0) }) : ""],
      [t("drafters.versions"), made.versions],
      [t("drafters.made"), made.made ? made.made.slice(0, 10) : ""],
    ];
    return section(t("drafters.training"), facts(rows.filter(([, value]) => value)));
  };

  /** A number with a bar behind it, from 1 token a pass (plain decoding) to all of a chain. */
  const bar = (length, gamma) => {
    const share = known(length) && gamma ? Math.min(1, Math.max(0, (length - 1) / gamma)) : 0;
    const track = el("span", { class: "db-card-bar", "aria-hidden": "true" }, el("span"));
    track.firstChild.style.width = `${100 * share}%`;
    return el("span", { class: "db-card-length" }, track, el("span", { text: num(length) }));
  };

  /** That it accepts less than was published of its method, and why, where its card says what it learned from. */
  const belowText = ({ below, training: made }) => {
    const { length, setting, source } = below.published;
    const values = { own: num(below.length), published: num(length), setting, source };
    if (!known(made.answer_tokens) || !known(made.hours)) return t("drafters.below.bare", values);
    return t("drafters.below", { ...values, tokens: num(made.answer_tokens, 0), hours: num(made.hours, made.hours < 1 ? 2 : 1) });
  };

  const heldOut = (card) => {
    if (!card.held_out.length) {
      return card.training ? section(t("drafters.heldout"), el("p", { class: "db-card-soft", text: t("drafters.heldout.none") })) : null;
    }
    const rows = card.held_out.map((one) => [taskName(one.task), bar(one.length, one.gamma), percent(one.acceptance), percent(one.article)]);
    const heads = [t("drafters.task"), t("drafters.length"), t("drafters.acceptance"), t("drafters.article")];
    const caption = t("drafters.heldout.about", { gamma: card.held_out[0].gamma, article: card.article });
    const below = card.below && el("p", { class: "db-card-below", text: belowText(card) });
    return section(t("drafters.heldout"), table(caption, heads, rows), below);
  };

  const measured = (card) => {
    if (!card.measured.length) return null;
    const range = (one) => (known(one.low) && known(one.high) ? `${num(one.low)}–${num(one.high)}` : num(null));
    const rows = card.measured.map((one) => [taskName(one.task), num(one.gamma, 0), num(one.batch_size, 0), `${num(one.speedup)}×`, range(one)]);
    const heads = [t("drafters.task"), "γ", t("drafters.batch"), t("drafters.speedup"), t("drafters.interval")];
    const machines = [...new Set(card.measured.map((one) => one.machine).filter(Boolean))].join("; ");
    return section(t("drafters.measured"), table(t("drafters.measured.about", { machines: machines || "–" }), heads, rows));
  };

  const published = (card) => {
    if (!card.published.length) return null;
    const rows = card.published.map((one) => [
      el("span", {}, one.setting, el("small", { text: one.source })),
      known(one.speedup) ? `${num(one.speedup)}×` : num(null),
      num(one.length),
    ]);
    const heads = [t("drafters.setting"), t("drafters.speedup"), t("drafters.length")];
    return el("details", {}, el("summary", { text: t("drafters.published", { n: rows.length }) }), table(t("drafters.published.about"), heads, rows));
  };

  /** The card as an article with its name as its id. */
  D.drafterCard = (card, engine) => {
    const missing = card.available ? null : el("p", { class: "db-card-missing", text: D.whyMissing(card) });
    const slower = card.slower && el("p", { class: "db-card-slower", text: t("drafters.slower", { machine: card.best.machine || "–", speedup: num(card.best.speedup) }) });
    const loses = card.defaults?.loses && el("p", { class: "db-card-slower", text: D.whyDefaults(card.defaults) });
    const name = D.drafterName(card.name, card.label);
    return el(
      "article",
      { class: `db-drafter-card${card.available ? "" : " off"}`, id: card.name, tabindex: "-1", "aria-label": name },
      el("header", {}, el("h2", { text: name }), el("span", { class: "db-card-badges" }, ...badges(card))),
      el("p", { class: "db-card-how", text: tOr(`drafters.how.${card.name}`, card.summary) }),
      missing,
      slower || null,
      loses || null,
      papers(card),
      defaults(card),
      storage(card, engine),
      costs(card),
      training(card),
      heldOut(card),
      measured(card),
      published(card),
    );
  };
})();
