// The page: text in, translation out, and what each word looked at.

const at = (id) => document.getElementById(id);
const PAUSE = 500; // milliseconds without typing, before a translation begins
const PROBLEM = "problem";
let number = 0; // of the newest request
let lines = [];
let timer;

const handlers = {
  progress({ done, total }) {
    at("progress").value = done / total;
    at("progress-text").textContent = `Loading the model: ${megabytes(done)} of ${megabytes(total)} MB`;
  },
  ready({ name, beam, languages, language, downloaded }) {
    at("loading").hidden = true;
    at("name").textContent = document.title = name;
    const names = [[1, "greedy, fastest"], ...[2, 4, 8].map((width) => [width, `beam ${width}`])];
    fill(at("beam"), names.some(([width]) => width === beam) ? names : [...names, [beam, `beam ${beam}`]], beam);
    fill(at("language"), languages.map((each) => [each, each]), language ?? languages[0]);
    at("language-label").hidden = !languages.length;
    say(`Ready: ${megabytes(downloaded)} MB loaded.`);
    document.documentElement.dataset.ready = "true";
    translate();
    // After the download, which it then finds in the browser's cache. Not every browser has it on http: it is optional.
    navigator.serviceWorker?.register("service-worker.js").catch((error) => console.warn(`not offline: ${error.message}`));
  },
  failed({ message }) {
    at("loading").hidden = true;
    say(`The model cannot be loaded: ${message}`, true);
  },
  // What is translated so far of a line
  part({ number: which, place, of, result, parts }) {
    if (which !== number) return;
    lines[place] = result;
    showTranslation();
    const within = parts > 1 ? `, part ${result.parts.length} of ${parts}` : "";
    say(`Translating line ${place + 1} of ${of}${within} …`);
  },
  done({ number: which, seconds }) {
    if (which !== number || !lines.length) return;
    const words = lines.flatMap(({ text }) => text.match(/\S+/g) ?? []).length;
    const cut = lines.filter(({ finished }) => !finished).length;
    const warning = cut ? ` ${cut} of ${lines.length} lines reached the length limit.` : "";
    say(`${seconds.toFixed(1)} s, ${(words / seconds).toFixed(1)} words per second.${warning}`);
    showWords();
    document.documentElement.dataset.done = which;
  },
  error({ number: which, message }) {
    if (which === number) say(`Not translated: ${message}`, true);
  },
};
at("hint").hidden = true; // the script runs
const worker = new Worker("worker.js", { type: "module" });
worker.onmessage = ({ data }) => handlers[data.kind](data);
worker.onerror = ({ message }) => handlers.failed({ message: message ?? "this browser cannot run it" });

const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

function say(text, problem = false) {
  at("status").textContent = text;
  at("status").classList.toggle(PROBLEM, problem);
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value, false, value === chosen)));
}

function translate() {
  clearTimeout(timer);
  number += 1;
  lines = [];
  const text = at("source").value;
  const isBlank = !text.trim();
  if (isBlank) showTranslation();
  else at("translation").classList.add("old"); // until the first part of the new one
  at("looked").hidden = true;
  if (!document.documentElement.dataset.ready) return;
  say(isBlank ? "" : "Translating …");
  const options = { beam: Number(at("beam").value), language: at("language").value || undefined };
  worker.postMessage({ number, lines: isBlank ? [] : text.split("\n"), options }); // none: only ends what is before it
}

function showTranslation() {
  at("translation").classList.remove("old");
  at("translation").textContent = lines.map(({ text }) => text).join("\n");
  at("copy").disabled = !lines.length;
}

// A card for every sentence: its words above, those of the translation below.
function showWords() {
  const parts = lines.flatMap(({ parts }) => parts);
  at("looked").hidden = !parts.length;
  at("sentences").replaceChildren(...parts.map(card));
}

function card({ sourceWords, targetWords, weights }) {
  const above = sourceWords.map((text) => element("span", "source", text));
  const below = targetWords.map((text, row) => {
    const word = element("span", "target", text);
    word.tabIndex = row ? -1 : 0; // one stop for each sentence; arrow keys move within it
    const most = Math.max(...weights[row]);
    const looked = sourceWords.filter((_, column) => weights[row][column] >= most / 2);
    word.title = `looked at ${looked.join(", ")}`;
    word.role = "button";
    word.ariaLabel = `${text}, ${word.title}`;
    const paint = (on) => above.forEach(({ style }, column) => {
      style.background = on ? `rgba(var(--accent), ${(0.85 * weights[row][column]).toFixed(3)})` : "";
    });
    for (const [event, on] of [["mouseenter", true], ["focus", true], ["mouseleave", false], ["blur", false]]) {
      word.addEventListener(event, () => paint(on));
    }
    return word;
  });
  below.forEach((word, row) => word.addEventListener("keydown", ({ key }) => {
    below[row + ({ ArrowRight: 1, ArrowLeft: -1 }[key] ?? 0)]?.focus();
  }));
  return element("div", "pair", element("div", "words", ...above), element("div", "words", ...below));
}

function element(name, className, ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

at("source").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(translate, PAUSE);
});
at("source").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate();
});
for (const id of ["beam", "language"]) at(id).addEventListener("change", translate);
at("copy").hidden = !navigator.clipboard; // only on https and localhost
at("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(at("translation").textContent);
  at("copy").textContent = "Copied";
  setTimeout(() => (at("copy").textContent = "Copy"), 1500);
});
