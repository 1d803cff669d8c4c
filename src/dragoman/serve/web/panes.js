// The two panes: words of the translation, their links to the text, and which of them is current.
// The text is a textarea, which cannot mark its words: a mirror behind it holds the same text and the marks.

import { at, make } from "./elements.js";
import { isDoubtful, isIn, linked, words } from "./text.js";

const LIT = "lit";
let shown = { lines: [], language: "" };

const translation = at("translation"), mirror = at("mirror"), source = at("source");

/** Called with a word's element, once the user has chosen it. */
export const choosing = { chosen: () => {} };

// Showing

const ENDED = /[.!?…。！？]["'”“»«’)\]]*$/;

/** What is known so far; the end of what was there before stays, dimmed, so that nothing jumps while one types. */
export function showPart(text, before) {
  const lines = text.split("\n"), old = before.split("\n");
  const [rest = "", ...later] = old.slice(lines.length - 1);
  const tail = [ENDED.test(lines.at(-1)) ? "" : rest.slice(lines.at(-1).length), ...later].join("\n");
  translation.replaceChildren(text, make("span", { className: "old" }, tail));
}

export function showLines(lines, language) {
  shown = { lines, language };
  lighted = null;
  translation.lang = language;
  translation.replaceChildren(...lines.map(paragraph));
  const first = translation.querySelector(".word");
  if (first) makeCurrent(first);
  showMirror(lines);
}

function paragraph(line, number) {
  const element = make("p", { className: "line", dir: "auto" });
  let place = 0;
  for (const range of words(line.target, shown.language)) {
    element.append(line.target.slice(place, range[0]), word(line, number, range));
    place = range[1];
  }
  element.append(line.target.slice(place) || (place ? "" : make("br")));
  if (isUncertain(line)) {
    element.classList.add("uncertain");
    element.title = `Confidence ${percent(line.confidence)}`;
  }
  return element;
}

function word(line, number, range) {
  const element = make("span", { className: "word" }, line.target.slice(...range));
  element.classList.toggle("doubtful", isDoubtful(line, range));
  element.place = { number, range };
  return element;
}

export const percent = (share) => `${Math.round(100 * share)} %`;
export const isUncertain = ({ confidence }) => confidence !== null && confidence < 0.5;

/** The text as it is typed; with lines, each linked part in an element of its own. */
function showMirror(lines) {
  mirror.replaceChildren();
  lines.forEach((line, number) => {
    let place = 0;
    const ranges = line.links.map((link) => link.source).sort(([first], [second]) => first - second);
    for (const range of ranges) {
      if (range[0] < place) continue; // it has several links
      const element = make("span", {}, line.source.slice(...range));
      element.place = { number, range };
      mirror.append(line.source.slice(place, range[0]), element);
      place = range[1];
    }
    mirror.append(line.source.slice(place), "\n");
  });
}

/** While it is typed, the mirror only gives the textarea its height. */
export function followTyping() {
  mirror.replaceChildren(`${source.value}\n`);
  light(null);
}

// Links

let lighted = null;

function light(place, side) {
  if (place === lighted) return;
  lighted = place;
  const ranges = place ? linked(shown.lines[place.number], side, place.range) : null;
  for (const [pane, name] of [[mirror, "source"], [translation, "target"]]) {
    for (const element of pane.querySelectorAll("span")) {
      if (!element.place) continue;
      const isLit = ranges !== null && element.place.number === place.number && isIn(ranges[name], element.place.range);
      element.classList.toggle(LIT, isLit);
    }
  }
}

/** The mirror lies behind the textarea. */
function mirroredAt(event) {
  return document.elementsFromPoint(event.clientX, event.clientY).find((element) => element.place && mirror.contains(element));
}

function mirroredAtCaret() {
  const before = source.value.slice(0, source.selectionStart).split("\n");
  const number = before.length - 1, place = before.at(-1).length;
  return [...mirror.querySelectorAll("span")].find(
    (element) => element.place.number === number && element.place.range[0] <= place && place <= element.place.range[1],
  );
}

// The current word: one stop of the Tab key, from which arrow keys go on

const BUTTON = { role: "button", "aria-haspopup": "listbox", "aria-describedby": "word-help" }; // the others read as text

function makeCurrent(element, hasFocus = false) {
  const before = translation.querySelector('[tabindex="0"]');
  for (const name of ["tabindex", ...Object.keys(BUTTON)]) before?.removeAttribute(name);
  element.tabIndex = 0;
  for (const [name, value] of Object.entries(BUTTON)) element.setAttribute(name, value);
  if (hasFocus) element.focus();
}

function moveFrom(element, key) {
  const all = [...translation.querySelectorAll(".word")];
  const number = all.indexOf(element);
  const next = { ArrowRight: number + 1, ArrowLeft: number - 1, Home: 0, End: all.length - 1 }[key];
  if (next === undefined) return false;
  if (all[next]) makeCurrent(all[next], true);
  return true;
}

export function focusWordAt(number, place) {
  const found = [...translation.querySelectorAll(".word")].find(
    (element) => element.place.number === number && element.place.range[1] > place,
  );
  if (found) makeCurrent(found, true);
}

export function prepare() {
  const wordOf = (event) => event.target.closest?.(".word");
  translation.addEventListener("click", (event) => {
    const element = wordOf(event);
    if (!element || !getSelection().isCollapsed) return; // somebody selects text
    makeCurrent(element, true);
    choosing.chosen(element);
  });
  translation.addEventListener("keydown", (event) => {
    const element = wordOf(event);
    if (!element || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") choosing.chosen(element);
    else if (!moveFrom(element, event.key)) return;
    event.preventDefault();
  });
  for (const name of ["mouseover", "focusin"]) {
    translation.addEventListener(name, (event) => light(wordOf(event)?.place ?? null, "target"));
  }
  for (const name of ["mouseleave", "focusout"]) translation.addEventListener(name, () => light(null));
  source.addEventListener("mousemove", (event) => light(mirroredAt(event)?.place ?? null, "source"));
  for (const name of ["mouseleave", "blur"]) source.addEventListener(name, () => light(null));
  source.addEventListener("keyup", ({ key }) => {
    if (/^(Arrow|Home|End|Page)/.test(key)) light(mirroredAtCaret()?.place ?? null, "source");
  });
}
