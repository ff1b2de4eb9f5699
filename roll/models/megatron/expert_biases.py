"""What experts with biases need beyond Megatron's own layers."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel import RowParallelLinear
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes


class ExpertOutput(RowParallelLinear):
    """The last matrix of an expert that no tensor-parallel ranks divide. They may hold other experts, or other tokens
    of the same; Megatron (0.16) would sum the gradients of these biases over them under sequence parallelism, and count
    those of the first rank alone in the gradient's norm."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        bias: Any = self.bias
        bias.sequence_parallel = False
        set_tensor_model_parallel_attributes(bias, True, 0, 1)

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A tensor of its own: Megatron adds the bias to it in place, which autograd forbids where it is a view."""
        output, bias = super().forward(input_)
        return output.clone(), bias
