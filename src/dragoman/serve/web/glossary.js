// The glossary: terms of each pair of languages, kept in this browser.

import { at, make, store, stored } from "./elements.js";

const LONGEST = 200, MOST = 1000; // as the service has it
let pair = "";
let rows = [];
let before = "";

const isTerm = (row) => Array.isArray(row) && row.length === 2 && row.every((text) => typeof text === "string");
const name = () => `dragoman.glossary.${pair}`;

/** Those that are complete, as the service wants them. */
export const terms = () =>
  rows.map(([source, target]) => ({ source: source.trim(), target: target.trim() })).filter(({ source, target }) => source && target);

export function use(source, target, names) {
  pair = `${source}-${target}`;
  rows = stored(name(), []).filter(isTerm).slice(0, MOST);
  at("glossary-pair").textContent = `${names[0]} → ${names[1]}`;
  count();
}

function count() {
  const number = terms().length;
  at("glossary-count").hidden = !number;
  at("glossary-count").textContent = number;
}

function keep() {
  store(name(), rows.filter(([source, target]) => source.trim() || target.trim()));
  count();
}

function show() {
  at("terms").replaceChildren(...rows.map((row, number) => line(row, number)));
  at("add-term").disabled = rows.length >= MOST;
}

function line(row, number) {
  const field = (side, label) => {
    const input = make("input", {
      value: row[side], maxLength: LONGEST, "aria-label": `${label} ${number + 1}`, placeholder: side ? "Translation" : "Term",
      autocapitalize: "none", spellcheck: false,
    });
    input.addEventListener("input", () => {
      row[side] = input.value;
      keep();
    });
    input.addEventListener("keydown", ({ key }) => key === "Enter" && add());
    return input;
  };
  const remove = make("button", { type: "button", className: "plain", "aria-label": `Remove term ${number + 1}` }, "×");
  remove.addEventListener("click", () => {
    rows.splice(number, 1);
    keep();
    show();
    (at("terms").querySelectorAll(".plain")[number] ?? at("add-term")).focus();
  });
  return make("div", { className: "term" }, field(0, "Term"), field(1, "Translation of term"), remove);
}

function add() {
  if (rows.length >= MOST) return;
  rows.push(["", ""]);
  show();
  at("terms").lastElementChild.querySelector("input").focus();
}

export function prepare(changed) {
  const dialog = at("glossary");
  at("open-glossary").addEventListener("click", () => {
    before = JSON.stringify(terms());
    if (!rows.length) rows.push(["", ""]);
    show();
    dialog.showModal();
    dialog.querySelector("input")?.focus();
  });
  at("add-term").addEventListener("click", add);
  dialog.addEventListener("close", () => {
    rows = rows.filter(([source, target]) => source.trim() || target.trim());
    if (JSON.stringify(terms()) !== before) changed();
  });
}
