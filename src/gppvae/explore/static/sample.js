// One row: what was measured, what the model predicts, how sure it is. Sliders ask for frames as they move.

import {Newest} from "./ask.js";
import {CanvasPen, colour, elided, range, scale, short, ticks} from "./pen.js";
import {$, ask, change, columnOf, facts, make, offTerms, onChange, rowWords, setRow, state, trouble} from "./state.js";
import {addSave, pythonOff, pythonRow, pythonStart} from "./save.js";
import {hideTip, showTip} from "./tip.js";

const QUICK = 8, SETTLED = 32, SHOWN = 8, REST = 220, DRAW_MS = 160;
const STATUS = ["never measured", "measured", "held out from training"];
let frame = null, settle = 0, timer = 0, shown = 0, playing = 0, spread = 0;
const queue = new Newest(fetchFrame, trouble);

async function fetchFrame(draws) {
  const started = performance.now(), row = {...state.row};
  const found = await ask("frame", {row, off: offTerms(), draws, keep: state.draws ? SHOWN : 0, noise: state.noise});
  trouble(null);
  frame = Object.assign(found, {row});  // words and picture are of the same row, wherever the slider is by now
  $("speed").textContent = `${Math.round(performance.now() - started)} ms`;
  render();
}

function refresh() {
  clearTimeout(settle);
  if (state.live) {
    queue.ask(QUICK);
    settle = setTimeout(() => queue.ask(SETTLED), REST);
  } else {
    queue.ask(SETTLED);
  }
}

// -- pictures

