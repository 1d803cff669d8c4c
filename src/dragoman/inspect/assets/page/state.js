// What the page shows: its data and what is selected.

const data = JSON.parse(document.getElementById("data").textContent);
const sentences = data.sentences ?? [];
const app = document.getElementById("app");

const KINDS = {
  encoder: { title: "Encoder", note: "Each source token (row) looks at the source." },
  decoder: { title: "Decoder", note: "Each step (row, named by what it produced) looks at what had gone in before." },
  cross: { title: "Cross", note: "Each step (row, named by what it produced) looks at the source." },
};
const ALL = -1; // instead of a layer or head: the average over them
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
