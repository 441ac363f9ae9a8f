// The table as a grid of cells, as strips along a column of numbers, or as a map of places.

import {CanvasPen, colour, elided, mapped, range, scale, short, ticks} from "./pen.js";
import {$, ask, change, columnOf, facts, make, offTerms, onChange, rowAt, rowWords, setRow, state, trouble, valueAt} from "./state.js";
import {addSave, pythonOff, pythonStart} from "./save.js";
import {hideTip, showTip} from "./tip.js";

const MOST_VALUES = 64, BLOCK = 48;
const WORDS = ["never measured", "measured", "held out"];
let layout = null, values = null, job = 0, hovered = null;

const SINGLE = {name: "", levels: [""], index: () => 0, value: () => undefined};  // across a table of one column

function axis(name) {
  const column = columnOf(name);
  if (column.kind === "id") {
    const words = $("grid-find").value.toLowerCase();
    const levels = name === state.y && words ? column.levels.filter(level => level.toLowerCase().includes(words)) : column.levels;
    const places = new Map(levels.map((level, i) => [level, i]));
    return {name, levels, index: value => places.get(value) ?? -1, value: i => levels[i]};
  }
  const distinct = [...new Set(facts.table.columns[name].values.filter(value => value !== null))].sort((a, b) => a - b);
  if (distinct.length <= MOST_VALUES && state.x !== state.y && !isMap()) {
    const places = new Map(distinct.map((value, i) => [value, i]));
    const nearest = value => places.get(value) ?? -1;
    return {name, levels: distinct.map(short), index: nearest, value: i => distinct[i]};
  }
  const room = 0.04 * (distinct.at(-1) - distinct[0]) || 1;
  return {name, span: [distinct[0] - room, distinct.at(-1) + room]};
}

const isMap = () => columnOf(state.x)?.kind === "number" && columnOf(state.y)?.kind === "number";

function arrange() {
  const y = state.y === state.x ? SINGLE : axis(state.y), x = axis(state.x), wide = Math.max(220, $("grid-scroll").clientWidth - 4);
  const longest = y.levels ? Math.max(...y.levels.map(level => level.length), 3) : 6;
  const left = Math.min(96, 10 + 6.3 * longest) + (y.levels ? 0 : 12), bottom = 34, top = 4;
  let height, cellH = 0, cellW = 0, width = wide;
  if (y.levels) {
    cellH = Math.max(11, Math.min(24, 260 / y.levels.length));
    height = top + cellH * y.levels.length;
  } else {
    height = Math.min(320, wide * 0.72) - bottom;
  }
  if (x.levels) {
    cellW = Math.max(7, Math.min(46, (wide - left - 6) / x.levels.length));
    width = Math.max(wide, left + cellW * x.levels.length + 6);
  }
  const toX = x.span ? scale(x.span, [left, width - 8]) : null, toY = y.span ? scale(y.span, [height, top]) : null;
  const px = value => (toX ? toX(value) : left + (x.index(value) + 0.5) * cellW);
  const py = value => (toY ? toY(value) : top + (y.index(value) + 0.5) * cellH);
  layout = {y, x, left, bottom, top, height, width, cellH, cellW, px, py, toX, toY};
  layout.cells = new Map();
  for (let cell = 0; cell < facts.cells; cell++) {
    const vx = valueAt(state.x, cell), vy = valueAt(state.y, cell);
    if ((y.levels && y.index(vy) < 0) || (x.levels && x.index(vx) < 0) || vx === null || vy === null) continue;
    const key = y.levels && x.levels ? `${y.index(vy)},${x.index(vx)}` : `c${cell}`;
    if (!layout.cells.has(key)) layout.cells.set(key, []);
    layout.cells.get(key).push(cell);
  }
}

// Of several samples in a cell the one that agrees with the other columns chosen, else the first.
function picked(cells) {
  return cells.find(cell => facts.columns.every(({name}) => name === state.x || name === state.y || valueAt(name, cell) === state.row[name])) ?? cells[0];
}

function gapRow(iy, ix) {
  return {...state.row, [state.y]: layout.y.value(iy), [state.x]: layout.x.value(ix)};
}

