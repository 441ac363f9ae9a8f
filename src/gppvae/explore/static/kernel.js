// The kernel as written; each term a chip that can be switched off, each part with what it learned.

import {CanvasPen, colour, elided, mapped, range, scale, short, ticks} from "./pen.js";
import {$, ask, change, facts, make, onChange, state, termKey} from "./state.js";
import {addSave, pythonStart} from "./save.js";
import {hideTip, showTip} from "./tip.js";

let matrix = null, place = null;
const percent = share => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;

export function toggle(key) {
  const off = new Set(state.off);
  if (!off.delete(key)) off.add(key);
  state.live = false;
  change("off", {off});
}

export const termKeys = () => facts.groups.flatMap(group => group.terms.map(term => termKey(term.name)));

// One number, or from the least to the largest where the members of an ensemble differ.
function span(values) {
  const [low, high] = range(values).map(short);
  return low === high ? low : `${low} to ${high}`;
}

function bar(share) {
  const inner = make("i"), outer = make("div", {className: "bar"}, inner);
  inner.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  return outer;
}

function chip(term) {
  const key = termKey(term.name), on = !state.off.has(key);
  const parts = make("div", {className: "parts"});
  if (term.amplitudes.some(value => Math.abs(value - 1) > 1e-9)) parts.append(`${span(term.amplitudes)} ×`);
  term.leaves.forEach((number, i) => {
    const leaf = facts.leaves[number];
    if (i) parts.append("×");
    const button = make("button", {type: "button", textContent: leaf.text, title: "Show its covariance", disabled: !leaf.has_covariance});
    button.setAttribute("aria-pressed", String(number === state.leaf));
    button.onclick = () => change("view", {leaf: number});
    parts.append(button);
  });
  const toggler = make("button", {type: "button", className: "switch", title: on ? "Switch this term off" : "Switch this term on"});
  toggler.setAttribute("role", "switch");
  toggler.setAttribute("aria-checked", String(on));
  toggler.setAttribute("aria-label", term.text);
  toggler.dataset.term = key;
  toggler.onclick = () => { toggle(key); document.querySelector(`[data-term="${key}"]`)?.focus(); };
  const learned = term.leaves.map(number => facts.leaves[number]).filter(leaf => leaf.learned)
    .map(leaf => (term.leaves.length > 1 ? `${leaf.columns.join(", ")}: ${leaf.learned}` : leaf.learned)).join(" · ");
  return make("div", {className: on ? "chip" : "chip off"},
    make("div", {className: "line"}, parts, make("span", {className: "share", textContent: percent(term.share), title: "share of the variance of the latents"}), toggler),
    bar(term.share), ...(learned ? [make("p", {className: "learned", textContent: learned})] : []));
}

function chips() {
  $("kernel-text").textContent = facts.kernel;
  const several = facts.groups.length > 1, found = [];
  facts.groups.forEach((group, number) => {
    if (several) found.push(make("h3", {textContent: `group ${number + 1}: ${group.latents} latents${group.kernel ? "" : ", no kernel"}`}));
    found.push(...group.terms.map(chip));
  });
  const noise = facts.groups.map(group => (group.kernel ? short(group.alpha) : "1")).join(", ");
  found.push(make("p", {className: "hint", textContent: `Noise of the latents, in no term: variance ${noise}.`}));
  if (facts.members > 1) found.push(make("p", {className: "hint", textContent: `Ranges are over the ${facts.members} networks of the ensemble; covariances are means over them.`}));
  $("chips").replaceChildren(...found);
  $("chip-hint").hidden = !termKeys().length;
}

async function fetchCovariance() {
  const leaf = facts.leaves[state.leaf];
  matrix = null;
  const asked = state.leaf;
  if (leaf && leaf.has_covariance) {
    try {
      const found = await ask("covariance", {leaf: asked});
      if (asked === state.leaf) matrix = found;
    } catch (error) {
      matrix = null;  // a leaf without values to show
    }
  }
  render();
}

const TOP = 7, BOTTOM = 22;
const leftOf = labels => Math.min(86, 8 + 6.2 * Math.max(...labels.map(label => label.length)));

