// Files: sent, translated, offered for download. One after the other.

import { at, make } from "./elements.js";
import { isAbort, keyHeaders, refusal, Refused, retrying } from "./api.js";

let queue = Promise.resolve();
let languages = () => ({});

/** `pair()` gives the languages at the time a file is added. */
export function prepare({ filesTranslation, supportedFilesFormat }, pair) {
  languages = pair;
  if (!filesTranslation) return;
  at("formats").textContent = `Drop a file anywhere on this page, or choose one: ${supportedFilesFormat.join(" ")}`;
  at("choose-file").hidden = false;
  at("file").accept = supportedFilesFormat.join(",");
  at("choose-file").addEventListener("click", () => at("file").click());
  at("file").addEventListener("change", () => {
    [...at("file").files].forEach(add);
    at("file").value = "";
  });
  prepareDrop();
}

function prepareDrop() {
  let depth = 0; // dragenter and dragleave come for every element on the way
  const hasFiles = (event) => [...event.dataTransfer.types].includes("Files");
  const show = (by) => {
    depth = by ? depth + by : 0;
    at("drop").hidden = depth <= 0;
  };
  addEventListener("dragenter", (event) => hasFiles(event) && show(1));
  addEventListener("dragleave", (event) => hasFiles(event) && show(-1));
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    show(0);
    [...event.dataTransfer.files].forEach(add);
  });
}

function add(file) {
  const item = line(file);
  const pair = languages();
  at("files").hidden = false;
  at("file-list").prepend(item.element);
  queue = queue.then(() => translate(file, pair, item));
}

function line(file) {
  const controller = new AbortController();
  const state = make("span", { className: "quiet", role: "status" }, "Waiting");
  const bar = make("progress", { max: 1, "aria-label": `Progress of ${file.name}` });
  const stop = make("button", { type: "button", className: "plain", "aria-label": `Cancel ${file.name}` }, "Cancel");
  const element = make("li", {}, make("span", { className: "name" }, file.name), state, bar, stop);
  stop.addEventListener("click", () => {
    controller.abort();
    element.remove();
    at("files").hidden = !at("file-list").childElementCount;
  });
  return { element, state, bar, stop, signal: controller.signal };
}

async function translate(file, pair, item) {
  if (item.signal.aborted) return;
  const waiting = (seconds) => (item.state.textContent = seconds ? `The service is busy; trying again in ${seconds} s` : "Sending");
  try {
    const answer = await retrying(() => send(file, pair, item), { signal: item.signal, waiting });
    finish(file, pair, item, answer.translatedFileUrl);
  } catch (error) {
    if (isAbort(error)) return;
    item.state.textContent = error.message;
    item.state.className = "bad";
    item.bar.remove();
  }
  item.stop.textContent = "Remove";
  item.stop.setAttribute("aria-label", `Remove ${file.name}`);
}

function finish(file, { target }, item, address) {
  const dot = file.name.lastIndexOf(".");
  const name = `${file.name.slice(0, dot)}.${target}${file.name.slice(dot)}`;
  const own = new URL(address).pathname.split("/").at(-1); // behind a proxy, the host may not be the one we know
  item.bar.remove();
  item.state.textContent = "Translated";
  item.stop.before(make("a", { href: `download_file/${own}`, download: name, className: "strong" }, `Download ${name}`));
}

/** XMLHttpRequest, because fetch does not tell how much has been sent. */
function send(file, { source, target }, { state, bar, signal }) {
  const form = new FormData();
  for (const [name, value] of Object.entries({ file, source, target })) form.append(name, value);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const clock = counting(state, bar);
    request.open("POST", "translate_file");
    for (const [name, value] of Object.entries(keyHeaders())) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      state.textContent = "Sending";
      bar.value = loaded / total;
    });
    request.upload.addEventListener("load", clock.start);
    request.addEventListener("loadend", clock.stop);
    request.addEventListener("load", () => {
      if (request.status === 200) resolve(JSON.parse(request.responseText));
      else reject(refusal(request.status, request.responseText, request.getResponseHeader("Retry-After")));
    });
    request.addEventListener("error", () => reject(new Refused("The service cannot be reached. Check the connection.", 0)));
    request.addEventListener("abort", () => reject(new DOMException("given up", "AbortError")));
    signal.addEventListener("abort", () => request.abort());
    request.send(form);
  });
}

/** Nobody knows how long the translation takes; say how long it has taken. */
function counting(state, bar) {
  let timer;
  return {
    start() {
      const began = Date.now();
      bar.removeAttribute("value");
      state.textContent = "Translating";
      timer = setInterval(() => (state.textContent = `Translating, ${Math.round((Date.now() - began) / 1000)} s`), 1000);
    },
    stop: () => clearInterval(timer),
  };
}
