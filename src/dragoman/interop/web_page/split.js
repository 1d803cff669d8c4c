// Splits a line into sentences, and what is too long for the model at the best place near its middle, as dragoman does.

const ABBREVIATIONS = new Set((
  "Mr Mrs Ms Dr Prof St Rev Sr Jr Gen Col Maj Capt Lt Sgt Sen Rep Gov Hon Messrs Mme Mlle Mt Jan Feb Mar Apr Jun Jul " +
  "Aug Sep Sept Oct Nov Dec No Nos Nr Art Fig Vol pp cf vs al approx ca bzw usw ggf vgl Abs Hr Fr Inc Ltd Co Corp Bros"
).split(" "));
const STOPS = new Set(".!?…");
const CLOSING = new Set("\"'”’»)]");
const WIDE_STOPS = new Set("。！？");
const WIDE_CLOSING = new Set("”’」』）");
const OPENING = new Set("\"'“‘„«»([¿¡");
const OPENING_OR_SPACE = new Set([...OPENING, " "]);
const BEFORE_WORD = new Set([...OPENING].filter((each) => !"¿¡".includes(each)));

// what Python takes for white space: JavaScript's \s differs
export const BREAKING = "\\t-\\r\\x1c-\\x20\\x85\\u1680\\u2000-\\u2006\\u2008-\\u200a\\u2028\\u2029\\u205f\\u3000";
export const NO_BREAK = "\\xa0\\u2007\\u202f";
const SPACE = new RegExp(`^[${BREAKING}${NO_BREAK}]$`);
const isSpace = (letter) => letter !== undefined && SPACE.test(letter);
const isAlphanumeric = (letter) => /^[\p{L}\p{N}]$/u.test(letter ?? "");
const isLowercase = (letter) => /^\p{Lowercase}$/u.test(letter ?? "");

export function sentences(line) {
  const letters = [...line];
  const starts = [0, ...ends(letters), letters.length];
  const parts = starts.slice(1).map((end, place) => letters.slice(starts[place], end).join(""));
  return parts.filter((part) => part);
}

function skip(letters, place, set) {
  while (place < letters.length && set.has(letters[place])) place++;
  return place;
}

function* ends(letters) {
  let place = 0;
  for (let first = 0; first < letters.length; first++) {
    if (first < place) continue;
    if (STOPS.has(letters[first])) {
      const closed = skip(letters, skip(letters, first, STOPS), CLOSING);
      let end = closed;
      while (isSpace(letters[end])) end++;
      place = skip(letters, end, OPENING);
      const separated = closed < end && isAlphanumeric(letters[place]);
      if (separated && !isLowercase(letters[place]) && !isAbbreviation(letters, first)) yield end;
    } else if (WIDE_STOPS.has(letters[first])) {
      const end = skip(letters, skip(letters, first, WIDE_STOPS), WIDE_CLOSING);
      place = skip(letters, end, OPENING_OR_SPACE);
      if (place === letters.length || !isLowercase(letters[place])) yield end;
    }
  }
}

function isAbbreviation(letters, stop) {
  if (letters[stop] !== "." || letters[stop + 1] === ".") return false;
  let end = stop;
  while (end && isSpace(letters[end - 1])) end--;
  let start = end;
  while (start && !isSpace(letters[start - 1])) start--;
  const word = letters.slice(skip(letters, start, BEFORE_WORD), end).join("");
  return ABBREVIATIONS.has(word) || [...word].length === 1 || word.includes(".") || /^\p{Nd}{2}$/u.test(word);
}

// The end of a sentence, else of a clause, else a space.
const GAP = `[${BREAKING}${NO_BREAK}]`;
const BOUNDARIES = [`(?<=[.!?。！？…])${GAP}+|(?<=[。！？])`, `(?<=[,;:、，；])${GAP}*`, `${GAP}+`];

// Where to cut: [first, second] of the letters of a line, at the boundary nearest to its middle.
export function halves(letters) {
  const cut = (place) => [letters.slice(0, place), letters.slice(place)];
  const line = letters.join("");
  const half = Math.floor(letters.length / 2);
  const letterAt = new Map(); // the number of the letter that begins at a place of the string
  let place = 0;
  letters.forEach((letter, number) => {
    letterAt.set(place, number);
    place += letter.length;
  });
  for (const boundary of BOUNDARIES) {
    const ends = [...line.matchAll(new RegExp(boundary, "gu"))].map((match) => letterAt.get(match.index + match[0].length));
    const possible = ends.filter((end) => end !== undefined && end > Math.floor(letters.length / 8));
    if (possible.length) {
      return cut(possible.reduce((best, end) => (Math.abs(end - half) < Math.abs(best - half) ? end : best)));
    }
  }
  return cut(half);
}

// What the model takes of a line: [{ ids, glue }, ...]; `glue` joins the translation to what is before it.
export function split(line, { encode, longest, bySentences }) {
  const parts = [];
  for (const sentence of bySentences ? sentences(line) : [line]) {
    shorten(sentence, encode, longest).forEach(({ ids, glue }, place) => parts.push({ ids, glue: place ? glue : " " }));
  }
  return parts;
}

function shorten(line, encode, longest) {
  const ids = encode(line);
  const letters = [...line];
  if (ids.length < longest || letters.length < 2) return [{ ids, glue: "" }];
  const [first, second] = halves(letters);
  const isBlank = (half) => new RegExp(`^[${BREAKING}${NO_BREAK}\\x00-\\x1f\\x7f-\\x9f]*$`).test(half.join(""));
  if (isBlank(first) || isBlank(second)) return shorten((isBlank(first) ? second : first).join(""), encode, longest);
  const glue = isSpace(first.at(-1)) || isSpace(second[0]) ? " " : "";
  const [head, ...rest] = shorten(second.join(""), encode, longest);
  return [...shorten(first.join(""), encode, longest), { ...head, glue }, ...rest];
}
