"""Common rules of all training backends: which parameters decay, and how the learning rate moves."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim.lr_scheduler import LambdaLR

from roll.configs.sections.training import EIGHT_BIT, TrainingArgs
from roll.errors import StrategyError
from roll.models.hf import LogProbHead, ValueHead
from roll.platforms.table import platform_of
from roll.utils.imports import resolve

# AdamW whose moments have 8 bits: bitsandbytes' own, by blocks of 256 numbers with one scale.
#
# Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861).

_TABLES = ("qmap1", "qmap2")  # what the codes stand for: one for all weights


def adamw_8bit(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    """An 8-bit AdamW over plain tensors, or over the shards of FSDP2, which bitsandbytes does not know."""
    make: Any = resolve("bitsandbytes.optim:AdamW8bit")
    has_shards = any(isinstance(weight, DTensor) for group in groups for weight in group["params"])
    return OfShards(make, groups, **settings) if has_shards else make(groups, **settings)


class OfShards(torch.optim.Optimizer):
    """An optimizer over this rank's parts of weights that are divided among ranks (DTensor)."""

    def __init__(self, make: Any, groups: list[dict[str, Any]], **settings: Any):
        super().__init__(groups, settings)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        self._parts = {weight: nn.Parameter(weight.detach().to_local()) for weight in weights}
        shards = [
            {**group, "params": [self._parts[weight] for weight in group["params"] if self._parts[weight].numel()]}
            for group in self.param_groups
        ]
        self._optimizer = make(shards, **settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group, inner_group in zip(self.param_groups, self._optimizer.param_groups, strict=True):
            inner_group["lr"] = group["lr"]
        for weight, part in self._parts.items():
            part.data = weight.detach().to_local()  # FSDP2 may have moved it at its first pass
            part.grad = None if weight.grad is None else weight.grad.to_local()
            assert part.is_contiguous()  # otherwise the package updates a copy
        self._optimizer.step()
        for weight, part in self._parts.items():
            part.grad = None
            if self._optimizer.state.get(part):
                self.state[weight] = self._optimizer.state[part]

    def saved(self, weight: nn.Parameter) -> dict[str, Any]:
        """Return the part of a weight's state that must be saved; empty before its first update."""
        return {key: value for key, value in self.state.get(weight, {}).items() if key not in _TABLES}

    def restore(self, saved: Mapping[nn.Parameter, Mapping[str, Any]]) -> None:
        """Takes the place of all states."""
        self.state.clear()
        self._optimizer.state.clear()
        weights = {id(part): weight for weight, part in self._parts.items()}
        for group, place, index, part in self._places():
            weight = weights[id(part)]
            if not saved.get(weight):
                continue
            self._optimizer.init_state(group, part, place, index)  # with the tables
            self.state[weight] = self._optimizer.state[part]
            for key, value in saved[weight].items():
                self.state[weight][key] = value.to(part.device) if torch.is_tensor(value) else value

    def _places(self) -> Iterator[tuple[dict[str, Any], int, int, nn.Parameter]]:
        for place, group in enumerate(self._optimizer.param_groups):
            for index, part in enumerate(group["params"]):
                yield group, place, index, part


# Muon: momentum whose matrices are made orthogonal, for the matrices of a model's layers; AdamW for what else learns.
#
# Jordan, "Muon: an optimizer for hidden layers" (2024); the scale of the update is that of Liu et al., "Muon is
# scalable for LLM training" (arXiv 2502.16982, equation 4): the update's root mean square is AdamW's, so that one
# learning rate and one weight decay serve both.

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
        step = _local_part(orthogonal(_whole(ahead)), ahead)
        rows, columns = weight.shape[-2:]
        weight.mul_(1 - rate * decay)
        weight.add_(step.to(weight.dtype), alpha=-rate * _RMS_OF_ADAMW * max(rows, columns) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with its singular values moved near 1 (.7 to 1.2), by Newton and Schulz's iteration; of a stack, each
    one. In bf16 on a GPU, where the iteration's own error is larger than that."""
    on_device = platform_of(matrix.device).is_accelerator
    values = matrix.bfloat16() if on_device else matrix.to(torch.promote_types(matrix.dtype, torch.float32))
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


def _local_part(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This rank's part of what every rank has."""
    if not isinstance(like, DTensor):
        return whole
    mesh = like.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, like.placements)


def parameter_groups(parameters: Iterable[tuple[nn.Parameter, int]], weight_decay: float) -> list[dict[str, Any]]:
    """Optimizer groups of the trainable ones among (parameter, number of dimensions).

    Weight decay reaches matrices only: norms and biases (one dimension) are left alone, because pulling them to zero
    does not make a model simpler. The groups are two without weight decay as well, because it may come with a resume,
    and backends that flatten groups save them so.
    """
    trainable = [(parameter, dimensions) for parameter, dimensions in parameters if parameter.requires_grad]
    decayed = [parameter for parameter, dimensions in trainable if dimensions > 1]
    others = [parameter for parameter, dimensions in trainable if dimensions <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def has_expert_biases(name: str) -> bool:
    """Whether a parameter of this name has the biases of all experts of a layer, if it has two dimensions."""
    return name.endswith("_bias")


def optimizer_of(
    module: nn.Module,
    args: TrainingArgs,
    dimensions: Callable[[nn.Parameter], int],
) -> torch.optim.Optimizer:
    """Build the optimizer that `optim` names, over the parameters that a model trains. `dimensions`: of a whole
    parameter; biases of all experts of a layer, one tensor [experts, outputs], count as biases."""
    biases = {id(p) for name, p in module.named_parameters() if has_expert_biases(name)}
    measured = [(p, 1 if id(p) in biases else dimensions(p)) for p in module.parameters()]
    if args.optim == "adamw_torch":
        return adamw(parameter_groups(measured, args.weight_decay), args)
    if args.optim == EIGHT_BIT:
        return adamw_8bit(parameter_groups(measured, args.weight_decay), **_rates(args))
    ends = [m for m in module.modules() if isinstance(m, nn.Embedding | LogProbHead | ValueHead)]
    apart = {id(parameter) for end in ends for parameter in end.parameters()}
    matrices = [p for p, number in measured if id(p) not in apart and number > 1 and min(p.shape[-2:]) > 1]
    taken = {id(matrix) for matrix in matrices}
    groups = parameter_groups((pair for pair in measured if id(pair[0]) not in taken), args.weight_decay)
    trained = [matrix for matrix in matrices if matrix.requires_grad]
    first = [{"params": trained, "weight_decay": args.weight_decay, "muon": True}] if trained else []
    return Muon(first + groups, args.muon_momentum, **_adamw_settings(args))


def adamw(groups: list[dict[str, Any]], args: TrainingArgs) -> torch.optim.AdamW:
    """AdamW with torch's fused kernel, on the CPU as on GPUs."""
    return torch.optim.AdamW(groups, **_adamw_settings(args))


def _adamw_settings(args: TrainingArgs) -> dict[str, Any]:
    return {**_rates(args), "fused": True}


def _rates(args: TrainingArgs) -> dict[str, Any]:
    return {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}


def learning_rate_factor(
    shape: str, update: int, total_updates: int, warmup_updates: int, min_ratio: float = 0.0
) -> float:
    """Share of the peak learning rate at the `update`-th update (from 0).

    It rises in a line over `warmup_updates` and reaches the peak with the update after them, then stays ("constant"),
    or falls to `min_ratio` at `total_updates` in a line ("linear") or a half cosine ("cosine"). With min_ratio 0, and
    from the peak on, these are the schedules of transformers.get_scheduler, whose warm-up begins with an update at rate
    0: here that would waste the rollouts of a step.

    Example: linear, 10 updates, 2 of warm-up: .333, .667, 1, .875, .75, ..., .125.
    """
    if update < warmup_updates:
        return (update + 1) / (warmup_updates + 1)
    if shape.startswith("constant"):
        return 1.0
    done = min(1.0, (update - warmup_updates) / max(1, total_updates - warmup_updates))
    remaining = 1 - done if shape == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return min_ratio + (1 - min_ratio) * remaining


def schedule(optimizer: torch.optim.Optimizer, args: TrainingArgs, total_updates: int, warmup_updates: int) -> LambdaLR:
    """The learning-rate schedule of a role, to be stepped once per update."""
    min_ratio = float(args.lr_scheduler_kwargs.get("min_lr_ratio", 0.0))
    return LambdaLR(
        optimizer,
        lambda update: learning_rate_factor(args.lr_scheduler_type, update, total_updates, warmup_updates, min_ratio),
    )


def go_on_after(schedule: LambdaLR, updates_done: int) -> None:
    """Puts a schedule behind so many updates, under the peak rates that it has."""
    schedule.last_epoch = updates_done
    rates = [rate * factor(updates_done) for rate, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates


def not_finite(role: str, norm: float, weights: str = "untouched") -> StrategyError:
    """The end of a run whose gradient is not finite. One such update would make every weight NaN for good, and to leave
    it out silently would hide a fault in loss, data or model."""
    return StrategyError(
        f"{role}: the gradient is not finite (norm {norm:g}); the weights are {weights}. Resume from the newest "
        "checkpoint with a lower learning_rate, a lower max_grad_norm or rewards on a smaller scale, and check the "
        "rewards, actor/ratio_max and train_infer/log_prob_diff_max of the last steps."
    )
