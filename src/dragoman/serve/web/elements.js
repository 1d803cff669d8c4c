// Small helpers for the document. Text only ever becomes text: nothing here parses markup.

export const at = (id) => document.getElementById(id);

/** An element with properties, attributes (`aria-…`, `data-…`, `role`, `for`) and children: elements or strings. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Empty it first: a screen reader says the same text again only if it changes. */
export function announce(text) {
  at("announcement").textContent = "";
  requestAnimationFrame(() => (at("announcement").textContent = text));
}

/** Dialogs close by Escape, by their button and by a click beside them. */
export function prepareDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) {
    for (const button of dialog.querySelectorAll(".close")) button.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog && isBeside(dialog, event)) dialog.close();
    });
  }
}

function isBeside(dialog, { clientX, clientY }) {
  const box = dialog.getBoundingClientRect();
  return clientX < box.left || clientX > box.right || clientY < box.top || clientY > box.bottom;
}

/** What was kept in this browser, or `otherwise`: a user may forbid storage, and anybody may edit it. */
export function stored(name, otherwise, isValid = Array.isArray) {
  try {
    const value = JSON.parse(localStorage.getItem(name));
    return value !== null && isValid(value) ? value : otherwise;
  } catch {
    return otherwise;
  }
}

/** Whether it could be kept. */
export function store(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
