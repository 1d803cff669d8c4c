// The inspector's page: draws what the JSON beside it holds. Knows nothing of models and asks nothing of a network.
// Text comes from anywhere, so it reaches the document as text nodes and attributes only, never as markup.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const sentences = data.sentences ?? [];
  const app = document.getElementById("app");

  const KINDS = {
    encoder: { title: "Encoder", note: "Each source token (row) looks at the source." },
    decoder: { title: "Decoder", note: "Each step (row, named by what it produced) looks at what had gone in before." },
    cross: { title: "Cross", note: "Each step (row, named by what it produced) looks at the source." },
  };
  const ALL = -1; // in place of a layer or head: the average over them
  const FATES = {
    best: ["★", "on the way to the translation"],
    kept: ["●", "kept in the beam"],
    finished: ["■", "finished"],
    dropped: ["×", "dropped"],
  };

  const state = { sentence: 0, kind: "", choice: {}, view: "map", word: 0, step: 0 };
  const listeners = { sentence: [], choice: [] };
  const tell = (event) => listeners[event].forEach((listener) => listener());
  const current = () => sentences[state.sentence];

  // Elements

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

  // Scrolls on its own, so it takes focus: arrow keys then move it
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

  // Actions by the names of keys
  function onKeys(element, actions) {
    element.addEventListener("keydown", (event) => {
      if (!Object.hasOwn(actions, event.key) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      actions[event.key](event);
    });
  }

  // One stop for the Tab key in a row of many; arrows move on from there
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

  // Of many buttons the first alone is a stop for the Tab key
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

  // The room that words take

  const measurer = document.createElement("canvas").getContext("2d");
  measurer.font = "13px system-ui, sans-serif";
  const widthOf = (token) => measurer.measureText(plain(token)).width;
  const longest = (tokens, most) => Math.min(most, Math.ceil(Math.max(...tokens.map(widthOf))));

  // Numbers

  const percent = (p) => (p > 0 && p < 0.001 ? "<0.1%" : `${(100 * p).toFixed(1)}%`);
  const signed = (value, digits = 2) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
  const minus = (text) => text.replace("-", "−");

  // Colours: viridis between five points

  const POINTS = ["440154", "3b528b", "21918c", "5ec962", "fde725"].map((hex) =>
    [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)),
  );
  const SCALE = Array.from({ length: 256 }, (_, level) => {
    const at = (level / 255) * (POINTS.length - 1);
    const low = Math.min(Math.floor(at), POINTS.length - 2);
    return POINTS[low].map((value, channel) => Math.round(value + (POINTS[low + 1][channel] - value) * (at - low)));
  });
  const PIXELS = Uint32Array.from(SCALE, ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r); // as a canvas stores them
  const shade = (share) => SCALE[Math.max(0, Math.min(255, Math.round(share * 255)))];

  function luminance(rgb) {
    const [r, g, b] = rgb.map((value) => (value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  // Background by share, ink by whichever of black and white reads better on it (equal at luminance 0.18)
  function tint(element, share) {
    const rgb = shade(share);
    element.style.background = `rgb(${rgb})`;
    element.style.color = luminance(rgb) > 0.18 ? "#000" : "#fff";
  }

  // How strongly a token is looked at
  const glow = (token, share) => token.style.setProperty("--glow", `${Math.round(85 * share)}%`);

  function legend(low, high) {
    return make("span", { class: "legend" }, make("span", {}, low), make("span", { class: "scale" }), make("span", {}, high));
  }

  // A head's own colour, around the hue circle; the theme sets how light
  const headColour = (head, heads) => `oklch(var(--head-lightness) 0.15 ${Math.round((360 * head) / heads + 25)})`;

  // Weights

  let memory = new Map(); // of the current sentence only

  function bytesOf(packed) {
    const text = atob(packed.bytes);
    const bytes = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at); // a plain loop: these are megabytes
    return bytes;
  }

  const shapeOf = (sentence, kind) => sentence.attention?.[kind]?.shape ?? [0, 0, 0, 0];
  const kindsOf = (sentence) => Object.keys(KINDS).filter((kind) => shapeOf(sentence, kind).every((size) => size > 0));

  function remembered(key, compute) {
    if (!memory.has(key)) memory.set(key, compute());
    return memory.get(key);
  }

  // One head's weights, or the mean of a layer's or of all
  function unpack(kind, layer, head) {
    const [layers, heads, queries, keys] = shapeOf(current(), kind);
    const bytes = remembered(kind, () => bytesOf(current().attention[kind]));
    const size = queries * keys;
    const values = new Float32Array(size);
    const wanted = [];
    for (let block = 0; block < layers * heads; block++) {
      const inLayer = layer === ALL || Math.floor(block / heads) === layer;
      if (inLayer && (head === ALL || block % heads === head)) wanted.push(block * size);
    }
    for (const start of wanted) for (let i = 0; i < size; i++) values[i] += bytes[start + i];
    let largest = 0;
    for (let i = 0; i < size; i++) {
      values[i] /= 255 * wanted.length;
      if (values[i] > largest) largest = values[i];
    }
    return { queries, keys, values, largest };
  }

  // Remembered, as every move of the pointer asks again
  const weights = (kind, layer, head) => remembered(`${kind}.${layer}.${head}`, () => unpack(kind, layer, head));
  const chosenWeights = (kind) => weights(kind, state.choice[kind].layer, state.choice[kind].head);
  const rowOf = ({ keys, values }, query) => values.subarray(query * keys, (query + 1) * keys);
  const columnOf = ({ queries, keys, values }, key) => Float32Array.from({ length: queries }, (_, q) => values[q * keys + key]);

  function axesOf(kind) {
    const { source_tokens: source, input_tokens: input, tokens } = current();
    return kind === "encoder" ? [source, source] : kind === "decoder" ? [tokens, input] : [tokens, source];
  }

  function choose(kind, layer, head) {
    state.kind = kind;
    state.choice[kind] = { layer, head };
    tell("choice");
  }

  function defaultChoice(sentence, kind) {
    const [layers, heads] = shapeOf(sentence, kind);
    const aligning = kind === "cross" ? sentence.alignment_layer : null;
    return { layer: layers > 1 ? aligning ?? ALL : 0, head: heads > 1 ? ALL : 0 };
  }

  function choiceName({ layer, head }) {
    if (layer === ALL) return "average of all layers";
    return head === ALL ? `layer ${layer + 1}, average of its heads` : `layer ${layer + 1}, head ${head + 1}`;
  }

  function headSelect(kind, id, sentence) {
    const [layers, heads] = shapeOf(sentence, kind);
    const option = (layer, head) =>
      make("option", { value: `${layer}.${head}` }, choiceName({ layer, head }).replace(/^./, (first) => first.toUpperCase()));
    const select = make("select", { id, "aria-label": "Layer and head" });
    select.addEventListener("change", () => {
      const [layer, head] = select.value.split(".").map(Number);
      state.choice[kind] = { layer, head }; // whichever kind the attention section shows, it stays
      tell("choice");
    });
    if (layers > 1) select.append(option(ALL, ALL));
    for (let layer = 0; layer < layers; layer++) {
      if (heads > 1) select.append(option(layer, ALL));
      for (let head = 0; head < heads; head++) select.append(option(layer, head));
    }
    select.value = `${state.choice[kind].layer}.${state.choice[kind].head}`;
    return select;
  }

  // Head names of the Python side count from 1: cross.3.5
  function headButton(name) {
    const [kind, layer, head] = name.split(".");
    const shown = sentences.length > 0 && kindsOf(current()).includes(kind);
    if (!shown) return make("span", { class: "head-name" }, name);
    const go = () => {
      choose(kind, layer - 1, head - 1);
      document.getElementById("attention").scrollIntoView();
      document.querySelector('#attention .thumb[aria-checked="true"]')?.focus({ preventScroll: true });
    };
    return make("button", { class: "head-name", type: "button", title: "Show this head's attention", onclick: go }, name);
  }

  // Header and theme

  function header() {
    const model = data.model ?? {};
    const facts = [];
    if (model.architecture) facts.push(model.architecture);
    for (const side of ["encoder", "decoder"]) {
      const [layers, heads] = [model[`${side}_layers`], model[`${side}_heads`]];
      if (layers) facts.push(`${layers} ${side} ${layers > 1 ? "layers" : "layer"}${heads ? ` of ${heads} heads` : ""}`);
    }
    if (model.d_model) facts.push(`width ${model.d_model}`);
    if (model.search?.beam) facts.push(`beam ${model.search.beam}`);
    return make(
      "header",
      {},
      make("div", {}, make("h1", {}, model.name ?? document.title), make("p", { class: "note" }, facts.join(" · "))),
      themeButton(),
    );
  }

  function themeButton() {
    const themes = ["auto", "light", "dark"];
    const button = make("button", { id: "theme", type: "button", "aria-label": "Colour theme" });
    const set = (theme) => {
      document.documentElement.dataset.theme = theme;
      button.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[theme];
    };
    button.addEventListener("click", () => {
      set(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length]);
    });
    set("auto");
    return button;
  }

  // Sentence list: thousands of entries, so only the rows in sight exist

  function sentencePicker() {
    const ROW = 34;
    let found = sentences.map((_, index) => index);
    const search = make("input", { id: "search", type: "search", placeholder: "Search", "aria-label": "Search sentences" });
    const rows = box("rows");
    const list = make("div", { id: "sentences", role: "listbox", tabindex: "0", "aria-label": "Sentences" }, rows);
    const count = make("p", { class: "note", id: "sentence-count", role: "status" });

    function row(place) {
      const { source, forced } = sentences[found[place]];
      const element = make("div", {
        role: "option",
        id: `sentence-${found[place]}`,
        "data-sentence": found[place],
        "aria-selected": found[place] === state.sentence ? "true" : "false",
        "aria-setsize": found.length,
        "aria-posinset": place + 1,
        title: source,
        onclick: () => pick(place),
      });
      element.append(make("span", { class: "number" }, String(found[place] + 1)), make("bdi", {}, source));
      if (forced) element.append(make("span", { class: "badge" }, "forced"));
      element.style.top = `${place * ROW}px`;
      return element;
    }

    function draw() {
      rows.style.height = `${found.length * ROW}px`;
      const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
      const last = Math.min(found.length, first + Math.ceil((list.clientHeight || 9 * ROW) / ROW) + 8);
      rows.replaceChildren(...Array.from({ length: last - first }, (_, place) => row(first + place)));
      const chosen = document.getElementById(`sentence-${state.sentence}`);
      if (chosen) list.setAttribute("aria-activedescendant", chosen.id);
      else list.removeAttribute("aria-activedescendant");
      const all = found.length === sentences.length;
      const more = data.counted > sentences.length ? `, of ${data.counted} looked at` : "";
      count.textContent = all ? `${found.length} sentences${more}` : `${found.length} of ${sentences.length}`;
    }

    function pick(place) {
      if (found[place] === undefined) return;
      showSentence(found[place]);
      const top = place * ROW;
      if (top < list.scrollTop) list.scrollTop = top;
      if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
      draw();
    }

    list.addEventListener("scroll", draw, { passive: true });
    const move = (step) => () => pick(Math.max(0, Math.min(found.length - 1, found.indexOf(state.sentence) + step)));
    onKeys(list, {
      ArrowUp: move(-1), ArrowDown: move(1), PageUp: move(-8), PageDown: move(8), Home: move(-Infinity), End: move(Infinity),
    });
    search.addEventListener("input", () => {
      const wanted = search.value.toLowerCase();
      const matches = ({ source, translation }) => `${source}\n${translation}`.toLowerCase().includes(wanted);
      found = sentences.map((_, index) => index).filter((index) => matches(sentences[index]));
      list.scrollTop = 0;
      draw();
    });
    list.style.height = `${Math.min(sentences.length, 9) * ROW + 2}px`;
    draw();
    return make("div", { id: "picker" }, search, list, count);
  }

  function showSentence(index) {
    state.sentence = index;
    memory = new Map();
    Object.assign(state, { word: 0, step: 0 });
    const kinds = kindsOf(current());
    for (const kind of kinds) state.choice[kind] ??= defaultChoice(current(), kind);
    if (!kinds.includes(state.kind)) state.kind = kinds.at(-1) ?? "";
    tell("sentence");
  }

  // Source and translation, tied by cross-attention

  function translationSection() {
    const body = section("translation", "Source and translation");
    const texts = make("dl", { class: "texts" });
    const controls = box("controls");
    const row = (side) => make("div", { class: "row", "data-side": side });
    const rows = { source: row("source"), target: row("target") };
    const lines = svg("svg", { id: "lines", "aria-hidden": "true" });
    const inner = box("strip-inner", rows.source, lines, rows.target);
    const strip = make("div", { id: "strip", class: "scroll", role: "group", "aria-label": "Aligned tokens" }, inner);
    const said = readout("link-readout");
    const note = make("p", { class: "note" });
    body.append(texts, controls, note, said, strip);
    const centres = { source: [], target: [] };
    let tied = false;

    const pointable = (side, token, index) => {
      const label = `${side} ${plain(token)}`;
      return tokenElement(token, { "data-index": index, role: "button", tabindex: index ? "-1" : "0", "aria-label": label });
    };

    const curve = (source, target, attributes) => {
      const [from, to] = [centres.source[source], centres.target[target]];
      return svg("path", { d: `M${from} 0C${from} 40 ${to} 24 ${to} 64`, ...attributes });
    };

    function measure() {
      for (const side of ["source", "target"])
        centres[side] = [...rows[side].children].map((token) => token.offsetLeft + token.offsetWidth / 2);
      drawLines();
    }

    function drawLines() {
      const { source_tokens: source, tokens } = current();
      const chosen = tied ? chosenWeights("cross") : null;
      const most = (shares) => shares.reduce((best, share, at) => (share > shares[best] ? at : best), 0);
      const alignment = chosen && tokens.map((_, target) => most(rowOf(chosen, target)));
      // many tokens look at the source's end when they need nothing from it: drawn faint
      const faint = (target) => alignment[target] === source.length - 1 && target < tokens.length - 1;
      lines.replaceChildren(
        ...(alignment ?? []).map((at, target) => curve(at, target, { class: faint(target) ? "aligned faint" : "aligned" })),
        svg("g", { class: "looks" }),
      );
    }

    function light(side, index) {
      dim();
      rows[side].children[index].classList.add("active");
      if (!tied) return;
      const chosen = chosenWeights("cross");
      const shares = side === "target" ? rowOf(chosen, index) : columnOf(chosen, index);
      const other = side === "target" ? "source" : "target";
      const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).filter((at) => shares[at] >= 0.01);
      const top = shares[order[0]];
      for (const at of order) glow(rows[other].children[at], shares[at] / top);
      lines.classList.add("looking");
      lines.querySelector(".looks").replaceChildren(
        ...order.slice(0, 12).map((at) => {
          const [from, to] = side === "target" ? [at, index] : [index, at];
          const style = `stroke-width:${1 + 4 * shares[at]};opacity:${0.25 + (0.75 * shares[at]) / top}`;
          return curve(from, to, { style });
        }),
      );
      const tokens = { source: current().source_tokens, target: current().tokens };
      const verb = side === "target" ? "looks at" : "is looked at by";
      const list = order.slice(0, 4).map((at) => `${plain(tokens[other][at])} ${shares[at].toFixed(2)}`);
      said.textContent = `${plain(tokens[side][index])} ${verb} ${list.join(", ") || "nothing much"}`;
    }

    function dim() {
      for (const side of ["source", "target"])
        for (const token of rows[side].children) {
          token.classList.remove("active");
          token.style.removeProperty("--glow");
        }
      lines.classList.remove("looking");
      lines.querySelector(".looks")?.replaceChildren();
      said.textContent = tied ? "Point at a token, or use the arrow keys." : "";
    }

    function restore() {
      const focused = document.activeElement?.closest?.("#strip .token");
      if (focused) light(focused.parentElement.dataset.side, Number(focused.dataset.index));
      else dim();
    }

    for (const [side, row] of Object.entries(rows)) {
      roving(row, ".token");
      const lightEvent = ({ target }) => target.dataset.index && light(side, Number(target.dataset.index));
      row.addEventListener("pointerover", lightEvent);
      row.addEventListener("focusin", lightEvent);
      row.addEventListener("pointerout", restore);
      row.addEventListener("focusout", dim);
    }

    function draw() {
      const sentence = current();
      tied = kindsOf(sentence).includes("cross");
      texts.replaceChildren(
        make("dt", {}, "Source"),
        make("dd", { id: "source-text", dir: "auto" }, sentence.source),
        make("dt", {}, sentence.forced ? "Translation, forced" : "Translation"),
        make("dd", { id: "translation-text", dir: "auto" }, sentence.translation),
        make("dt", {}, "Log-probability"),
        make("dd", { id: "score" }, minus(sentence.score.toFixed(2))),
      );
      controls.replaceChildren();
      if (tied) controls.append(make("label", {}, "Weights of ", headSelect("cross", "link-head", sentence)));
      note.textContent = tied
        ? "Lines join each token of the translation with the source token it looks at most. A dot stands for a space."
        : "This model has no attention between source and translation, so nothing ties their tokens.";
      rows.source.replaceChildren(...sentence.source_tokens.map((token, index) => pointable("source", token, index)));
      rows.target.replaceChildren(...sentence.tokens.map((token, index) => pointable("target", token, index)));
      strip.scrollLeft = 0;
      measure();
      dim();
    }

    new ResizeObserver(measure).observe(inner);
    listeners.sentence.push(draw);
    listeners.choice.push(() => {
      const select = document.getElementById("link-head");
      if (tied) select.value = `${state.choice.cross.layer}.${state.choice.cross.head}`;
      drawLines();
      restore();
    });
  }

  // Attention: all heads small, one large

  function attentionSection() {
    const body = section("attention", "Attention");
    const kinds = box("controls");
    const note = make("p", { class: "note" });
    const overview = make("div", { id: "overview", role: "radiogroup", "aria-label": "Layers and heads" });
    const pick = make("label", {}, "Shown: ");
    const stretch = make("input", { id: "stretch", type: "checkbox", checked: true, onchange: () => redraw() });
    const stretchLabel = make("label", {}, stretch, " Stretch colours to the largest weight");
    const view = make("div", { id: "view" });
    const VIEWS = { map: ["Heat map", heatMap], word: ["One word", wordView], table: ["Table", tableView] };
    const titles = Object.entries(VIEWS).map(([name, [title]]) => [name, title]);
    const views = segments("view", "View", titles, state.view, (name) => {
      state.view = name;
      showView();
    });
    const controls = [box("controls", pick), box("controls", views, stretchLabel)];
    const small = box("scroll", overview);
    body.append(kinds, note, box("two", small, make("div", {}, ...controls, view)));
    let drawnFor = ""; // which sentence and kind the thumbnails show
    let viewOf = ""; // which sentence, kind and view is on the page
    let width = 0;

    function thumb(layer, head) {
      const name = choiceName({ layer, head });
      const button = make("button", {
        type: "button", class: "thumb", role: "radio", "data-layer": layer, "data-head": head, "aria-label": name, title: name,
        onclick: () => choose(state.kind, layer, head),
      });
      button.append(thumbnail(unpack(state.kind, layer, head), stretch.checked));
      return button;
    }

    function drawOverview() {
      const [layers, heads] = shapeOf(current(), state.kind);
      const columns = heads + (heads > 1 ? 1 : 0);
      overview.style.setProperty("--columns", columns);
      const label = (text) => make("span", { class: "axis" }, text);
      const cells = [label("")];
      if (heads > 1) cells.push(label("avg"));
      for (let head = 0; head < heads; head++) cells.push(label(String(head + 1)));
      if (layers > 1) cells.push(label("all"), thumb(ALL, ALL), make("span", { class: "axis wide" }, "head → · layer ↓"));
      for (let layer = 0; layer < layers; layer++) {
        cells.push(label(String(layer + 1)));
        if (heads > 1) cells.push(thumb(layer, ALL));
        for (let head = 0; head < heads; head++) cells.push(thumb(layer, head));
      }
      overview.replaceChildren(...cells);
    }

    // Above the first layer stands the average of all
    function move(down, right) {
      const { layer, head } = state.choice[state.kind];
      const [layers, heads] = shapeOf(current(), state.kind);
      const nextLayer = Math.max(layers > 1 ? ALL : 0, Math.min(layers - 1, layer + down));
      const nextHead = Math.max(heads > 1 ? ALL : 0, Math.min(heads - 1, head + right));
      if (nextLayer === ALL) choose(state.kind, ALL, ALL);
      else choose(state.kind, nextLayer, nextHead);
      overview.querySelector('[aria-checked="true"]').focus();
    }

    function markChosen() {
      const { layer, head } = state.choice[state.kind];
      for (const button of overview.querySelectorAll(".thumb")) {
        const chosen = Number(button.dataset.layer) === layer && Number(button.dataset.head) === head;
        button.setAttribute("aria-checked", chosen);
        button.tabIndex = chosen ? 0 : -1;
      }
    }

    function redraw() {
      body.hidden = !state.kind;
      if (!state.kind) return;
      const wanted = `${state.sentence} ${state.kind} ${stretch.checked}`;
      if (wanted !== drawnFor) {
        drawnFor = wanted;
        note.textContent = KINDS[state.kind].note;
        drawOverview();
      }
      const focused = document.activeElement?.id; // the select is made anew, so a keyboard's place in it would be lost
      pick.replaceChildren("Shown: ", headSelect(state.kind, "head", current()));
      if (focused === "head") document.getElementById("head").focus();
      document.getElementById(`kind-${state.kind}`).checked = true;
      markChosen();
      showView();
    }

    function showView() {
      const wanted = `${state.sentence} ${state.kind} ${state.view}`;
      const before = wanted === viewOf && view.querySelector(".scroll");
      const [left, top] = before ? [before.scrollLeft, before.scrollTop] : [0, 0];
      viewOf = wanted;
      width = view.clientWidth;
      stretchLabel.hidden = state.view !== "map";
      VIEWS[state.view][1](view, stretch.checked);
      view.querySelector(".scroll").scrollTo(left, top); // another head, the same place
    }

    function drawKinds() {
      const titles = kindsOf(current()).map((kind) => [kind, KINDS[kind].title]);
      const choice = segments("kind", "Kind of attention", titles, state.kind, (kind) => {
        state.kind = kind;
        state.word = 0;
        tell("choice");
      });
      kinds.replaceChildren(choice);
    }

    onKeys(overview, {
      ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
    });
    new ResizeObserver(() => {
      if (state.kind && view.clientWidth !== width) showView();
    }).observe(view);
    listeners.sentence.push(drawKinds, redraw);
    listeners.choice.push(redraw);
  }

  // At most 64 pixels a side; each keeps the largest weight under it, so that thin diagonals of long sentences survive
  function thumbnail({ queries, keys, values, largest }, stretched) {
    const [height, width] = [Math.min(queries, 64), Math.min(keys, 64)];
    const levels = new Float32Array(height * width);
    for (let q = 0; q < queries; q++)
      for (let k = 0; k < keys; k++) {
        const at = Math.floor((q * height) / queries) * width + Math.floor((k * width) / keys);
        levels[at] = Math.max(levels[at], values[q * keys + k]);
      }
    return picture(levels, width, height, stretched ? largest : 1);
  }

  // One pixel a value; the style sheet sets the size on screen
  function picture(values, width, height, top, low = 0) {
    const canvas = make("canvas", { width, height, "aria-hidden": "true" });
    const image = new ImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const times = 255 / (top - low || 1);
    for (let i = 0; i < values.length; i++) pixels[i] = PIXELS[Math.min(255, Math.round((values[i] - low) * times))];
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  function heatMap(view, stretched) {
    const chosen = chosenWeights(state.kind);
    const [queryTokens, keyTokens] = axesOf(state.kind);
    const top = stretched ? chosen.largest : 1;
    const side = longest(queryTokens, view.clientWidth < 420 ? 76 : 120) + 16;
    const cell = Math.max(11, Math.min(30, Math.floor((view.clientWidth - side) / chosen.keys)));
    const label = (token) => make("bdi", { title: token }, plain(token));
    const rows = box("map-rows", ...queryTokens.map(label));
    const columns = box("map-columns", ...keyTokens.map(label));
    [...columns.children].forEach((name, index) => (name.style.left = `${index * cell + cell / 2}px`));
    const canvas = picture(chosen.values, chosen.keys, chosen.queries, top);
    canvas.id = "map";
    canvas.dataset.shown = choiceName(state.choice[state.kind]);
    const [rowBand, columnBand] = [box("band"), box("band")];
    const cells = box("map-cells", canvas, rowBand, columnBand);
    const corner = box("map-corner");
    const grid = box("map", corner, columns, rows, cells);
    const head = longest(keyTokens, 100) + 12;
    grid.style.cssText = `--side:${side}px;--top:${head}px;--cell:${cell}px;--keys:${chosen.keys};--queries:${chosen.queries}`;
    const scroll = make("div", {
      id: "map-scroll", class: "scroll", tabindex: "0", role: "application",
      "aria-label": `Heat map, ${choiceName(state.choice[state.kind])}; arrow keys move over its cells`,
    }, grid);
    const said = readout("map-readout");
    said.textContent = "Point at a cell, or use the arrow keys.";
    let at = [0, -1];

    function point(query, key) {
      at = [query, key];
      for (const name of grid.querySelectorAll(".lit")) name.classList.remove("lit");
      rows.children[query].classList.add("lit");
      columns.children[key].classList.add("lit");
      rowBand.style.cssText = `left:0;right:0;top:${query * cell}px;height:${cell}px`;
      columnBand.style.cssText = `top:0;bottom:0;left:${key * cell}px;width:${cell}px`;
      const value = chosen.values[query * chosen.keys + key].toFixed(3);
      said.textContent = `${plain(queryTokens[query])} → ${plain(keyTokens[key])}: ${value}`;
      return said.textContent;
    }

    cells.addEventListener("pointermove", (event) => {
      const { left, top } = cells.getBoundingClientRect();
      const query = Math.floor((event.clientY - top) / cell);
      const key = Math.floor((event.clientX - left) / cell);
      if (query >= 0 && key >= 0 && query < chosen.queries && key < chosen.keys) showTip(event, point(query, key));
    });
    cells.addEventListener("pointerleave", hideTip);
    const move = (down, right) => () => {
      point(Math.max(0, Math.min(chosen.queries - 1, at[0] + down)), Math.max(0, Math.min(chosen.keys - 1, at[1] + right)));
      keepInSight(scroll, at[1] * cell, at[0] * cell, cell, corner);
    };
    onKeys(scroll, { ArrowUp: move(-1, 0), ArrowDown: move(1, 0), ArrowLeft: move(0, -1), ArrowRight: move(0, 1) });
    view.replaceChildren(box("controls", said, legend("0", top.toFixed(2))), scroll);
  }

  // The labels stick to the edges and cover cells there, so the browser's own scrolling would stop too early
  function keepInSight(scroll, left, top, cell, corner) {
    const [side, head] = [corner.offsetWidth, corner.offsetHeight];
    scroll.scrollLeft = Math.min(left, Math.max(scroll.scrollLeft, left + side + cell - scroll.clientWidth));
    scroll.scrollTop = Math.min(top, Math.max(scroll.scrollTop, top + head + cell - scroll.clientHeight));
  }

  // One word and where each head of the layer looks from it
  function wordView(view) {
    const ROW = 26;
    const { kind } = state;
    const [, heads] = shapeOf(current(), kind);
    const choice = state.choice[kind];
    const { layer } = choice;
    const on = new Set(choice.head === ALL ? Array(heads).keys() : [choice.head]);
    const [queryTokens, keyTokens] = axesOf(kind);
    const word = (token, index) => tokenElement(token, { "data-index": index });
    const column = (tokens, attributes) => make("div", { class: "words", ...attributes }, ...tokens.map(word));
    const listbox = { role: "listbox", tabindex: "0", "aria-label": "Word to look from" };
    const queries = column(queryTokens, { id: "word-queries", ...listbox });
    const keys = column(keyTokens, { id: "word-keys" });
    const height = ROW * Math.max(queryTokens.length, keyTokens.length);
    const lines = svg("svg", { id: "word-lines", height, "aria-hidden": "true" });
    const scroll = box("scroll tall", box("word-grid", queries, lines, keys));
    const said = readout("word-readout");
    [...queries.children].forEach((token, index) => dress(token, { role: "option", id: `word-${index}` }, []));

    function headChip(head) {
      const input = make("input", { type: "checkbox", "data-head": head });
      input.checked = on.has(head);
      input.addEventListener("change", () => {
        if (input.checked) on.add(head);
        else on.delete(head);
        draw();
      });
      const chip = make("label", { class: "chip" }, input, ` ${head + 1}`);
      chip.style.setProperty("--chip", headColour(head, heads));
      return chip;
    }

    function draw() {
      const from = (state.word + 0.5) * ROW;
      const width = lines.clientWidth;
      const totals = new Float32Array(keyTokens.length);
      const paths = [];
      for (const head of on) {
        const shares = rowOf(weights(kind, layer, head), state.word);
        const aside = (head - (heads - 1) / 2) * Math.min(3, (ROW - 6) / heads); // or one head's line would hide another's
        shares.forEach((share, key) => {
          totals[key] += share / on.size;
          if (share < 0.012) return; // three of 255 levels: too thin to see
          const to = (key + 0.5) * ROW + aside;
          const d = `M0 ${from}C${width / 2} ${from} ${width / 2} ${to} ${width} ${to}`;
          const style = `stroke:${headColour(head, heads)};stroke-width:${0.75 + 5 * share};opacity:${0.2 + 0.8 * share}`;
          paths.push(svg("path", { d, style, "data-head": head }));
        });
      }
      lines.replaceChildren(...paths);
      const most = Math.max(...totals) || 1;
      [...keys.children].forEach((token, key) => glow(token, totals[key] / most));
      [...queries.children].forEach((token, index) => token.setAttribute("aria-selected", index === state.word));
      queries.setAttribute("aria-activedescendant", `word-${state.word}`);
      const best = [...totals.keys()].sort((a, b) => totals[b] - totals[a]).slice(0, 3);
      const list = best.map((key) => `${plain(keyTokens[key])} ${totals[key].toFixed(2)}`).join(", ");
      said.textContent = `${plain(queryTokens[state.word])} → ${list}`;
    }

    function pickWord(index) {
      state.word = Math.max(0, Math.min(queryTokens.length - 1, index));
      draw();
      queries.children[state.word].scrollIntoView({ block: "nearest" });
    }

    queries.addEventListener("click", ({ target }) => target.dataset.index && pickWord(Number(target.dataset.index)));
    onKeys(queries, {
      ArrowUp: () => pickWord(state.word - 1),
      ArrowDown: () => pickWord(state.word + 1),
      Home: () => pickWord(0),
      End: () => pickWord(Infinity),
    });
    const chips = make("div", { class: "controls chips", role: "group", "aria-label": "Heads" }, `${layer === ALL ? "All layers" : `Layer ${layer + 1}`}, heads`);
    chips.append(...Array.from({ length: heads }, (_, head) => headChip(head)));
    state.word = Math.min(state.word, queryTokens.length - 1);
    view.replaceChildren(chips, said, scroll);
    new ResizeObserver(() => scroll.isConnected && draw()).observe(scroll);
    draw();
  }

  // Numbers, outputs against inputs: only the rows in sight exist
  function tableView(view) {
    const ROW = 28;
    const chosen = chosenWeights(state.kind);
    const [queryTokens, keyTokens] = axesOf(state.kind);
    const name = (token, attributes) => make("th", { title: token, ...attributes }, make("bdi", {}, plain(token)));
    const head = make("tr", {}, make("th", {}, ""), ...keyTokens.map((token) => name(token, { scope: "col" })));
    const rows = make("tbody");
    const caption = make("caption", {}, `${KINDS[state.kind].title} attention, ${choiceName(state.choice[state.kind])}`);
    const counted = { id: "numbers", "aria-rowcount": queryTokens.length + 1 };
    const table = make("table", counted, caption, make("thead", {}, head), rows);
    table.style.width = `${110 + 58 * keyTokens.length}px`;
    const scroll = region("Weights as numbers", "tall", table);
    let first = -1;

    function row(query) {
      const shares = rowOf(chosen, query);
      const largest = Math.max(...shares);
      const weight = (share) => (share === largest ? "largest" : share < 0.005 ? "nothing" : null);
      const cells = Array.from(shares, (share) => make("td", { class: weight(share) }, share.toFixed(2)));
      return make("tr", { "aria-rowindex": query + 2 }, name(queryTokens[query], { scope: "row" }), ...cells);
    }

    function spacer(count) {
      const blank = make("tr", { class: "spacer" });
      blank.style.height = `${count * ROW}px`;
      return blank;
    }

    function draw() {
      const wanted = Math.max(0, Math.floor(scroll.scrollTop / ROW) - 4);
      if (Math.abs(wanted - first) < 3 && first >= 0) return;
      first = wanted;
      const last = Math.min(queryTokens.length, first + Math.ceil(scroll.clientHeight / ROW) + 8);
      const shown = Array.from({ length: last - first }, (_, place) => row(first + place));
      rows.replaceChildren(spacer(first), ...shown, spacer(queryTokens.length - last));
    }

    scroll.addEventListener("scroll", draw, { passive: true });
    view.replaceChildren(scroll);
    rows.append(spacer(queryTokens.length)); // its height first, so that the box knows how tall it is
    draw();
  }

  // Probabilities

  // Candidates as bars, the one taken marked; below them when it is not among the likeliest
  function candidateList(step, token) {
    const rows = step.candidates.map(([name, p], place) => [place + 1, name, p]);
    if (!rows.some(([, name]) => name === token)) rows.push([step.rank, token, step.p]);
    return make(
      "ol",
      { class: "candidates" },
      ...rows.map(([rank, name, p]) => {
        const bar = make("span", { class: "bar" }, make("span", { style: `width:${100 * p}%` }));
        const attributes = { class: name === token ? "taken" : null, "data-rank": rank };
        const [number, value] = [make("span", { class: "number" }, `${rank}.`), make("span", { class: "value" }, percent(p))];
        return make("li", attributes, number, tokenElement(name), bar, value);
      }),
    );
  }

  function probabilitySection() {
    const body = section("probability", "Probability of each token", "What the model gave each token, given those before it.");
    const tokens = make("div", { id: "probabilities", class: "wrap", role: "listbox", "aria-label": "Tokens by probability" });
    const key = make("span", {}, make("span", { class: "token unlikely sample" }, "token"), " not the model's first choice");
    const panel = make("div", { id: "candidates", class: "panel", role: "status" });
    const disagreements = make("div", { id: "disagreements", class: "panel" });
    body.append(box("controls", legend("0%", "100%"), key), tokens, box("two even", panel, disagreements));
    roving(tokens, ".token");

    function select(index) {
      const { steps, tokens: names } = current();
      [...tokens.children].forEach((token, at) => token.setAttribute("aria-selected", at === index));
      const step = steps[index];
      const rank = step.rank === 1 ? "the model's first choice" : `the model's choice number ${step.rank}`;
      const title = make("h3", {}, tokenElement(names[index]), ` ${percent(step.p)}, ${rank}`);
      panel.replaceChildren(title, candidateList(step, names[index]));
    }

    function disagreement(index) {
      const { steps, tokens: names } = current();
      const go = () => {
        moveStop(tokens, ".token", tokens.children[index], false);
        select(index);
      };
      const [better, p] = steps[index].candidates[0];
      const said = [tokenElement(names[index]), ` ${percent(steps[index].p)} · the model would say `];
      const button = make("button", { type: "button", "data-index": index, onclick: go }, ...said, tokenElement(better));
      button.append(` ${percent(p)}`);
      return make("li", {}, button);
    }

    function coloured(name, index, { p, rank }) {
      const title = `${plain(name)} ${percent(p)}, rank ${rank}`;
      const option = { role: "option", tabindex: index ? "-1" : "0", "data-index": index, "aria-label": title, title };
      const token = tokenElement(name, { class: rank > 1 ? "unlikely" : "", ...option });
      tint(token, p);
      return token;
    }

    function draw() {
      const { steps, tokens: names, forced } = current();
      body.hidden = steps.length === 0;
      if (body.hidden) return;
      tokens.replaceChildren(...names.map((name, index) => coloured(name, index, steps[index])));
      const places = [...steps.keys()].filter((index) => steps[index].rank > 1);
      const heading = forced ? "Where the model disagrees" : "Where the search went against the likeliest token";
      const list = make("ul", { class: "plain" }, ...places.map(disagreement));
      disagreements.replaceChildren(make("h3", {}, heading), places.length ? list : make("p", { class: "note" }, "Nowhere."));
      select(0);
    }

    const chosen = ({ target }) => target.dataset.index && select(Number(target.dataset.index));
    tokens.addEventListener("click", (event) => {
      if (event.target.dataset.index) moveStop(tokens, ".token", event.target);
    });
    tokens.addEventListener("focusin", chosen);
    listeners.sentence.push(draw);
  }

  // Steps: all at once or one by one

  function stepSection() {
    const body = section("steps", "Training and inference");
    const note = make("p", { class: "note" });
    const view = make("div", { id: "step-view" });
    const recurrent = data.model?.architecture === "rnn";
    const modes = {
      training: [recurrent ? "Training" : "Training (all positions at once)", training,
        recurrent
          ? "In training the right token goes in at each step, whatever came out before; here that is the translation itself."
          : "In training all positions are computed at once; each sees only the input up to itself, " +
            "as later positions are masked, so the numbers are those of inference."],
      inference: ["Inference (one by one)", inference,
        recurrent
          ? "In inference each token that comes out goes in next."
          : "In inference each token that comes out goes in next; what is later does not exist yet, " +
            "just as the mask hides it in training, so the numbers are the same."],
    };
    let mode = "training";
    const titles = Object.entries(modes).map(([name, [title]]) => [name, title]);
    const switcher = segments("mode", "Mode", titles, mode, show);
    body.append(box("controls", switcher), note, view);

    function training() {
      const { input_tokens: input, tokens, steps } = current();
      const cell = (content) => make("td", {}, content);
      const row = (title, contents) => make("tr", {}, make("th", { scope: "row" }, title), ...contents.map(cell));
      const shares = steps.map(({ candidates: [[, p]] }) => {
        const share = make("span", { class: "share" }, percent(p));
        tint(share, p);
        return share;
      });
      const guess = ({ candidates, rank }) => tokenElement(candidates[0][0], { class: rank > 1 ? "unlikely" : "" });
      const rows = [
        row("Position", input.map((_, index) => String(index + 1))),
        row("Goes in", input.map((token) => tokenElement(token))),
        row("Should come out", tokens.map((token) => tokenElement(token))),
        row("Model's first choice", steps.map(guess)),
        row("Its probability", shares),
      ];
      view.replaceChildren(region("All positions", "", make("table", { id: "training" }, make("tbody", {}, ...rows))));
    }

    function inference() {
      const { input_tokens: input, tokens, steps } = current();
      const last = tokens.length - 1;
      const slider = make("input", { id: "step", type: "range", min: 0, max: last, "aria-label": "Step" });
      slider.addEventListener("input", () => go(Number(slider.value)));
      const button = (id, text, label, step) =>
        make("button", { id, type: "button", "aria-label": label, onclick: () => go(state.step + step) }, text);
      const [back, on] = [button("step-back", "‹", "Step back", -1), button("step-on", "›", "Step on", 1)];
      const count = make("span", { id: "step-count" });
      const fed = make("div", { id: "fed", class: "wrap" }, ...input.map((token) => tokenElement(token)));
      const out = make("div", { id: "step-out", class: "panel", role: "status" });
      const controls = box("controls stepper", back, slider, on, count);

      function go(step) {
        state.step = Math.max(0, Math.min(last, step));
        slider.value = state.step;
        count.textContent = `step ${state.step + 1} of ${last + 1}`;
        [...fed.children].forEach((token, index) => {
          token.classList.toggle("future", index > state.step);
          token.classList.toggle("active", index === state.step);
        });
        const token = tokens[state.step];
        out.replaceChildren(
          make("h3", {}, "Comes out: ", tokenElement(token, { id: "step-token" }), ` ${percent(steps[state.step].p)}`),
          candidateList(steps[state.step], token),
        );
      }

      onKeys(controls, { ArrowLeft: () => go(state.step - 1), ArrowRight: () => go(state.step + 1) });
      const gone = box("panel", make("h3", {}, "Gone in so far"), fed);
      view.replaceChildren(controls, box("two even", gone, out));
      go(state.step);
    }

    function show(name) {
      mode = name;
      note.textContent = modes[mode][2];
      modes[mode][1]();
    }

    listeners.sentence.push(() => {
      body.hidden = current().steps.length === 0;
      if (!body.hidden) show(mode);
    });
  }

  // Beam tree

  function fitted(text, width) {
    if (measurer.measureText(text).width <= width) return text;
    const letters = [...text];
    while (letters.length > 1 && measurer.measureText(`${letters.join("")}…`).width > width) letters.pop();
    return `${letters.join("")}…`;
  }

  function beamSection() {
    const [COLUMN, ROW, WIDTH, HEIGHT] = [132, 32, 102, 24];
    const body = section("beam", "Beam search",
      "Every continuation the search considered, a column for each step; children stand in their parents' order.");
    const fates = make("div", { class: "controls", id: "fates" });
    const dropped = make("input", { id: "dropped", type: "checkbox", checked: true, onchange: () => draw() });
    const said = readout("beam-readout");
    const tree = svg("svg", { id: "tree", role: "group", "aria-label": "Tree of continuations" });
    const scroll = box("scroll", tree);
    body.append(box("controls", fates, make("label", {}, dropped, " Show dropped")), said, scroll);
    let nodes = [];
    let byIndex = new Map();

    // Rows in each column: children stand in the order of their parents, so that lines seldom cross
    function placed(beam) {
      const named = ([parent, depth, token, score, fate], index) => ({ index, parent, depth, token, score, fate, row: 0 });
      const shown = beam.map(named);
      const columns = [];
      for (const node of shown) if (dropped.checked || node.fate !== "dropped") (columns[node.depth] ??= []).push(node);
      const rowOfParent = ({ parent }) => (parent < 0 ? 0 : shown[parent].row);
      for (const column of columns) {
        column?.sort((a, b) => rowOfParent(a) - rowOfParent(b) || b.score - a.score);
        column?.forEach((node, row) => (node.row = row));
      }
      return columns.flatMap((column) => column ?? []);
    }

    const x = (depth) => 8 + (depth === 0 ? 0 : 68 + (depth - 1) * COLUMN);
    const y = (row) => 10 + row * ROW + HEIGHT / 2;
    const describe = ({ token, score, fate, depth }) =>
      `${plain(token)} · step ${depth} · log-probability ${minus(score.toFixed(2))} · ${FATES[fate][1]}`;

    function shape(node) {
      const group = svg("g", {
        class: `node ${node.fate}`, "data-fate": node.fate, "data-node": node.index, tabindex: "-1", role: "img",
        "aria-label": describe(node), transform: `translate(${x(node.depth)} ${y(node.row) - HEIGHT / 2})`,
      });
      const radius = node.fate === "finished" ? 0 : node.fate === "kept" ? 12 : 5;
      const label = svg("text", { x: 9, y: 16.5 }, `${FATES[node.fate][0]} ${fitted(plain(node.token), WIDTH - 30)}`);
      group.append(svg("rect", { width: WIDTH, height: HEIGHT, rx: radius }), label);
      return group;
    }

    // One path for all lines of a fate: a long search has thousands
    function edges(fate) {
      const parts = nodes.filter((node) => node.fate === fate).map((node) => {
        const parent = byIndex.get(node.parent);
        const from = parent ? [x(parent.depth) + WIDTH, y(parent.row)] : [x(0) + 44, y(0)];
        const middle = (from[0] + x(node.depth)) / 2;
        return `M${from}C${middle} ${from[1]} ${middle} ${y(node.row)} ${x(node.depth)} ${y(node.row)}`;
      });
      return svg("path", { class: `edge ${fate}`, d: parts.join("") });
    }

    function draw() {
      const { beam } = current();
      body.hidden = !beam?.length;
      if (body.hidden) return;
      nodes = placed(beam);
      byIndex = new Map(nodes.map((node) => [node.index, node]));
      const deepest = nodes.at(-1).depth;
      tree.setAttribute("width", x(deepest) + WIDTH + 10);
      tree.setAttribute("height", y(Math.max(...nodes.map(({ row }) => row))) + HEIGHT / 2 + 10);
      const start = svg("g", { class: "node start", transform: `translate(${x(0)} ${y(0) - HEIGHT / 2})` },
        svg("rect", { width: 44, height: HEIGHT, rx: 5 }), svg("text", { x: 8, y: 16.5 }, "<s>"));
      tree.replaceChildren(...["dropped", "kept", "finished", "best"].map(edges), start, ...nodes.map(shape));
      tree.querySelector(".node[data-node]").setAttribute("tabindex", "0");
      const count = (fate) => beam.filter((node) => node[4] === fate).length;
      const key = ([fate, [mark, meaning]]) => make("span", { class: `fate ${fate}` }, `${mark} ${meaning} (${count(fate)})`);
      fates.replaceChildren(...Object.entries(FATES).map(key));
      said.textContent = "Point at a node, or use the arrow keys.";
      scroll.scrollLeft = 0;
    }

    const nodeAt = (target) => byIndex.get(Number(target.closest?.("[data-node]")?.dataset.node ?? NaN));
    const elementOf = ({ index }) => tree.querySelector(`[data-node="${index}"]`);

    function neighbour(node, key) {
      const column = nodes.filter(({ depth }) => depth === node.depth);
      const children = nodes.filter(({ parent }) => parent === node.index);
      if (key === "ArrowLeft") return byIndex.get(node.parent);
      if (key === "ArrowRight") return children.find(({ fate }) => fate === "best") ?? children[0];
      return column[node.row + (key === "ArrowDown" ? 1 : -1)];
    }

    tree.addEventListener("pointermove", (event) => {
      const node = nodeAt(event.target);
      if (!node) return hideTip();
      said.textContent = describe(node);
      showTip(event, describe(node));
    });
    tree.addEventListener("pointerleave", hideTip);
    // on the frame: a browser lets an SVG that listens for focus take it
    scroll.addEventListener("focusin", ({ target }) => {
      const node = nodeAt(target);
      if (node) said.textContent = describe(node);
    });
    const walk = ({ target, key }) => {
      const node = nodeAt(target);
      const next = node && neighbour(node, key);
      if (!next) return;
      moveStop(tree, ".node", elementOf(next));
      elementOf(next).scrollIntoView({ block: "nearest", inline: "nearest" });
    };
    onKeys(tree, { ArrowLeft: walk, ArrowRight: walk, ArrowUp: walk, ArrowDown: walk });
    listeners.sentence.push(draw);
  }

  // Heads: what each is worth, what silence does, what each is like

  function rankingSection() {
    const body = section("ranking", "What each head is worth",
      "What log-probability this translation loses when one head is silent; below zero, it is likelier without the head.");
    const list = make("ol", { class: "ranking scroll", tabindex: "0", "aria-label": "Heads by cost of removal" });
    const count = sentences.filter(({ ranking }) => ranking?.length).length;
    const first = count === 1 ? "the first sentence" : `the first ${count} sentences`;
    const without = make("p", { class: "unranked" }, `The heads of ${first} were ranked, as --rank said; not of this one.`);
    body.append(without, list);
    roving(list, "button.head-name");
    listeners.sentence.push(() => {
      const ranking = current().ranking ?? [];
      body.hidden = count === 0;
      without.hidden = ranking.length > 0;
      list.hidden = ranking.length === 0;
      const costs = ranking.map(([, cost]) => cost);
      const [low, high] = [Math.min(0, ...costs), Math.max(0, ...costs)];
      const share = (value) => (100 * value) / (high - low || 1);
      list.replaceChildren(
        ...ranking.map(([name, cost]) => {
          const bar = make("span", { class: cost < 0 ? "below" : "above" });
          bar.style.cssText = `left:${share(Math.min(cost, 0) - low)}%;width:${share(Math.abs(cost))}%`;
          const track = make("span", { class: "track" }, bar);
          track.style.setProperty("--zero", `${share(-low)}%`);
          return make("li", { "data-head": name }, headButton(name), track, make("span", { class: "value" }, signed(cost)));
        }),
      );
      oneStop(list, "button.head-name");
    });
  }

  // Words of one text that are not in the other, by the longest common run of words
  function changed(before, after) {
    const lengths = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
    for (let i = before.length - 1; i >= 0; i--)
      for (let j = after.length - 1; j >= 0; j--)
        lengths[i][j] = before[i] === after[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    const [gone, come] = [new Set(before.keys()), new Set(after.keys())];
    for (let i = 0, j = 0; i < before.length && j < after.length; ) {
      if (before[i] === after[j]) gone.delete(i++), come.delete(j++);
      else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
      else j++;
    }
    return [gone, come];
  }

  function maskedSection() {
    const body = section("masked", "With and without");
    const view = make("div");
    body.append(view);
    listeners.sentence.push(() => {
      const { masked } = current();
      body.hidden = !masked;
      if (masked) view.replaceChildren(...comparison(masked));
    });
  }

  function comparison({ heads, before, after, score_of_before: lost }) {
    const words = [before, after].map(({ translation }) => translation.split(/\s+/));
    const marks = changed(...words);
    const row = (title, { score }, side) => {
      const text = words[side].map((word, index) => [marks[side].has(index) ? make("mark", {}, word) : word, " "]).flat();
      return make("tr", { "data-side": side ? "after" : "before" }, make("th", { scope: "row" }, title),
        make("td", { dir: "auto" }, ...text), make("td", { class: "value" }, minus(score.toFixed(2))));
    };
    const head = make("tr", {}, ...["", "Translation", "Log-probability"].map((title) => make("th", { scope: "col" }, title)));
    const rows = [row("All heads", before, 0), row("Without them", after, 1)];
    const table = make("table", { id: "comparison" }, make("thead", {}, head), make("tbody", {}, ...rows));
    const said = [`Silent heads: ${heads.join(", ")}. The difference: ${signed(after.score - before.score)}.`];
    if (lost !== undefined) said.push(`Without them the first translation has ${minus(lost.toFixed(2))}.`);
    return [box("scroll", table), make("p", { class: "note" }, said.join(" "))];
  }

  const MEASURES = {
    name: ["Head", "kind, layer and head, counted from 1"],
    entropy: ["Entropy", "in bits; 0 where one key gets all the weight"],
    evenness: ["Evenness", "entropy as a share of an even look at all keys"],
    distance: ["Distance", "positions between a query and what it looks at"],
    offset: ["Offset", "which it looks at most: −1 the token before, 0 the same place, +1 the next"],
    following: ["Following", "the share of weight at that offset"],
    sink: ["Sink", "the share of weight on the first or last place, whatever the query"],
    confidence: ["Confidence", "the largest weight of a query, on average"],
    dead: ["Dead", "nearly all weight on one place: the head tells queries nothing apart"],
  };

  function statisticsSection() {
    const counted = data.counted ?? sentences.length;
    const looked = counted === 1 ? "the one sentence" : `all ${counted} sentences`;
    const body = section("statistics", "What heads are like", `Means over all queries of ${looked} looked at.`);
    const rows = make("tbody");
    const headers = Object.entries(MEASURES).map(([key, [title, meaning]]) => {
      const button = make("button", { type: "button", title: meaning, onclick: () => sort(key) }, title);
      return make("th", { scope: "col", "data-key": key, "aria-sort": "none" }, button);
    });
    const table = make("table", { id: "heads" }, make("thead", {}, make("tr", {}, ...headers)), rows);
    const largest = (key) => Math.max(...data.statistics.map((head) => head[key]), 1e-9);
    const tops = { entropy: largest("entropy"), distance: largest("distance") }; // the others are shares of 1
    let [sorted, falling] = ["", false];

    function cell(head, key) {
      if (key === "name") return make("th", { scope: "row" }, headButton(head.name));
      if (key === "dead") return make("td", {}, head.dead ? make("span", { class: "badge dead" }, "✕ dead") : "");
      if (key === "offset") return make("td", { class: "value" }, head.offset ? signed(head.offset, 0) : "0");
      const value = make("td", { class: "value meter" }, head[key].toFixed(2));
      value.style.setProperty("--share", `${(100 * head[key]) / (tops[key] ?? 1)}%`);
      return value;
    }

    const byName = new Intl.Collator("en", { numeric: true });

    function sort(key) {
      falling = key === sorted ? !falling : key !== "name"; // numbers start with the largest
      sorted = key;
      const compare = key === "name" ? (a, b) => byName.compare(a.name, b.name) : (a, b) => a[key] - b[key];
      const order = [...data.statistics].sort((a, b) => (falling ? -1 : 1) * compare(a, b));
      for (const header of headers)
        header.setAttribute("aria-sort", header.dataset.key === key ? (falling ? "descending" : "ascending") : "none");
      fill(order);
    }

    function fill(order) {
      const row = (head) => {
        const cells = Object.keys(MEASURES).map((key) => cell(head, key));
        return make("tr", { "data-head": head.name, class: head.dead ? "dead" : null }, ...cells);
      };
      rows.replaceChildren(...order.map(row));
      oneStop(rows, "button.head-name");
    }
    roving(rows, "button.head-name");

    const meanings = Object.values(MEASURES).flatMap(([title, meaning]) => [make("dt", {}, title), make("dd", {}, meaning)]);
    body.append(
      region("Head statistics", "tall", table),
      make("details", {}, make("summary", {}, "What the columns mean"), make("dl", { class: "texts" }, ...meanings)),
    );
    fill(data.statistics);
  }

  // Positions

  function positionSection() {
    const body = section("positions", "Positional encodings", "What is added to a token's embedding to say where it stands.");
    const { table, dots, largest = 1 } = data.positions;
    if (table?.shape?.[0]) body.append(...positionPicture(table, largest));
    const said = data.positions.kind === "learned" ? "Dot product of position 0 with the others" : "Dot product of two positions by their distance";
    if (dots?.length > 1) body.append(make("h3", {}, said), fittedPlot(dots));
  }

  function positionPicture({ shape: [positions, width], bytes }, largest) {
    const values = Float32Array.from(bytesOf({ bytes }), (level) => (level / 127.5 - 1) * largest);
    const canvas = picture(values, width, positions, largest, -largest);
    canvas.id = "position-map";
    const said = readout("position-readout");
    said.textContent = `${positions} positions (down) by ${width} dimensions (across)`;
    canvas.addEventListener("pointermove", (event) => {
      const frame = canvas.getBoundingClientRect();
      const place = (offset, size, count) => Math.max(0, Math.min(count - 1, Math.floor((offset / size) * count)));
      const row = place(event.clientY - frame.top, frame.height, positions);
      const column = place(event.clientX - frame.left, frame.width, width);
      said.textContent = `position ${row}, dimension ${column}: ${minus(values[row * width + column].toFixed(2))}`;
      showTip(event, said.textContent);
    });
    canvas.addEventListener("pointerleave", hideTip);
    return [box("controls", said, legend(`−${largest}`, `+${largest}`)), canvas];
  }

  // Drawn anew for each width, so that its letters keep their size
  function fittedPlot(values) {
    const frame = box("plot-frame");
    new ResizeObserver(() => frame.replaceChildren(linePlot(values, Math.min(frame.clientWidth, 760)))).observe(frame);
    return frame;
  }

  function linePlot(values, width) {
    const [height, left, bottom] = [260, 52, 40];
    const [low, high] = [Math.min(0, ...values), Math.max(...values)];
    const x = (index) => left + (index / (values.length - 1)) * (width - left - 12);
    const y = (value) => 10 + ((high - value) / (high - low || 1)) * (height - bottom - 10);
    const ticks = (from, to) => {
      const step = 10 ** Math.floor(Math.log10((to - from) / 2 || 1));
      const wide = [1, 2, 5, 10].map((times) => times * step).find((size) => (to - from) / size <= 6);
      const first = Math.ceil(from / wide);
      return Array.from({ length: Math.floor(to / wide) - first + 1 }, (_, place) => (first + place) * wide);
    };
    const label = (value) => minus(String(Number(value.toPrecision(6))));
    const plot = svg("svg", { id: "dots", class: "plot", width, height, role: "img", "aria-label": "Dot product by distance" });
    const write = (x, y, anchor, words) => plot.append(svg("text", { x, y, "text-anchor": anchor }, words));
    const draw = (kind, d) => plot.append(svg("path", { class: kind, d }));
    for (const value of ticks(low, high)) {
      draw("grid", `M${left} ${y(value)}H${width - 12}`);
      write(left - 8, y(value) + 4, "end", label(value));
    }
    for (const index of ticks(0, values.length - 1).filter(Number.isInteger)) {
      draw("grid", `M${x(index)} ${height - bottom}v5`);
      write(x(index), height - bottom + 18, "middle", String(index));
    }
    draw("curve", `M${values.map((value, index) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`);
    write((left + width) / 2, height - 4, "middle", "distance in positions");
    plot.addEventListener("pointermove", (event) => {
      const share = (event.clientX - plot.getBoundingClientRect().left - left) / (width - left - 12);
      const index = Math.max(0, Math.min(values.length - 1, Math.round(share * (values.length - 1))));
      showTip(event, `distance ${index}: ${label(values[index])}`);
    });
    plot.addEventListener("pointerleave", hideTip);
    return plot;
  }

  // The whole page

  function links() {
    const list = make("nav", { "aria-label": "Sections" });
    const update = () =>
      list.replaceChildren(
        ...[...document.querySelectorAll("#sections > section")]
          .filter((part) => !part.hidden)
          .map((part) => make("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)),
      );
    update();
    listeners.sentence.push(update);
    return list;
  }

  function build() {
    const side = make("aside");
    app.append(header(), box("layout", side, make("div", { id: "sections" })), tip);
    if (sentences.length) {
      translationSection();
      probabilitySection();
      attentionSection();
      stepSection();
      beamSection();
      rankingSection();
      if (sentences.some(({ masked }) => masked)) maskedSection();
    }
    if (data.statistics?.length) statisticsSection();
    if (data.positions) positionSection();
    if (sentences.length) showSentence(0);
    if (sentences.length > 1) side.append(sentencePicker());
    side.append(links());
  }

  build();
})();
