/* Takes a chart or its numbers home: SVG and PNG pictures with their styles inside, CSV of the drawn values. */
(() => {
  "use strict";
  const D = window.Draftboard;
  const { el, svg, t } = D;
  const SCALE = 2;
  const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill-opacity", "opacity", "font-size", "font-weight", "font-family", "text-anchor"];

  const saveFile = (name, content, type) => {
    const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    const link = el("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  };

  const csv = (rows) => {
    const cell = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
    };
    return `${rows.map((row) => row.map(cell).join(",")).join("\n")}\n`;
  };

  /** A copy of a picture that keeps the styles which the page gives it. */
  const styled = (original) => {
    const copy = original.cloneNode(true);
    const from = original.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((node, i) => {
      const style = getComputedStyle(from[i]);
      node.setAttribute("style", STYLED.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
    });
    return copy;
  };

  /** The chart as a document of its own: title, legend and the styles that the page gives it. */
  const picture = (chart) => {
    const copy = styled(chart.svg);
    for (const mark of copy.querySelectorAll("[tabindex]")) mark.removeAttribute("tabindex");
    const ink = getComputedStyle(chart.node).color;
    const font = getComputedStyle(chart.node).fontFamily;
    const entries = [...chart.legend.querySelectorAll("li")];
    const top = 34 + 18 * Math.ceil(entries.length / 3);
    const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: chart.width, height: chart.height + top, viewBox: `0 0 ${chart.width} ${chart.height + top}` });
    whole.append(svg("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).getPropertyValue("--db-card").trim() || "#fff" }));
    const write = (text, x, y, size, weight) => whole.append(svg("text", { x, y, fill: ink, style: `font:${weight} ${size}px ${font.replace(/"/g, "'")}` }, text));
    write(chart.title, 14, 22, 15, 700);
    entries.forEach((entry, i) => {
      const [x, y] = [14 + (i % 3) * 205, 44 + 18 * Math.floor(i / 3)];
      const sign = styled(entry.querySelector("svg"));
      sign.setAttribute("x", x);
      sign.setAttribute("y", y - 11);
      whole.append(sign);
      write(entry.textContent, x + 40, y, 11, 400);
    });
    copy.setAttribute("y", top);
    copy.setAttribute("width", chart.width);
    copy.setAttribute("height", chart.height);
    whole.append(copy);
    return new XMLSerializer().serializeToString(whole);
  };

  const savePng = async (chart, name) => {
    const image = new Image();
    image.src = URL.createObjectURL(new Blob([picture(chart)], { type: "image/svg+xml" }));
    await image.decode();
    const canvas = el("canvas", { width: image.width * SCALE, height: image.height * SCALE });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(image.src);
    canvas.toBlob((blob) => saveFile(name, blob, "image/png"), "image/png");
  };

  /** The buttons in the corner of a chart. */
  D.chartTools = (chart) => {
    const button = (kind, save) => el("button", { type: "button", "data-save": kind, "aria-label": t("chart.save", { kind, title: chart.title }), title: t("chart.save", { kind, title: chart.title }), text: kind, onclick: save });
    const name = (kind) => `draftboard-${chart.key}.${kind.toLowerCase()}`;
    return el(
      "div",
      { class: "ch-tools" },
      button("PNG", () => savePng(chart, name("PNG"))),
      button("SVG", () => saveFile(name("SVG"), picture(chart), "image/svg+xml")),
      button("CSV", () => saveFile(name("CSV"), csv(chart.rows()), "text/csv")),
    );
  };
})();
