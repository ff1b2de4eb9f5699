"""Hugging Face models as a trainer wants them: token ids in, log-probs or values of the response tokens out, or numbers
of whole rows.

The model's own forward pass would return the logits of every position, [B, T, vocabulary] in fp32: for 8 rows of 4096
tokens and a vocabulary of 152k that is 20 GB. Here the head sees the response positions only, and some columns of the
vocabulary at a time.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from roll.algorithms.distillation import Distillation
from roll.algorithms.moe_aux_loss import layer_balance
from roll.configs.sections.model import FusedKernelOptions
from roll.models.exports import ModelAdapters
from roll.models.head_scores import (
    PLAIN,
    HeadForm,
    HeadRequest,
    HeadScores,
    LogitTransform,
    Product,
    common,
    head_scores,
    pack_top_k_targets,
)
from roll.models.sequences.layout import Padded, RowLayout, rows_at
from roll.models.sequences.ranks import SequenceRanks

_DEFAULTS = FusedKernelOptions()


class Teacher(Protocol):
    """Targets of a teacher for some response tokens (`roll/features/teachers/targets.py`)."""

    def at_positions(self, mask: torch.Tensor, positions: torch.Tensor) -> Self: ...
    def divergence(
        self,
        products: Sequence[Product],
        bias: torch.Tensor | None,
        transform: LogitTransform,
        elements: int,
        compiled: bool,
    ) -> torch.Tensor: ...


class LogProbHead(nn.Module):
    """Hidden states to log-probs and what else is asked of the distribution, some logits at a time.

    Under ZeRO-3 this module is a leaf: its weights are gathered once, not once per chunk, so that ranks with different
    numbers of chunks do not wait for each other.
    """

    def __init__(self, lm_head: nn.Module, transform: LogitTransform = PLAIN, options: FusedKernelOptions = _DEFAULTS):
        super().__init__()
        self.lm_head = lm_head
        self.transform = transform  # at temperature 1
        self.logits_per_chunk = options.logits_per_chunk  # None: as many as suit the device
        self.kernel = options.impl_backend
        self.compiled = False
        self.adapters: ModelAdapters | None = None  # of the model, which its own layer may have as well
        self.form = HeadForm()

    def request(self, kind: str, temperature: float = 1.0) -> HeadRequest:
        """How tokens are scored on a device of this kind."""
        transform = replace(self.transform, temperature=temperature)
        request = HeadRequest.on(kind, self.logits_per_chunk, transform)
        return replace(request, compiled=self.compiled, form=self.form, kernel=self.kernel)

    def filled(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows [N, ...], and zeros behind them that its form wants."""
        layer: Any = self.lm_head
        missing = self.form.missing(rows, layer.weight)
        return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows

    def forward(
        self,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        temperature: float = 1.0,
        entropy: bool = False,
        top_k: int = 0,
        teacher_targets: Teacher | None = None,
        vocab_size: int | None = None,
    ) -> HeadScores:
        """Scores of hidden [N, H]: log-probs of the targets (tokens [N] or [N, m]), and whatever else is requested.
        With `vocab_size`, over the first `vocab_size` tokens only."""
        count = len(targets)
        hidden, targets = self.filled(hidden), self.filled(targets)
        layer: Any = self.lm_head
        layer, low_rank = (layer, None) if self.adapters is None else self.adapters.low_rank_part(layer, hidden)
        products = [Product(hidden.to(layer.weight.dtype), layer.weight)]
        if low_rank is not None:
            products.append(Product(*low_rank))
        bias: torch.Tensor | None = layer.bias
        if vocab_size is not None:
            products, bias = common(products, bias, vocab_size)
        ask = replace(self.request(hidden.device.type, temperature), entropy=entropy, top_k=top_k)
        scores = head_scores(products, bias, targets, ask)
        if teacher_targets is not None:
            told = teacher_targets.divergence(products, bias, self.transform, ask.tile_elements, self.compiled)
            scores = scores._replace(divergence=told)
        return scores if len(hidden) == count else scores.first(count)


class ValueHead(nn.Module):
    """Hidden states to one number each, computed in fp32 whatever the model's dtype."""

    def __init__(self, score: nn.Linear):
        super().__init__()
        self.score = score

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        bias = self.score.bias.float() if self.score.bias is not None else None
        return functional.linear(hidden.float(), self.score.weight.float(), bias)[..., 0]


