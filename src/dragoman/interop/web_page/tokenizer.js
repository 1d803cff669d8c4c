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

export class Tokenizer {
  constructor({ kind, normalization, unknown, textless, bytes, pieces, scores }) {
    Object.assign(this, { normalization, unknown, pieces });
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
    const normalized = normalize(text, this.normalization);
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
    const flush = () => {
      if (bytes.length) chunks.push(new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes)));
      bytes = [];
    };
    for (const id of ids) {
      if (this.textless.has(id)) continue;
      if (this.byteOf.has(id)) bytes.push(this.byteOf.get(id));
      else {
        flush();
        chunks.push(id === this.unknown ? UNKNOWN_TEXT : this.pieces[id]);
      }
    }
    flush();
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
  for (;;) {
    let place = -1;
    let highest = -Infinity;
    for (let left = 0; left + 1 < pieces.length; left++) {
      const id = this.ids.get(pieces[left] + pieces[left + 1]);
      if (id !== undefined && this.scores[id] > highest) [highest, place] = [this.scores[id], left];
    }
    if (place < 0) return pieces;
    pieces.splice(place, 2, pieces[place] + pieces[place + 1]);
  }
}
