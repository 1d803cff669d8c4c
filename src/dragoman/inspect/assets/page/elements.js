// Building blocks: elements, keyboard control, tooltips, numbers as text.

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value; // the page's policy refuses the attribute
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const make = (tag, attributes = {}, ...children) => dress(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const box = (kind, ...children) => make("div", { class: kind }, ...children);

// Scrolls separately, so it takes focus: arrow keys then scroll it
const region = (label, kind, ...children) =>
  make("div", { class: `scroll ${kind}`.trim(), tabindex: "0", role: "region", "aria-label": label }, ...children);

// "▁" at a token's start stands for a space: shown as a faint dot, drawn by the style sheet where it can be
const plain = (token) => (token.startsWith("▁") ? "·" + token.slice(1) : token);

function tokenElement(token, attributes = {}) {
  const spaced = token.startsWith("▁");
  const kind = `token${spaced ? " spaced" : ""} ${attributes.class ?? ""}`.trim();
  return make("bdi", { ...attributes, class: kind }, spaced ? token.slice(1) : token);
}

function section(id, title, note) {
  const body = make("section", { id, "aria-labelledby": `${id}-title` });
  body.append(make("h2", { id: `${id}-title` }, title));
  if (note) body.append(make("p", { class: "note" }, note));
  document.getElementById("sections").append(body);
  return body;
}

const readout = (id) => make("p", { id, class: "readout", role: "status" });

// Radio buttons that look like one switch; options are values and their titles
function segments(name, label, options, chosen, onchange) {
  const radio = ([value, title]) => {
    const input = make("input", { type: "radio", name, value, id: `${name}-${value}`, onchange: () => onchange(value) });
    input.checked = value === chosen;
    return make("label", {}, input, make("span", {}, title));
  };
  return make("div", { class: "segments", role: "group", "aria-label": label }, ...options.map(radio));
}

// Actions by key name
function onKeys(element, actions) {
  element.addEventListener("keydown", (event) => {
    if (!Object.hasOwn(actions, event.key) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key](event);
  });
}

// One tab stop in a row of many; arrow keys move on from there
function roving(container, selector) {
  const to = (place) => () => {
    const items = [...container.querySelectorAll(selector)];
    const next = items.at(place(items.indexOf(document.activeElement), items.length));
    moveStop(container, selector, next);
  };
  const back = to((at) => Math.max(0, at - 1));
  const on = to((at, count) => Math.min(count - 1, at + 1));
  onKeys(container, { ArrowLeft: back, ArrowUp: back, ArrowRight: on, ArrowDown: on, Home: to(() => 0), End: to(() => -1) });
}

// Of many buttons only the first is a tab stop
function oneStop(container, selector) {
  for (const [place, item] of container.querySelectorAll(selector).entries()) item.setAttribute("tabindex", place ? "-1" : "0");
}

function moveStop(container, selector, next, focus = true) {
  for (const item of container.querySelectorAll(`${selector}[tabindex="0"]`)) item.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  if (focus) next.focus();
}

const tip = make("div", { id: "tip", hidden: true });

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const above = event.clientY + 18 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
}

const hideTip = () => (tip.hidden = true);

// The space that words take

const measurer = document.createElement("canvas").getContext("2d");
measurer.font = "13px system-ui, sans-serif";
const widthOf = (token) => measurer.measureText(plain(token)).width;
const longest = (tokens, most) => Math.min(most, Math.ceil(Math.max(...tokens.map(widthOf))));

// Numbers

const percent = (p) => (p > 0 && p < 0.001 ? "<0.1%" : `${(100 * p).toFixed(1)}%`);
const signed = (value, digits = 2) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
const minus = (text) => text.replace("-", "−");
