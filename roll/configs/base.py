"""The base of every settings class, and how its keys are declared."""

import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

# How large a number may be that a person means. Beyond these a dry run would count, list or print for ever.

LARGEST = 10**9  # of any number without a limit of its own: fp32 and every engine's integers hold it
LARGEST_REWARD = 3.4028234663852886e38  # float32's, as which rewards are kept
SOLVED = 1.0  # an answer with this reward counts as solved in pass@k, unless its environment reports `success`
LARGEST_SEED = 2**32 - 1  # the engines seed numpy, which takes 32 bits
MOST_NODES = 100_000
MOST_DEVICES_PER_NODE = 1_000
DEVICES_PER_NODE = 8  # where num_gpus_per_node does not say
MOST_DEVICES = 1_000_000
MOST_PROCESSES = 10_000  # of a role on the CPU
MOST_GROUPS = 1_000_000  # of a step, and of answers to one prompt


class Settings(BaseModel):
    """Strict and frozen: an unknown key is an error, a built object never changes. `key: null` is as good as no key,
    where null has no meaning of its own."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), validate_default=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        return {key: value for key, value in tree.items() if value is not None or cls._takes_null(key)}

    def value(self, key: str) -> Any:
        """Return the value of a key of this section. Example: actor_train.name of a run."""
        outer, _, inner = key.partition(".")
        value = getattr(self, outer)
        return value.value(inner) if inner else value

    def is_changed(self, key: str) -> bool:
        """True if a key of this section has another value than its default."""
        outer, _, inner = key.partition(".")
        value = getattr(self, outer)
        if inner:
            return isinstance(value, Settings) and value.is_changed(inner)
        return value != type(self).model_fields[outer].get_default(call_default_factory=True)

    @classmethod
    def _takes_null(cls, key: str) -> bool:
        """True for a key that may be null, and for an unknown one, which must not vanish."""
        info = cls.model_fields.get(key)
        return info is None or info.is_required() or types.NoneType in get_args(info.annotation)


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A key of a section, documented here and nowhere else. `limits` are pydantic's: ge, gt, le, lt, min_length. A
    number is finite, and where no limit says otherwise between -LARGEST and LARGEST."""
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    if is_number or limits.keys() & {"ge", "gt"}:
        limits = _between(-LARGEST, LARGEST, limits)
    if isinstance(default, dict | list):
        return Field(default_factory=lambda: type(default)(default), description=help, **limits)
    return Field(default, description=help, **limits)


def _between(least: float, most: float, limits: dict[str, Any]) -> dict[str, Any]:
    below = {} if limits.keys() & {"ge", "gt"} else {"ge": least}
    above = {} if limits.keys() & {"le", "lt"} else {"le": most}
    return below | above | limits


def nested_class(annotation: Any) -> type[Settings] | None:
    """The settings class inside an annotation: `C`, `C | None`, `dict[str, C]` or `tuple[C, ...]`.

    Example: nested_class(dict[str, RewardConfig] | None) is RewardConfig; nested_class(int) is None.
    """
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, dict, tuple, list):
        return next((inner for arg in get_args(annotation) if (inner := nested_class(arg))), None)
    return None


def holds_mapping(annotation: Any) -> bool:
    """True for `dict[str, C]`, also inside `| None`: the keys of the value are names the user chooses."""
    if get_origin(annotation) in (Union, types.UnionType):
        return any(holds_mapping(arg) for arg in get_args(annotation))
    return get_origin(annotation) is dict


def join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
