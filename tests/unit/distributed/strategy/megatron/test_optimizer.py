"""Which kernel of AdamW steps."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from roll.distributed.strategy.megatron.optimizer import prefer_fused


def part_of(parameter: nn.Parameter) -> SimpleNamespace:
    return SimpleNamespace(optimizer=torch.optim.AdamW([parameter], lr=0.1))


def steps(on_gpu: bool, num_steps: int = 4) -> tuple[list[float], SimpleNamespace]:
    """`on_gpu` of a CPU: torch's fused kernel exists there too, so that a step shows its arithmetic."""
    parameter = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    part = part_of(parameter)
    for step in range(num_steps):
        parameter.grad = torch.tensor([0.5, 0.1, -1.0]) * (step + 1)
        prefer_fused([part, SimpleNamespace(optimizer=None)], on_gpu)
        part.optimizer.step()
    return parameter.tolist(), part


def test_kernels_follow_the_device_and_counts_the_weights() -> None:
    fused, part = steps(on_gpu=True)
    assert [group["fused"] for group in part.optimizer.param_groups] == [True]
    assert fused == pytest.approx(steps(on_gpu=False)[0], abs=1e-6)
    alone = part_of(nn.Parameter(torch.ones(2)))
    alone.optimizer.param_groups[0]["fused"] = True
    prefer_fused([alone], on_gpu=False)
    assert alone.optimizer.param_groups[0]["fused"] is None
    # A checkpoint brings them back to host memory, where the fused kernel does not find them.
    parameter = nn.Parameter(torch.ones(2, device="meta"))  # a device that is not the host stands in for a GPU
    part = part_of(parameter)
    part.optimizer.state[parameter] = {"step": torch.tensor(3), "exp_avg": torch.zeros(2)}
    prefer_fused([part], on_gpu=True)
    count = part.optimizer.state[parameter]["step"]
    assert (count.device.type, count.dtype) == ("meta", torch.float32)
    other = SimpleNamespace(optimizer=torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1))
    prefer_fused([other], on_gpu=True)
    assert other.optimizer.param_groups[0]["fused"] is None