function shadeOf(key, cell) {
  if (state.colour === "status" || !values) return null;
  const value = cell === undefined ? values.gaps.get(key) : values.cells.get(cell);
  return value === undefined || !Number.isFinite(value) ? null : value;
}

const mapName = () => (state.colour === "error" ? "viridis" : "magma");

function drawCells(pen) {
  const {y, x, left, top, height, cellH, cellW, px, py, width} = layout, soft = colour("soft");
  const known = values ? [...values.cells.values(), ...values.gaps.values()].filter(Number.isFinite) : [];
  const [low, high] = range(known);
  const fillOf = (key, cell) => {
    const status = cell === undefined ? 0 : facts.table.status[cell];
    if (state.colour === "status") return [null, colour("accent"), colour("mark")][status] || (facts.has_table ? null : colour("accent"));
    const value = shadeOf(key, cell);
    return value === null ? null : mapped(facts.maps[mapName()], (value - low) / (high - low || 1));
  };
  if (y.levels && x.levels) {
    const gap = Math.min(2, cellW * 0.15, cellH * 0.15);
    for (let iy = 0; iy < y.levels.length; iy++) for (let ix = 0; ix < x.levels.length; ix++) {
      const key = `${iy},${ix}`, cell = layout.cells.has(key) ? picked(layout.cells.get(key)) : undefined;
      const place = [left + ix * cellW + gap / 2, top + iy * cellH + gap / 2, cellW - gap, cellH - gap];
      const fill = fillOf(key, cell);
      pen.rect(...place, {fill: fill || colour("cell"), alpha: state.colour !== "status" || cell === undefined || facts.table.status[cell] === 2 ? 1 : facts.has_table ? 0.85 : 0.35});
      if (state.colour !== "status" && cell !== undefined && facts.table.status[cell] === 2) pen.rect(place[0] + 0.75, place[1] + 0.75, place[2] - 1.5, place[3] - 1.5, {stroke: colour("mark"), width: 1.5});
    }
  } else {
    if (y.levels) y.levels.forEach((_, i) => pen.rect(left, top + (i + 0.5) * cellH, width - left - 8, 1, {fill: colour("line")}));
    else pen.rect(left, top, width - left - 8, height - top - 1, {fill: colour("paper"), stroke: colour("line")});
    for (const [key, [cell]] of layout.cells) {
      const held = facts.table.status[cell] === 2, r = Math.min(5, cellH ? cellH * 0.36 : 5);
      pen.ellipse(px(valueAt(state.x, cell)), py(valueAt(state.y, cell)), r, r,
        {fill: fillOf(key, cell) || colour("cell"), stroke: held ? colour("mark") : state.colour === "status" ? colour("paper") : soft, width: held ? 1.5 : 0.75, alpha: 0.9});
    }
  }
  if (y.levels) {
    const every = Math.ceil(11 / cellH);
    y.levels.forEach((level, i) => { if (i % every === 0) pen.text(elided(level, left - 10), left - 6, top + (i + 0.5) * cellH, {anchor: "end", fill: level === String(state.row[state.y]) ? colour("ink") : soft}); });
  } else for (const tick of ticks(...y.span, 5)) pen.text(short(tick), left - 6, py(tick), {anchor: "end"});
  if (!y.levels) pen.text(state.y, 8, (top + height) / 2, {anchor: "middle", turn: -90, fill: colour("ink")});
  mark(pen, state.row, colour("ink"), 2);
  if (hovered) mark(pen, hovered, colour("ink"), 1);
}

function drawAxis(pen, rest) {  // below the cells; on the screen it stays in sight when they scroll
  const {x, left, cellW, px, width} = layout;
  if (x.levels) {
    const longest = Math.max(...x.levels.map(level => level.length)), every = Math.max(1, Math.ceil((Math.min(longest, 12) * 6.2 + 6) / cellW));
    x.levels.forEach((level, i) => { if (i % every === 0) pen.text(elided(level, 80), left + (i + 0.5) * cellW, rest + 10, {anchor: "middle"}); });
  } else for (const tick of ticks(...x.span, 6)) pen.text(short(tick), px(tick), rest + 10, {anchor: "middle"});
  pen.text(state.x, (left + (x.levels ? left + cellW * x.levels.length : width - 8)) / 2, rest + 25, {anchor: "middle", fill: colour("ink")});
}

