// The list of sentences.

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
