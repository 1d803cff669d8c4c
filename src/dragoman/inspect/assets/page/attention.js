// Attention: the grid of heads, and one head as a map, by word or as a table.

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

  // Above the first layer is the average of all
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
    const focused = document.activeElement?.id; // the select is rebuilt, which would lose the keyboard focus
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
    view.querySelector(".scroll").scrollTo(left, top); // another head, the same scroll position
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

// At most 64 pixels per side; each keeps the largest weight under it, so that thin diagonals of long sentences survive
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

// One pixel per value; the style sheet sets the size on screen
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

// The labels are sticky and cover cells at the edges, so the browser's own scrolling would stop too early
function keepInSight(scroll, left, top, cell, corner) {
  const [side, head] = [corner.offsetWidth, corner.offsetHeight];
  scroll.scrollLeft = Math.min(left, Math.max(scroll.scrollLeft, left + side + cell - scroll.clientWidth));
  scroll.scrollTop = Math.min(top, Math.max(scroll.scrollTop, top + head + cell - scroll.clientHeight));
}

// One word and where each head of the layer attends from it
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
      const aside = (head - (heads - 1) / 2) * Math.min(3, (ROW - 6) / heads); // so that no head's line hides another's
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

// Numbers, outputs against inputs: only the visible rows exist
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
  rows.append(spacer(queryTokens.length)); // its height first, which sets the height of the box
  draw();
}
