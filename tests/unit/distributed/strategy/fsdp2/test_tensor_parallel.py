"""Gradients of what tensor-parallel ranks have whole."""

from typing import Any

import pytest
import torch
from torch import nn

from roll.distributed.strategy.fsdp2 import sharding as tensor_parallel


class Group:
    def size(self) -> int:
        return 2


@pytest.mark.parametrize(("summed", "expected"), [(frozenset[str](), 3.0), (frozenset({"norm"}), 6.0)])
def test_a_gradient_in_host_memory_is_summed_on_the_device(
    monkeypatch: pytest.MonkeyPatch, summed: frozenset[str], expected: float
) -> None:
    """`offload_policy: true` keeps gradients on the host; NCCL must be given a copy on the device. float64 stands in
    for the device, to which the gradient goes by `Tensor.to`."""
    gradient, sent = torch.full((2,), 3.0), list[torch.dtype]()

    def double(tensor: torch.Tensor, group: Any) -> None:
        sent.append(tensor.dtype)
        tensor.mul_(2)

    monkeypatch.setattr(tensor_parallel.dist, "all_reduce", double)
    monkeypatch.setattr(tensor_parallel, "_whole_gradients", lambda _: iter([("norm", torch.float64, gradient)]))
    tensor_parallel.make_one({"norm": nn.Parameter(torch.ones(2))}, summed, Group())  # type: ignore[arg-type]
    assert sent == [torch.float64]
    assert gradient.tolist() == [expected, expected]
