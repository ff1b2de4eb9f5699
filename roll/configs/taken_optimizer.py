"""`optimizer_from`: a role that begins with the optimizer of another run."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.strategies.spec import Choice


def optimizer_from_key(role: str) -> str:
    return f"{role}.training_args.optimizer_from"


def taken_optimizer_problems(choice: Choice, takes_over: bool, who_can: str) -> Iterator[Problem]:
    """Whatever the machine. `who_can`: strategies that take one over."""
    worker, key = choice.worker, optimizer_from_key(choice.role.name)
    if worker.training_args.optimizer_from is None:
        return
    if not takes_over:
        yield Problem(
            f"{key}: {worker.strategy_name} cannot begin with the optimizer of another run. Strategies that can: "
            f"{who_can}. Or begin with a fresh one.",
            (key, choice.name_key),
        )
    elif worker.model_args.has_lora:
        yield Problem(
            f"{key}: with lora_target a saved model holds the adapters of its run, and new ones have no moments yet. "
            "Begin with a fresh optimizer.",
            (key, f"{choice.role.name}.model_args.lora_target"),
        )
