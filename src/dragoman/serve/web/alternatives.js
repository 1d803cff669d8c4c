// Other words for a place of the translation, in a listbox beside it.

import { at, make } from "./elements.js";
import { isAbort, postJson } from "./api.js";
import { nextWords, sentenceAt, words } from "./text.js";

const MOST_WORDS = 6, ROUNDS = 3, N_BEST = 5;
const UNLIKELY = 6.5; // nats below the best translation: beyond, the bundled model invents words
const popup = at("alternatives"), list = at("alternatives-list"), title = at("alternatives-name");
let open = null; // { word, options, active, controller, choose }

/** `request` is the body of a translation, without its text; `choose(sentence, option)` hears what was chosen. */
export async function offer(word, line, languages, request, choose) {
  close();
  const controller = new AbortController();
  const own = (open = { word, options: [], active: 0, controller, choose });
  const sentence = sentenceAt(line, word.place.range[0], languages);
  const prefix = line.target.slice(sentence.target[0], word.place.range[0]);
  own.sentence = sentence;
  title.textContent = `In place of “${word.textContent}”: looking …`;
  list.replaceChildren();
  list.lang = languages[1];
  popup.hidden = false;
  word.setAttribute("aria-expanded", "true");
  place(word);
  list.focus({ preventScroll: true });
  try {
    own.options = await find(line.source.slice(...sentence.source), prefix, languages[1], request, controller.signal);
    if (open === own) show();
  } catch (error) {
    if (!isAbort(error) && open === own) title.textContent = error.message;
  }
}

/** Different next words: what was found is banned in the next round, for a beam mostly differs further on. */
async function find(text, prefix, language, request, signal) {
  const inPrefix = new Set(words(prefix, language).map((range) => prefix.slice(...range)));
  let found = [], best = null;
  for (let round = 0; round < ROUNDS && found.length < MOST_WORDS; round += 1) {
    const banned = found.map(({ word }) => word).filter((word) => !inPrefix.has(word)); // or nothing could follow
    const options = round ? { banned } : {};
    const answer = await postJson("v1/translate", { ...request, text, prefix, n_best: N_BEST, options }, { signal });
    const [record] = answer.translations;
    best ??= record.score;
    const likely = [record, ...(record.alternatives ?? [])].filter(({ score }) => score > best - UNLIKELY || score === best);
    const texts = likely.map(({ translation }) => translation);
    const known = new Set(found.map(({ word }) => word));
    const added = nextWords(texts, prefix, language).filter(({ word }) => !known.has(word));
    if (!added.length) break;
    found = [...found, ...added].slice(0, MOST_WORDS);
  }
  return found;
}

function show() {
  const { options, word } = open;
  const isOther = options.some((option) => option.word !== word.textContent);
  title.textContent = isOther ? `In place of “${word.textContent}”` : "The model knows no other word here.";
  list.replaceChildren(
    ...options.map((option, number) =>
      make(
        "li",
        { id: `alternative-${number}`, role: "option", "aria-selected": "false" },
        make("strong", {}, option.word),
        make("span", { className: "rest" }, option.rest),
      ),
    ),
  );
  place(word);
  popup.scrollIntoView({ block: "nearest" });
  const current = options.findIndex((option) => option.word !== word.textContent);
  if (options.length) activate(Math.max(current, 0));
}

function activate(number) {
  open.active = (number + open.options.length) % open.options.length;
  [...list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === open.active)));
  list.setAttribute("aria-activedescendant", `alternative-${open.active}`);
  list.children[open.active].scrollIntoView({ block: "nearest" });
}

function place(word) {
  popup.style.left = "0"; // or it would be measured beside the edge of the window
  const box = word.getBoundingClientRect(), own = popup.getBoundingClientRect(), margin = 8;
  const left = Math.max(margin, Math.min(box.left, document.documentElement.clientWidth - own.width - margin)); // within the window
  popup.style.left = `${left + scrollX}px`;
  popup.style.top = `${box.bottom + 6 + scrollY}px`;
}

export function close({ giveBack = false } = {}) {
  if (!open) return;
  open.controller.abort();
  popup.hidden = true;
  open.word.removeAttribute("aria-expanded");
  list.removeAttribute("aria-activedescendant");
  if (giveBack) open.word.focus();
  open = null;
}

function choose(number) {
  const { options, sentence, choose: chosen, word } = open;
  if (!options[number]) return;
  close();
  chosen(sentence, options[number], word);
}

export function prepare() {
  list.addEventListener("keydown", (event) => {
    const last = open.options.length - 1;
    const steps = { ArrowDown: open.active + 1, ArrowUp: open.active - 1, Home: 0, End: last };
    if (event.key === "Escape" || event.key === "Tab") close({ giveBack: true });
    else if (event.key === "Enter" || event.key === " ") choose(open.active);
    else if (event.key in steps && last >= 0) activate(steps[event.key]);
    else return;
    event.preventDefault();
  });
  const numberOf = (event) => [...list.children].indexOf(event.target.closest("[role=option]"));
  list.addEventListener("click", (event) => choose(numberOf(event)));
  list.addEventListener("mousemove", (event) => numberOf(event) >= 0 && activate(numberOf(event)));
  document.addEventListener("pointerdown", (event) => popup.contains(event.target) || close());
  addEventListener("resize", () => close());
}
