"""Which keys may stand in a section of a YAML, those that do nothing included, and a walk over a raw tree by them."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.base import Settings, holds_mapping, join, nested_class
from roll.configs.load.inert_keys import inert_keys

Path = tuple[str | int, ...]


def known_keys(settings: type[Settings]) -> dict[str, Any]:
    """The type of the value of each key that a section may have."""
    fields = {key: field.annotation for key, field in settings.model_fields.items()}
    return fields | {key: inert.type for key, inert in inert_keys(settings).items()}


def sections(
    settings: type[Settings], tree: Any, path: Path = ()
) -> Iterator[tuple[type[Settings], dict[str, Any], Path]]:
    """Every mapping of a raw tree together with the settings class it will become and its place, outer ones first."""
    if not isinstance(tree, dict):
        return
    yield settings, tree, path
    for key, annotation in known_keys(settings).items():
        inner, value = nested_class(annotation), tree.get(key)
        if inner is None or value is None:
            continue
        if isinstance(value, Mapping) and holds_mapping(annotation):
            for name, child in value.items():
                yield from sections(inner, child, (*path, key, name))
        elif isinstance(value, list):
            for i, child in enumerate(value):
                yield from sections(inner, child, (*path, key, i))
        else:
            yield from sections(inner, value, (*path, key))


def path_text(path: Path) -> str:
    """A place as it is written. Example: path_text(("rewards", "math", "tags", 0)) == "rewards.math.tags[0]"."""
    text = ""
    for part in path:
        text = f"{text}[{part}]" if isinstance(part, int) else join(text, part)
    return text
