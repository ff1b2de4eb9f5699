from typing import Any

import pytest
import torch
from torch import nn

from roll.distributed.strategy.host_copies import HostCopies, tensors_of

KEPT_ALIVE: list[Any] = []


def hooked(parameter: nn.Parameter) -> list[str]:
    """A list to which every gradient of the parameter that is collected adds a line, as in Megatron: by a hook on the
    node that accumulates it."""
    calls: list[str] = []
    accumulator: Any = torch.autograd.graph.get_gradient_edge(parameter).node
    accumulator.register_hook(lambda *_: calls.append("collected"))
    KEPT_ALIVE.append(accumulator)  # as Megatron does
    return calls


def test_what_is_away_holds_no_memory_and_comes_back_as_it_was():
    whole = torch.arange(12.0).reshape(3, 4)
    row, other = whole[1], torch.ones(5, dtype=torch.bfloat16)
    copies = HostCopies()
    copies.take([row, whole, other])
    copies.take([whole])  # a second time changes nothing
    assert [tensor.untyped_storage().nbytes() for tensor in (whole, row, other)] == [0, 0, 0]
    copies.bring_back([other])
    assert whole.untyped_storage().nbytes() == 0
    copies.bring_back([whole, whole])
    assert whole.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert row.tolist() == [4, 5, 6, 7]
    assert other.dtype == torch.bfloat16 and other.tolist() == [1] * 5


def test_what_is_frozen_is_copied_once_and_dropped_after_that(monkeypatch: pytest.MonkeyPatch):
    """Weights of a reference travelled home in every step. What lies in host memory stays there while they are back."""
    frozen = nn.Linear(3, 2)
    expected = frozen.weight.tolist()
    copies, made = HostCopies(frozen=True), 0
    make = copies._host_buffer

    def counted(num_bytes: int, pinned: bool) -> torch.Tensor:
        nonlocal made
        made += 1
        return make(num_bytes, pinned)

    monkeypatch.setattr(copies, "_host_buffer", counted)
    for _ in range(3):
        copies.take(tensors_of(frozen))
        assert frozen.weight.untyped_storage().nbytes() == 0
        copies.bring_back(tensors_of(frozen))
        assert frozen.weight.tolist() == expected
    assert made == 2  # weight and bias


def test_what_a_checkpoint_changed_is_copied_anew():
    tensor, copies = torch.ones(3), HostCopies(frozen=True)
    for value, forgets in ((1.0, False), (2.0, True)):
        tensor.fill_(value)
        if forgets:
            copies.forget()
        copies.take([tensor])
        copies.bring_back([tensor])
        assert tensor.tolist() == [value] * 3


def test_buffers_of_a_module_leave_with_its_weights_and_stay_the_same_objects():
    module = nn.BatchNorm1d(2)
    mean, copies = module.running_mean, HostCopies()
    copies.take(tensors_of(module))
    assert mean is not None and mean.untyped_storage().nbytes() == 0
    copies.bring_back(tensors_of(module))
    assert module.running_mean is mean and mean.tolist() == [0, 0]


def test_hooks_on_gradients_are_still_there_after_a_trip():
    parameter = nn.Parameter(torch.ones(3))
    calls = hooked(parameter)
    copies = HostCopies()
    copies.take([parameter])
    copies.bring_back([parameter])
    (parameter * 2).sum().backward()
    assert calls == ["collected"]
