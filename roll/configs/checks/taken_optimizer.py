"""`optimizer_from`: a role that begins with the optimizer of another run."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import Choice
from roll.configs.strategies.table import feature_problem


def optimizer_from_key(role: str) -> str:
    return f"{role}.training_args.optimizer_from"


def taken_optimizer_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role from beginning with the optimizer of another run, whatever the machine."""
    worker, key = choice.worker, optimizer_from_key(choice.role.name)
    source = worker.training_args.optimizer_from
    if source is None:
        return
    if problem := feature_problem(choice, Feature.OPTIMIZER_FROM, source):
        yield problem
    elif worker.model_args.has_lora:
        yield Problem(
            f"{key}: with lora_target a saved model holds the adapters of its run, and new adapters have no moments "
            "yet. Start with a fresh optimizer.",
            (key, f"{choice.role.name}.model_args.lora_target"),
        )
