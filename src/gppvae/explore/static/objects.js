// Files of an object that the model never saw: drop them, say their views, and turn it.

import {$, ask, change, facts, make, setFacts, state} from "./state.js";

let chosen = [];
const newColumn = () => facts.columns.find(column => column.takes_new);
const others = () => facts.columns.filter(column => column !== newColumn());

function say(error) {
  $("object-trouble").hidden = !error;
  $("object-trouble").textContent = error || "";
}

async function read(file) {
  const url = await new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
  const content = url.slice(url.indexOf(",") + 1);
  if (facts.images) return {name: file.name, content, url: URL.createObjectURL(file), samples: 1};
  const lines = (await file.text()).replace(/^\ufeff/, "").split(/\r?\n/).filter(line => line.trim()).map(fields);
  const header = lines.length && isHeader(lines[0]) ? lines.shift() : [];
  return {name: file.name, content, url: null, samples: lines.length, rows: viewsIn(header, lines, file.name)};
}

// Names of columns: text, or all names of the values, which may be numbers.
const isHeader = line => line.some(word => !Number.isFinite(+word) && !/^(na|nan)$/i.test(word))
  || (facts.names.length > 0 && facts.names.every(name => line.includes(name)));

// One line of a CSV file, quoted words among them.
function fields(line) {
  return [...line.matchAll(/(?:^|,)(?:"((?:[^"]|"")*)"|([^,]*))/g)].map(([, quoted, plain]) => (quoted === undefined ? plain.trim() : quoted.replaceAll('""', '"')));
}

// The views that the columns of a file say; those it does not say are guessed from its name.
function viewsIn(header, lines, name) {
  const own = header.indexOf(newColumn().name), said = new Set(own < 0 ? [] : lines.map(line => line[own]));
  if (said.size > 1) throw new Error(`expected one ${newColumn().name} in ${name}, got ${said.size}; drop a file for each`);
  if (said.size) $("object-name").value = [...said][0];
  return lines.map(line => Object.fromEntries(others().map(column => {
    const place = header.indexOf(column.name), word = place < 0 ? "" : line[place];
    const known = column.kind === "id" ? column.levels.includes(word) : word !== "" && Number.isFinite(+word);
    return [column.name, known ? (column.kind === "id" ? word : +word) : guess(column, name)];
  })));
}

async function take(files) {
  say("");
  for (const file of files) {
    try {
      chosen.push(await read(file));
    } catch (error) {
      say(error.message);
    }
  }
  show();
}

// A number at the end of a file's name is often its view: three_157.5.png.
function guess(column, name) {
  if (column.kind === "id") return column.levels.find(level => name.includes(level)) || state.row[column.name];
  const found = name.replace(/\.[a-z]+$/i, "").match(/-?\d+(\.\d+)?(?!.*\d)/);
  return found ? +found[0] : state.row[column.name];
}

function show() {
  const rows = [];
  chosen.forEach((file, number) => {
    file.rows = file.rows && file.rows.length === file.samples ? file.rows : Array.from({length: file.samples}, () => Object.fromEntries(others().map(column => [column.name, guess(column, file.name)])));
    file.rows.forEach((row, line) => {
      const box = make("div", {className: "file"});
      if (file.url) box.append(make("img", {src: file.url, alt: ""}));
      box.append(make("b", {textContent: file.samples > 1 ? `${file.name}, line ${line + 1}` : file.name}));
      for (const column of others()) {
        const field = column.kind === "id" ? make("select") : make("input", {type: "number", step: "any"});
        if (column.kind === "id") field.append(...column.levels.map(level => make("option", {value: level, textContent: level})));
        field.value = row[column.name];
        field.onchange = () => { row[column.name] = column.kind === "id" ? field.value : +field.value; };
        box.append(make("label", {}, column.name, field));
      }
      box.append(make("button", {type: "button", textContent: "✕", ariaLabel: `remove ${file.name}`, onclick: () => { chosen.splice(number, 1); show(); }}));
      rows.push(box);
    });
  });
  $("object-rows").replaceChildren(...rows);
  $("object-learn").disabled = !rows.length;
}

export function openObjects(files = []) {
  const column = newColumn();
  if (!column) return;
  chosen = [];
  say("");
  $("object-about").textContent = facts.images
    ? `One or more pictures of a new ${column.name}, and the ${others().map(c => c.name).join(" and ") || "rows"} of each. They are resized to ${facts.shape[2]} x ${facts.shape[1]} and stay in memory; nothing is saved.`
    : `A CSV file of a new ${column.name}, one line per sample: ${facts.names.length ? `columns named as in training, in any order, or ${facts.shape[0]} values without a first line of names` : `${facts.shape[0]} values each`}. It stays in memory; nothing is saved.`;
  $("object-files").accept = facts.images ? "image/*" : ".csv,.txt,text/csv";
  let number = facts.added.length + 1;
  while (column.levels.includes(`new ${number}`)) number++;
  $("object-name").value = `new ${number}`;
  show();
  if (!$("object-dialog").open) $("object-dialog").showModal();
  if (files.length) take(files);
}

async function learn() {
  const column = newColumn(), name = $("object-name").value.trim(), button = $("object-learn");
  button.disabled = true;
  button.textContent = "Learning …";
  try {
    const rows = chosen.flatMap(file => file.rows), files = chosen.map(file => file.content);
    setFacts(await ask("add", {column: column.name, id: name, files, rows}));
    state.row = {...state.row, ...rows[0], [column.name]: name};
    $("object-dialog").close();
    change("data");
  } catch (error) {
    say(error.message);
  }
  button.disabled = false;
  button.textContent = "Learn it";
}

export function startObjects() {
  const can = Boolean(newColumn());
  $("new-object").hidden = !can;
  if (!can) return;
  $("new-object").textContent = `New ${newColumn().name}`;
  $("new-object").onclick = () => openObjects();
  $("object-files").onchange = event => { take([...event.target.files]); event.target.value = ""; };
  $("object-learn").onclick = learn;
  let depth = 0;
  const files = event => [...event.dataTransfer.types].includes("Files");
  const veil = on => { $("veil").hidden = !on; };
  addEventListener("dragenter", event => { if (files(event)) { depth++; veil(true); } });
  addEventListener("dragleave", event => { if (files(event) && --depth <= 0) { depth = 0; veil(false); } });
  addEventListener("dragover", event => { if (files(event)) event.preventDefault(); });
  addEventListener("drop", event => {
    if (!files(event)) return;
    event.preventDefault();
    depth = 0;
    veil(false);
    const dropped = [...event.dataTransfer.files];
    if ($("object-dialog").open) take(dropped);
    else openObjects(dropped);
  });
}
