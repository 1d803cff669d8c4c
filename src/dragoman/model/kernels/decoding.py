"""One step of beam search for many sentences at once, entirely on the GPU. Knows nothing of layers or the host.

B slots hold one sentence each, with W live hypotheses. The keys and values of a position are written once, in the
place of the hypothesis that computed them, and never copied: hypothesis w finds position j of its own past in the place
`ancestors[w, j]`. Keys and values of the sources lie end to end, once per sentence. A slot whose sentence is done
writes its hypotheses and takes the next sentence of the queue in the same step; nothing waits for the host, which may
add sentences to the queue between steps. Queue and source tokens are rings: after the last place comes the first.

Shapes: B slots, W live hypotheses of each, N = B W rows, H heads, D and E widths of a head's keys and values, T target
positions, S places for source tokens, Q for sentences, C candidates of a row, V vocabulary, R results, L loads
(sentences that were added together). `slot_sentence` is -1 in a slot that has nothing to do. Scores are float64, as in
decode/search.py.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOWEST = tl.constexpr(-1.0e30)  # instead of -inf: a row of only -inf would become NaN
FEWEST_ROWS = 16  # of a matrix product
SELF_BLOCK, CROSS_BLOCK = 32, 32  # keys a program takes at once
SELF_WARPS, CROSS_WARPS = 2, 2
GROUP = 64  # neighbouring ids of which only the best logit is compared with others
CHUNK = 32  # groups that a warp reads at once
MANY_ROWS = 1024  # enough to fill the GPU with a warp for each row of logits, or a program for every four rows


class Slots(NamedTuple):
    """The state of the search in every slot."""

    sentence: Tensor  # [B] int32, its place in the queue
    position: Tensor  # [B] int32, of the ids fed next; also how many ids were chosen
    ids: Tensor  # [B, W] int32, fed next
    scores: Tensor  # [B, W] float64, best first; -inf: no hypothesis
    ancestors: Tensor  # [B, W, T] int8
    tokens: Tensor  # [B, T, W] int32, what was fed at every position
    finished_order: Tensor  # [B, W] int32, when a hypothesis ended; -1: none
    finished_scores: Tensor  # [B, W] float64
    finished_normalized: Tensor  # [B, W] float64
    finished_lengths: Tensor  # [B, W] int32, without the end symbol
    finished_ids: Tensor  # [B, W, T] int32


class Queue(NamedTuple):
    """The sentences to translate, and what was found."""

    counters: Tensor  # [2] int64: how many sentences were taken by slots, how many were added
    sentences: Tensor  # [Q, 4] int32: place of the first source token, source tokens, most ids of a translation, load
    done: Tensor  # [L] int64: how many sentences of each load are done
    scores: Tensor  # [Q, R] float64, best first
    lengths: Tensor  # [Q, R] int32, without the end symbol; -1: no such hypothesis
    finished: Tensor  # [Q, R] int32
    ids: Tensor  # [Q, R, T] int32


# The newest ids as vectors


@triton.jit
def _embed(ids, slot_position, table, positions, x, scale, width: tl.constexpr, size: tl.constexpr,
           hypotheses: tl.constexpr, has_positions: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, size)
    inside = columns < width
    token = tl.load(ids + row).to(tl.int64)
    vector = tl.load(table + token * width + columns, mask=inside, other=0.0).to(tl.float32) * scale
    if has_positions:
        position = tl.load(slot_position + row // hypotheses)
        vector += tl.load(positions + position * width + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + row * width + columns, vector.to(x.dtype.element_ty), mask=inside)


def embed(slots: Slots, table: Tensor, positions: Tensor | None, scale: float, dtype: torch.dtype) -> Tensor:
    """[N, M]: the embeddings of the newest ids, with their positions."""
    width, rows = table.size(1), slots.ids.numel()
    x = table.new_empty((rows, width), dtype=dtype)
    given = table if positions is None else positions
    _embed[(rows,)](slots.ids, slots.position, table, given, x, scale, width, triton.next_power_of_2(width),
                    slots.ids.size(1), positions is not None)  # fmt: skip
    return x


# Residual and norm


@triton.jit
def _add_norm(x, out, weight, bias, total, normed, rows, epsilon, width: tl.constexpr, size: tl.constexpr,
              each: tl.constexpr, adds: tl.constexpr, keeps: tl.constexpr):  # fmt: skip
    rows_R = tl.program_id(0) * each + tl.arange(0, each)
    columns = tl.arange(0, size)
    inside = columns < width
    there = (rows_R < rows)[:, None] & inside[None, :]
    places = rows_R[:, None] * width + columns[None, :]
    tile = tl.load(x + places, mask=there, other=0.0).to(tl.float32)
    if adds:
        tile += tl.load(out + places, mask=there, other=0.0).to(tl.float32)
    if keeps:
        tl.store(total + places, tile.to(total.dtype.element_ty), mask=there)
    mean = tl.sum(tile, axis=1) / width
    centred = tl.where(there, tile - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / width + epsilon)
    w_tile = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    b_tile = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(normed + places, (centred * scale[:, None] * w_tile + b_tile).to(normed.dtype.element_ty), mask=there)


def add_norm(
    x: Tensor, out: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float, dtype: torch.dtype, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """(x + out, its layer norm); the sum is only computed where it is to `keep`."""
    rows, width = x.shape
    each = 4 if rows >= MANY_ROWS else 1
    normed = torch.empty_like(x, dtype=dtype)
    total = torch.empty_like(x) if keep else x
    _add_norm[(triton.cdiv(rows, each),)](
        x, x if out is None else out, weight, bias, total, normed, rows, epsilon, width,
        triton.next_power_of_2(width), each, out is not None, keep,
    )  # fmt: skip
    return total, normed


# Attention


@triton.jit
def _self_attention(qkv, keys, values, ancestors, slot_sentence, slot_position, out, positions, scale,
                    hypotheses: tl.constexpr, rows: tl.constexpr, heads: tl.constexpr, d_k: tl.constexpr,
                    d_v: tl.constexpr, k_size: tl.constexpr, v_size: tl.constexpr,
                    block: tl.constexpr, precision: tl.constexpr):  # fmt: skip
    slot, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    if tl.load(slot_sentence + slot) >= 0:
        position = tl.load(slot_position + slot)
        rows_W = tl.arange(0, rows)
        real_W = rows_W < hypotheses
        k_columns, v_columns = tl.arange(0, k_size), tl.arange(0, v_size)
        k_inside, v_inside = (k_columns < d_k)[None, :], (v_columns < d_v)[None, :]
        k_real, v_real = real_W[:, None] & k_inside, real_W[:, None] & v_inside
        row = qkv + (slot * hypotheses + rows_W)[:, None].to(tl.int64) * (heads * (2 * d_k + d_v))
        q_tile = tl.load(row + head * d_k + k_columns[None, :], mask=k_real, other=0.0)
        k_new = tl.load(row + (heads + head) * d_k + k_columns[None, :], mask=k_real, other=0.0)
        v_new = tl.load(row + 2 * heads * d_k + head * d_v + v_columns[None, :], mask=v_real, other=0.0)
        past = ((slot * heads + head) * positions).to(tl.int64) * hypotheses  # place 0 of position 0
        places_W = (past + position * hypotheses + rows_W)[:, None]
        tl.store(keys + places_W * d_k + k_columns[None, :], k_new, mask=k_real)
        tl.store(values + places_W * d_v + v_columns[None, :], v_new, mask=v_real)

        top = tl.sum(q_tile.to(tl.float32) * k_new.to(tl.float32), axis=1) * scale
        total = tl.full([rows], 1.0, tl.float32)
        mixed = v_new.to(tl.float32)
        for start in range(0, position * hypotheses, block):
            entries = start + tl.arange(0, block)
            there = entries < position * hypotheses
            k_tile = tl.load(
                keys + (past + entries)[:, None] * d_k + k_columns[None, :], mask=there[:, None] & k_inside, other=0.0
            )
            v_tile = tl.load(
                values + (past + entries)[:, None] * d_v + v_columns[None, :], mask=there[:, None] & v_inside, other=0.0
            )
            own = tl.load(
                ancestors + (slot * hypotheses + rows_W)[:, None] * positions + (entries // hypotheses)[None, :],
                mask=real_W[:, None] & there[None, :], other=-1,
            )  # fmt: skip
            allowed = own.to(tl.int32) == (entries % hypotheses)[None, :]
            scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=precision) * scale
            scores = tl.where(allowed, scores, LOWEST)
            higher = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.exp(scores - higher[:, None])
            shrink = tl.exp(top - higher)
            total = total * shrink + tl.sum(weights, axis=1)
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(v_tile.dtype), v_tile, input_precision=precision)
            top = higher
        place = out + (slot * hypotheses + rows_W)[:, None] * (heads * d_v) + head * d_v + v_columns[None, :]
        tl.store(place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=v_real)


def self_attention(slots: Slots, qkv: Tensor, keys: Tensor, values: Tensor, heads: int, scale: float) -> Tensor:
    """[N, H E]: every row attends to its own past and itself; its key and value are added to the past.

    `qkv` has queries, keys and values side by side; `keys` are [B, H, T, W, D], `values` [B, H, T, W, E].
    """
    hypotheses, positions = slots.ancestors.shape[1:]
    d_k, d_v = keys.size(-1), values.size(-1)
    out = qkv.new_empty((len(qkv), heads * d_v))
    _self_attention[(len(slots.sentence) * heads,)](
        qkv, keys, values, slots.ancestors, slots.sentence, slots.position, out, positions, scale, hypotheses,
        _rows(hypotheses), heads, d_k, d_v, _size(d_k), _size(d_v), SELF_BLOCK, _precision(qkv), num_warps=SELF_WARPS,
    )  # fmt: skip
    return out


@triton.jit
def _cross_attention(q, kv, slot_sentence, sentences, out, scale, capacity, hypotheses: tl.constexpr,
                     rows: tl.constexpr, heads: tl.constexpr, d_k: tl.constexpr, d_v: tl.constexpr,
                     k_size: tl.constexpr, v_size: tl.constexpr, block: tl.constexpr,
                     precision: tl.constexpr):  # fmt: skip
    slot, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    sentence = tl.load(slot_sentence + slot)
    if sentence >= 0:
        first = tl.load(sentences + sentence * 4)
        length = tl.load(sentences + sentence * 4 + 1)
        rows_W = tl.arange(0, rows)
        real_W = rows_W < hypotheses
        k_columns, v_columns = tl.arange(0, k_size), tl.arange(0, v_size)
        k_inside, v_inside = (k_columns < d_k)[None, :], (v_columns < d_v)[None, :]
        q_tile = tl.load(
            q + (slot * hypotheses + rows_W)[:, None] * (heads * d_k) + head * d_k + k_columns[None, :],
            mask=real_W[:, None] & k_inside, other=0.0,
        )  # fmt: skip
        top = tl.full([rows], LOWEST, tl.float32)
        total = tl.zeros([rows], tl.float32)
        mixed = tl.zeros([rows, v_size], tl.float32)
        for start in range(0, length, block):
            entries = start + tl.arange(0, block)
            there = entries < length
            row = kv + ((first + entries) & (capacity - 1))[:, None].to(tl.int64) * (heads * (d_k + d_v))
            k_tile = tl.load(row + head * d_k + k_columns[None, :], mask=there[:, None] & k_inside, other=0.0)
            v_tile = tl.load(
                row + heads * d_k + head * d_v + v_columns[None, :], mask=there[:, None] & v_inside, other=0.0
            )
            scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=precision) * scale
            scores = tl.where(there[None, :], scores, LOWEST)
            higher = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.exp(scores - higher[:, None])
            shrink = tl.exp(top - higher)
            total = total * shrink + tl.sum(weights, axis=1)
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(v_tile.dtype), v_tile, input_precision=precision)
            top = higher
        place = out + (slot * hypotheses + rows_W)[:, None] * (heads * d_v) + head * d_v + v_columns[None, :]
        tl.store(place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=real_W[:, None] & v_inside)


def cross_attention(
    slots: Slots, queue: Queue, q: Tensor, kv: Tensor, heads: int, d_k: int, d_v: int, scale: float
) -> Tensor:
    """[N, H E]: every row attends to its own source; `kv` is [S, H D + H E], S a power of two."""
    hypotheses = slots.ids.size(1)
    assert len(kv) & (len(kv) - 1) == 0
    out = q.new_empty((len(q), heads * d_v))
    _cross_attention[(len(slots.sentence) * heads,)](
        q, kv, slots.sentence, queue.sentences, out, scale, len(kv), hypotheses, _rows(hypotheses), heads, d_k, d_v,
        _size(d_k), _size(d_v), CROSS_BLOCK, _precision(q), num_warps=CROSS_WARPS,
    )  # fmt: skip
    return out


def _rows(hypotheses: int) -> int:
    return max(FEWEST_ROWS, triton.next_power_of_2(hypotheses))


def _size(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"  # of a product of float32; others are exact anyway


# The best candidates of every row


@triton.jit
def _without(values, ids, forbidden_1, forbidden_2, forbidden_3):
    never = (ids == forbidden_1) | (ids == forbidden_2) | (ids == forbidden_3)
    return tl.where(never, float("-inf"), values)


@triton.jit
def _best(logits, slot_sentence, group_best, values, chosen, forbidden_1, forbidden_2, forbidden_3,
          vocabulary: tl.constexpr, hypotheses: tl.constexpr, count: tl.constexpr, groups: tl.constexpr,
          group: tl.constexpr, chunk: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    if tl.load(slot_sentence + row // hypotheses) >= 0:
        pointer = logits + row.to(tl.int64) * vocabulary
        group_best += row * groups
        highest, total = tl.full([], LOWEST, tl.float32), tl.zeros([], tl.float32)
        for start in range(0, tl.cdiv(vocabulary, group), chunk):
            groups_G = start + tl.arange(0, chunk)
            ids = groups_G[:, None] * group + tl.arange(0, group)[None, :]
            x = tl.load(pointer + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(highest, tl.max(tl.max(x, axis=1), axis=0))
            total = total * tl.exp(highest - higher) + tl.sum(tl.sum(tl.exp(x - higher), axis=1), axis=0)
            highest = higher
            best_G = tl.max(_without(x, ids, forbidden_1, forbidden_2, forbidden_3), axis=1)
            tl.store(group_best + groups_G, best_G, mask=groups_G < groups)
        lse = highest + tl.log(total)
        tl.debug_barrier()  # other threads wrote them
        groups_G = tl.arange(0, groups)
        best_G = tl.load(group_best + groups_G, mask=groups_G * group < vocabulary, other=float("-inf"))
        last, last_id = tl.full([], float("inf"), tl.float32), tl.full([], -1, tl.int32)
        for number in range(count):
            # skip ids already chosen: larger logits, or equal ones with a lower id
            best = tl.max(best_G, axis=0)
            at = tl.min(tl.where(best_G == best, groups_G, groups - 1), axis=0)
            near = at * group + tl.arange(0, group)
            y = tl.load(pointer + near, mask=near < vocabulary, other=float("-inf")).to(tl.float32)
            y = _without(y, near, forbidden_1, forbidden_2, forbidden_3)
            left = (y < last) | ((y == last) & (near > last_id))
            last_id = tl.min(tl.where(left & (y == best), near, vocabulary - 1), axis=0)
            last = best
            rest = tl.max(tl.where(left & (near != last_id), y, float("-inf")), axis=0)
            best_G = tl.where(groups_G == at, rest, best_G)
            value = best - lse
            value = tl.where(value == value, value, float("-inf"))  # a row with NaN has no candidates
            tl.store(values + row * count + number, value)
            tl.store(chosen + row * count + number, last_id)


def best_candidates(slots: Slots, logits: Tensor, count: int, forbidden: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids of the `count` best ids of each row, best first, ties by the lower id: [N, C] each."""
    assert len(forbidden) <= 3
    rows, vocabulary = logits.shape
    values = logits.new_empty((rows, count), dtype=torch.float32)
    chosen = logits.new_empty((rows, count), dtype=torch.int32)
    groups = max(2, triton.next_power_of_2(triton.cdiv(vocabulary, GROUP)))
    group_best = logits.new_empty((rows, groups), dtype=torch.float32)
    never = (*forbidden, -1, -1, -1)[:3]
    warps = 1 if rows >= MANY_ROWS else 4
    _best[(rows,)](
        logits, slots.sentence, group_best, values, chosen, *never, vocabulary, slots.ids.size(1), count, groups, GROUP,
        min(groups, CHUNK * warps), num_warps=warps,
    )  # fmt: skip
    return values, chosen


