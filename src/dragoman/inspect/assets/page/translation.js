// Source and translation, linked by cross-attention.

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
    // many tokens attend to the source's end when they need nothing from it: drawn faint
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
