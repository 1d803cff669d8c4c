// Greedy and beam search, by the rules of dragoman's search: the same candidates, the same end, the same order of ties.
//
// `step(ids, parents)` feeds an id to every hypothesis; hypothesis i continues what was hypothesis parents[i]. It returns
// `candidates` and `attention` for each: [{ id, value }, ...], best first, and what it looked at in the source.

export function penalty(length, { lengthPenalty, lengthPenaltyForm }) {
  return (lengthPenaltyForm === "gnmt" ? (5 + length) / 6 : length) ** lengthPenalty;
}

const finish = ({ ids, score, attention }, value, finished, options) => {
  const length = Math.max(1, ids.length + (finished ? 1 : 0));
  return { ids, attention, score: score + value, normalized: (score + value) / penalty(length, options), finished };
};

const allowed = (candidates, never, count) =>
  candidates.filter(({ id, value }) => !never.includes(id) && value > -Infinity).slice(0, count);

export async function search(step, limit, options) {
  return options.beam > 1 ? beamSearch(step, limit, options) : greedy(step, limit, options);
}

async function greedy(step, limit, options) {
  const path = { ids: [], score: 0, attention: [] };
  let last = options.start;
  for (;;) {
    const [{ candidates, attention }] = await step([last], [0]);
    const [best] = allowed(candidates, options.never, 1);
    const ended = best?.id === options.end;
    if (ended) path.attention.push(attention);
    if (ended || !best || limit <= path.ids.length) return finish(path, ended ? best.value : 0, ended, options);
    path.ids.push(best.id);
    path.attention.push(attention);
    path.score += best.value;
    last = best.id;
  }
}

async function beamSearch(step, limit, options) {
  const { beam, end, never } = options;
  let live = [{ ids: [], score: 0, attention: [], parent: 0, last: options.start }];
  let finished = []; // the best `beam`, best first
  for (let length = 1; ; length++) {
    const rows = await step(live.map(({ last }) => last), live.map(({ parent }) => parent));
    const candidates = live.flatMap(({ score }, parent) =>
      allowed(rows[parent].candidates, never, 2 * beam).map(({ id, value }) => ({ parent, id, value: score + value })));
    candidates.sort((a, b) => b.value - a.value); // a stable sort: ties stay in order
    candidates.splice(2 * beam);

    const ended = new Set();
    candidates.slice(0, beam).forEach(({ parent, id, value }) => { // a narrower search would not have seen others
      if (id !== end) return;
      ended.add(parent);
      const { ids, attention } = live[parent];
      const path = { ids, score: value, attention: [...attention, rows[parent].attention] };
      finished.push(finish(path, 0, true, options));
      finished.sort((a, b) => b.normalized - a.normalized);
      finished.splice(beam);
    });

    const grown = candidates.filter(({ id }) => id !== end).slice(0, beam).map(({ parent, id, value }) => ({
      ids: [...live[parent].ids, id], score: value, parent, last: id,
      attention: [...live[parent].attention, rows[parent].attention],
    }));
    const worst = finished.length === beam ? finished.at(-1).normalized : -Infinity;
    const best = grown.length ? grown[0].score / penalty(length, options) : -Infinity;
    if (limit < length || best <= worst || !grown.length) {
      const unfinished = live.filter((_, place) => !ended.has(place)).map((path) => finish(path, 0, false, options));
      return [...finished, ...unfinished][0];
    }
    live = grown;
  }
}