function size() {
  const width = Math.max(220, Math.min(440, $("kernel-panel").clientWidth - 34));
  if (isMap()) return [width, Math.round(width * 0.85)];
  return [width, width - leftOf(matrix.labels) - 4 + TOP + BOTTOM];
}

const isMap = () => matrix.values && matrix.values.shape[1] === 2;
const placeOf = i => [matrix.values[2 * i], matrix.values[2 * i + 1]];

// Of all places the one nearest to the chosen row, in units of their ranges.
function ownPlace() {
  const at = facts.leaves[state.leaf].columns.map(name => state.row[name]);
  const spans = [0, 1].map(axis => range(matrix.labels.map((_, i) => placeOf(i)[axis])));
  let best = 0, least = Infinity;
  matrix.labels.forEach((_, i) => {
    const apart = placeOf(i).reduce((sum, value, axis) => sum + ((value - at[axis]) / (spans[axis][1] - spans[axis][0] || 1)) ** 2, 0);
    if (apart < least) { least = apart; best = i; }
  });
  return best;
}

function drawMap(pen, [width, height]) {
  const columns = facts.leaves[state.leaf].columns, n = matrix.labels.length, own = ownPlace(), left = 48, bottom = 34;
  const [spanX, spanY] = [0, 1].map(axis => {
    const [low, high] = range(matrix.labels.map((_, i) => placeOf(i)[axis])), room = 0.04 * (high - low) || 1;
    return [low - room, high + room];
  });
  const px = scale(spanX, [left, width - 6]), py = scale(spanY, [height - bottom, TOP]);
  const most = Math.max(...matrix.matrix.map(Math.abs)) || 1, low = range(matrix.matrix)[0];
  pen.rect(left, TOP, width - 6 - left, height - bottom - TOP, {fill: colour("paper"), stroke: colour("line")});
  for (const tick of ticks(...spanX, 5)) pen.text(short(tick), px(tick), height - bottom + 10, {anchor: "middle"});
  for (const tick of ticks(...spanY, 5)) pen.text(short(tick), left - 5, py(tick), {anchor: "end"});
  pen.text(columns[0], (left + width) / 2, height - 9, {anchor: "middle", fill: colour("ink")});
  pen.text(columns[1], 8, (height - bottom) / 2, {anchor: "middle", turn: -90, fill: colour("ink")});
  place = {map: matrix.labels.map((_, i) => [px(placeOf(i)[0]), py(placeOf(i)[1])]), n, own};
  place.map.forEach(([x, y], i) => pen.ellipse(x, y, 5, 5, {fill: tone(matrix.matrix[own * n + i], low, most), stroke: colour("paper"), width: 0.75}));
  pen.ellipse(...place.map[own], 8, 8, {stroke: colour("mark"), width: 2});
}

function draw(pen, [width, height]) {
  if (isMap()) { drawMap(pen, [width, height]); return; }
  const labels = matrix.labels, n = labels.length, longest = Math.max(...labels.map(label => label.length));
  const left = leftOf(labels), cell = (width - left - 4) / n;
  const most = Math.max(...matrix.matrix.map(Math.abs)) || 1, low = range(matrix.matrix)[0];
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
    pen.rect(left + j * cell, TOP + i * cell, cell + 0.4, cell + 0.4, {fill: tone(matrix.matrix[i * n + j], low, most)});
  }
  const every = Math.ceil(12 / cell), across = Math.ceil((Math.min(longest, 10) * 6.2 + 6) / cell);
  labels.forEach((label, i) => {
    if (i % every === 0) pen.text(elided(label, left - 8), left - 5, TOP + (i + 0.5) * cell, {anchor: "end"});
    const wide = Math.min(66, 6.2 * label.length) / 2, x = left + (i + 0.5) * cell;  // half of the label
    if (i % across === 0 && x + wide <= width) pen.text(elided(label, 66), x, TOP + n * cell + 11, {anchor: "middle"});
  });
  const columns = facts.leaves[state.leaf].columns, own = columns.length === 1 ? labels.findIndex(label => label === String(state.row[columns[0]])) : -1;
  if (own >= 0) pen.rect(left, TOP + own * cell, n * cell, cell, {stroke: colour("mark"), width: 1.5});
  place = {left, cell, n};
}

