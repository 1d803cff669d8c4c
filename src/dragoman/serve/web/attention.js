// The inspector's page for a sentence, in a drawer.
// Its frame has no origin of its own: its script can reach neither this page nor the service.

import { at, make } from "./elements.js";
import { isAbort, postForText } from "./api.js";
import { sentences } from "./text.js";

let controller = new AbortController();

/** `current()` gives { text, request, language } of what is translated now. */
export function prepare(current) {
  const dialog = at("attention");
  at("open-attention").addEventListener("click", () => {
    const { text, language } = current();
    const found = text.split("\n").flatMap((line) => sentences(line, language).map((range) => line.slice(...range)));
    at("sentence").replaceChildren(...found.map((sentence, place) => new Option(`${place + 1}. ${sentence}`, sentence)));
    at("sentence-label").hidden = found.length < 2;
    dialog.showModal();
    if (found.length) show(current().request);
  });
  at("sentence").addEventListener("change", () => show(current().request));
  dialog.addEventListener("close", () => {
    controller.abort();
    at("attention-page").replaceChildren();
  });
}

async function show({ source, target }) {
  controller.abort();
  controller = new AbortController();
  const text = at("sentence").value, state = at("attention-state");
  at("attention-page").replaceChildren();
  state.textContent = "Looking into the model. This takes some seconds …";
  const waiting = (seconds) => (state.textContent = `The service is busy; trying again in ${seconds} s`);
  try {
    const page = await postForText("v1/inspect", { text, source, target }, { signal: controller.signal, waiting });
    const frame = make("iframe", { title: `Attention: ${text}` });
    frame.setAttribute("sandbox", "allow-scripts");
    frame.srcdoc = page;
    at("attention-page").replaceChildren(frame);
    state.textContent = "";
  } catch (error) {
    if (!isAbort(error)) state.textContent = error.message;
  }
}
