// Latents of the rows in two directions, and the path of the row along a column of numbers.

import {Newest} from "./ask.js";
import {CanvasPen, PALETTE, colour, cut, mapped, range, scale, short, ticks} from "./pen.js";
import {$, ask, change, columnOf, facts, make, offTerms, onChange, rowAt, rowWords, setRow, state, trouble, valueAt} from "./state.js";
import {addSave, literal, pythonOff, pythonRow, pythonStart} from "./save.js";
import {hideTip, showTip} from "./tip.js";

let points = null, way = null, plot = null;
const queue = new Newest(async () => {
  way = await ask("path", {row: state.row, column: state.slide, off: offTerms()});
  render();
}, trouble);

async function fetchPoints() {
  points = await ask("scatter", {});
  points.k = points.places.shape[1];
  state.a = Math.min(state.a, points.k - 1);
  state.b = Math.min(state.b, points.k - 1);
  choices();
  render();
}

const axisName = i => `direction ${i + 1} (${Math.round(100 * points.shares[i])}%)`;

function tints() {
  const column = facts.table.columns[state.tint];
  if (!column) return {of: () => colour("accent"), kind: "none"};
  if (column.kind === "id") return {of: cell => PALETTE[column.codes[cell] % PALETTE.length], kind: "id", levels: column.levels};
  const [low, high] = range(column.values), map = facts.maps.viridis;
  return {of: cell => (column.values[cell] === null ? colour("soft") : mapped(map, (column.values[cell] - low) / (high - low || 1))), kind: "number", low, high, map};
}

const scatterSize = () => { const w = Math.max(240, $("latent-panel").clientWidth - 32); return [w, Math.min(330, w * 0.85)]; };
const alongSize = () => [scatterSize()[0], 184];
const at = (array, n, i) => array[n * points.k + i];

function drawScatter(pen, [width, height]) {
  const {a, b} = state, left = 48, bottom = 34, tint = tints();
  const xs = Array.from(points.cells, (_, n) => at(points.places, n, a)), ys = Array.from(points.cells, (_, n) => at(points.places, n, b));
  const wayX = way && way.at ? Array.from(way.at, (_, n) => at(way.places, n, a)) : [], wayY = way && way.at ? Array.from(way.at, (_, n) => at(way.places, n, b)) : [];
  const fit = values => { const [low, high] = range(values), room = 0.07 * (high - low) || 1; return [low - room, high + room]; };
  const spanX = fit([...xs, ...wayX]), spanY = fit([...ys, ...wayY]);
  const px = scale(spanX, [left, width - 6]), py = scale(spanY, [height - bottom, 6]);
  pen.rect(left, 6, width - 6 - left, height - bottom - 6, {fill: colour("paper"), stroke: colour("line")});
  for (const tick of ticks(...spanX, 5)) pen.text(short(tick), px(tick), height - bottom + 10, {anchor: "middle"});
  for (const tick of ticks(...spanY, 5)) pen.text(short(tick), left - 5, py(tick), {anchor: "end"});
  pen.text(axisName(a), (left + width) / 2, height - 9, {anchor: "middle", fill: colour("ink")});
  pen.text(axisName(b), 8, (height - bottom + 6) / 2, {anchor: "middle", turn: -90, fill: colour("ink")});
  const many = points.cells.length > 800, r = many ? 2 : 3;
  if (way && way.at) {
    const size = (n, i, to) => Math.abs(to(2 * at(way.stds, n, i)) - to(0));
    pen.layer([left, 6, width - 6 - left, height - bottom - 6], 0.13, inside =>
      way.at.forEach((_, n) => inside.ellipse(px(wayX[n]), py(wayY[n]), size(n, a, px), size(n, b, py), {fill: colour("ink")})));
  }
  points.cells.forEach((cell, n) => pen.ellipse(px(xs[n]), py(ys[n]), r, r, {fill: tint.of(cell), alpha: many ? 0.45 : 0.7}));
  if (way) {
    if (way.at) {
      pen.path(wayX.map((x, n) => [px(x), py(wayY[n])]), {stroke: colour("ink"), width: 2});
    }
    pen.ellipse(px(at(way.here, 0, a)), py(at(way.here, 0, b)), 6, 6, {fill: colour("mark"), stroke: colour("paper"), width: 1.5});
  }
  plot = {px, py, xs, ys};
}

