// Texts and places in them. No document, no requests.
//
// A line: { source, target, links, chances, confidence, status, reason }. A link joins ranges, { source: [start, end],
// target: [start, end] }; a chance is the model's probability of what stands in a range of the translation.

const DOUBTFUL = 0.3; // a word whose least likely token has less is marked

/** The service counts characters, JavaScript UTF-16 units: the unit at which each character begins. */
export function unitOffsets(text) {
  const offsets = [];
  let unit = 0;
  for (const character of text) {
    offsets.push(unit);
    unit += character.length;
  }
  return [...offsets, unit];
}

export const countCharacters = (text) => unitOffsets(text).length - 1;

/** A record of /v1/translate as a line. */
export function toLine(record) {
  const from = unitOffsets(record.source), to = unitOffsets(record.translation);
  const links = (record.alignment ?? []).map(([start, end, targetStart, targetEnd]) => ({
    source: [from[start], from[end]],
    target: [to[targetStart], to[targetEnd]],
  }));
  return {
    source: record.source,
    target: record.translation,
    links,
    chances: chances(record.translation, record.tokens ?? [], record.token_scores ?? []),
    confidence: record.confidence ?? null,
    status: record.status,
    reason: record.reason ?? "",
  };
}

/** Tokens that begin with ▁ begin a word. If that does not fit the text, nothing is said of its words. */
function chances(text, tokens, scores) {
  const groups = [];
  tokens.forEach((token, place) => {
    if (token === "</s>") return;
    if (token.startsWith("▁") || !groups.length) groups.push(Infinity);
    groups[groups.length - 1] = Math.min(groups.at(-1), scores[place]);
  });
  const found = [...text.matchAll(/\S+/g)];
  if (found.length !== groups.length) return [];
  return found.map((match, place) => ({
    range: [match.index, match.index + match[0].length],
    chance: Math.exp(groups[place]),
  }));
}

const overlaps = ([start, end], [otherStart, otherEnd]) => start < otherEnd && otherStart < end;

export const isDoubtful = (line, range) =>
  line.chances.some((each) => each.chance < DOUBTFUL && overlaps(each.range, range));

/** Which ranges belong to one of the `side`: those on both sides of every link that touches it. */
export function linked(line, side, range) {
  const found = line.links.filter((link) => overlaps(link[side], range));
  return { source: found.map((link) => link.source), target: found.map((link) => link.target) };
}

export const isIn = (ranges, range) => ranges.some((each) => overlaps(each, range));

function segments(text, language, granularity) {
  let segmenter;
  try {
    segmenter = new Intl.Segmenter(language, { granularity });
  } catch {
    segmenter = new Intl.Segmenter(undefined, { granularity }); // a code that is no language
  }
  return [...segmenter.segment(text)].map(({ segment, index, isWordLike }) => ({
    range: [index, index + segment.length],
    text: segment,
    isWord: isWordLike,
  }));
}

/** The ranges of words. Punctuation is none. */
export const words = (text, language) =>
  segments(text, language, "word").filter(({ isWord }) => isWord).map(({ range }) => range);

/** The ranges of sentences, without the space around them. */
export function sentences(text, language) {
  return segments(text, language, "sentence")
    .filter(({ text }) => text.trim())
    .map(({ range: [start], text }) => {
      const first = start + text.length - text.trimStart().length;
      return [first, first + text.trim().length];
    });
}

/** The sentence in which a place of the translation lies and its source; the whole line if sentences do not match. */
export function sentenceAt(line, place, [from, to]) {
  const source = sentences(line.source, from), target = sentences(line.target, to);
  const number = target.findIndex(([start, end]) => start <= place && place < end);
  if (source.length !== target.length || number < 0) {
    return { source: [0, line.source.length], target: [0, line.target.length], isWhole: true };
  }
  return { source: source[number], target: target[number], isWhole: source.length === 1 };
}

/** A line in which another translation stands in place of that of a sentence. */
export function withSentence(line, sentence, replacement) {
  const [start, end] = sentence.target;
  const shift = replacement.target.length - (end - start);
  const move = ([first, last], by) => [first + by, last + by];
  const kept = (item, range) => !overlaps(range, [start, end]);
  const later = (range) => (range[0] >= end ? move(range, shift) : range);
  const added = replacement.links.map((link) => ({
    source: move(link.source, sentence.source[0]),
    target: move(link.target, start),
  }));
  return {
    ...line,
    target: line.target.slice(0, start) + replacement.target + line.target.slice(end),
    links: [
      ...line.links.filter((link) => kept(link, link.target)).map((link) => ({ ...link, target: later(link.target) })),
      ...added,
    ],
    chances: [
      ...line.chances.filter((each) => kept(each, each.range)).map((each) => ({ ...each, range: later(each.range) })),
      ...replacement.chances.map((each) => ({ ...each, range: move(each.range, start) })),
    ],
    confidence: sentence.isWhole ? replacement.confidence : line.confidence,
    status: sentence.isWhole ? replacement.status : line.status,
    reason: sentence.isWhole ? replacement.reason : line.reason,
  };
}

/** What translations have after a prefix: { word, rest, prefix } each, where `prefix` reaches to the next word. */
export function nextWords(translations, prefix, language) {
  const found = new Map();
  for (const text of translations) {
    if (!text.startsWith(prefix)) continue;
    const [first, second] = words(text, language).filter(([start]) => start >= prefix.length);
    if (!first || first[0] !== prefix.length) continue;
    const word = text.slice(...first);
    if (found.has(word)) continue;
    found.set(word, { word, rest: text.slice(first[1]), prefix: second ? text.slice(0, second[0]) : text });
  }
  return [...found.values()];
}
