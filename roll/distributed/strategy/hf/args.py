"""`strategy_config` of hf_infer as a rollout engine; imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from roll.configs.base import LARGEST
from roll.configs.problems import Problem, nearest
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.utils.text import show


@dataclass(frozen=True)
class HfSettings:
    max_model_len: int | None = None  # prompt + answer; default: what the model allows
    max_num_seqs: int = 256  # samples that decode at once; more wait


def parse_settings(role: WorkerConfig) -> HfSettings:
    """Settings of a role that passed `argument_problems`; null means the default."""
    return HfSettings(**{key: value for key, value in role.strategy_config.items() if value is not None})


def problems(choice: Choice) -> Iterator[Problem]:
    """Yield the problems of a role with this strategy, for its spec."""
    if choice.role.use == "generate":
        yield from argument_problems(choice.role.name, choice.worker)


def argument_problems(role_name: str, role: WorkerConfig) -> Iterator[Problem]:
    """Keys that hf_infer does not have, and values that it cannot use."""
    known = [field.name for field in fields(HfSettings)]
    for key, value in role.strategy_config.items():
        at = f"{role_name}.strategy_args.strategy_config.{key}"
        if key not in known:
            match = nearest(key, known)
            hint = f"Did you mean {match}?" if match else f"It has {' and '.join(known)}."
            yield Problem(f"{at}: hf_infer has no such setting. {hint}", (at,))
        elif value is not None and (type(value) is not int or not 1 <= value <= LARGEST):
            yield Problem(f"{at}: {show(value)} must be a whole number from 1 to {LARGEST}.", (at,))