function drawAlong(pen, [width, height]) {
  const left = 48, bottom = 32, [low, high] = columnOf(state.slide).span, shown = [...new Set([state.a, state.b])];
  const all = shown.flatMap(i => Array.from(way.at, (_, n) => [at(way.places, n, i) - 2 * at(way.stds, n, i), at(way.places, n, i) + 2 * at(way.stds, n, i)])).flat();
  const spanY = range(all), px = scale([low, high], [left, width - 6]), py = scale(spanY, [height - bottom, 24]);
  for (const tick of ticks(...spanY, 4)) { pen.path([[left, py(tick)], [width - 6, py(tick)]], {stroke: colour("line")}); pen.text(short(tick), left - 5, py(tick), {anchor: "end"}); }
  for (const tick of ticks(low, high, 6)) pen.text(short(tick), px(tick), height - bottom + 10, {anchor: "middle"});
  pen.text(state.slide, (left + width) / 2, height - 8, {anchor: "middle", fill: colour("ink")});
  const here = px(state.row[state.slide]);
  pen.path([[here, 24], [here, height - bottom]], {stroke: colour("mark"), width: 1.5, dash: [4, 3]});
  shown.forEach((i, number) => {
    const tone = number ? colour("soft") : colour("accent"), side = s => Array.from(way.at, (v, n) => [px(v), py(at(way.places, n, i) + s * 2 * at(way.stds, n, i))]);
    pen.path([...side(1), ...side(-1).reverse()], {fill: tone, alpha: 0.2});
    pen.path(Array.from(way.at, (v, n) => [px(v), py(at(way.places, n, i))]), {stroke: tone, width: 2});
    pen.rect(left + 100 * number, 8, 14, 3, {fill: tone});
    pen.text(`direction ${i + 1}`, left + 20 + 100 * number, 10, {fill: tone});
  });
}

function legend() {
  const place = $("latent-legend"), tint = tints();
  place.replaceChildren();
  if (tint.kind === "number") {
    const bar = make("canvas"), pen = new CanvasPen(bar, 100, 10);
    for (let i = 0; i < 100; i++) pen.rect(i, 0, 1.5, 10, {fill: mapped(tint.map, i / 99)});
    place.append(make("span", {}, `${cut(state.tint, 24)} ${short(tint.low)}`, bar, short(tint.high)));
  } else if (tint.kind === "id") {
    tint.levels.slice(0, 8).forEach((level, i) => {
      const box = make("i");
      box.style.background = PALETTE[i];
      place.append(make("span", {}, box, cut(level, 18)));
    });
    if (tint.levels.length > 8) place.append(`and ${tint.levels.length - 8} more; colours repeat`);
  }
  const line = make("i");
  line.style.background = colour("ink");
  line.style.height = "3px";
  if (way && way.at) place.append(make("span", {}, line, `path along ${cut(state.slide, 20)}, ± 2 std`));
}

function render() {
  if (!points) return;
  drawScatter(new CanvasPen($("scatter"), ...scatterSize()), scatterSize());
  $("along").hidden = !(way && way.at);
  if (way && way.at) drawAlong(new CanvasPen($("along"), ...alongSize()), alongSize());
  legend();
}

function near(event) {
  if (!plot) return -1;
  const box = $("scatter").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  let best = -1, least = 14;
  plot.xs.forEach((v, n) => { const apart = Math.hypot(plot.px(v) - x, plot.py(plot.ys[n]) - y); if (apart < least) { least = apart; best = n; } });
  return best;
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, words]) => make("option", {value, textContent: words, selected: String(value) === String(chosen)})));
}

