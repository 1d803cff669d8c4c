// The translation step by step.

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
