"""Muon against its definition by singular values in float64, and torch's own."""

import numpy as np
import pytest
import torch
from torch import nn

from roll.configs.sections.training import TrainingArgs
from roll.distributed.strategy.optimizer import Muon, optimizer_of, orthogonal
from roll.models.hf import LogProbHead
from tests.parity.strategies.reference import SlowMuon


def filled(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(6, 6), (3, 8), (9, 4), (4, 5, 3)], ids=str)
def test_five_updates_are_those_of_singular_values_in_float64(shape: tuple[int, ...]) -> None:
    """Square, wide, tall, and a stack of matrices; momentum, Nesterov, decay."""
    mine, slow = nn.Parameter(filled(*shape)), nn.Parameter(filled(*shape))
    optimizer = Muon([{"params": [mine], "weight_decay": 0.3, "muon": True}], momentum=0.95, lr=0.02)
    reference = SlowMuon([slow], weight_decay=0.3)
    for update in range(5):
        mine.grad, slow.grad = (filled(*shape, seed=10 + update) for _ in range(2))
        optimizer.step()
        reference.step(0.02)
    np.testing.assert_allclose(mine.detach().numpy(), slow.detach().numpy(), rtol=0, atol=1e-12)
    assert list(optimizer.state[mine]) == ["momentum_buffer"]


def test_it_is_torchs_muon_but_for_what_bf16_rounds() -> None:
    """Theirs iterates in bf16, whose rounding five iterations amplify: 3 % of the way in five updates."""
    start = filled(8, 6).float()
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = [
        Muon([{"params": [mine], "weight_decay": 0.1, "muon": True}], momentum=0.9, lr=0.02),
        torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"),
    ]
    for update in range(5):
        mine.grad, theirs.grad = (filled(8, 6, seed=update).float() for _ in range(2))
        for optimizer in optimizers:
            optimizer.step()
    assert float((mine - theirs).detach().norm()) < 0.03 * float((theirs - start).detach().norm())


def test_singular_values_come_near_one_and_a_gradient_of_zero_stays_zero() -> None:
    values = torch.linalg.svdvals(orthogonal(filled(12, 30)))
    assert float(values.min()) > 0.6 and float(values.max()) < 1.25
    assert not orthogonal(torch.zeros(3, 4)).any()


def test_matrices_of_layers_get_muon_and_all_else_adamw() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.layer = nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.norm = nn.LayerNorm(4)
            self.conv = nn.Conv1d(4, 4, 3, groups=4)
            self.head = LogProbHead(nn.Linear(4, 7, bias=False))

    model = Model()
    args = TrainingArgs(optim="muon", weight_decay=0.1, learning_rate=0.5)
    optimizer = optimizer_of(model, args, lambda parameter: parameter.dim())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [
        (g.get("muon", False), g["weight_decay"], sorted(names[id(p)] for p in g["params"]))
        for g in optimizer.param_groups
    ]
    assert groups == [
        (True, 0.1, ["layer.weight"]),
        (False, 0.1, ["conv.weight", "embed.weight", "head.lm_head.weight"]),
        (False, 0.0, ["conv.bias", "layer.bias", "norm.bias", "norm.weight"]),
    ]
    plain = optimizer_of(model, TrainingArgs(weight_decay=0.1, learning_rate=0.5), lambda parameter: parameter.dim())
    for _ in range(3):
        (
            model.head(model.layer(model.embed(torch.arange(7))), torch.arange(7)).log_probs.sum()
            + model.norm.weight.sum()
        ).backward()
        optimizer.step()
    assert type(plain) is torch.optim.AdamW
    assert {names[id(p)] for p, state in optimizer.state.items() if "momentum_buffer" in state} == {"layer.weight"}
    assert "exp_avg" in optimizer.state[model.embed.weight]