function pixels(values, shape, low, high, map) {
  const [channels, height, width] = shape, canvas = make("canvas", {width, height});
  const image = new ImageData(width, height), size = width * height;
  for (let i = 0; i < size; i++) {
    let sum = 0;
    for (let c = 0; c < channels; c++) sum += values[c * size + i];
    const grey = (sum / channels - low) / (high - low || 1);
    for (let c = 0; c < 3; c++) {
      let value = grey;
      if (!map && channels === 3) value = (values[c * size + i] - low) / (high - low || 1);
      const byte = Math.max(0, Math.min(255, Math.round(255 * value)));
      image.data[4 * i + c] = map ? map[3 * byte + c] : byte;
    }
    image.data[4 * i + 3] = Number.isNaN(sum) ? 0 : 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function pictures() {
  const [low, high] = facts.shades, found = [];
  const drawn = state.draws && frame.draws;
  const values = drawn ? frame.draws.subarray(shown * frame.mean.length, (shown + 1) * frame.mean.length) : frame.mean;
  if (facts.has_samples || frame.measured) found.push(["measured", frame.measured && pixels(frame.measured, facts.shape, low, high)]);
  found.push([drawn ? `draw ${shown + 1} of ${frame.draws.shape[0]}` : "predicted", pixels(values, facts.shape, low, high)]);
  if (frame.std) {
    spread = Math.max(spread, range(frame.std)[1]);  // one scale while the page is open, so that shades can be compared
    found.push([`std up to ${+spread.toPrecision(2)}`, pixels(frame.std, facts.shape, 0, spread, facts.maps.magma)]);
  }
  return found;
}

function showPictures() {
  const all = pictures(), stage = $("stage");
  while (stage.children.length > all.length) stage.lastChild.remove();
  while (stage.children.length < all.length) {
    const box = make("div", {className: "frame"}, make("canvas", {role: "img"}));
    box.onpointerdown = drag;
    stage.append(make("div", {className: "picture"}, box, make("span")));
  }
  all.forEach(([words, picture], i) => {
    const [box, label] = stage.children[i].children, canvas = box.firstChild;
    box.classList.toggle("gap", !picture);
    box.classList.toggle("smooth", Math.max(...facts.shape.slice(1)) >= 96);
    box.dataset.words = picture ? "" : frame.status ? "no samples given" : "not measured";
    stage.children[i].classList.toggle("held", frame.status === 2);
    canvas.width = facts.shape[2];
    canvas.height = facts.shape[1];
    if (picture) canvas.getContext("2d").drawImage(picture, 0, 0);
    canvas.setAttribute("aria-label", `${words}, ${rowWords(frame.row)}`);
    label.textContent = words;
  });
}

function drag(event) {
  const column = columnOf(state.slide);
  if (!column) return;
  const box = event.currentTarget, from = state.row[state.slide], [low, high] = column.span;
  event.preventDefault();
  play(false);
  box.setPointerCapture(event.pointerId);
  box.onpointermove = move => {
    let value = from + (move.clientX - event.clientX) / box.clientWidth * (high - low);
    value = column.period ? low + (((value - low) % column.period) + column.period) % column.period : Math.max(low, Math.min(high, value));
    setRow({[state.slide]: +value.toPrecision(5)}, true);
  };
  box.onpointerup = box.onpointercancel = () => { box.onpointermove = null; };
}

// -- curves

const logTicks = high => [0, 1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 1e5, 1e6].map(v => Math.log10(v + 1)).filter(v => v <= high);
const nameOf = i => facts.names[i] || `value ${i + 1}`;
let curve = null;

function drawCurve(pen, [width, height]) {
  const n = frame.mean.length, few = n <= 30, own = state.own && facts.scales, left = own ? 58 : 52, right = 12, top = 26;
  const longest = few ? Math.max(...Array.from({length: n}, (_, i) => nameOf(i).length)) : 0, turned = few && longest * 6.2 > (width - left) / n;
  const bottom = turned ? Math.min(90, 16 + 5.2 * longest) : 36, log = state.log && !own;
  const to = own ? (v, i) => (v - own[0][i]) / own[1][i] : log ? v => Math.log10(Math.max(v, 0) + 1) : v => v;
  const least = facts.ends[0] ?? -Infinity, most = facts.ends[1] ?? Infinity;  // no band where no value can be
  const band = side => Array.from(frame.mean, (m, i) => to(Math.min(most, Math.max(least, m + side * 2 * (frame.std ? frame.std[i] : 0))), i));
  const kept = state.draws && frame.draws ? frame.draws.shape[0] : 0;
  const seen = [...band(-1), ...band(1), ...(frame.measured ? Array.from(frame.measured, to) : [])];
  let [low, high] = range(seen);
  [low, high] = [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)];
  const px = scale([0, Math.max(1, n - 1)], [left + (few ? 14 : 0), width - right - (few ? 14 : 0)]), py = scale([low, high], [height - bottom, top]);
  for (const tick of log ? logTicks(high) : ticks(low, high, 5)) {
    pen.path([[left, py(tick)], [width - right, py(tick)]], {stroke: colour("line")});
    pen.text(short(log ? 10 ** tick - 1 : tick), left - 6, py(tick), {anchor: "end"});
  }
  const line = values => Array.from(values, (v, i) => [px(i), py(to(v, i))]);
  if (own) pen.text("standard deviations", 8, (top + height - bottom) / 2, {anchor: "middle", turn: -90});
  if (frame.std) pen.path([...band(1).map((v, i) => [px(i), py(v)]), ...band(-1).map((v, i) => [px(i), py(v)]).reverse()], {fill: colour("accent"), alpha: 0.18});
  for (let d = 0; d < kept; d++) pen.path(line(frame.draws.subarray(d * n, (d + 1) * n)), {stroke: colour("accent"), width: d === shown ? 1.6 : 0.7, alpha: d === shown ? 0.9 : 0.3});
  pen.path(line(frame.mean), {stroke: colour("accent"), width: 2});
  if (few) line(frame.mean).forEach(([x, y]) => pen.ellipse(x, y, 2.5, 2.5, {fill: colour("accent")}));
  if (frame.measured) line(frame.measured).forEach(([x, y]) => { if (Number.isFinite(y)) pen.ellipse(x, y, n > 200 ? 1.3 : 3, n > 200 ? 1.3 : 3, {fill: colour("mark")}); });
  if (few) {
    const every = turned ? Math.ceil(13 / (px(1) - px(0))) : 1;  // a turned label needs thirteen pixels
    for (let i = 0; i < n; i += every) {
      const words = elided(nameOf(i), turned ? 80 : (width - left) / n + 10);
      pen.text(words, px(i), height - bottom + 10, turned ? {anchor: "end", turn: -50} : {anchor: "middle"});
    }
  } else {
    const first = facts.names.length ? 0 : 1;  // values without names are numbered from one
    for (const tick of ticks(first, n - 1 + first, 8).map(Math.round)) pen.text(first ? String(tick) : elided(nameOf(tick), 60), px(tick - first), height - bottom + 11, {anchor: "middle"});
    if (first) pen.text("number of the value", (left + width - right) / 2, height - 8, {anchor: "middle", fill: colour("ink")});
  }
  const entries = [["predicted", "accent"], ...(frame.std ? [["± 2 std", "accent"]] : []), ...(frame.measured ? [["measured", "mark"]] : [])];
  entries.forEach(([words, tone], i) => {
    const x = left + Math.min(112, (width - left) / 3) * i;
    if (words === "measured") pen.ellipse(x + 7, 10, 3, 3, {fill: colour(tone)});
    else pen.rect(x, words === "predicted" ? 9 : 5, 14, words === "predicted" ? 2 : 10, {fill: colour(tone), alpha: words === "predicted" ? 1 : 0.25});
    pen.text(words, x + 20, 10);
  });
  curve = {px, n};
}

const curveSize = () => [Math.max(260, $("stage").clientWidth), facts.shape[0] <= 30 ? 270 : 240];

function showCurve() {
  const stage = $("stage");
  let canvas = stage.querySelector("canvas");
  if (!canvas) {
    canvas = make("canvas", {role: "img"});
    canvas.onpointermove = event => {
      if (!curve) return;
      const i = Math.max(0, Math.min(curve.n - 1, Math.round(curve.px.back(event.clientX - canvas.getBoundingClientRect().left))));
      const lines = [nameOf(i), `predicted ${short(frame.mean[i])}` + (frame.std ? ` ± ${short(2 * frame.std[i])}` : "")];
      if (frame.measured) lines.push(`measured ${short(frame.measured[i])}`);
      showTip(event, lines.join("\n"));
    };
    canvas.onpointerleave = hideTip;
    stage.replaceChildren(canvas);
  }
  canvas.setAttribute("aria-label", `predicted values, ${rowWords(frame.row)}`);
  drawCurve(new CanvasPen(canvas, ...curveSize()), curveSize());
}

// -- all of it

function render() {
  if (!frame) return;
  if (facts.images) showPictures();
  else showCurve();
  const status = facts.has_table ? STATUS[frame.status] : "", words = make("small");
  const more = [frame.status === 2 ? "" : status, frame.count > 1 ? `first of ${frame.count} samples` : "", frame.size === null ? "" : `size ${short(frame.size)}`,
    frame.rmse === undefined ? "" : `error ${short(frame.rmse)}`, frame.uncertainty === undefined ? "" : `std ${short(frame.uncertainty)}${facts.scales ? " (in standard deviations of each value)" : ""}`].filter(Boolean);
  words.textContent = more.length ? ` · ${more.join(" · ")}` : "";
  $("sample-where").replaceChildren(rowWords(frame.row), frame.status === 2 ? " · " : "", make("b", {textContent: frame.status === 2 ? status : ""}), words);
}

function setControls() {
  $("controls").replaceChildren(...facts.columns.map(column => (column.kind === "id" ? idControl(column) : numberControl(column))));
}

function idControl({name, levels}) {
  const select = make("select", {ariaLabel: name});
  select.append(...levels.map(level => make("option", {value: level, textContent: level})));
  select.value = state.row[name];
  select.onchange = () => setRow({[name]: select.value});
  const by = (delta, words, title) => make("button", {type: "button", textContent: words, title, ariaLabel: title,
    onclick: () => setRow({[name]: levels[(levels.indexOf(state.row[name]) + delta + levels.length) % levels.length]})});
  const control = make("div", {className: "control"}, make("span", {textContent: name, title: name}),
    make("span", {className: "step"}, by(-1, "‹", `previous ${name}`), by(1, "›", `next ${name}`)), select);
  control.update = () => { select.value = state.row[name]; };
  return control;
}

function numberControl({name, span, values}) {
  const [low, high] = span, step = (high - low) / 400;
  const slider = make("input", {type: "range", min: low, max: high, step: "any", ariaLabel: name});
  const box = make("input", {type: "number", step: "any", ariaLabel: `${name}, exact`});
  const button = make("button", {type: "button", textContent: "▶", title: `play ${name}`, ariaLabel: `play ${name}`});
  const marks = make("canvas", {className: "ticks"}), dial = make("div", {className: "dial"}, slider, marks);
  const move = value => { state.slide = name; setRow({[name]: +value.toPrecision(6)}, true); };
  slider.oninput = () => { play(false); move(+slider.value); };
  slider.onkeydown = event => {
    const by = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 20, PageDown: -20}[event.key];
    if (!by) return;
    event.preventDefault();
    play(false);
    move(Math.max(low, Math.min(high, state.row[name] + by * step * 4)));
  };
  box.onchange = () => { if (box.value !== "" && Number.isFinite(+box.value)) move(+box.value); };
  button.onclick = () => { const on = !(playing && state.slide === name); state.slide = name; play(on); };
  const control = make("div", {className: "control"}, make("span", {textContent: name, title: name}), button, dial, box);
  control.update = () => {
    const missing = state.row[name] === null;
    slider.value = missing ? low : state.row[name];
    slider.setAttribute("aria-valuetext", missing ? "missing" : short(state.row[name]));
    if (document.activeElement !== box) box.value = missing ? "" : +state.row[name].toPrecision(6);
    const on = playing && state.slide === name;
    button.textContent = on ? "❚❚" : "▶";
    button.setAttribute("aria-label", `${on ? "stop" : "play"} ${name}`);
    const width = Math.max(10, dial.clientWidth), pen = new CanvasPen(marks, width, 7), at = scale(span, [8, width - 8]);
    for (const value of values) pen.rect(at(value) - 0.75, 0, 1.5, 5, {fill: colour("soft"), alpha: 0.6});
  };
  return control;
}

