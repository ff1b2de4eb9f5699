"""The argument `reward` of `roll.train` as the section `rewards` of a run."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roll.api.keys import name_of
from roll.errors import ConfigError
from roll.utils.text import show

DOMAIN = "reward"
_FORM = "def {name}(sample): return float(str(sample.ground_truth) in sample.response_text)"

Reward = Callable[..., Any] | str | Mapping[str, Any] | Sequence[Callable[..., Any] | str]


def reward_keys(reward: Reward) -> dict[str, Any]:
    """The section `rewards`: one domain for a function, a class, a name (math_rule, package.module:object) or several
    of these that are added; a domain each for a mapping, whose values may be settings too. Functions are still
    functions. Raises ConfigError for what cannot score."""
    if isinstance(reward, Mapping):
        return {str(domain): _settings(f"reward[{domain!r}]", each) for domain, each in reward.items()}
    return {DOMAIN: _settings("reward", reward)}


def takes_every_row(reward: Reward) -> bool:
    """True for one reward, whatever tags rows have: they choose among several domains."""
    return not isinstance(reward, Mapping)


def _settings(key: str, reward: Any) -> dict[str, Any]:
    if isinstance(reward, Mapping):
        if callable(reward.get("reward")):
            check_reward(f"{key}.reward", reward["reward"], reward.get("reward_args") or {})
        return dict(reward)
    if isinstance(reward, list | tuple) and reward:
        return {"reward_manager_config": [{"reward": _one(f"{key}[{i}]", each)} for i, each in enumerate(reward)]}
    return {"reward": _one(key, reward)}


def _one(key: str, reward: Any) -> Any:
    if not isinstance(reward, str):
        check_reward(key, reward)
    return reward


def check_reward(key: str, reward: object, arguments: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError with one sentence on what keeps it from scoring a sample."""
    if not callable(reward):
        raise ConfigError(f"{key}: {show(reward)} cannot be called. Give a function: {_FORM.format(name='reward')}.")
    name = name_of(reward)
    if inspect.isclass(reward):
        if "__call__" not in dir(reward):
            raise ConfigError(f"{key}: the class {name} has no __call__(self, sample). Add one, it does the scoring.")
        return  # built with its arguments where it scores; the run's own checks look at these
    try:
        signature = inspect.signature(reward)
    except ValueError:  # some objects of C extensions have none
        return
    if lists := [part for part in ("completions", "prompts") if part in signature.parameters]:
        raise ConfigError(
            f"{key}: {name}{signature} takes lists ({', '.join(lists)}), as rewards of TRL do; here a call scores one "
            f"sample. Write {_FORM.format(name=name)}."
        )
    try:
        signature.bind(None, **(arguments or {}))
    except TypeError as error:
        raise ConfigError(
            f"{key}: {name}{signature} cannot be called with one sample: {error}. Write {_FORM.format(name=name)}. "
            "For a function of verl's use the reward verl_function."
        ) from None
