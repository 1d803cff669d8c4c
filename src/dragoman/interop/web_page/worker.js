// Runs the model beside the page, which stays responsive. Messages have the number of their request.

import { loadModel } from "./model.js";

let model;
let newest = 0; // request
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
  queue = queue.then(async () => {
    if (!model || number < newest) return; // a newer request replaces those that wait
    const started = performance.now();
    try {
      const results = [];
      for (const line of lines) {
        if (number < newest) return;
        results.push(await model.translate(line, options));
        postMessage({ kind: "line", number, place: results.length - 1, of: lines.length, result: results.at(-1) });
        await new Promise((resume) => setTimeout(resume)); // lets newer requests arrive
      }
      postMessage({ kind: "done", number, seconds: (performance.now() - started) / 1000 });
    } catch (error) {
      postMessage({ kind: "error", number, message: String(error.message ?? error) });
    }
  });
  newest = Math.max(newest, number);
};