# The step of the search itself: decode/search.py says in NumPy what happens here


@triton.jit
def _at(vector, places, place):
    """One element of a vector."""
    return tl.sum(tl.where(places == place, vector, tl.zeros_like(vector)), axis=0)


@triton.jit
def _copy_path(tokens, ancestors, target, slot, hypothesis, length, positions, hypotheses: tl.constexpr,
               block: tl.constexpr):  # fmt: skip
    """The `length` ids of a live hypothesis, fed at positions 1 to `length`."""
    for start in range(0, length, block):
        position = start + 1 + tl.arange(0, block)
        past = position < length
        place = tl.load(ancestors + (slot * hypotheses + hypothesis) * positions + position, mask=past, other=0)
        place = tl.where(past, place.to(tl.int32), hypothesis)
        there = position <= length
        ids = tl.load(tokens + (slot * positions + position) * hypotheses + place, mask=there, other=0)
        tl.store(target + position - 1, ids, mask=there)


@triton.jit
def _copy_row(source, target, length, block: tl.constexpr):
    for start in range(0, length, block):
        places = start + tl.arange(0, block)
        tl.store(target + places, tl.load(source + places, mask=places < length, other=0), mask=places < length)


@triton.jit
def _take_next(counters, slot_sentence, slot, capacity):
    """Give a slot the next sentence of the queue, or nothing to do."""
    following = tl.atomic_add(counters, 1)
    if following < tl.load(counters + 1):
        tl.store(slot_sentence + slot, (following % capacity).to(tl.int32))
    else:
        tl.atomic_add(counters, -1)  # no sentence has that number yet
        tl.store(slot_sentence + slot, -1)


