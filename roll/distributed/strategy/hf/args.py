"""`strategy_config` of hf_infer as a rollout engine; imports no torch."""

from collections.abc import Iterator

from roll.configs.base import Settings, setting
from roll.configs.load.validate import validate
from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice


class HfSettings(Settings):
    """`strategy_config` of hf_infer where it samples."""

    max_model_len: int | None = setting(
        None, "Prompt and answer together. Default: what the model allows.", ge=1, strict=True
    )
    max_num_seqs: int = setting(256, "Samples that decode at once; more wait.", ge=1, strict=True)


def problems(choice: Choice) -> Iterator[Problem]:
    """Yield the problems of a role with this strategy, for its spec."""
    if choice.role.use != "generate":
        return
    for problem in validate(HfSettings, choice.worker.strategy_config).problems:
        yield Problem(f"{choice.at}.{problem.text}", tuple(f"{choice.at}.{key}" for key in problem.keys))
