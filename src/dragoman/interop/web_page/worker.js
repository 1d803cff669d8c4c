// Runs the model beside the page, which stays responsive. Messages have the number of their request.

import { loadModel } from "./model.js";

let model;
let newest = 0; // request
const PAUSE = 50; // milliseconds between looking for newer requests
const loading = loadModel((done, total) => postMessage({ kind: "progress", done, total })).then(
  (loaded) => {
    model = loaded;
    const { name, beam, languages, language } = model.settings;
    postMessage({ kind: "ready", name, beam, languages: Object.keys(languages), language, downloaded: model.downloaded });
  },
  (error) => postMessage({ kind: "failed", message: String(error.message ?? error) }),
);

let queue = loading;
onmessage = ({ data: { number, lines, options } }) => {
  newest = Math.max(newest, number); // a newer request replaces those before it
  queue = queue.then(() => translate(number, lines, options));
};

async function translate(number, lines, options) {
  if (!model) return;
  let asked = performance.now();
  const isStale = async () => {
    if (performance.now() - asked > PAUSE) {
      await new Promise((resume) => setTimeout(resume)); // lets newer requests arrive
      asked = performance.now();
    }
    return number < newest;
  };
  const started = performance.now();
  try {
    for (const [place, line] of lines.entries()) {
      const advance = (result, parts) => postMessage({ kind: "part", number, place, of: lines.length, result, parts });
      if (!(await model.translate(line, { ...options, isStale, advance }))) return;
    }
    postMessage({ kind: "done", number, seconds: (performance.now() - started) / 1000 });
  } catch (error) {
    postMessage({ kind: "error", number, message: String(error.message ?? error) });
  }
}