@triton.jit
def _admit(slot_sentence, counters, capacity):
    slot = tl.program_id(0)
    if (tl.load(slot_sentence + slot) < 0) & (tl.load(counters) < tl.load(counters + 1)):
        _take_next(counters, slot_sentence, slot, capacity)


def admit(slots: Slots, queue: Queue) -> None:
    """Give sentences that were added to the slots that have nothing to do."""
    _admit[(len(slots.sentence),)](slots.sentence, queue.counters, len(queue.sentences), num_warps=1)


@triton.jit
def _advance(values, chosen, penalties, slot_sentence, slot_position, slot_ids, slot_scores, ancestors, tokens,
             finished_order, finished_scores, finished_normalized, finished_lengths, finished_ids, counters, sentences,
             load_done, result_scores, result_lengths, result_finished, result_ids, positions, capacity, start_id,
             end_id, hypotheses: tl.constexpr, rows: tl.constexpr, count: tl.constexpr, entries: tl.constexpr,
             candidates: tl.constexpr, results: tl.constexpr, block: tl.constexpr):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    sentence = tl.load(slot_sentence + slot)
    if sentence >= 0:
        position = tl.load(slot_position + slot)
        penalty = tl.load(penalties + position + 1)
        live = slot * hypotheses
        rows_W = tl.arange(0, rows)
        real_W = rows_W < hypotheses

        # the best candidates over all live hypotheses, best first, ties by the order they come in
        at_X = tl.arange(0, entries)
        parent_X = at_X // count
        free_X = at_X < hypotheses * count
        never = tl.full([entries], float("-inf"), tl.float64)
        before_X = tl.load(slot_scores + live + parent_X, mask=free_X, other=float("-inf"))
        step_X = tl.load(values + live * count + at_X, mask=free_X, other=float("-inf")).to(tl.float64)
        score_X = tl.where(free_X, before_X + step_X, never)
        id_X = tl.load(chosen + live * count + at_X, mask=free_X, other=-1)
        place_C = tl.arange(0, candidates)
        score_C = tl.full([candidates], float("-inf"), tl.float64)
        parent_C = tl.zeros([candidates], tl.int32)
        id_C = tl.full([candidates], -1, tl.int32)
        for number in range(2 * hypotheses):
            best = tl.max(score_X, axis=0)
            at = tl.min(tl.where(free_X & (score_X == best), at_X, entries - 1), axis=0)
            found = free_X & (at_X == at)
            score_C = tl.where(place_C == number, best, score_C)
            parent_C = tl.where(place_C == number, at // count, parent_C)
            id_C = tl.where(place_C == number, tl.max(tl.where(found, id_X, -1), axis=0), id_C)
            free_X = free_X & (at_X != at)
            score_X = tl.where(found, never, score_X)

        # those that end enter the finished list, which keeps the best
        order_W = tl.load(finished_order + live + rows_W, mask=real_W, other=-1)
        normalized_W = tl.load(finished_normalized + live + rows_W, mask=real_W, other=float("inf"))
        known = tl.max(order_W, axis=0) + 1
        ended_W = tl.zeros([rows], tl.int32)  # parents of those that end now
        end_C = id_C == end_id
        for number in range(hypotheses):
            ending = _at(end_C.to(tl.int32), place_C, number)
            score = _at(score_C, place_C, number)
            if (ending > 0) & (score > float("-inf")):
                parent = _at(parent_C, place_C, number)
                ended_W = tl.where(rows_W == parent, 1, ended_W)
                full = tl.sum((real_W & (order_W < 0)).to(tl.int32), axis=0) == 0
                worst = tl.min(normalized_W, axis=0)
                latest = tl.max(tl.where(real_W & (normalized_W == worst), order_W, -1), axis=0)
                empty = tl.min(tl.where(real_W & (order_W < 0), rows_W, rows - 1), axis=0)
                taken = tl.min(tl.where(real_W & (order_W == latest), rows_W, rows - 1), axis=0)
                place = tl.where(full, taken, empty)
                if (full == 0) | (score / penalty > worst):
                    order_W = tl.where(rows_W == place, known, order_W)
                    normalized_W = tl.where(rows_W == place, score / penalty, normalized_W)
                    known += 1
                    tl.store(finished_order + live + place, known - 1)
                    tl.store(finished_scores + live + place, score)
                    tl.store(finished_normalized + live + place, score / penalty)
                    tl.store(finished_lengths + live + place, position)
                    target = finished_ids + (live + place) * positions
                    _copy_path(tokens, ancestors, target, slot, parent, position, positions, hypotheses, block)
        full = tl.sum((real_W & (order_W < 0)).to(tl.int32), axis=0) == 0
        worst = tl.where(full, tl.min(normalized_W, axis=0), float("-inf"))

        # the best of the others continue
        goes_C = (id_C != end_id).to(tl.int32)
        rank_C = tl.cumsum(goes_C, axis=0) - 1
        next_score_W = tl.full([rows], float("-inf"), tl.float64)
        next_parent_W = tl.zeros([rows], tl.int32)
        next_id_W = tl.full([rows], 0, tl.int32)
        for number in range(hypotheses):
            mine_C = (goes_C > 0) & (rank_C == number)
            next_score_W = tl.where(rows_W == number, tl.max(tl.where(mine_C, score_C, float("-inf")), axis=0),
                                    next_score_W)  # fmt: skip
            next_parent_W = tl.where(rows_W == number, tl.max(tl.where(mine_C, parent_C, 0), axis=0), next_parent_W)
            next_id_W = tl.where(rows_W == number, tl.max(tl.where(mine_C, id_C, 0), axis=0), next_id_W)
        limit = tl.load(sentences + sentence * 4 + 2)
        done = (limit <= position) | (tl.max(next_score_W, axis=0) / penalty <= worst)

        tl.debug_barrier()  # finished hypotheses were written by other threads
        if done:
            # finished hypotheses by score, then live ones that do not end now
            left_W = real_W & (order_W >= 0)
            live_score_W = tl.load(slot_scores + live + rows_W, mask=real_W, other=float("-inf"))
            live_W = real_W & (live_score_W > float("-inf")) & (ended_W == 0)
            for number in range(results):
                result = sentence.to(tl.int64) * results + number
                if tl.sum(left_W.to(tl.int32), axis=0) > 0:
                    best = tl.max(tl.where(left_W, normalized_W, float("-inf")), axis=0)
                    first = tl.min(tl.where(left_W & (normalized_W == best), order_W, 2147483647), axis=0)
                    place = tl.min(tl.where(left_W & (order_W == first), rows_W, rows - 1), axis=0)
                    left_W = left_W & (rows_W != place)
                    length = tl.load(finished_lengths + live + place)
                    tl.store(result_scores + result, tl.load(finished_scores + live + place))
                    tl.store(result_lengths + result, length)
                    tl.store(result_finished + result, 1)
                    _copy_row(finished_ids + (live + place) * positions, result_ids + result * positions, length, block)
                elif tl.sum(live_W.to(tl.int32), axis=0) > 0:
                    place = tl.min(tl.where(live_W, rows_W, rows - 1), axis=0)
                    live_W = live_W & (rows_W != place)
                    tl.store(result_scores + result, _at(live_score_W, rows_W, place))
                    tl.store(result_lengths + result, position)
                    tl.store(result_finished + result, 0)
                    target = result_ids + result * positions
                    _copy_path(tokens, ancestors, target, slot, place, position, positions, hypotheses, block)
                else:
                    tl.store(result_lengths + result, -1)
            tl.atomic_add(load_done + tl.load(sentences + sentence * 4 + 3), 1)
            _take_next(counters, slot_sentence, slot, capacity)
            tl.debug_barrier()  # everything above was read
            tl.store(slot_position + slot, 0)
            tl.store(slot_ids + live + rows_W, tl.zeros([rows], tl.int32) + start_id, mask=real_W)
            fresh_W = tl.where(rows_W == 0, 0.0, float("-inf")).to(tl.float64)
            tl.store(slot_scores + live + rows_W, fresh_W, mask=real_W)
            tl.store(finished_order + live + rows_W, tl.zeros([rows], tl.int32) - 1, mask=real_W)
        else:
            for start in range(0, position + 1, block):
                columns = start + tl.arange(0, block)
                past = real_W[:, None] & (columns < position)[None, :]
                line = ancestors + (live + next_parent_W)[:, None] * positions + columns[None, :]
                moved = tl.load(line, mask=past, other=0).to(tl.int32)
                moved = tl.where((columns == position)[None, :], next_parent_W[:, None], moved)
                tl.debug_barrier()  # all rows are read before any is replaced
                line = ancestors + (live + rows_W)[:, None] * positions + columns[None, :]
                tl.store(line, moved.to(tl.int8), mask=real_W[:, None] & (columns <= position)[None, :])
            tl.store(slot_scores + live + rows_W, next_score_W, mask=real_W)
            tl.store(slot_ids + live + rows_W, next_id_W, mask=real_W)
            tl.store(tokens + (slot * positions + position + 1) * hypotheses + rows_W, next_id_W, mask=real_W)
            tl.store(slot_position + slot, position + 1)


def advance(
    slots: Slots, queue: Queue, values: Tensor, chosen: Tensor, penalties: Tensor, start_id: int, end_id: int
) -> None:
    """Choose the hypotheses that continue; where a sentence is done, write its results and take the next one.

    `penalties` is [T + 1], float64: the divisor of a score by the length of a hypothesis with its end symbol.
    """
    (hypotheses, positions), count = slots.ancestors.shape[1:], values.size(1)
    _advance[(len(slots.sentence),)](
        values, chosen, penalties, *slots, *queue, positions, len(queue.sentences), start_id, end_id, hypotheses,
        max(2, triton.next_power_of_2(hypotheses)), count, max(2, triton.next_power_of_2(hypotheses * count)),
        max(2, triton.next_power_of_2(2 * hypotheses)), queue.scores.size(1), 64, num_warps=1,
    )  # fmt: skip