// Blue above zero, orange below, pale at zero; only one side where nothing is negative.
function tone(value, low, most) {
  if (low >= 0) return mapped(facts.maps.viridis, value / most);
  const share = Math.min(1, Math.abs(value) / most), [r, g, b] = value < 0 ? [201, 84, 0] : [0, 114, 178];
  const mix = c => Math.round(244 + (c - 244) * share);
  return `rgb(${mix(r)},${mix(g)},${mix(b)})`;
}

function render() {
  const leaf = facts.leaves[state.leaf], canvas = $("covariance");
  canvas.hidden = $("covariance-legend").hidden = !matrix;
  $("covariance-title").textContent = matrix ? `Covariance of ${leaf.text}${isMap() ? " with the place marked" : ""}` : "";
  if (!matrix) return;
  draw(new CanvasPen(canvas, ...size()), size());
  const bar = make("canvas"), pen = new CanvasPen(bar, 100, 10), [low, high] = range(matrix.matrix), most = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const from = low >= 0 ? 0 : -most;
  for (let i = 0; i < 100; i++) pen.rect(i, 0, 1.5, 10, {fill: tone(from + (most - from) * i / 99, low, most)});
  $("covariance-legend").replaceChildren(make("span", {}, short(from), bar, short(most)), "covariance");
}

function under(event) {
  if (!matrix || !place) return null;
  const box = $("covariance").getBoundingClientRect();
  if (place.map) {
    const near = place.map.map(([x, y]) => Math.hypot(event.clientX - box.left - x, event.clientY - box.top - y));
    const i = near.indexOf(Math.min(...near));
    return near[i] < 12 ? [place.own, i] : null;
  }
  const j = Math.floor((event.clientX - box.left - place.left) / place.cell), i = Math.floor((event.clientY - box.top - TOP) / place.cell);
  return i >= 0 && j >= 0 && i < place.n && j < place.n ? [i, j] : null;
}

export function startKernel() {
  chips();
  fetchCovariance();
  let leaf = state.leaf;
  $("covariance").onpointermove = event => {
    const found = under(event);
    if (!found) { hideTip(); return; }
    const [i, j] = found, {labels, matrix: all} = matrix, n = labels.length;
    const correlation = all[i * n + j] / Math.sqrt(all[i * n + i] * all[j * n + j] || 1);
    showTip(event, `${labels[i]} and ${labels[j]}\ncovariance ${short(all[i * n + j])}, correlation ${short(correlation)}`);
  };
  $("covariance").onpointerleave = hideTip;
  addSave("kernel-panel", {
    name: "kernel",
    size: () => (matrix ? size() : [300, 40]),
    figure: pen => (matrix ? draw(pen, size()) : pen.text(facts.kernel, 6, 20)),
    rows: () => {
      const terms = facts.groups.flatMap(group => group.terms.map(term => ["term", term.text, term.amplitudes.join("; "), term.share, term.leaves.map(i => facts.leaves[i].learned).join("; ")]));
      const noise = ["latent noise", "", facts.groups.map(group => group.alpha).join("; "), "", ""];
      const table = matrix ? [[], [`covariance of ${facts.leaves[state.leaf].text}`, ...matrix.labels],
        ...matrix.labels.map((label, i) => [label, ...matrix.matrix.subarray(i * matrix.labels.length, (i + 1) * matrix.labels.length)])] : [];
      return [["what", "text", "amplitude", "share", "learned"], ...terms, noise, ...table];
    },
    python: () => `${pythonStart("gppvae.explore.columns import columns_of", "gppvae.explore.terms import covariance_of")}\n` +
      "shares = [term.latent_share for term in model.explain(table, n_rows=1000).terms]  # table: your DataFrame\n" +
      `found = covariance_of(model.prior_.leaves_by_member()[${state.leaf}], columns_of(model.prior_))  # labels and matrix`,
  });
  onChange(what => {
    if (what === "data" || what === "address" || what === "off" || leaf !== state.leaf) chips();
    if (what === "data" || leaf !== state.leaf) { leaf = state.leaf; fetchCovariance(); }
    else if (what === "row") render();
  });
  addEventListener("resize", render);
}

export const redrawKernel = () => { chips(); render(); };