class TokenLogProbModel(nn.Module):
    """A causal language model that scores given tokens.

    Rows are right padded, so that no sampled token sees padding and no attention mask is needed. By another `layout`
    they are computed without the padding, by a model that takes packs (`packed_attention.py`). Ranks that share the
    layout's tokens each get all outputs.
    """

    def __init__(self, backbone: nn.Module, head: LogProbHead):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(
        self,
        input_ids: torch.Tensor,
        response_mask: torch.Tensor,
        temperature: float = 1.0,
        entropy: bool = False,
        layout: RowLayout | None = None,
        balanced: bool = False,
        teacher_targets: Teacher | None = None,
        distillation: Distillation | None = None,
    ) -> tuple[torch.Tensor | None, ...]:
        """Log-probs (and entropy) of input_ids where response_mask is True and 0 elsewhere. [B, T] -> fp32 [B, T].

        A row's first token is preceded by nothing: its log-prob is 0 whatever the mask says. With `teacher_targets` the
        divergence from the teacher comes third, and if `balanced`, what the routers of a mixture say last
        (`routers.py`). A teacher (`distillation`) gives its targets alone, of response tokens.
        """
        layout = layout or Padded(input_ids)
        encoded = _seen_before(self.backbone, response_mask, layout, balanced)
        places, positions = encoded.places, encoded.positions
        targets = input_ids[:, 1:].reshape(-1)[positions]
        if distillation is not None:
            teacher_outputs = self._teacher_targets(rows_at(encoded.hidden, places), targets, distillation)
            return (_of_all_ranks(teacher_outputs, positions, response_mask, layout),)
        more: dict[str, Any] = {}
        if teacher_targets is not None:
            more["teacher_targets"] = teacher_targets.at_positions(response_mask[:, 1:], positions)
        answers = None
        if teacher_targets is None:  # a teacher says something of its own of every row
            places, targets, answers = layout.asked_once(places, targets)
        outputs = self.head(rows_at(encoded.hidden, places), targets, temperature, entropy, **more)
        scores: list[torch.Tensor | None] = []
        for values in (outputs.log_probs, outputs.entropy, *(() if teacher_targets is None else (outputs.divergence,))):
            of_rows = values if values is None or answers is None else values.index_select(0, answers)
            scores.append(None if of_rows is None else _at_positions(of_rows, positions, input_ids, layout))
        return (*scores, encoded.balance) if balanced else tuple(scores)

    def _teacher_targets(self, hidden: torch.Tensor, targets: torch.Tensor, distillation: Distillation) -> torch.Tensor:
        if not distillation.top_k:
            return hidden.float()
        temperature = distillation.divergence.teacher_temperature
        scores = self.head(hidden, targets, temperature, top_k=distillation.top_k, vocab_size=distillation.vocab_size)
        return pack_top_k_targets(scores.top_log_probs, scores.top_ids)


