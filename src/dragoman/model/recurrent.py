"""What the Transformer replaced: recurrent encoder-decoders, with and without attention. Knows nothing of text or loss.

Without attention, all the decoder knows about the source is the encoder's last state, of one fixed size. With it, every
step attends to all encoder states: a score for each, a softmax, their weighted sum (the context vector), joined to the
decoder's state before the output.

Shapes, as suffixes of names:
        B  sentences in the batch      S  source positions      T  target positions      K  positions attended to
    M  width of a state (d_model)      L  layers      V  target vocabulary
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dragoman.config import RecurrentConfig
from dragoman.model.attention import AttentionWeights, look_ahead_mask, masked_softmax
from dragoman.model.cache import rows_of, rows_of_hypotheses, rows_of_sentences
from dragoman.model.transformer import embed, initialise, input_layer

CellState = tuple[Tensor, ...]  # h_LBM of an RNN; h_LBM and c_LBM of an LSTM


@dataclass
class RecurrentMemory:
    """The encoder's output: a state for every source position, and the last one, from which the decoder starts."""

    states_BSM: Tensor
    last: CellState


@dataclass
class RecurrentState:
    """The decoder between steps: `width` rows of cell states for each sentence, which share the source."""

    cell: CellState
    source_BSM: Tensor
    source_allowed: Tensor | None
    past_BTM: Tensor  # the decoder's own states so far, for the self-attentive context
    width: int = 1

    def reorder(self, parent_BW: Tensor) -> None:
        """Hypothesis w of sentence b becomes the former hypothesis parent_BW[b, w]."""
        self._replace(rows_of_hypotheses(parent_BW, self.width))
        self.width = parent_BW.size(1)

    def select(self, sentence_B: Tensor) -> None:
        """Replace each sentence b with the former sentence sentence_B[b]."""
        self._replace(rows_of_sentences(sentence_B, self.width))
        self.source_BSM = self.source_BSM.index_select(0, sentence_B)
        self.source_allowed = rows_of(self.source_allowed, sentence_B)

    def _replace(self, row_N: Tensor) -> None:
        self.cell = tuple(part_LBM.index_select(1, row_N) for part_LBM in self.cell)
        self.past_BTM = self.past_BTM.index_select(0, row_N)


