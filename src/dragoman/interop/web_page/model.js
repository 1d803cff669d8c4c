// The model in ONNX Runtime Web: download with progress, then one sentence at a time.

import * as ort from "./ort.js";
import { search } from "./search.js";
import { split } from "./split.js";
import { Tokenizer } from "./tokenizer.js";

const RUNTIME = "ort.wasm";
const addressOf = (name) => new URL(name, import.meta.url).href;

export async function loadModel(advance = () => {}) {
  const settings = await (await request("model.json")).json();
  const { weights } = settings;
  const names = [RUNTIME, "encoder.onnx", "decoder.onnx", weights];
  const total = names.reduce((sum, name) => sum + settings.bytes[name], 0);
  let done = 0;
  const files = {};
  for (const name of names) {
    files[name] = await download(name, settings.bytes[name], (bytes) => advance((done += bytes), total));
  }
  ort.env.wasm.wasmBinary = files[RUNTIME].buffer;
  ort.env.wasm.wasmPaths = { mjs: addressOf("ort-threads.js"), wasm: addressOf(RUNTIME) };
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
  const options = { externalData: [{ path: weights, data: files[weights] }], logSeverityLevel: 3 };
  const encoder = await ort.InferenceSession.create(files["encoder.onnx"], options);
  const decoder = await ort.InferenceSession.create(files["decoder.onnx"], options);
  return new Model(settings, encoder, decoder, total);
}

async function request(name) {
  const remedy = "check the network and the folder on the host, then load the page again";
  // the browser's own cache may hold a file of an older export: ask the host whether it changed
  const response = await fetch(addressOf(name), { cache: "no-cache" }).catch((error) => {
    throw new Error(`${name}: ${error.message}; ${remedy}`);
  });
  if (!response.ok) throw new Error(`${name}: the host answers ${response.status}; ${remedy}`);
  return response;
}

async function download(name, size, advance) {
  const content = new Uint8Array(size);
  let place = 0;
  for (const reader = (await request(name)).body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (place + value.length <= size) content.set(value, place);
    place += value.length;
    advance(value.length);
  }
  if (place !== size) throw new Error(`${name}: has ${place} bytes and should have ${size}; copy the folder again`);
  return content;
}

class Stale extends Error {}

class Model {
  constructor(settings, encoder, decoder, downloaded) {
    Object.assign(this, { settings, encoder, decoder, downloaded });
    this.source = new Tokenizer(settings.source);
    this.target = settings.target ? new Tokenizer(settings.target) : this.source;
  }

  // One line of text, split and joined again if the model needs it. `isStale` is asked at every step: once it says so, the
  // result is nothing. `advance` gets what is translated after each part, and how many parts there are.
  async translate(text, { beam, language = this.settings.language, isStale = async () => false, advance = () => {} } = {}) {
    const { languages, longestSource, bySentences, source } = this.settings;
    const tag = language ? [languages[language]] : [];
    const encode = (part) => this.source.encode(part);
    const parts = split(text, { encode, longest: longestSource - tag.length, bySentences }).filter(({ ids }) => ids.length);
    const result = { text: "", parts: [], finished: true };
    for (const { ids, glue, finish } of parts) {
      const found = await this.translateIds([...tag, ...ids, source.end], beam ?? this.settings.beam, isStale);
      if (!found) return undefined;
      result.parts.push(found);
      result.text = (result.text + glue + finish(found.text)).trimStart();
      result.finished &&= found.finished;
      advance({ ...result, text: result.text.trim() }, parts.length);
    }
    if (!parts.length) advance(result, 0);
    return { ...result, text: result.text.trim() };
  }

  async translateIds(ids, beam, isStale) {
    const { settings } = this;
    const encoded = await this.encoder.run({ ids: new ort.Tensor("int32", Int32Array.from(ids), [1, ids.length]) });
    let past = this.emptyPast();
    const step = async (newest, parents) => {
      if (await isStale()) throw new Stale();
      const given = { ...encoded, ...past };
      for (const [name, values] of [["ids", newest], ["parents", parents]]) {
        given[name] = new ort.Tensor("int32", Int32Array.from(values), [values.length]);
      }
      const results = await this.decoder.run(given);
      past = {};
      for (const [name, tensor] of Object.entries(results)) {
        if (name.startsWith("present")) past[name.replace("present", "past")] = tensor;
      }
      return newest.map((_, row) => ({ candidates: readCandidates(results, row), attention: readAttention(results, row) }));
    };
    const limit = Math.min(ids.length - 1 + settings.maxExtra, settings.longest - 1);
    const found = await search(step, limit, { ...settings, beam }).catch((error) => {
      if (!(error instanceof Stale)) throw error;
    });
    if (!found) return undefined;
    const { ids: chosen, finished, attention } = found;
    const tokens = finished ? [...chosen, settings.end] : chosen;
    return { text: this.target.decode(chosen), finished, ...this.align(ids, tokens, attention) };
  }

  emptyPast() {
    const { layers, heads, widths } = this.settings;
    const past = {};
    for (let layer = 0; layer < layers; layer++) {
      ["key", "value"].forEach((part, place) => {
        past[`past.${layer}.${part}`] = new ort.Tensor("float32", new Float32Array(0), [1, heads, 0, widths[place]]);
      });
    }
    return past;
  }

  // Words of both sides, and how much each target word looked at each source word, in the layer whose heads agree most.
  align(ids, tokens, attention) {
    const sharpness = (layer) => mean(attention.map((rows) => Math.max(...rows[layer].slice(0, -1), 0)));
    const layers = [...Array(this.settings.layers).keys()];
    const best = layers.reduce((a, b) => (sharpness(b) > sharpness(a) ? b : a), 0);
    const sourceWords = this.source.words(ids);
    const targetWords = this.target.words(tokens);
    const weights = targetWords.map(({ places }) => sourceWords.map((word) =>
      mean(places.map((row) => word.places.reduce((sum, column) => sum + attention[row][best][column], 0)))));
    const text = ({ text }) => text;
    return { sourceWords: sourceWords.map(text), targetWords: targetWords.map(text), weights };
  }
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);

function readCandidates({ values, candidates }, row) {
  const count = candidates.dims[1];
  const ids = candidates.data.subarray(row * count, (row + 1) * count);
  return [...ids].map((id, place) => ({ id, value: values.data[row * count + place] }));
}

// For each layer, the attention to every source id.
function readAttention({ attention: { data, dims: [layers, rows, length] } }, row) {
  const start = (layer) => (layer * rows + row) * length;
  return [...Array(layers).keys()].map((layer) => [...data.subarray(start(layer), start(layer) + length)]);
}