class TokenValueModel(nn.Module):
    """A critic: the expected return from the state before each response token."""

    def __init__(self, backbone: nn.Module, head: ValueHead):
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(
        self,
        input_ids: torch.Tensor,
        response_mask: torch.Tensor,
        layout: RowLayout | None = None,
        balanced: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """values[t] is read from the hidden state of t - 1, before token t is known. [B, T] -> fp32 [B, T]. `layout`
        and `balanced` as in the policy."""
        layout = layout or Padded(input_ids)
        encoded = _seen_before(self.backbone, response_mask, layout, balanced)
        values = _at_positions(self.head(rows_at(encoded.hidden, encoded.places)), encoded.positions, input_ids, layout)
        return (values, encoded.balance) if balanced else values


class SequenceModel(nn.Module):
    """A model that gives whole rows numbers, as Hugging Face's own forward pass computes them: any architecture with a
    sequence-classification head, looking both ways or not. By a layout, as of packs and pictures: one that has a linear
    layer on top of a decoder."""

    def __init__(self, pretrained: PreTrainedModel, pad_token_id: int):
        super().__init__()
        self.pretrained = pretrained
        self.pad_token_id = pad_token_id

    def forward(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        layout: RowLayout | None = None,
    ) -> torch.Tensor:
        """A number per label of the head. [B, T] -> fp32 [B, labels]. Decoders read it at a row's last token that is
        no padding token. A `layout` holds all tokens of the rows."""
        columns = torch.arange(input_ids.shape[1], device=input_ids.device)
        inside = columns < lengths[:, None]
        padded = torch.where(inside, input_ids, self.pad_token_id)
        if layout is None:
            return self.pretrained(input_ids=padded, attention_mask=inside.long()).logits.float()
        hidden = _encoded(self.pretrained.base_model, layout, layout.arguments).last_hidden_state.flatten(0, 1)
        last = torch.where(padded != self.pad_token_id, columns, 0).argmax(1)
        rows = torch.arange(len(last), device=last.device)
        places = layout.places(rows, last)
        score: Any = self.pretrained.score
        if layout.ranks is None:
            return score(rows_at(hidden, places)).float()
        is_here = layout.has(places)
        numbers = score(rows_at(hidden, places[is_here])).float()
        return layout.ranks.whole(numbers.new_zeros(len(rows), numbers.shape[1]).index_copy(0, rows[is_here], numbers))


class _Inputs(NamedTuple):
    """Hidden states [n, H] of all computed tokens. For every response token the place of the one before it, and its
    index among all tokens but each row's last, [B * (T - 1)]; where ranks share the tokens, this rank's. The balance of
    the layers' routers, where it is wanted."""

    hidden: torch.Tensor
    places: torch.Tensor
    positions: torch.Tensor
    balance: torch.Tensor | None


def _seen_before(backbone: Any, response_mask: torch.Tensor, layout: RowLayout, balanced: bool) -> _Inputs:
    positions = response_mask[:, 1:].reshape(-1).nonzero()[:, 0]
    arguments = layout.arguments | ({"output_router_logits": True} if balanced else {})
    output = _encoded(backbone, layout, arguments)
    balance = None
    if balanced:
        top_k = backbone.config.get_text_config().num_experts_per_tok
        balance = layer_balances(output.router_logits, top_k, layout.row_tokens(), layout.ranks)
    width = max(response_mask.shape[1] - 1, 1)
    places = layout.places(positions // width, positions % width)
    if layout.ranks is not None:
        is_here = layout.has(places)
        places, positions = places[is_here], positions[is_here]
    return _Inputs(output.last_hidden_state.flatten(0, 1), places, positions, balance)


def layer_balances(
    router_logits: Sequence[torch.Tensor], top_k: int, counted: torch.Tensor, ranks: SequenceRanks | None = None
) -> torch.Tensor:
    """`layer_balance` of every layer [layers]. `router_logits` are [n, E] each, of the tokens of this rank; those that
    `counted` names alone count, int64 [m], as often as it names them."""
    values = []
    for logits in router_logits:
        probabilities = logits.softmax(-1, dtype=torch.float32)
        chosen = probabilities.detach().topk(top_k, dim=-1).indices[counted]
        choices = chosen.flatten().bincount(minlength=logits.shape[-1]).float()
        values.append(layer_balance(choices if ranks is None else ranks.whole(choices), probabilities[counted]))
    stacked = torch.stack(values)
    return stacked if ranks is None else ranks.whole(stacked)


def _encoded(backbone: Any, layout: RowLayout, arguments: dict[str, Any]) -> Any:
    pictures = layout.picture_inputs
    return backbone(**arguments) if pictures is None else pictures.encode(backbone, arguments)


def _of_all_ranks(
    values: torch.Tensor, positions: torch.Tensor, response_mask: torch.Tensor, layout: RowLayout
) -> torch.Tensor:
    """The rows of all response tokens, in their order."""
    if layout.ranks is None:
        return values
    mask = response_mask[:, 1:].reshape(-1)
    return layout.ranks.whole(values.new_zeros(len(mask), values.shape[1]).index_copy(0, positions, values))[mask]


def _at_positions(
    values: torch.Tensor, positions: torch.Tensor, input_ids: torch.Tensor, layout: RowLayout
) -> torch.Tensor:
    rows, width = input_ids.shape
    flat = values.new_zeros(rows * (width - 1)).index_copy(0, positions, values)
    flat = flat if layout.ranks is None else layout.ranks.whole(flat)
    return functional.pad(flat.view(rows, width - 1), (1, 0))
