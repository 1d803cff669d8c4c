// The beam tree.

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

  // Rows in each column: children are in the order of their parents, so that lines rarely cross
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

  // One path for all lines with the same fate: a long search has thousands
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
  // on the frame: browsers make an SVG with a focus listener focusable
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
