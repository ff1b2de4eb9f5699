"""Other packages' kernels for the log-probs of a head. They know no entropy, no adapters and no temperature: what they
cannot do, `head_scores` does."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from roll.configs.checks.training import KERNELS
from roll.errors import StrategyError
from roll.models.head_scores import Ask, Product


def _package(name: str, device: torch.device) -> Any:
    """StrategyError where it cannot run."""
    if device.type != "cuda":
        raise StrategyError(
            f"model_args.fused_kernel_options.impl_backend: {name} runs on GPUs only, and this rank is on "
            f"{device.type}. Use torch"
        )
    try:
        return importlib.import_module(KERNELS[name].module)
    except ImportError as error:
        raise StrategyError(
            f"model_args.fused_kernel_options.impl_backend: {name} needs the package {KERNELS[name].module}. Install "
            f"it: {KERNELS[name].install}"
        ) from error


def kernel_log_probs(
    name: str, products: Sequence[Product], bias: torch.Tensor | None, targets: torch.Tensor, ask: Ask
) -> torch.Tensor | None:
    """Log-probs of targets [N] in fp32, by the package of that name; None where it cannot compute what is asked."""
    bend = ask.bend
    if ask.entropy or ask.top_k or len(products) > 1 or targets.dim() > 1 or (bend.temperature, bend.factor) != (1, 1):
        return None
    cut_cross_entropy = _package(name, targets.device)
    # cce_exact: in its other forms it leaves out gradients that are small, and adds up in bf16.
    loss = cut_cross_entropy.linear_cross_entropy(
        products[0].states,
        products[0].weight,
        targets,
        bias=bias,
        softcap=bend.softcap,
        reduction="none",
        impl="cce_exact",
    )
    return -loss.float()
