// Splits a line into sentences, and what is too long for the model at the best place near its middle, as dragoman does.

const ABBREVIATIONS = new Set((
  "Mr Mrs Ms Dr Prof St Rev Sr Jr Gen Col Maj Capt Lt Sgt Sen Rep Gov Hon Messrs Mme Mlle Mt Jan Feb Mar Apr Jun Jul " +
  "Aug Sep Sept Oct Nov Dec No Nos Nr Art Fig Vol pp cf vs al approx ca bzw usw ggf vgl Abs Hr Fr Inc Ltd Co Corp Bros " +
  "incl inkl excl exkl est evtl tel Tel Figs Vols Str Kap Bd Jh Mio Mrd Tsd Std Sek Abb Anm Aufl Bsp Hrn Frl Fam " +
  "Hrsg Jhd Okt Dez Dipl Ing med phil jur nat rer habil lt sog zzgl bzgl einschl max min Ziff Az geb verh lfd " +
  "resp Stk Stck Pkt Whg Anh"
).split(" "));
const BEFORE_NUMBERS = new Set("no nos nr fig figs vol vols art ch sec Sec par mind".split(" "));
const AM_PM = new Set(["a.m", "p.m", "A.M", "P.M"]);
const AFTER_TIME = new RegExp(
  "^(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|(?:January|February|March|April|May|June|July|August|September|October" +
    "|November|December|Eastern|Central|Pacific|Mountain|Greenwich|Local)|[A-Z]{2,5})(?![\\p{L}\\p{N}_])",
  "u",
); // p.m. Monday, p.m. Eastern time
const CLOSED_BY = { "(": ")", "[": "]" };
const OPENED_BY = { ")": "(", "]": "[" };
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
  let following = stop + 1;
  while (isSpace(letters[following])) following++;
  following = skip(letters, following, OPENING);
  if (AM_PM.has(word) && /^\p{Uppercase}$/u.test(letters[following] ?? "")) {
    return AFTER_TIME.test(letters.slice(following, following + 12).join(""));
  }
  if (BEFORE_NUMBERS.has(word) && /^\p{Nd}$/u.test(letters[following] ?? "")) return true;
  if (word.endsWith("str")) return true; // Goethestr. 12
  return ABBREVIATIONS.has(word) || [...word].length === 1 || word.includes(".") || /^\p{Nd}{2}$/u.test(word);
}

// A bracket at the start of a text that is not closed in it, the rest, and one at its end that is not opened.
export function withoutOpenBrackets(text) {
  const letters = [...text];
  while (isSpace(letters.at(-1))) letters.pop();
  while (isSpace(letters[0])) letters.shift();
  const count = (bracket) => letters.filter((letter) => letter === bracket).length;
  const lacks = (bracket, others) => bracket in others && count(bracket) > count(others[bracket]);
  const before = lacks(letters[0] ?? "", CLOSED_BY) ? letters[0] : "";
  const after = lacks(letters.at(-1) ?? "", OPENED_BY) ? letters.at(-1) : "";
  const rest = letters.slice(before.length, letters.length - after.length);
  const hasRest = !rest.every(isSpace);
  return (before || after) && hasRest ? [before, rest.join(""), after] : ["", text, ""];
}

// Titles and buttons end with a word; a model that has read sentences ends their translations like one.
const isLabel = (text) => isAlphanumeric([...text].findLast((letter) => !isSpace(letter)));
const ABBREVIATED = new RegExp(`(?<![\\p{L}\\p{N}_])(?:etc|usw|Inc|Ltd|Co|Corp|Bros|Jr|Sr|Nr)\\.$`, "u");

export function withoutAddedMark(translation) {
  return ABBREVIATED.test(translation) ? translation : translation.replace(/(?<=[\p{L}\p{Nl}\p{No}]{2})[.!]$/u, "");
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

// What the model takes of a line: [{ ids, glue, finish }, ...]; `finish` makes the translation of a part from what the
// model wrote, and `glue` joins it to what is before it.
export function split(line, { encode, longest, bySentences }) {
  const parts = [];
  const own = bySentences ? sentences(line) : [line];
  for (const sentence of own) {
    const [before, inner, after] = own.length > 1 ? withoutOpenBrackets(sentence) : ["", sentence, ""];
    const pieces = shorten(inner, encode, longest);
    pieces.forEach(({ ids, glue }, place) => {
      const isLast = place === pieces.length - 1;
      const isOwnLabel = bySentences && isLast && isLabel(inner);
      const finish = (text) => (place ? "" : before) + (isOwnLabel ? withoutAddedMark(text) : text) + (isLast ? after : "");
      parts.push({ ids, glue: place ? glue : " ", finish });
    });
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