function choices() {
  const axes = Array.from({length: points.k}, (_, i) => [i, axisName(i)]);
  fill($("axis-a"), axes, state.a);
  fill($("axis-b"), axes, state.b);
  fill($("tint"), Object.keys(facts.table.columns).map(name => [name, name]), state.tint);
}

export function startLatents() {
  $("axis-a").onchange = event => { change("view", {a: +event.target.value}); };
  $("axis-b").onchange = event => { change("view", {b: +event.target.value}); };
  $("tint").onchange = event => { change("view", {tint: event.target.value}); };
  const scatter = $("scatter");
  scatter.onclick = event => { const n = near(event); if (n >= 0) setRow(rowAt(points.cells[n])); };
  scatter.onpointermove = event => {
    const n = near(event);
    if (n < 0) { hideTip(); return; }
    const cell = points.cells[n], tint = state.tint, own = facts.columns.some(({name}) => name === tint);
    showTip(event, rowWords(rowAt(cell)) + (own || !tint ? "" : `\n${tint} ${valueAt(tint, cell)}`));
  };
  scatter.onpointerleave = hideTip;
  addSave("latent-panel", {
    name: "latents",
    size: () => [scatterSize()[0], scatterSize()[1] + (way && way.at ? alongSize()[1] + 8 : 0)],
    figure: pen => {
      drawScatter(pen, scatterSize());
      if (way && way.at) drawAlong(moved(pen, scatterSize()[1] + 8), alongSize());
    },
    rows: () => {
      const names = facts.columns.map(({name}) => name), all = Array.from({length: points.k}, (_, i) => i);
      const head = [["what", ...names, ...all.map(i => `direction ${i + 1}`), ...all.map(i => `std ${i + 1}`)]];
      const rows = points.cells.map((cell, n) => ["row", ...names.map(name => valueAt(name, cell)), ...all.map(i => at(points.places, n, i)), ...all.map(() => "")]);
      const steps = way && way.at ? Array.from(way.at, (value, n) => ["path", ...names.map(name => (name === state.slide ? value : state.row[name])),
        ...all.map(i => at(way.places, n, i)), ...all.map(i => at(way.stds, n, i))]) : [];
      return [...head, ...rows, ...steps];
    },
    python: () => {
      const column = columnOf(state.slide);
      const rows = column ? `at = np.linspace(${column.span.join(", ")}, 61)\nrows = {${facts.columns.map(({name}) =>
        `${literal(name)}: ${name === state.slide ? "at" : `[${literal(state.row[name])}] * len(at)`}`).join(", ")}}` : `rows = ${pythonRow()}`;
      return `${column ? "import numpy as np\n" : ""}${pythonStart("gppvae.explore.live import Live")}\n${rows}\n` +
        `mean, std = Live(model).latents(rows${state.off.size ? `, ${pythonOff()}` : ""})  # of f; model.predict_latent(rows) adds the latent noise`;
    },
  });
  onChange(what => {
    if (what === "data") { points = way = null; fetchPoints().catch(trouble); }
    if (points && what === "address") choices();
    if (["row", "off", "data", "address"].includes(what)) queue.ask();
    if (what === "view" || what === "address") render();
  });
  addEventListener("resize", render);
  fetchPoints().catch(trouble);
  queue.ask();
}

function moved(pen, down) {  // the same pen, further down the page
  const y = ([a, b]) => [a, b + down];
  return {
    rect: (a, b, ...more) => pen.rect(a, b + down, ...more), ellipse: (a, b, ...more) => pen.ellipse(a, b + down, ...more),
    path: (points, style) => pen.path(points.map(y), style), text: (words, a, b, style) => pen.text(words, a, b + down, style),
  };
}

export const redrawLatents = render;
