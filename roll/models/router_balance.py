"""How evenly a Hugging Face mixture spreads its tokens over experts, from what its routers say."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from roll.algorithms.moe_aux_loss import layer_balance
from roll.errors import StrategyError
from roll.models.sequence_ranks import SequenceRanks


def balances(
    router_logits: Sequence[torch.Tensor], top_k: int, counted: torch.Tensor, ranks: SequenceRanks | None = None
) -> torch.Tensor:
    """`layer_balance` of every layer [layers]. `router_logits` are [n, E] each, of the tokens of this rank; those that
    `counted` names alone count, int64 [m], as often as it names them."""
    found = []
    for logits in router_logits:
        probabilities = logits.softmax(-1, dtype=torch.float32)
        chosen = probabilities.detach().topk(top_k, dim=-1).indices[counted]
        choices = chosen.flatten().bincount(minlength=logits.shape[-1]).float()
        found.append(layer_balance(choices if ranks is None else ranks.whole(choices), probabilities[counted]))
    own = torch.stack(found)
    return own if ranks is None else ranks.whole(own)


def check_routers(model: PreTrainedModel) -> None:
    """StrategyError unless Hugging Face itself gives the model a load-balancing loss: then its routers' logits are
    told, and softmax makes probabilities of them."""
    if not hasattr(sys.modules[type(model).__module__], "load_balancing_loss_func"):
        raise StrategyError(
            f"model_args.moe_aux_loss_coef: {model.name_or_path}: {type(model).__name__} of transformers has no "
            "load-balancing loss. Remove the key"
        )
