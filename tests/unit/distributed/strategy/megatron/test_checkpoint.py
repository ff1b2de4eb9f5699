"""What an optimizer is given before a checkpoint is read into it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from roll.distributed.strategy.megatron.checkpoint import _prime


class FusedAdam(torch.optim.Optimizer):
    """In the form of transformer-engine's, which Megatron takes wherever that package is installed: steps are counted
    per group, and reading its state looks up the type of every entry."""

    TYPES = {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}

    def __init__(self, parameters: list[torch.nn.Parameter]):
        super().__init__(parameters, {"lr": 1e-3, "step": 0})

    def state_dict(self) -> dict[str, Any]:
        for state in self.state.values():
            for name, value in state.items():
                assert value.dtype == self.TYPES[name]
        return super().state_dict()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (torch.optim.AdamW, {"step", "exp_avg", "exp_avg_sq"}),
        (torch.optim.Adam, {"step", "exp_avg", "exp_avg_sq"}),
        (FusedAdam, {"exp_avg", "exp_avg_sq"}),
    ],
)
def test_every_kind_of_optimizer_gets_the_states_that_it_knows(kind: Any, expected: set[str]) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([parameter])
    _prime(SimpleNamespace(chained_optimizers=[SimpleNamespace(optimizer=optimizer), SimpleNamespace(optimizer=None)]))
    assert optimizer.state[parameter].keys() == expected
    assert not any(optimizer.state[parameter][name].any() for name in expected)
    optimizer.state_dict()
