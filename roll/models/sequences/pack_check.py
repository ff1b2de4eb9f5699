"""Whether the rows of a pack, or of a tree, see nothing of each other: asked of the model itself, before it computes
for anybody."""

from __future__ import annotations

import torch
from transformers.modeling_layers import GenericForSequenceClassification

from roll.models.hf import SequenceModel
from roll.models.loading import LoadedModel
from roll.models.sequence_ranks import SequenceRanks
from roll.models.sequences.layout import RowLayout
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import refusal, tree_refusal
from roll.models.sequences.tree import tree_or_pack

_LENGTHS = (7, 5)
_TOLERANCE = {torch.float32: 1e-4}  # of the norm; leaks of random weights are above 1e-2
_HALF = 3e-2


def check_packs(model: LoadedModel, device: torch.device, ranks: SequenceRanks | None = None) -> None:
    """StrategyError if the hidden states of a row depend on what stands before it in the pack, or on which of the
    `ranks` computes a token: where a layer mixes tokens other than by its attention function, or positions do not count
    within rows. A few tokens, three times."""
    before = torch.arange(3, 3 + max(_LENGTHS), device=device)
    row, lengths = before + 2, torch.tensor(_LENGTHS, device=device)
    alone = _hidden(model, row[None], lengths[1:])
    for other in (before, before.flip(0)):
        behind = _hidden(model, torch.stack([other, row]), lengths, ranks)[-len(alone) :]
        if (off := _off(behind, alone)) is not None:
            raise refusal(f"a row is off by {off:.0%} behind another one")


def check_trees(model: LoadedModel, device: torch.device) -> None:
    """The same of rows that share prefixes, on two levels: StrategyError if a row is another one than alone."""
    row = torch.arange(3, 3 + max(_LENGTHS), device=device)
    other, third = row.clone(), row.clone()
    other[2:] += 9
    third[4:] += 4
    rows = torch.stack([other, row, third, row])
    lengths = torch.tensor([7, 7, 7, 5], device=device)
    alone = [_hidden(model, each[None], length[None]) for each, length in zip(rows, lengths, strict=True)]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        ids = rows[order]
        counts = lengths[order] if isinstance(model.module, SequenceModel) else lengths[order] - 1
        tree = tree_or_pack(ids, counts, least_saved=0)
        assert tree.shares_tokens
        whole = _hidden(model, ids, lengths[order], layout=tree)
        for at, own in enumerate(order):
            columns = torch.arange(len(alone[own]), device=device)
            found = whole[tree.places(torch.full_like(columns, at), columns)]
            if (off := _off(found, alone[own])) is not None:
                raise tree_refusal(f"a row is off by {off:.0%} beside others that begin alike")


def _off(found: torch.Tensor, alone: torch.Tensor) -> float | None:
    """Relative difference of two hidden states (norm of the difference by norm); None if rounding explains it."""
    off = float((found - alone).float().norm() / alone.float().norm())
    return None if off < _TOLERANCE.get(alone.dtype, _HALF) else off


def _hidden(
    model: LoadedModel,
    input_ids: torch.Tensor,
    lengths: torch.Tensor,
    ranks: SequenceRanks | None = None,
    layout: RowLayout | None = None,
) -> torch.Tensor:
    """Hidden states [N, H] of these rows, as a pack or by the `layout`, by the module's own pass, which gathers its
    weights."""
    module, found = model.module, []
    if isinstance(module, SequenceModel):
        if not isinstance(module.pretrained, GenericForSequenceClassification):
            raise refusal(f"{type(module.pretrained).__name__} reads rows in a way of its own")
        backbone: torch.nn.Module = module.pretrained.base_model
    else:
        backbone = module.backbone
    hook = backbone.register_forward_hook(lambda *call: found.append(call[-1].last_hidden_state[0]))
    try:
        if isinstance(module, SequenceModel):
            pack = Pack.of(input_ids, lengths)
            module(input_ids, lengths, layout or (pack if ranks is None else pack.shared(ranks)))
        else:
            columns = torch.arange(input_ids.shape[1], device=input_ids.device)
            pack = Pack.scored(input_ids, lengths, ranks)
            module(input_ids, columns < lengths[:, None], layout=layout or pack)
    except TypeError as error:
        raise refusal(f"its forward pass takes no packs: {error}") from error
    finally:
        hook.remove()
    if ranks is None:
        return found[0]
    num_tokens = int((lengths if isinstance(module, SequenceModel) else lengths - 1).sum())
    return ranks.joined(found[0])[:num_tokens]
