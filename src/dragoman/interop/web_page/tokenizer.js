// Text to ids and back, as sentencepiece and dragoman's normalisation do it.

import { BREAKING, NO_BREAK } from "./split.js";

const SPACE = "\u2581"; // sentencepiece's mark for a space
const UNKNOWN_TEXT = " \u2047 ";
const UNKNOWN_PENALTY = 10; // an unknown character is this much worse than the worst piece
const CONTROLS = /[\x00-\x1f\x7f-\x9f]/g;

export function normalize(text, form) {
  const composition = form.startsWith("nfkc") ? "NFKC" : "NFC";
  text = text.normalize(composition);
  if (form.endsWith("-lowercase")) text = text.toLowerCase().normalize(composition);
  text = text.replaceAll(SPACE, "_").replace(CONTROLS, " ");
  const spaces = form.includes("nbsp") ? BREAKING : BREAKING + NO_BREAK;
  const ends = `[${BREAKING}${NO_BREAK}]+`;
  return text.replace(new RegExp(`[${spaces}]+`, "g"), " ").replace(new RegExp(`^${ends}|${ends}$`, "g"), "");
}

// What a sentencepiece model of others does to text before it is cut.
function replaced(text, own) {
  if (!own) return text;
  const others = (part) => [...part].map((letter) => own.others[letter] ?? letter).join("");
  const parts = [...text].reduce((runs, letter) => { // runs that the form may change, and letters that it may not
    if (own.kept.includes(letter)) runs.push(letter, "");
    else runs[runs.length - 1] += letter;
    return runs;
  }, [""]);
  const changed = parts.map((part) => others(own.kept.includes(part) ? part : part.normalize(own.form))).join("");
  return own.trims ? changed.replace(/ +/g, " ").replace(/^ | $/g, "") : changed;
}

export class Tokenizer {
  constructor({ kind, normalization, own, unknown, textless, bytes, pieces, scores }) {
    Object.assign(this, { normalization, own, unknown, pieces });
    this.textless = new Set(textless);
    this.bytes = bytes;
    this.byteOf = new Map(bytes.map((id, value) => [id, value]));
    this.ids = new Map();
    this.scores = scores;
    this.longest = 1; // characters of a piece
    let worst = Infinity;
    scores.forEach((score, id) => {
      if (score === null) return;
      this.ids.set(pieces[id], id);
      this.longest = Math.max(this.longest, [...pieces[id]].length);
      worst = Math.min(worst, score);
    });
    this.unknownScore = Math.fround(worst - UNKNOWN_PENALTY);
    this.crossesSpaces = [...this.ids.keys()].some((piece) => piece.lastIndexOf(SPACE) > 0);
    this.cut = { unigram: cutByScore, bpe: mergePairs, word: (text) => [text], char: (text) => [...text] }[kind];
  }

  encode(text) {
    const normalized = replaced(normalize(text, this.normalization), this.own);
    if (!normalized) return [];
    const marked = SPACE + normalized.replaceAll(" ", SPACE);
    // no piece crosses a space, so that words can be cut one by one
    const words = this.crossesSpaces ? [marked] : marked.match(new RegExp(`${SPACE}[^${SPACE}]*`, "g"));
    const ids = [];
    for (const word of words) {
      for (const piece of this.cut(word)) {
        if (this.ids.has(piece)) ids.push(this.ids.get(piece));
        else if (this.bytes.length) for (const byte of new TextEncoder().encode(piece)) ids.push(this.bytes[byte]);
        else if (ids.at(-1) !== this.unknown) ids.push(this.unknown);
      }
    }
    return ids;
  }

  decode(ids) {
    const chunks = [];
    let bytes = [];
    for (const id of ids) {
      if (this.textless.has(id)) continue;
      if (this.byteOf.has(id)) {
        bytes.push(this.byteOf.get(id));
        continue;
      }
      chunks.push(decodeBytes(bytes), id === this.unknown ? UNKNOWN_TEXT : this.pieces[id]);
      bytes = [];
    }
    chunks.push(decodeBytes(bytes));
    return normalize(chunks.join("").replaceAll(SPACE, " "), this.normalization);
  }

  // The words and punctuation of a sequence of ids: their text, and the places of their ids.
  words(ids) {
    const groups = [];
    ids.forEach((id, place) => {
      if (this.textless.has(id)) return;
      const piece = this.pieces[id];
      if (!groups.length || piece.startsWith(SPACE) || /^\p{P}+$/u.test(piece)) groups.push([]);
      groups.at(-1).push(place);
    });
    const named = groups.map((places) => ({ text: this.decode(places.map((place) => ids[place])), places }));
    return named.filter(({ text }) => text);
  }
}

// UTF-8; every byte that is not part of a character becomes U+FFFD.
function decodeBytes(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let place = 0; place < bytes.length;) {
    const lead = bytes[place];
    const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    try {
      text += decoder.decode(new Uint8Array(bytes.slice(place, place + length)));
      place += length;
    } catch {
      text += "\ufffd";
      place += 1;
    }
  }
  return text;
}

// The segmentation with the highest sum of scores, added in float32 as sentencepiece does.
function cutByScore(word) {
  const letters = [...word];
  const best = new Array(letters.length + 1).fill(-Infinity);
  const from = new Array(letters.length + 1).fill(-1);
  best[0] = 0;
  for (let start = 0; start < letters.length; start++) {
    let piece = "";
    for (let end = start + 1; end <= Math.min(letters.length, start + this.longest); end++) {
      piece += letters[end - 1];
      const id = this.ids.get(piece);
      if (id === undefined && end > start + 1) continue;
      const score = Math.fround(best[start] + (id === undefined ? this.unknownScore : this.scores[id]));
      if (from[end] < 0 || score > best[end]) [best[end], from[end]] = [score, start];
    }
  }
  const pieces = [];
  for (let end = letters.length; end > 0; end = from[end]) pieces.unshift(letters.slice(from[end], end).join(""));
  return pieces;
}

// Merge the pair that spells the best piece, the leftmost of ties, until there is none.
function mergePairs(word) {
  const pieces = [...word];
  const scoreAt = (left) => this.scores[this.ids.get(pieces[left] + pieces[left + 1])] ?? -Infinity;
  const scores = pieces.slice(1).map((_, left) => scoreAt(left)); // of merging each with the next
  for (;;) {
    let best = 0;
    for (let left = 1; left < scores.length; left++) if (scores[left] > scores[best]) best = left;
    if (!scores.length || scores[best] === -Infinity) return pieces;
    pieces.splice(best, 2, pieces[best] + pieces[best + 1]);
    scores.splice(best, 1);
    if (best > 0) scores[best - 1] = scoreAt(best - 1);
    if (best < scores.length) scores[best] = scoreAt(best);
  }
}
