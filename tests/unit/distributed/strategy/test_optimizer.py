import pytest
import torch
from transformers import get_scheduler

from roll.configs.sections.training import Optimizer, TrainingArgs
from roll.distributed.strategy.optimizer import adamw, learning_rate_factor, optimizer_of, parameter_groups, schedule


@pytest.mark.parametrize("shape", ["constant", "constant_with_warmup", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_from_the_peak_on_the_schedules_are_those_of_transformers(shape: str, warmup: int) -> None:
    if shape == "constant" and warmup:
        pytest.skip("transformers ignores a warm-up of `constant`; here it is obeyed")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler(shape, optimizer, num_warmup_steps=warmup, num_training_steps=10)
    for update in range(11):  # beyond the end, their cosine rises again; ours stays
        if update >= warmup:
            assert learning_rate_factor(shape, update, 10, warmup) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("shape", ["constant", "constant_with_warmup", "linear", "cosine"])
def test_a_warm_up_begins_above_0_and_rises_in_equal_steps_to_the_peak(shape: str) -> None:
    rates = [learning_rate_factor(shape, update, 10, 4) for update in range(5)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_min_lr_ratio_is_where_the_schedule_ends(shape: str) -> None:
    args = TrainingArgs.model_validate(
        {"learning_rate": 2.0, "lr_scheduler_type": shape, "lr_scheduler_kwargs": {"min_lr_ratio": 0.1}}
    )
    optimizer = adamw([{"params": [torch.nn.Parameter(torch.zeros(1))]}], args)
    moving = schedule(optimizer, args, total_updates=8, warmup_updates=2)
    rates = []
    for _ in range(10):
        rates.append(moving.get_last_lr()[0])
        optimizer.step()
        moving.step()
    assert rates[:3] == pytest.approx([2 / 3, 4 / 3, 2])
    assert rates[5] == pytest.approx(2 * (0.1 + 0.9 / 2))
    assert rates[8:] == pytest.approx([0.2, 0.2])


def test_groups_of_adamw_have_the_role_s_numbers_and_decay_matrices() -> None:
    matrix, bias, frozen = (torch.nn.Parameter(torch.zeros(*shape)) for shape in ((2, 2), (2,), (3, 3)))
    frozen.requires_grad_(False)
    groups = parameter_groups([(p, p.dim()) for p in (matrix, bias, frozen)], 0.1)
    assert [(group["weight_decay"], [id(p) for p in group["params"]]) for group in groups] == [
        (0.1, [id(matrix)]),
        (0.0, [id(bias)]),
    ]
    parameters = [(torch.nn.Parameter(torch.zeros(2, 2)), 2), (torch.nn.Parameter(torch.zeros(2)), 1)]
    assert [(len(g["params"]), g["weight_decay"]) for g in parameter_groups(parameters, 0.0)] == [(1, 0.0), (1, 0.0)]
    args = TrainingArgs(learning_rate=0.1, adam_beta1=0.8, adam_beta2=0.7, adam_epsilon=1e-5)
    defaults = adamw([{"params": [torch.nn.Parameter(torch.zeros(1))]}], args).defaults
    assert (defaults["lr"], defaults["betas"], defaults["eps"]) == (0.1, (0.8, 0.7), 1e-5)
    assert [learning_rate_factor("constant", i, 10, 3) for i in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


@pytest.mark.parametrize("optim", ["adamw_torch", "muon"])
def test_biases_of_all_experts_in_one_tensor_are_biases(optim: Optimizer) -> None:
    """Those of gpt-oss: [experts, outputs]. They do not decay, and Muon leaves them to AdamW."""
    module = torch.nn.Module()
    module.register_parameter("gate_up_proj", torch.nn.Parameter(torch.zeros(4, 2, 6)))
    module.register_parameter("gate_up_proj_bias", torch.nn.Parameter(torch.zeros(4, 6)))
    args = TrainingArgs(optim=optim, weight_decay=0.1)
    groups = optimizer_of(module, args, lambda parameter: parameter.dim()).param_groups
    assert [(group["weight_decay"], [p.dim() for p in group["params"]]) for group in groups] == [(0.1, [3]), (0.0, [2])]
