"""Norms of Megatron's local layers."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig


class Norm(torch.nn.RMSNorm):
    """RMSNorm. Under sequence parallelism each rank sees some positions only, and Megatron sums the weight's
    gradient."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **unused: Any):
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
