// The last translations, kept in this browser.

import { at, make, store, stored } from "./elements.js";

const NAME = "dragoman.history", MOST = 50, PAUSE = 1500; // milliseconds: while somebody types, nothing is kept
let timer;

const isEntry = (entry) => entry && ["from", "to", "text", "translation"].every((name) => typeof entry[name] === "string");
const entries = () => stored(NAME, []).filter(isEntry);

export function forget() {
  clearTimeout(timer);
}

export function note(entry) {
  clearTimeout(timer);
  timer = setTimeout(() => keep({ ...entry, time: Date.now() }), PAUSE);
}

/** The newest first. What only continues the one before takes its place. */
function keep(entry) {
  const isSame = (other) => other.from === entry.from && other.to === entry.to && entry.text.startsWith(other.text);
  let kept = entries().filter((other, place) => !(place === 0 && isSame(other)) && !(isSame(other) && other.text === entry.text));
  kept = [entry, ...kept].slice(0, MOST);
  while (!store(NAME, kept) && kept.length) kept.pop(); // until there is room
}

function show(chosen) {
  const all = entries();
  const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  at("entries").replaceChildren(
    ...all.map((entry) => {
      const button = make(
        "button",
        { type: "button", className: "entry" },
        make("span", { className: "quiet" }, `${entry.from} → ${entry.to}${entry.time ? `, ${when.format(entry.time)}` : ""}`),
        make("span", { lang: entry.from }, shortened(entry.text)),
        make("span", { lang: entry.to, className: "translated" }, shortened(entry.translation)),
      );
      button.addEventListener("click", () => chosen(entry));
      return make("li", {}, button);
    }),
  );
  at("no-entries").hidden = all.length > 0;
  at("clear-history").disabled = !all.length;
}

const shortened = (text) => (text.length > 200 ? `${text.slice(0, 200)} …` : text);

export function prepare(restore) {
  const dialog = at("history");
  const chosen = (entry) => {
    dialog.close();
    restore(entry);
  };
  at("open-history").addEventListener("click", () => {
    show(chosen);
    dialog.showModal();
  });
  at("clear-history").addEventListener("click", () => {
    forget();
    store(NAME, []);
    show(chosen);
    dialog.querySelector(".close").focus();
  });
}
