// The probabilities of each step.

// Candidates as bars, the chosen one marked; it is below them if it is not among the most likely
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