function mark(pen, row, stroke, width) {
  const {y, x, left, top, cellW, cellH, px, py} = layout;
  const iy = y.levels ? y.index(row[state.y]) : 0;
  if (iy < 0) return;
  if (y.levels && x.levels) {
    const ix = x.index(row[state.x]);
    if (ix >= 0) { pen.rect(left + ix * cellW, top + iy * cellH, cellW, cellH, {stroke, width}); return; }
    const at = between(row[state.x]);  // a value in between: a line at its place
    if (at !== null) pen.path([[at, top + iy * cellH - 1], [at, top + (iy + 1) * cellH + 1]], {stroke, width: width + 1});
    return;
  }
  pen.ellipse(px(row[state.x]), py(row[state.y]), 8, 8, {stroke, width});
}

function between(value) {
  const {x, left, cellW} = layout;
  if (typeof value !== "number") return null;
  const known = x.levels.map((_, i) => x.value(i));
  const next = known.findIndex(v => v > value);
  if (next === 0) return left;
  if (next < 0) return left + known.length * cellW;
  return left + (next - 0.5 + (value - known[next - 1]) / (known[next] - known[next - 1])) * cellW;
}

function at(event) {
  const box = $("grid").getBoundingClientRect(), mx = event.clientX - box.left, my = event.clientY - box.top;
  const {y, x, left, top, cellW, cellH, px, py, toX, toY, height, width} = layout;
  if (mx < left || my < top || my > height || mx > width) return null;
  if (y.levels && x.levels) {
    const ix = Math.floor((mx - left) / cellW), iy = Math.floor((my - top) / cellH);
    if (ix >= x.levels.length || iy >= y.levels.length) return null;
    const key = `${iy},${ix}`, cells = layout.cells.get(key);
    if (!cells) return {row: gapRow(iy, ix), key};
    const cell = picked(cells);
    return {row: rowAt(cell), cell, key};
  }
  let best = null, least = 12;
  for (const [key, [cell]] of layout.cells) {
    const apart = Math.hypot(px(valueAt(state.x, cell)) - mx, py(valueAt(state.y, cell)) - my);
    if (apart < least) { least = apart; best = {row: rowAt(cell), cell, key}; }
  }
  if (best) return best;
  const iy = y.levels ? Math.min(y.levels.length - 1, Math.floor((my - top) / cellH)) : 0, ix = x.levels ? Math.floor((mx - left) / cellW) : 0;
  return {row: {...state.row, [state.y]: y.levels ? y.value(iy) : +toY.back(my).toPrecision(6), [state.x]: x.levels ? x.value(ix) : +toX.back(mx).toPrecision(6)}, key: ""};
}

export function render() {
  if (!layout) arrange();
  drawCells(new CanvasPen($("grid"), layout.width, layout.height));
  drawAxis(new CanvasPen($("grid-axis"), layout.width, layout.bottom), 0);
}

function legend() {
  const place = $("grid-legend");
  place.replaceChildren();
  const box = (fill, words, border) => {
    const i = make("i");
    i.style.background = fill;
    if (border) i.style.border = `1.5px solid ${border}`;
    place.append(make("span", {}, i, words));
  };
  if (state.colour === "status") {
    if (!facts.has_table) { box(colour("accent"), "what the model can predict; give --table to see what was measured"); return; }
    const counts = [0, 0, 0];
    for (const status of facts.table.status) counts[status]++;
    box(colour("accent"), `measured (${counts[1]})`);
    if (counts[2]) box(colour("mark"), `held out (${counts[2]})`);
    if (layout.y.levels && layout.x.levels) box(colour("cell"), "never measured");
    return;
  }
  const known = values ? [...values.cells.values(), ...values.gaps.values()].filter(Number.isFinite) : [], [low, high] = range(known);
  const bar = make("canvas"), pen = new CanvasPen(bar, 120, 10);
  for (let i = 0; i < 120; i++) pen.rect(i, 0, 1.5, 10, {fill: mapped(facts.maps[mapName()], i / 119)});
  place.append(make("span", {}, short(low), bar, short(high)), (state.colour === "error" ? "root mean squared error" : facts.scales ? "uncertainty" : "standard deviation") + (facts.scales ? ", in standard deviations of each value" : ""));
  if (values && values.left > 0) place.append(make("span", {textContent: `${values.left} to go`}));
  if (facts.table.status.includes(2)) box("transparent", "held out", colour("mark"));
}

