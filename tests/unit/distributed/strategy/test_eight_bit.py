"""AdamW with moments of 8 bits: what the package is given. It need not be installed: a stand-in records, and computes
with torch's AdamW under the package's names."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from roll.configs.sections.training import TrainingArgs
from roll.distributed.strategy.optimizer import OfShards, optimizer_of

SETTINGS = TrainingArgs(
    optim="adamw_bnb_8bit", learning_rate=0.01, weight_decay=0.1, adam_beta2=0.95, adam_epsilon=1e-6
)


class Recorded(torch.optim.Optimizer):
    """The package's class as far as it is used: `state1`, `state2`, tables, `init_state` and a count that is no
    tensor."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], eps: float):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    def init_state(self, group: dict[str, Any], p: torch.Tensor, gindex: int, pindex: int) -> None:
        assert self.param_groups[gindex] is group and group["params"][pindex] is p
        zeros = {key: torch.zeros_like(p) for key in ("state1", "state2")}
        self.state[p] = {"step": 0, **zeros, "qmap1": torch.ones(2), "qmap2": torch.ones(3)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for place, group in enumerate(self.param_groups):
            for index, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                assert type(p.data) is torch.Tensor and type(p.grad) is torch.Tensor and p.numel()
                if not self.state.get(p):
                    self.init_state(group, p, place, index)
                state, (first, second) = self.state[p], group["betas"]
                state["step"] += 1
                state["state1"].lerp_(p.grad, 1 - first)
                state["state2"].lerp_(p.grad**2, 1 - second)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                mean, square = (state[f"state{n}"] / (1 - b ** state["step"]) for n, b in ((1, first), (2, second)))
                p.sub_(group["lr"] * mean / (square.sqrt() + group["eps"]))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module, inner = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.optim")
    inner.AdamW8bit = Recorded  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", module)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", inner)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[Any]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def model(mesh: Any = None) -> nn.Module:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(64, 80), nn.LayerNorm(80), nn.Linear(80, 64, bias=False).requires_grad_(False))
    if mesh is not None:
        for layer in module:
            for name, weight in list(layer.named_parameters()):
                shard = distribute_tensor(weight.detach(), mesh, [Shard(0)])
                setattr(layer, name, nn.Parameter(shard, requires_grad=weight.requires_grad))
    return module


def updated(module: nn.Module, optimizer: torch.optim.Optimizer, first: int, count: int) -> list[torch.Tensor]:
    """The trained weights after so many updates, each at a rate of its own."""
    for update in range(first, first + count):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + update)
        for place, weight in enumerate(p for p in module.parameters() if p.requires_grad):
            values = torch.randn(weight.shape, generator=torch.Generator().manual_seed(10 * update + place))
            is_shard = isinstance(weight, DTensor)
            weight.grad = distribute_tensor(values, weight.device_mesh, [Shard(0)]) if is_shard else values
        optimizer.step()
        optimizer.zero_grad()
    weights = [p.detach() for p in module.parameters() if p.requires_grad]
    return [w.full_tensor() if isinstance(w, DTensor) else w.clone() for w in weights]


def by_torch(module: nn.Module) -> torch.optim.Optimizer:
    args = SETTINGS.model_copy(update={"optim": "adamw_torch"})
    return optimizer_of(module, args, lambda parameter: parameter.dim())


def test_the_package_gets_the_groups_and_the_settings(package: None) -> None:
    module = model()
    optimizer = optimizer_of(module, SETTINGS, lambda parameter: parameter.dim())
    assert type(optimizer) is Recorded
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = [(g["weight_decay"], [names[id(p)] for p in g["params"]]) for g in optimizer.param_groups]
    assert groups == [(0.1, ["0.weight"]), (0.0, ["0.bias", "1.weight", "1.bias"])]
    assert optimizer.defaults == {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.0}


def test_shards_are_updated_as_plain_tensors_under_the_rates_of_the_schedule(package: None, one_rank: Any) -> None:
    plain, cut = model(), model(one_rank)
    optimizer = optimizer_of(cut, SETTINGS, lambda parameter: parameter.dim())
    assert isinstance(optimizer, OfShards)
    reference = by_torch(plain)
    updated(cut, optimizer, 0, 1)
    updated(plain, reference, 0, 1)
    moved = next(cut.parameters())
    assert isinstance(moved, DTensor)
    moved._local_tensor = moved._local_tensor.clone()  # as FSDP2 does at its first pass, to pad
    found, expected = updated(cut, optimizer, 1, 2), updated(plain, reference, 1, 2)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    trained = [p for p in cut.parameters() if p.requires_grad]
    assert all(set(optimizer.state[p]) == {"step", "state1", "state2", "qmap1", "qmap2"} for p in trained)


def test_saved_states_go_on_exactly(package: None, one_rank: Any, tmp_path: Path) -> None:
    """Through a file that torch reads with weights_only."""
    whole = model(one_rank)
    optimizer = optimizer_of(whole, SETTINGS, lambda parameter: parameter.dim())
    assert isinstance(optimizer, OfShards)
    updated(whole, optimizer, 0, 2)
    weights = {n: w.full_tensor().detach() for n, w in whole.named_parameters() if isinstance(w, DTensor)}
    torch.save({n: optimizer.saved(p) for n, p in whole.named_parameters()}, tmp_path / "moments.pt")
    again = model(one_rank)
    with torch.no_grad():
        for name, weight in again.named_parameters():
            weight.copy_(distribute_tensor(weights[name], one_rank, [Shard(0)]))
    resumed = optimizer_of(again, SETTINGS, lambda parameter: parameter.dim())
    assert isinstance(resumed, OfShards)
    read = torch.load(tmp_path / "moments.pt", weights_only=True)
    assert not read["2.weight"] and "qmap1" not in read["0.weight"]
    resumed.restore({weight: read[name] for name, weight in again.named_parameters()})
    for mine, theirs in zip(updated(again, resumed, 2, 2), updated(whole, optimizer, 2, 2), strict=True):
        assert torch.equal(mine, theirs)
