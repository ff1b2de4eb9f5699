"""Muon: momentum whose matrices are made orthogonal, for the matrices of a model's layers; AdamW for what else learns.

Jordan, "Muon: an optimizer for hidden layers" (2024); the scale of the update is that of Liu et al., "Muon is scalable
for LLM training" (arXiv 2502.16982, equation 4): the update's root mean square is AdamW's, so that one learning rate
and one weight decay serve both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the polynomial whose iteration makes a matrix orthogonal, nearly
_ITERATIONS = 5
_LEAST_NORM = 1e-7
_RMS_OF_ADAMW = 0.2


class Muon(torch.optim.AdamW):
    """Groups with `muon: True` hold matrices, or stacks of them; AdamW takes the others. A matrix that is divided among
    ranks (DTensor) is gathered for its update, one at a time, and every rank computes all of it. The ranks' groups
    have the same weights in the same order."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float, **adamw: Any):
        super().__init__(groups, **adamw)
        self._momentum = momentum

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        everything = self.param_groups
        for group in everything:
            for weight in group["params"] if group.get("muon") else ():
                if weight.grad is not None:
                    self._update(weight, group["lr"], group["weight_decay"])
        self.param_groups = [group for group in everything if not group.get("muon")]
        try:
            super().step()
        finally:
            self.param_groups = everything

    def _update(self, weight: torch.Tensor, rate: float, decay: float) -> None:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        momentum = state["momentum_buffer"].mul_(self._momentum).add_(gradient)
        ahead = gradient.add(momentum, alpha=self._momentum)  # Nesterov
        step = _own_part(orthogonal(_whole(ahead)), ahead)
        rows, columns = weight.shape[-2:]
        weight.mul_(1 - rate * decay)
        weight.add_(step.to(weight.dtype), alpha=-rate * _RMS_OF_ADAMW * max(rows, columns) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its singular values moved near 1 (.7 to 1.2), by Newton and Schulz's iteration; of a stack, each
    one. In bf16 on a GPU, where the iteration's own error is larger than that."""
    values = matrix.bfloat16() if matrix.is_cuda else matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    is_tall = values.shape[-2] > values.shape[-1]
    values = values.mT if is_tall else values
    values = values / values.norm(dim=(-2, -1), keepdim=True).clamp(min=_LEAST_NORM)
    a, b, c = COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = values @ values.mT
        values = a * values + (b * gram + c * gram @ gram) @ values
    return values.mT if is_tall else values


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _own_part(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of what every rank has."""
    if not isinstance(like, DTensor):
        return whole
    mesh = like.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, like.placements)
