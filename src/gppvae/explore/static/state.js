// What the user chose, and the address that keeps it.

import {ask} from "./ask.js";

export const state = {};
export let facts = {};
const listeners = [];

export const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
export const $ = id => document.getElementById(id);
export const columnOf = name => facts.columns.find(column => column.name === name);
export const numbers = () => facts.columns.filter(column => column.kind === "number");
export const termKey = name => name.join(".");

// `what` is a set of words: row, off, view (anything that changes no prediction), data (the model has new objects).
export function onChange(listener) { listeners.push(listener); }

export function change(what, changes = {}) {
  Object.assign(state, changes);
  write();
  for (const listener of listeners) listener(what);
}

export function setRow(values, live = false) {
  state.live = live;
  change("row", {row: {...state.row, ...values}});
}

export function offTerms() {
  return [...state.off].map(key => key.split(".").map(Number));
}

const order = new Intl.Collator(undefined, {numeric: true});

export function setFacts(found) {
  facts = found;
  for (const column of facts.columns) if (column.levels) column.levels.sort(order.compare);  // 2 before 10
  facts.cells = facts.table.status.length;
}

export function trouble(error) {
  $("trouble").hidden = !error;
  $("trouble").textContent = error ? `${error.message || error}` : "";
}

// -- the table, as it came

export function valueAt(name, cell) {
  const column = facts.table.columns[name];
  return column.kind === "id" ? column.levels[column.codes[cell]] : column.values[cell];
}

export function rowAt(cell) {
  return Object.fromEntries(facts.columns.map(({name}) => [name, valueAt(name, cell)]));
}

// "digit 12", but "sensor 3" where that is the id, and not its column twice.
const entryWords = (name, entry) => (String(entry).toLowerCase().startsWith(`${name} `.toLowerCase()) ? entry : `${name} ${entry}`);

export function rowWords(row) {
  return facts.columns.map(({name}) => entryWords(name, typeof row[name] === "number" ? +row[name].toPrecision(6) : row[name] ?? "missing")).join(", ");
}

// -- the address

const SIMPLE = {y: "", x: "", colour: "status", slide: "", tint: "", a: 0, b: 1, leaf: 0, draws: false, noise: false, own: false, log: false};

export function standard() {
  const ids = facts.columns.filter(column => column.kind === "id"), rest = numbers();
  const largest = [...ids].sort((a, b) => b.takes_new - a.takes_new || b.levels.length - a.levels.length);
  const order = [...largest, ...rest];
  const slide = rest.length ? rest[0].name : "";
  const y = order.length ? (ids.length ? order[0] : order[1] || order[0]).name : "";
  const others = facts.columns.filter(column => column.name !== y);
  const x = ((ids.length ? rest[0] : null) || others[0] || {name: y}).name;
  return {...SIMPLE, y, x, slide, tint: slide || y, noise: !facts.images, own: Boolean(facts.scales), log: facts.counts, colour: facts.has_table ? "status" : "uncertainty", row: facts.start, off: new Set(),
    b: facts.groups.reduce((sum, group) => sum + group.latents, 0) > 1 ? 1 : 0};
}

export function read() {
  const words = new URLSearchParams(location.hash.slice(1)), found = standard();
  for (const [name, usual] of Object.entries(SIMPLE)) {
    const given = words.get(name);
    if (given === null) continue;
    if (typeof usual === "boolean") found[name] = given === "1";
    else if (typeof usual === "number") found[name] = Math.max(0, Math.floor(+given) || 0);
    else if (name === "colour" ? ["status", "error", "uncertainty"].includes(given) : given in facts.table.columns) found[name] = given;
  }
  if (!columnOf(found.y)) found.y = standard().y;
  if (!columnOf(found.x)) found.x = standard().x;
  if (found.slide && columnOf(found.slide)?.kind !== "number") found.slide = standard().slide;
  found.row = {...found.row};
  for (const column of facts.columns) {
    const given = words.get(`r.${column.name}`);
    if (given === null) continue;
    if (column.kind === "number") { if (given !== "" && Number.isFinite(+given)) found.row[column.name] = +given; }
    else if (column.levels.includes(given)) found.row[column.name] = given;
  }
  const known = new Set(facts.groups.flatMap(group => group.terms.map(term => termKey(term.name))));
  found.off = new Set((words.get("off") || "").split(",").filter(key => known.has(key)));
  found.leaf = Math.min(found.leaf, Math.max(0, facts.leaves.length - 1));
  if (found.colour === "error" && !facts.has_samples) found.colour = "status";
  return found;
}

export function address() {
  const words = new URLSearchParams(), usual = standard();
  for (const {name} of facts.columns) words.set(`r.${name}`, state.row[name]);
  for (const name of Object.keys(SIMPLE)) {
    if (state[name] !== usual[name]) words.set(name, typeof state[name] === "boolean" ? +state[name] : state[name]);
  }
  if (state.off.size) words.set("off", [...state.off].join(","));
  return `#${words}`;
}

let timer = 0;
function write() {  // browsers allow only so many changes of the address in a second
  clearTimeout(timer);
  timer = setTimeout(() => history.replaceState(null, "", address()), 120);
}

export {ask};
