"""The argument `reward` of `roll.train` as the section `rewards` of a run."""

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


def _settings(key: str, reward: Any) -> dict[str, Any]:
    if isinstance(reward, Mapping):
        return dict(reward)
    if isinstance(reward, list | tuple) and reward:
        return {"reward_manager_config": [{"reward": _one(f"{key}[{i}]", each)} for i, each in enumerate(reward)]}
    return {"reward": _one(key, reward)}


def _one(key: str, reward: Any) -> Any:
    """Raises ConfigError for what is no reward at a look. The checks of the run call it."""
    if isinstance(reward, str):
        return reward
    if not callable(reward):
        raise ConfigError(f"{key}: {show(reward)} cannot be called. Give a function: {_FORM.format(name='reward')}.")
    code = getattr(reward, "__code__", None)  # of a function
    taken = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if lists := [part for part in ("completions", "prompts") if part in taken]:
        raise ConfigError(
            f"{key}: {name_of(reward)} takes lists ({', '.join(lists)}), as rewards of TRL do; here a call scores one "
            f"sample. Write {_FORM.format(name=name_of(reward))}."
        )
    return reward
