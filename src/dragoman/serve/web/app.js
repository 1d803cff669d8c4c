// The page: text in, translation out while one types. The other modules own the parts of it.

import * as alternatives from "./alternatives.js";
import * as attention from "./attention.js";
import * as files from "./files.js";
import * as glossary from "./glossary.js";
import * as history from "./history.js";
import * as panes from "./panes.js";
import { getJson, isAbort, keys, postForStream, postJson, setKey } from "./api.js";
import { announce, at, prepareDialogs, store, stored } from "./elements.js";
import { countCharacters, toLine, withSentence } from "./text.js";

const PAUSE = 300; // milliseconds without typing, before a translation begins
const PAIR = "dragoman.pair";
const AUTO = "auto";
const source = at("source");

let languages = []; // those of /languages that can be translated into another
let models = []; // as /v1/models has them
let limit = Infinity;
let lines = []; // of the translation shown
let undone = []; // what it was before words were chosen
let detected = null; // the language of the text, if it was to be detected
let timer;
let controller = new AbortController();

// Languages

const nameOf = (code) => languages.find((each) => each.code === code)?.name ?? codeName(code);

function codeName(code) {
  try {
    return new Intl.DisplayNames("en", { type: "language" }).of(code);
  } catch {
    return code;
  }
}

const targetsOf = (code) =>
  code === AUTO ? [...new Set(languages.flatMap(({ targets }) => targets))] : (languages.find((each) => each.code === code)?.targets ?? []);
const actualSource = () => (at("from").value === AUTO ? detected : at("from").value);
const canSwap = () => targetsOf(at("to").value).includes(actualSource());

function fill(select, codes, chosen) {
  select.replaceChildren(...codes.map((code) => new Option(code === AUTO ? "Detect language" : nameOf(code), code)));
  select.value = codes.includes(chosen) ? chosen : codes[0];
}

function useLanguages(from, to) {
  fill(at("from"), [...(languages.length > 1 ? [AUTO] : []), ...languages.map(({ code }) => code)], from);
  fill(at("to"), targetsOf(at("from").value), to);
  detected = null;
  languagesChanged();
}

function languagesChanged() {
  const from = at("from").value, to = at("to").value;
  store(PAIR, [from, to]);
  if (from === AUTO) source.removeAttribute("lang");
  else source.lang = from;
  glossary.use(from, to, [from === AUTO ? "Any language" : nameOf(from), nameOf(to)]);
  at("swap").disabled = !canSwap();
  at("swap").title = canSwap() ? "" : "There is no model for the other direction";
}

function swap() {
  if (!canSwap()) return;
  const text = translated();
  useLanguages(at("to").value, actualSource());
  if (text) source.value = text;
  translateNow();
}

// Translating

const translated = () => lines.map(({ target }) => target).join("\n");

function request() {
  const from = at("from").value, to = at("to").value;
  const fitting = models.filter((model) => model.target === to && (from === AUTO || model.source === from));
  const confidence = fitting.every((model) => model.is_calibrated);
  return { source: from, target: to, glossary: glossary.terms(), alignment: true, token_scores: true, confidence };
}

function typed() {
  stop();
  panes.followTyping();
  const characters = countCharacters(source.value);
  at("characters").textContent = `${characters.toLocaleString("en")} / ${limit.toLocaleString("en")}`;
  at("characters").classList.toggle("bad", characters > limit);
  at("clear").hidden = !source.value;
  if (!source.value.trim()) return empty();
  if (characters > limit) {
    empty();
    return fail(`The text has more than ${limit.toLocaleString("en")} characters. Shorten it, or send it as a file.`, false);
  }
  setBusy(true);
  timer = setTimeout(translate, PAUSE);
}

function translateNow() {
  typed();
  if (timer) {
    clearTimeout(timer);
    translate();
  }
}

const setBusy = (isBusy) => at("translation").setAttribute("aria-busy", String(isBusy));

/** Give up what is under way. */
function stop() {
  clearTimeout(timer);
  timer = undefined;
  controller.abort();
  controller = new AbortController();
  alternatives.close();
  history.forget();
  at("problem").hidden = true;
  at("state").textContent = "";
}

function empty() {
  show([]);
  setBusy(false);
}

async function translate() {
  const { signal } = controller, text = source.value, before = translated();
  at("confidence").hidden = true;
  try {
    const part = (sofar) => panes.showPart(sofar, before);
    const answer = await postForStream("v1/translate", { ...request(), text }, part, { signal, waiting });
    detected = answer.source;
    undone = [];
    show(answer.translations.map(toLine));
    at("swap").disabled = !canSwap();
    announceTranslation();
    history.note({ from: answer.source, to: answer.target, text, translation: translated() });
  } catch (error) {
    if (isAbort(error)) return;
    show([]); // what was there is the translation of another text
    fail(error.message);
  }
  setBusy(false);
}

const waiting = (seconds) => (at("state").textContent = seconds ? `The service is busy; trying again in ${seconds} s` : "");

function fail(message, canRetry = true) {
  setBusy(false);
  at("state").textContent = "";
  at("problem-text").textContent = message;
  at("retry").hidden = !canRetry;
  at("problem").hidden = false;
}

function show(found) {
  lines = found;
  panes.showLines(lines, at("to").value);
  if (!lines.length) panes.followTyping();
  for (const id of ["copy", "open-attention"]) at(id).disabled = !lines.length;
  at("legend").hidden = !lines.length;
  at("undo").hidden = !undone.length;
  showConfidence();
  showNotes();
}

