// Heads: ranking, masking, statistics.

function rankingSection() {
  const body = section("ranking", "What each head is worth",
    "What log-probability this translation loses when one head is silent; below zero, it is likelier without the head.");
  const list = make("ol", { class: "ranking scroll", tabindex: "0", "aria-label": "Heads by cost of removal" });
  const count = sentences.filter(({ ranking }) => ranking?.length).length;
  const first = count === 1 ? "the first sentence" : `the first ${count} sentences`;
  const without = make("p", { class: "unranked" }, `The heads of ${first} were ranked, as --rank said; not of this one.`);
  body.append(without, list);
  roving(list, "button.head-name");
  listeners.sentence.push(() => {
    const ranking = current().ranking ?? [];
    body.hidden = count === 0;
    without.hidden = ranking.length > 0;
    list.hidden = ranking.length === 0;
    const costs = ranking.map(([, cost]) => cost);
    const [low, high] = [Math.min(0, ...costs), Math.max(0, ...costs)];
    const share = (value) => (100 * value) / (high - low || 1);
    list.replaceChildren(
      ...ranking.map(([name, cost]) => {
        const bar = make("span", { class: cost < 0 ? "below" : "above" });
        bar.style.cssText = `left:${share(Math.min(cost, 0) - low)}%;width:${share(Math.abs(cost))}%`;
        const track = make("span", { class: "track" }, bar);
        track.style.setProperty("--zero", `${share(-low)}%`);
        return make("li", { "data-head": name }, headButton(name), track, make("span", { class: "value" }, signed(cost)));
      }),
    );
    oneStop(list, "button.head-name");
  });
}

// Words of one text that are not in the other, by the longest common run of words
function changed(before, after) {
  const lengths = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--)
    for (let j = after.length - 1; j >= 0; j--)
      lengths[i][j] = before[i] === after[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const [gone, come] = [new Set(before.keys()), new Set(after.keys())];
  for (let i = 0, j = 0; i < before.length && j < after.length; ) {
    if (before[i] === after[j]) gone.delete(i++), come.delete(j++);
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return [gone, come];
}

function maskedSection() {
  const body = section("masked", "With and without");
  const view = make("div");
  body.append(view);
  listeners.sentence.push(() => {
    const { masked } = current();
    body.hidden = !masked;
    if (masked) view.replaceChildren(...comparison(masked));
  });
}

function comparison({ heads, before, after, score_of_before: lost }) {
  const words = [before, after].map(({ translation }) => translation.split(/\s+/));
  const marks = changed(...words);
  const row = (title, { score }, side) => {
    const text = words[side].map((word, index) => [marks[side].has(index) ? make("mark", {}, word) : word, " "]).flat();
    return make("tr", { "data-side": side ? "after" : "before" }, make("th", { scope: "row" }, title),
      make("td", { dir: "auto" }, ...text), make("td", { class: "value" }, minus(score.toFixed(2))));
  };
  const head = make("tr", {}, ...["", "Translation", "Log-probability"].map((title) => make("th", { scope: "col" }, title)));
  const rows = [row("All heads", before, 0), row("Without them", after, 1)];
  const table = make("table", { id: "comparison" }, make("thead", {}, head), make("tbody", {}, ...rows));
  const said = [`Silent heads: ${heads.join(", ")}. The difference: ${signed(after.score - before.score)}.`];
  if (lost !== undefined) said.push(`Without them the first translation has ${minus(lost.toFixed(2))}.`);
  return [box("scroll", table), make("p", { class: "note" }, said.join(" "))];
}

const MEASURES = {
  name: ["Head", "kind, layer and head, counted from 1"],
  entropy: ["Entropy", "in bits; 0 where one key gets all the weight"],
  evenness: ["Evenness", "entropy as a share of an even look at all keys"],
  distance: ["Distance", "positions between a query and what it looks at"],
  offset: ["Offset", "which it looks at most: −1 the token before, 0 the same place, +1 the next"],
  following: ["Following", "the share of weight at that offset"],
  sink: ["Sink", "the share of weight on the first or last place, whatever the query"],
  confidence: ["Confidence", "the largest weight of a query, on average"],
  dead: ["Dead", "nearly all weight on one place: the head tells queries nothing apart"],
};

function statisticsSection() {
  const counted = data.counted ?? sentences.length;
  const looked = counted === 1 ? "the one sentence" : `all ${counted} sentences`;
  const body = section("statistics", "What heads are like", `Means over all queries of ${looked} looked at.`);
  const rows = make("tbody");
  const headers = Object.entries(MEASURES).map(([key, [title, meaning]]) => {
    const button = make("button", { type: "button", title: meaning, onclick: () => sort(key) }, title);
    return make("th", { scope: "col", "data-key": key, "aria-sort": "none" }, button);
  });
  const table = make("table", { id: "heads" }, make("thead", {}, make("tr", {}, ...headers)), rows);
  const largest = (key) => Math.max(...data.statistics.map((head) => head[key]), 1e-9);
  const tops = { entropy: largest("entropy"), distance: largest("distance") }; // the others are shares of 1
  let [sorted, falling] = ["", false];

  function cell(head, key) {
    if (key === "name") return make("th", { scope: "row" }, headButton(head.name));
    if (key === "dead") return make("td", {}, head.dead ? make("span", { class: "badge dead" }, "✕ dead") : "");
    if (key === "offset") return make("td", { class: "value" }, head.offset ? signed(head.offset, 0) : "0");
    const value = make("td", { class: "value meter" }, head[key].toFixed(2));
    value.style.setProperty("--share", `${(100 * head[key]) / (tops[key] ?? 1)}%`);
    return value;
  }

  const byName = new Intl.Collator("en", { numeric: true });

  function sort(key) {
    falling = key === sorted ? !falling : key !== "name"; // numbers start with the largest
    sorted = key;
    const compare = key === "name" ? (a, b) => byName.compare(a.name, b.name) : (a, b) => a[key] - b[key];
    const order = [...data.statistics].sort((a, b) => (falling ? -1 : 1) * compare(a, b));
    for (const header of headers)
      header.setAttribute("aria-sort", header.dataset.key === key ? (falling ? "descending" : "ascending") : "none");
    fill(order);
  }

  function fill(order) {
    const row = (head) => {
      const cells = Object.keys(MEASURES).map((key) => cell(head, key));
      return make("tr", { "data-head": head.name, class: head.dead ? "dead" : null }, ...cells);
    };
    rows.replaceChildren(...order.map(row));
    oneStop(rows, "button.head-name");
  }
  roving(rows, "button.head-name");

  const meanings = Object.values(MEASURES).flatMap(([title, meaning]) => [make("dt", {}, title), make("dd", {}, meaning)]);
  body.append(
    region("Head statistics", "tall", table),
    make("details", {}, make("summary", {}, "What the columns mean"), make("dl", { class: "texts" }, ...meanings)),
  );
  fill(data.statistics);
}
