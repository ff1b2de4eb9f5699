"""Routers of Hugging Face mixtures: they report which experts each token goes to, or are given the choice.

A mixture that trains computes its experts again under other weights, or after another engine, and routers that are
undecided choose otherwise; probability ratios jump where nothing was learned. With the choices of the pass that gave
the old log-probs (R2) or of the rollout (R3) the same experts are trained that were used: Qwen's GSPO paper (arXiv
2507.18071, section 5.3) and "Stabilizing MoE reinforcement learning by aligning training and inference routers" (arXiv
2510.11370). Weights of experts are those of the present router, so that it learns.
"""

import re
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from roll.errors import StrategyError
from roll.models.sequences.layout import UNKNOWN

_LAYER = re.compile(r"\blayers\.(\d+)\.")


class RouterReplay:
    """The routers of one model, in the order of its layers. `replayed` [n, layers, k] are the experts of the n tokens
    of the forward passes that follow, until others are given, as a pass that is computed again in the backward pass
    needs them."""

    def __init__(self, model: PreTrainedModel):
        """StrategyError for a model whose routers are not known."""
        routers = [module for module in model.modules() if _is_router(module)]
        if not routers:
            raise StrategyError(
                f"router_replay: {model.name_or_path}: {type(model).__name__} has no routers of the form that is known "
                "(a module that says top_k and num_experts, and calls topk once on the scores of all experts)"
            )
        self._routed = [_Routed(router) for router in routers]

    def give(self, routes: torch.Tensor | None) -> None:
        for layer, routed in enumerate(self._routed):
            routed.replayed = None if routes is None else routes[:, layer].long()

    def reported(self) -> torch.Tensor:
        """Return the experts that the routers chose in the last forward pass, int16 [n, layers, k]."""
        return torch.stack([routed.chosen for routed in self._routed], dim=1).to(torch.int16)


def mixture_layers(model: PreTrainedModel) -> tuple[int, ...]:
    """The numbers of the layers whose routers a `RouterReplay` would know, in its order."""
    names = [name for name, module in model.named_modules() if _is_router(module)]
    return tuple(int(match.group(1)) for name in names if (match := _LAYER.search(name)) is not None)


def _is_router(module: nn.Module) -> bool:
    has_sizes = all(type(getattr(module, key, None)) is int for key in ("top_k", "num_experts"))
    return has_sizes and type(module).__name__.endswith("Router")


class _Routed:
    """One router, whose forward pass is computed under `_Choice`."""

    def __init__(self, router: Any):
        self.replayed: torch.Tensor | None = None
        self.chosen = torch.empty(0)
        self._router = router
        router.forward = partial(self._forward, router.forward)

    def _forward(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        choice = _Choice(self._router.num_experts, self._router.top_k, self.replayed)
        with choice:
            output = forward(*args, **kwargs)
        if choice.chosen is None:
            raise StrategyError(f"router_replay: {type(self._router).__name__} does not choose by topk")
        self.chosen = choice.chosen
        return output


class _Choice(TorchFunctionMode):
    """Answers the call of topk that chooses experts, [n, E] -> [n, k], with those that are given."""

    def __init__(self, num_experts: int, top_k: int, routes: torch.Tensor | None):
        super().__init__()
        self._width, self._replayed = (num_experts, top_k), routes
        self.chosen: torch.Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk):
            return result
        scores: torch.Tensor = args[0]
        if scores.dim() != 2 or (scores.shape[1], result.indices.shape[1]) != self._width:
            return result
        self.chosen = result.indices
        if self._replayed is None:
            return result
        self.chosen = torch.where(self._replayed != UNKNOWN, self._replayed, result.indices)
        return torch.return_types.topk((scores.gather(1, self.chosen), self.chosen))