function showConfidence() {
  const shares = lines.map(({ confidence }) => confidence).filter((share) => share !== null);
  at("confidence").hidden = !shares.length;
  if (!shares.length) return;
  const least = Math.min(...shares), most = Math.max(...shares);
  at("confidence-meter").value = 100 * least;
  at("confidence-text").textContent =
    panes.percent(least) === panes.percent(most) ? panes.percent(least) : `${Math.round(100 * least)} to ${panes.percent(most)}`;
  at("confidence").title = "The probability that a line needs no review";
}

function announceTranslation() {
  const confidence = at("confidence").hidden ? "" : ` Confidence: ${at("confidence-text").textContent}`;
  announce(`Translation: ${translated()}${confidence}`);
}

const MEANINGS = {
  failed: "could not be translated",
  truncated: "is cut: its translation has no end",
  altered: "is not quite as asked",
};

function showNotes() {
  const notes = lines.flatMap(({ status, reason }, number) =>
    status in MEANINGS ? [`Line ${number + 1} ${MEANINGS[status]}${reason ? ` (${reason})` : ""}.`] : [],
  );
  at("notes").hidden = !notes.length;
  at("notes").replaceChildren(
    ...notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })),
  );
}

// Other words

function offerWords(word) {
  const line = lines[word.place.number];
  const { glossary: terms, source: from, target } = { ...request(), source: actualSource() };
  alternatives.offer(word, line, [from, target], { source: from, target, glossary: terms }, complete);
}

/** The rest of the sentence, once a word of it is chosen. */
async function complete(sentence, option, word) {
  const { number, range } = word.place, line = lines[number], { signal } = controller;
  const text = line.source.slice(...sentence.source);
  setBusy(true);
  try {
    const body = { ...request(), source: actualSource(), text, prefix: option.prefix };
    const answer = await postJson("v1/translate", body, { signal, waiting });
    undone.push(lines);
    show(lines.map((each, place) => (place === number ? withSentence(each, sentence, toLine(answer.translations[0])) : each)));
    announceTranslation();
    history.note({ from: answer.source, to: answer.target, text: source.value, translation: translated() });
    panes.focusWordAt(number, range[0]);
  } catch (error) {
    if (!isAbort(error)) fail(error.message);
  }
  setBusy(false);
}

function undo() {
  show(undone.pop());
  announceTranslation();
  if (at("undo").hidden) at("copy").focus();
}

// Copying

async function copy() {
  if (!lines.length) return;
  try {
    await navigator.clipboard.writeText(translated());
  } catch {
    copyBySelection(); // without https there is no clipboard
  }
  at("copy-name").textContent = "Copied";
  announce("Copied");
  setTimeout(() => (at("copy-name").textContent = "Copy"), 1500);
}

function copyBySelection() {
  const area = Object.assign(document.createElement("textarea"), { value: translated(), className: "unseen" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  at("copy").focus();
}

// The start

let keyAsked = null;

/** One dialog, however many requests need it. */
keys.ask = (message) => {
  keyAsked ??= new Promise((resolve) => {
    const dialog = at("key");
    at("key-problem").textContent = message;
    at("key-value").value = "";
    dialog.returnValue = "";
    dialog.showModal();
    dialog.addEventListener("close", () => {
      const value = dialog.returnValue === "given" ? at("key-value").value.trim() : "";
      if (value) setKey(value);
      keyAsked = null;
      resolve(Boolean(value));
    }, { once: true });
  });
  return keyAsked;
};

function restore({ from, to, text }) {
  useLanguages(from, to);
  source.value = text;
  translateNow();
  source.focus();
}

function listen() {
  prepareDialogs();
  panes.prepare();
  panes.choosing.chosen = offerWords;
  alternatives.prepare();
  glossary.prepare(translateNow);
  history.prepare(restore);
  attention.prepare(() => ({ text: source.value, request: { ...request(), source: actualSource() }, language: actualSource() }));
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    at("key").close("given");
  });
  source.addEventListener("input", typed);
  at("from").addEventListener("change", () => {
    useLanguages(at("from").value, at("to").value);
    translateNow();
  });
  at("to").addEventListener("change", () => {
    languagesChanged();
    translateNow();
  });
  for (const [id, act] of [["swap", swap], ["copy", copy], ["undo", undo], ["retry", start]]) at(id).addEventListener("click", act);
  at("clear").addEventListener("click", () => {
    source.value = "";
    typed();
    source.focus();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    if (event.shiftKey) copy();
    else translateNow();
  });
}

/** Load what the page needs to know; then, or if that is known already, translate. */
async function start() {
  at("problem").hidden = true;
  if (languages.length) return translateNow();
  try {
    const found = await Promise.all(["frontend/settings", "v1/models", "languages"].map(getJson));
    const [settings] = found;
    [, models] = found;
    languages = found[2]
      .map((each) => ({ ...each, targets: each.targets.filter((target) => target !== each.code) }))
      .filter(({ targets }) => targets.length);
    limit = settings.charLimit;
    const millions = (count) => `${(count / 1e6).toFixed(0)} million parameters`;
    at("models").textContent = `Models: ${models.map(({ name, parameters }) => `${name} (${millions(parameters)})`).join(", ")}.`;
    useLanguages(...stored(PAIR, [settings.language.source.code, settings.language.target.code]));
    files.prepare(settings, () => ({ source: at("from").value, target: at("to").value }));
    document.documentElement.dataset.ready = "true";
    translateNow(); // a browser may have kept the text of a page that is loaded again
  } catch (error) {
    fail(error.message);
  }
}

listen();
start();
