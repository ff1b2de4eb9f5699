"""The base of every settings class, and the four ways to declare a key.

- `setting`  a key that does something;
- `ignored`  a key users know whose job is done another way here: a warning when it is given another value than its
default;
- `unread`   a key that ROLL declares and never reads: a warning whenever it is given;
- `planned`  a key we know and do not implement yet: silent at an inert value, an error otherwise.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from roll.configs.limits import LARGEST

Kind = Literal["setting", "ignored", "unread", "planned"]


@dataclass(frozen=True)
class KeyMark:
    """How a key is declared: its kind, why it does nothing here, and the values at which a planned key is inert."""

    kind: Kind
    reason: str = ""
    inert: tuple[Any, ...] = ()


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
        """What stands under a key of this section. Example: actor_train.name of a run."""
        own, _, inner = key.partition(".")
        found = getattr(self, own)
        return found.value(inner) if inner else found

    def is_changed(self, key: str) -> bool:
        """True if a key of this section has another value than its default."""
        own, _, inner = key.partition(".")
        found = getattr(self, own)
        if inner:
            return isinstance(found, Settings) and found.is_changed(inner)
        return found != type(self).model_fields[own].get_default(call_default_factory=True)

    @classmethod
    def _takes_null(cls, key: str) -> bool:
        """True for a key that may be null, and for an unknown one, which must not vanish."""
        info = cls.model_fields.get(key)
        return info is None or info.is_required() or types.NoneType in get_args(info.annotation)


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A key that does something. `limits` are pydantic's: ge, gt, le, lt, min_length. A number is finite, and where no
    limit says otherwise between -LARGEST and LARGEST."""
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    if is_number or limits.keys() & {"ge", "gt"}:
        limits = _between(-LARGEST, LARGEST, limits)
    return _field(default, help, KeyMark("setting"), limits)


def _between(least: float, most: float, limits: dict[str, Any]) -> dict[str, Any]:
    below = {} if limits.keys() & {"ge", "gt"} else {"ge": least}
    above = {} if limits.keys() & {"le", "lt"} else {"le": most}
    return below | above | limits


def ignored(default: Any, help: str, why: str) -> Any:
    """A key that is accepted and changes nothing here, because `why`."""
    return _field(default, help, KeyMark("ignored", why), {})


def unread(default: Any, help: str) -> Any:
    """A key that ROLL declares and never reads."""
    return _field(default, help, KeyMark("unread", "ROLL declares this key and never reads it"), {})


def planned(default: Any, help: str, inert: tuple[Any, ...] = ()) -> Any:
    """A key without an implementation yet; its default and `inert` values are accepted because they ask for nothing."""
    return _field(default, help, KeyMark("planned", inert=(default, *inert)), {})


def _field(default: Any, help: str, mark: KeyMark, limits: dict[str, Any]) -> Any:
    if isinstance(default, dict | list):
        field = Field(default_factory=lambda: type(default)(default), description=help, **limits)
    else:
        field = Field(default, description=help, **limits)
    field.metadata.append(mark)  # pyright: ignore[reportAttributeAccessIssue]
    return field


def mark_of(field: FieldInfo) -> KeyMark:
    return next((item for item in field.metadata if isinstance(item, KeyMark)), KeyMark("setting"))


def nested_class(annotation: Any) -> type[Settings] | None:
    """The settings class inside an annotation: `C`, `C | None`, `dict[str, C]` or `tuple[C, ...]`.

    Example: nested_class(dict[str, RewardConfig] | None) is RewardConfig; nested_class(int) is None.
    """
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, dict, tuple, list):
        return next((found for arg in get_args(annotation) if (found := nested_class(arg))), None)
    return None


def holds_mapping(annotation: Any) -> bool:
    """True for `dict[str, C]`, also inside `| None`: the keys of the value are names the user chooses."""
    if get_origin(annotation) in (Union, types.UnionType):
        return any(holds_mapping(arg) for arg in get_args(annotation))
    return get_origin(annotation) is dict


def walk(cls: type[Settings], tree: Any, path: str = "") -> Iterator[tuple[type[Settings], dict[str, Any], str]]:
    """Every mapping of a raw tree together with the settings class it will become and its YAML path."""
    if not isinstance(tree, dict):
        return
    yield cls, tree, path
    for key, field in cls.model_fields.items():
        inner, value = nested_class(field.annotation), tree.get(key)
        if inner is None or value is None:
            continue
        here = join(path, key)
        if isinstance(value, Mapping) and holds_mapping(field.annotation):
            for name, child in value.items():
                yield from walk(inner, child, join(here, name))
        elif isinstance(value, list):
            for i, child in enumerate(value):
                yield from walk(inner, child, f"{here}[{i}]")
        else:
            yield from walk(inner, value, here)


def join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