class Score(nn.Module):
    """How well each decoder state s matches each state h that it may attend to: [B, T, M] and [B, K, M] -> [B, T, K].

    dot: s . h      scaled_dot: s . h / sqrt(M)      general: s . W h      additive: v . tanh(W s + U h)
    """

    def __init__(self, kind: str, d_model: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "general":
            self.matrix = nn.Linear(d_model, d_model, bias=False)
        if kind == "additive":
            self.query = nn.Linear(d_model, d_model, bias=False)
            self.key = nn.Linear(d_model, d_model, bias=False)
            self.vector = nn.Linear(d_model, 1, bias=False)

    def forward(self, s_BTM: Tensor, h_BKM: Tensor) -> Tensor:
        if self.kind == "additive":
            sums_BTKM = self.query(s_BTM)[:, :, None] + self.key(h_BKM)[:, None]
            return self.vector(sums_BTKM.tanh())[..., 0]
        keys_BKM = self.matrix(h_BKM) if self.kind == "general" else h_BKM
        scale = math.sqrt(s_BTM.size(-1)) if self.kind == "scaled_dot" else 1.0
        return s_BTM @ keys_BKM.mT / scale


class Recurrent(nn.Module):
    """The same interface as the Transformer: `forward` for training, `encode`, `start` and `step` for inference."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        width = config.d_model
        cell = {"rnn": nn.RNN, "lstm": nn.LSTM}[config.cell]
        between = config.dropout if config.num_layers > 1 else 0.0
        self.source_embedding = input_layer(config.vocab_size, config.source_features, width)
        self.target_embedding = input_layer(config.target_vocabulary, config.target_features, width)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = cell(width, width, config.num_layers, batch_first=True, dropout=between)
        self.decoder = cell(width, width, config.num_layers, batch_first=True, dropout=between)
        self.score = Score(config.score, width) if config.context != "none" else None
        self.join = nn.Linear(2 * width, width) if config.context != "none" else None
        self.output = nn.Linear(width, config.target_vocabulary)
        self.apply(initialise)
        self.tie()

    def tie(self) -> None:
        """Share matrices as configured."""
        if self.config.share_source_target:
            self.target_embedding = self.source_embedding
        if self.config.share_target_output:
            self.output.weight = self.target_embedding.weight

    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        source_allowed: Tensor | None = None,
        *,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, AttentionWeights]:
        """[B, S] and [B, T] ids, [B, S] bool (True = real token) -> [B, T, V] logits, and attention on request."""
        weights = AttentionWeights() if need_weights else None
        state = self.start(self.encode(source_ids, source_allowed), source_allowed)
        logits_BTV = self.decode(target_ids, state, weights)
        return logits_BTV if weights is None else (logits_BTV, weights)

    def encode(self, source_ids: Tensor, source_allowed: Tensor | None = None) -> RecurrentMemory:
        """One state after another. Padding is at the end of a sentence and is skipped."""
        x_BSM = self.dropout(embed(self.source_embedding, source_ids))
        if source_allowed is None:
            states_BSM, last = self.encoder(x_BSM)
        else:
            lengths = source_allowed.sum(dim=1).clamp(min=1).cpu()  # a sentence without tokens still has a state
            packed = pack_padded_sequence(x_BSM, lengths, batch_first=True, enforce_sorted=False)
            packed_states, last = self.encoder(packed)
            states_BSM, _ = pad_packed_sequence(packed_states, batch_first=True, total_length=x_BSM.size(1))
        return RecurrentMemory(states_BSM, last if isinstance(last, tuple) else (last,))

    def start(self, memory: RecurrentMemory, source_allowed: Tensor | None = None) -> RecurrentState:
        """The state before the first target id: the encoder's last."""
        nothing_BTM = memory.states_BSM[:, :0]
        return RecurrentState(memory.last, memory.states_BSM, source_allowed, nothing_BTM)

    def decode(self, target_ids: Tensor, state: RecurrentState, weights: AttentionWeights | None = None) -> Tensor:
        """[B, T] more target ids -> [B, T, V] logits; the state advances by T."""
        return self.output(self.decode_states(target_ids, state, weights))

    def decode_states(
        self, target_ids: Tensor, state: RecurrentState, weights: AttentionWeights | None = None
    ) -> Tensor:
        """The same before the output projection: [B, T, M]."""
        x_BTM = self.dropout(embed(self.target_embedding, target_ids))
        s_BTM, last = self.decoder(x_BTM, state.cell if self.config.cell == "lstm" else state.cell[0])
        state.cell = last if isinstance(last, tuple) else (last,)
        if self.config.context == "source":
            allowed = None if state.source_allowed is None else state.source_allowed[:, None]
            # the hypotheses of a sentence share the source: there, each is one more position
            grouped_BTM, weights_BTK = self._look(
                s_BTM.reshape(len(state.source_BSM), -1, s_BTM.size(2)), state.source_BSM, allowed
            )
            s_BTM = grouped_BTM.view_as(s_BTM)
            if weights is not None:
                weights.cross.append(weights_BTK[:, None])  # one layer of one head
        elif self.config.context == "self":
            state.past_BTM = torch.cat((state.past_BTM, s_BTM), dim=1)
            past_TK = look_ahead_mask(s_BTM.size(1), state.past_BTM.size(1), s_BTM.device)
            s_BTM, weights_BTK = self._look(s_BTM, state.past_BTM, past_TK)
            if weights is not None:
                weights.decoder.append(weights_BTK[:, None])
        return self.dropout(s_BTM)

    def step(self, ids_B: Tensor, state: RecurrentState) -> Tensor:
        """[B] newest target ids -> [B, V] logits of the next ones."""
        return self.decode(ids_B[:, None], state)[:, -1]

    def _look(self, s_BTM: Tensor, h_BKM: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
        """tanh(W [s; c]) with the context c, the weighted sum of the states attended to; and the weights."""
        assert self.score is not None
        assert self.join is not None
        weights_BTK = masked_softmax(self.score(s_BTM, h_BKM), allowed)
        context_BTM = weights_BTK.to(h_BKM.dtype) @ h_BKM
        return self.join(torch.cat((s_BTM, context_BTM), dim=-1)).tanh(), weights_BTK