// Colours come block by block, so that sliders stay quick while they are computed.
async function fetchColours() {
  const mine = ++job;
  values = null;
  if (state.colour === "status") return;
  values = {cells: new Map(), gaps: new Map(), left: 0};
  const kind = state.colour, off = offTerms(), found = values;
  const cells = [...layout.cells.values()].map(picked).filter(cell => kind !== "error" || facts.table.status[cell] > 0);
  const gaps = [];
  if (kind === "uncertainty" && layout.y.levels && layout.x.levels) {
    for (let iy = 0; iy < layout.y.levels.length; iy++) for (let ix = 0; ix < layout.x.levels.length; ix++) {
      if (!layout.cells.has(`${iy},${ix}`)) gaps.push(`${iy},${ix}`);
    }
  }
  found.left = cells.length + gaps.length;
  try {
    for (let start = 0; start < cells.length && mine === job; start += BLOCK) {
      const part = cells.slice(start, start + BLOCK), answer = await ask("colour", {kind, cells: part, off});
      part.forEach((cell, i) => found.cells.set(cell, answer.values[i]));
      found.left -= part.length;
      if (mine === job) { render(); legend(); }
    }
    for (let start = 0; start < gaps.length && mine === job; start += BLOCK) {
      const part = gaps.slice(start, start + BLOCK), rows = part.map(key => gapRow(...key.split(",").map(Number)));
      const answer = await ask("colour", {kind, rows, off});
      part.forEach((key, i) => found.gaps.set(key, answer.values[i]));
      found.left -= part.length;
      if (mine === job) { render(); legend(); }
    }
  } catch (error) {
    if (mine === job) trouble(error);
  }
}

function again() {
  arrange();
  $("grid-find-label").hidden = !(columnOf(state.y)?.kind === "id" && columnOf(state.y).levels.length > 24);
  fetchColours();
  render();
  legend();
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, words]) => make("option", {value, textContent: words, selected: value === chosen})));
}

function choices() {
  const names = facts.columns.map(({name}) => [name, name]);
  fill($("grid-y"), names, state.y);
  fill($("grid-x"), names, state.x);
  const kinds = [["status", facts.has_table ? "what was measured" : "none"], ["uncertainty", "uncertainty"]];
  if (facts.has_samples) kinds.splice(1, 0, ["error", "error"]);
  fill($("grid-colour"), kinds, state.colour);
}

function step(dx, dy) {
  const {y, x} = layout;
  if (!y.levels || !x.levels) { stepToRow(dx, dy); return; }
  const row = {...state.row};
  const move = (axis, name, by) => {
    if (!by) return;
    const from = axis.index(row[name]), all = axis.levels.map((_, i) => axis.value(i));
    const start = from >= 0 ? from : by > 0 ? all.filter(v => v < row[name]).length - 1 : all.filter(v => v < row[name]).length;
    row[name] = axis.value(Math.max(0, Math.min(axis.levels.length - 1, start + by)));
  };
  move(x, state.x, dx);
  move(y, state.y, dy);
  const cells = layout.cells.get(`${y.index(row[state.y])},${x.index(row[state.x])}`);
  setRow(cells ? rowAt(picked(cells)) : row);
}

