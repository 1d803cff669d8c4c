// Attention weights: unpacking, averages, the choice of layer and head.

let memory = new Map(); // for the current sentence only

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

// One head's weights, or the mean over a layer or over all
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

// Cached, as every pointer move asks again
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
    state.choice[kind] = { layer, head }; // the attention section keeps showing its kind
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
