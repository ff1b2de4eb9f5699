from typing import Any

import torch
from torch import nn

from roll.distributed.strategy.host_copies import HostCopies

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


def test_host_memory_of_the_first_trip_serves_the_next_ones():
    tensor = torch.ones(7)
    copies = HostCopies()
    used = set()
    for _ in range(3):
        copies.take([tensor])
        used |= {copy.data_ptr() for _, copy in copies._away.values()}
        copies.bring_back([tensor])
    assert len(used) == 1


def test_hooks_on_gradients_are_still_there_after_a_trip():
    parameter = nn.Parameter(torch.ones(3))
    calls = hooked(parameter)
    copies = HostCopies()
    copies.take([parameter])
    copies.bring_back([parameter])
    (parameter * 2).sum().backward()
    assert calls == ["collected"]


def test_other_data_of_another_type_would_have_lost_the_hooks():
    """Why a tensor's data is not replaced: torch makes a new accumulator when type or device of a parameter changes.
    What it does for a device can be seen here with a type."""
    parameter = nn.Parameter(torch.ones(3))
    calls = hooked(parameter)
    for dtype in (torch.float16, torch.float32):
        parameter.data = parameter.data.to(dtype)
    (parameter * 2).sum().backward()
    assert calls == []
