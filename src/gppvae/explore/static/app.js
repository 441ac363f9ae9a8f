// Starts the page: what the server knows, what the address says, then every panel.

import {meta} from "./ask.js";
import {forgetColours} from "./pen.js";
import {render as redrawGrid, startGrid} from "./grid.js";
import {redrawKernel, startKernel, termKeys, toggle} from "./kernel.js";
import {redrawLatents, startLatents} from "./latents.js";
import {startObjects} from "./objects.js";
import {isPlaying, play, redrawSample, startSample} from "./sample.js";
import {$, address, change, facts, make, onChange, read, setFacts, state, trouble} from "./state.js";

function keys(event) {
  const inField = event.target.closest("input:not([type=range]):not([type=checkbox]), select, textarea, dialog[open]");
  if (inField || event.altKey || event.ctrlKey || event.metaKey) return;
  const number = "123456789".indexOf(event.key), letter = event.key.toLowerCase();
  if (event.key === "?") $("help-dialog").showModal();
  else if (letter === "d") change("draws", {draws: ($("draws").checked = !state.draws)});
  else if (letter === "p") play(!isPlaying());
  else if (number >= 0 && event.key !== "" && number < termKeys().length) toggle(termKeys()[number]);
  else return;
  event.preventDefault();
}

async function share() {
  const link = location.href.split("#")[0] + address();
  let words = "Copied";
  try {
    await navigator.clipboard.writeText(link);
  } catch {
    words = "In the address bar";
  }
  $("share").textContent = words;
  setTimeout(() => { $("share").textContent = "Copy link"; }, 1500);
}

function about() {
  const size = facts.images ? `pictures of ${facts.shape[2]} x ${facts.shape[1]}` : `${facts.shape[0]} values per sample`;
  const members = facts.members > 1 ? `, an ensemble of ${facts.members} networks` : "";
  $("about").textContent = `${facts.cells} rows, ${size}${members}, gppvae ${facts.version}`;
}

async function start() {
  setFacts(await meta());
  Object.assign(state, read());
  document.title = `${facts.title} · gppvae explore`;
  $("title").textContent = facts.title;
  about();
  onChange(what => { if (what === "data") about(); });
  $("notes").hidden = !facts.notes.length;
  $("notes").replaceChildren(...facts.notes.map(note => make("li", {textContent: note})));
  startGrid();
  startSample();
  startLatents();
  startKernel();
  startObjects();
  for (const dialog of document.querySelectorAll("dialog")) dialog.querySelector(".close").onclick = () => dialog.close();
  $("help-open").onclick = () => $("help-dialog").showModal();
  $("share").onclick = share;
  $("python-copy").onclick = () => navigator.clipboard.writeText($("python-text").textContent).catch(() => {});
  addEventListener("keydown", keys);
  addEventListener("hashchange", () => { Object.assign(state, read(), {live: false}); change("address"); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    forgetColours();
    for (const draw of [redrawGrid, redrawSample, redrawLatents, redrawKernel]) draw();
  });
  document.documentElement.dataset.ready = "yes";
}

start().catch(trouble);