const updateControls = () => { for (const control of $("controls").children) control.update(); };

export function play(on) {
  if (!on === !playing) return;
  cancelAnimationFrame(playing);
  playing = 0;
  const column = columnOf(state.slide);
  if (on && column) {
    let last = performance.now();
    const tick = now => {
      const [low, high] = column.span, value = state.row[state.slide] + (now - last) / 5000 * (high - low);
      last = now;
      setRow({[state.slide]: +(value > high ? low + (value - high) : value).toPrecision(6)}, true);
      playing = requestAnimationFrame(tick);
    };
    playing = requestAnimationFrame(tick);
  }
  updateControls();
}
export const isPlaying = () => playing !== 0;

function runDraws() {
  clearInterval(timer);
  shown = 0;
  if (state.draws) timer = setInterval(() => { shown = (shown + 1) % SHOWN; render(); }, DRAW_MS);
}

function setSwitches() {
  for (const id of ["draws", "noise", "own", "log"]) {
    $(id).checked = state[id];
    $(id).onchange = event => change(id, {[id]: event.target.checked});
  }
  $("own-label").hidden = !facts.scales;
  $("log-label").hidden = facts.images || Boolean(facts.scales);
}

function rows() {
  const names = ["predicted", ...(frame.std ? ["std"] : []), ...(frame.measured ? ["measured"] : [])];
  const arrays = [frame.mean, frame.std, frame.measured].filter(Boolean), [channels, height, width] = facts.shape;
  if (!facts.images) return [["value", ...names], ...Array.from(frame.mean, (_, i) => [nameOf(i), ...arrays.map(a => a[i])])];
  return [["channel", "y", "x", ...names], ...Array.from(frame.mean, (_, i) =>
    [Math.floor(i / (height * width)), Math.floor(i / width) % height, i % width, ...arrays.map(a => a[i])])];
}