// On strips and maps: the next row of the table in a direction, so that every one can be reached by keys.
function stepToRow(dx, dy) {
  const {y, x, px, py, cellW, cellH} = layout, hx = px(state.row[state.x]), hy = py(state.row[state.y]);
  let best = null, least = Infinity;
  for (const [cell] of layout.cells.values()) {
    const right = px(valueAt(state.x, cell)) - hx, down = py(valueAt(state.y, cell)) - hy;
    const along = dx ? dx * right : dy * down, aside = Math.abs(dx ? down : right);
    const strips = dx ? y.levels : x.levels, across = dx ? x.levels && cellW : y.levels && cellH;
    if (along < 0.01 || (strips && aside > 0.5) || (across && along > 1.5 * across)) continue;
    const far = along + (across ? 1 : 3) * aside;
    if (far < least) { least = far; best = cell; }
  }
  if (best !== null) { setRow(rowAt(best)); return; }
  const [axis, name, by] = dx ? [x, state.x, dx] : [y, state.y, dy];
  const next = axis.levels ? axis.value(axis.index(state.row[name]) + by) : undefined;
  if (next !== undefined) setRow({[name]: next});
}

let revealed = null;
function reveal() {  // scrolls to the chosen row when another one was chosen
  const value = state.row[state.y];
  if (value === revealed) return;
  revealed = value;
  const number = layout.y.levels ? layout.y.index(value) : -1, scroll = $("grid-scroll");
  if (number < 0) return;
  const place = layout.top + number * layout.cellH;
  if (place < scroll.scrollTop || place + layout.cellH > scroll.scrollTop + scroll.clientHeight - layout.bottom) scroll.scrollTop = place - scroll.clientHeight / 2;
}

export function startGrid() {
  choices();
  for (const [id, name] of [["grid-y", "y"], ["grid-x", "x"], ["grid-colour", "colour"]]) {
    $(id).onchange = event => { change("view", {[name]: event.target.value}); again(); };
  }
  $("grid-find").oninput = again;
  const grid = $("grid");
  grid.onclick = event => { const found = at(event); if (found) setRow(found.row); };
  grid.onpointermove = event => {
    if (event.pointerType === "touch") return;
    const found = at(event);
    hovered = found && found.row;
    render();
    if (!found) { hideTip(); return; }
    const value = shadeOf(found.key, found.cell), status = found.cell === undefined ? 0 : facts.table.status[found.cell];
    const lines = [rowWords(found.row), facts.has_table ? WORDS[status] : ""];
    if (value !== null) lines.push(`${state.colour} ${short(value)}`);
    showTip(event, lines.filter(Boolean).join("\n"));
  };
  grid.onpointerleave = () => { hovered = null; hideTip(); render(); };
  grid.onkeydown = event => {
    const by = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    step(...by);
  };
  addSave("table-panel", {
    name: "table",
    size: () => [layout.width, layout.height + layout.bottom],
    figure: pen => { drawCells(pen); drawAxis(pen, layout.height); },
    rows: () => {
      const names = Object.keys(facts.table.columns), extra = state.colour === "status" ? [] : [state.colour];
      const body = facts.table.status.map((status, cell) => [...names.map(name => valueAt(name, cell)), facts.has_table ? WORDS[status] : "",
        ...extra.map(() => values?.cells.get(cell))]);
      const gaps = values ? [...values.gaps].map(([key, value]) => {
        const row = gapRow(...key.split(",").map(Number));
        return [...names.map(name => row[name]), WORDS[0], value];
      }) : [];
      return [[...names, "status", ...extra], ...body, ...gaps];
    },
    python: () => {
      const off = state.off.size ? ", off" : "";
      return `${pythonStart("gppvae.explore.live import Live")}\nlive = Live(model)\n${off ? `off = ${pythonOff()}  # (group of latents, term)\n` : ""}` +
        `# table: your DataFrame; samples: as the model was fitted to\nuncertainty = live.spread(table${off})\nerror = live.errors(samples, table${off})`;
    },
  });
  onChange(what => {
    if (what === "data") choices();
    if (what === "data" || what === "address") { choices(); again(); }
    else if (what === "off") { fetchColours(); render(); legend(); }
    else render();
    reveal();
  });
  addEventListener("resize", () => { arrange(); render(); });
  again();
  reveal();
}
