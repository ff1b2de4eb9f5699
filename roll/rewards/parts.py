"""Which parts make up the reward of a domain: `reward` itself, `reward_manager_config`, and the penalty of
`response_length_penalty_coef`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roll.rewards.builtins import BUILTINS
from roll.rewards.config import RewardConfig

SHORT = "short_response"


@dataclass(frozen=True)
class Part:
    """A reward by its name or path, and what is added of it. `name` is that of its metrics, `key` the YAML's."""

    key: str
    name: str
    reward: str
    args: Mapping[str, Any]
    weight: float = 1.0
    is_main: bool = False


def parts_of(config: RewardConfig, key: str = "") -> tuple[Part, ...]:
    """The parts in the order in which they are judged; none where a reward model judges. `key` is where the domain
    stands in the YAML."""
    if config.is_model:
        return ()
    found: list[Part] = []
    if config.reward is not None:
        args = {**_type_args(config.reward, config), **_settings(config.reward, config), **config.reward_args}
        found.append(Part(key, short_name(config.reward), config.reward, args, is_main=True))
    for index, part in enumerate(config.reward_manager_config):
        name = part.name or short_name(part.reward)
        found.append(Part(f"{key}.reward_manager_config.{index}", name, part.reward, part.reward_args, part.weight))
    if config.response_length_penalty_coef:
        found.append(Part(key, SHORT, SHORT, {}, config.response_length_penalty_coef))
    return tuple(found)


def short_name(reward: str) -> str:
    """Example: my_rewards:brevity -> brevity."""
    return reward.rpartition(":")[2].rpartition(".")[2]


def _settings(reward: str, config: RewardConfig) -> dict[str, Any]:
    row = BUILTINS.get(reward)
    return {} if row is None else {key: getattr(config, key) for key in row.settings}


def _type_args(reward: str, config: RewardConfig) -> dict[str, Any]:
    """`reward_type` is an argument of the rewards that know it. Of those that come with roll the others do without, as
    in ROLL."""
    row = BUILTINS.get(reward)
    if config.reward_type is None or (row is not None and not row.reward_types):
        return {}
    return {"reward_type": config.reward_type}