export function startSample() {
  setControls();
  setSwitches();
  addSave("sample-panel", {
    name: "sample",
    rows,
    size: () => (facts.images ? [pictures().length * 230, 232] : curveSize()),
    figure: pen => {
      if (!facts.images) { drawCurve(pen, curveSize()); return; }
      const high = 220 * Math.min(1, facts.shape[1] / facts.shape[2]), wide = 220 * Math.min(1, facts.shape[2] / facts.shape[1]);
      pictures().forEach(([words, picture], i) => {
        if (picture) pen.image(picture, i * 230 + 5, 5, wide, high * (high > 200 ? 0.92 : 1));
        else pen.rect(i * 230 + 5, 5, wide, high * 0.92, {fill: colour("cell")});
        pen.text(words, i * 230 + 5 + wide / 2, 220, {anchor: "middle"});
      });
    },
    python: () => {
      const noise = state.noise ? ", include_noise=True" : "";
      if (!state.off.size && frame.size === null) return `${pythonStart()}rows = ${pythonRow()}\nmean = model.predict(rows).mean\nstd = model.predict(rows, n_samples=${SETTLED}${noise}).std`;
      return `${pythonStart("gppvae.explore.live import Live")}\nrows = ${pythonRow()}\noff = ${state.off.size ? `${pythonOff()}  # (group of latents, term)` : "frozenset()"}\n` +
        `frame = Live(model).frame(rows, ${SETTLED}, off${noise}${frame.size === null ? "" : `, sizes=[${frame.size}]`})\nmean, std = frame.mean, frame.std`;
    },
  });
  onChange(what => {
    if (what === "data") setControls();
    if (what === "data" || what === "address") setSwitches();
    if (what === "view") return;
    if (["draws", "address"].includes(what)) runDraws();
    updateControls();
    if (what === "log" || what === "own") render();
    else refresh();
  });
  addEventListener("resize", () => { updateControls(); render(); });
  updateControls();
  runDraws();
  state.live = false;
  refresh();
}

export const redrawSample = render;
