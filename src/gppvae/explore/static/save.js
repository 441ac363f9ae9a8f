// Every panel saves its numbers and its figure, and shows the Python lines that give the same.

import {SvgPen} from "./pen.js";
import {$, facts, make, state} from "./state.js";

function download(name, content, type) {
  const link = make("a", {download: name, href: URL.createObjectURL(new Blob([content], {type}))});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const field = value => {
  const words = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
  return /[",\r\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words;
};
export const csv = rows => rows.map(row => row.map(field).join(",")).join("\r\n") + "\r\n";

// `panel` has name, rows(): list of lists, figure(pen) after size(): [width, height], python(): text.
export function addSave(id, panel) {
  const place = document.querySelector(`#${id} .save`);
  const file = ending => `${facts.title}-${panel.name}.${ending}`.replace(/[^\w.-]+/g, "_");
  const button = (words, title, onclick) => place.append(make("button", {type: "button", textContent: words, title, onclick}));
  button("CSV", "Save the numbers", () => download(file("csv"), csv(panel.rows()), "text/csv"));
  button("SVG", "Save the figure", () => {
    const pen = new SvgPen(...panel.size());
    panel.figure(pen);
    download(file("svg"), pen.file(), "image/svg+xml");
  });
  button("Python", "Show the code that gives the same", () => {
    $("python-text").textContent = panel.python();
    $("python-dialog").showModal();
  });
}

const literal = value => (value === null ? 'float("nan")' : typeof value === "number" ? String(value) : JSON.stringify(String(value)));
export const pythonRow = () => `{${facts.columns.map(({name}) => `${literal(name)}: [${literal(state.row[name])}]`).join(", ")}}`;
export function pythonStart(...more) {
  const added = facts.columns.some(({name}) => facts.added.includes(state.row[name]));
  return `${["gppvae import GPPVAE", ...more].map(what => `from ${what}\n`).join("")}\nmodel = GPPVAE.load(${literal(facts.folder)})\n` +
    (added ? "model.add_objects(samples, table)  # of what you dropped on the page, as arrays\n" : "");
}
export const pythonOff = () => `frozenset({${[...state.off].map(key => `(${key.replace(".", ", ")})`).join(", ")}})`;
export {literal};
