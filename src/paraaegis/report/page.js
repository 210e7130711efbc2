"use strict";
const quiet = { displayModeBar: false, responsive: true };
function colours() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--ink").trim();
  const line = style.getPropertyValue("--line").trim();
  return { ink, line };
}
function draw() {
  const { ink, line } = colours();
  FIGURES.forEach((figure, number) => {
    const data = JSON.parse(JSON.stringify(figure.data).replaceAll('"#000000"', JSON.stringify(ink)));
    const place = document.getElementById(`figure-${number}`);
    const layout = Object.assign({
      height: 340, margin: { l: 60, r: 15, t: 15, b: 55 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, family: "system-ui, sans-serif" }, showlegend: false,
    }, figure.layout);
    for (const axis of ["xaxis", "yaxis"]) {
      const title = figure.layout[axis] && figure.layout[axis].title;
      layout[axis] = Object.assign({ gridcolor: line, zerolinecolor: line }, figure.layout[axis],
        title ? { title: { text: title } } : {});
    }
    place.style.height = `${layout.height}px`; // otherwise a resize after a redraw sees a height of zero
    Plotly.react(place, data, layout, quiet);
    legend(place, data);
  });
}
const SYMBOLS = { star: "★", "triangle-down": "▼", "triangle-left": "◀", square: "■", x: "✖", diamond: "◆", circle: "●", cross: "✚", "triangle-up": "▲" };
const MANY = 10; // series: beyond this the legend shows one entry per method; hovering shows the rest
function legend(place, all) {
  const first = (series, i) => !series.legendgroup || all.findIndex((other) => other.legendgroup === series.legendgroup) === i;
  const short = all.length > MANY;
  const data = short ? all.filter(first) : all;
  const list = place.nextElementSibling || place.parentElement.appendChild(document.createElement("ul"));
  list.className = "legend";
  list.replaceChildren(...data.map((series) => {
    const item = document.createElement("li");
    const key = item.appendChild(document.createElement("i"));
    const symbol = series.mode && series.mode.includes("markers") && SYMBOLS[series.marker && series.marker.symbol];
    if (symbol) {
      key.textContent = symbol;
      key.style.color = series.marker.color || series.line.color;
      item.append((short && series.legendgroup) || series.name);
      return item;
    }
    const style = (series.line && series.line.dash) === "solid" || !series.line ? "solid" : "dashed";
    key.style.borderTop = `4px ${style} ${(series.line && series.line.color) || series.marker.color}`;
    item.append((short && series.legendgroup) || series.name);
    return item;
  }));
}
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    const key = (row) => row.cells[column].textContent;
    const number = (row) => parseFloat(key(row));
    const numeric = rows.some((row) => !Number.isNaN(number(row))) && rows.every((row) => key(row) === "" || !Number.isNaN(number(row)));
    const order = (a, b) => (numeric ? number(a) - number(b) : key(a).localeCompare(key(b))) * (up ? 1 : -1);
    rows.sort((a, b) => (key(a) === "") - (key(b) === "") || (key(a) === "" ? 0 : order(a, b))); // empty cells last
    table.tBodies[0].append(...rows);
  }));
}
function download(link) {
  const figure = FIGURES[Number(link.dataset.figure)];
  const axis = (name, other) => (figure.layout[name] && figure.layout[name].title) || other;
  const rows = [["series", axis("xaxis", "x"), axis("yaxis", "y")]];
  for (const series of figure.data) series.x.forEach((x, i) => rows.push([series.name, x, series.y[i]]));
  const cell = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
  link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(rows.map((row) => row.map(cell).join(",")).join("\n"));
  link.download = `${link.dataset.name}.csv`;
}
draw();
document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll("a.download").forEach((link) => { download(link); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
matchMedia("print").addEventListener("change", draw);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
