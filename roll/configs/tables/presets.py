"""Algorithms by name: the keys that `algorithm` fills in (`presets.yaml`), and how a plan says them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from roll.configs.problems import did_you_mean
from roll.utils.text import show


@dataclass(frozen=True)
class Preset:
    """`settings` by the keys of a YAML; `*` stands for each entry of a section. `formula` are the lines that explain
    it, with `beside` for what the paper has and the preset leaves to the YAML. `pipeline`: the kind of run, `rl` for
    RLVR and agentic ones alike."""

    name: str
    paper: str
    settings: Mapping[str, Any]
    formula: tuple[str, ...]
    beside: str = ""
    pipeline: str = "rl"


def _read() -> dict[str, Preset]:
    tree = yaml.safe_load(Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8"))
    return {name: Preset(name, **{**keys, "formula": tuple(keys["formula"])}) for name, keys in tree.items()}


PRESETS: Mapping[str, Preset] = _read()
"""Algorithms by name, in the order in which messages list them."""


def kind_of_algorithm(name: object) -> str | None:
    """The kind of run that has an algorithm of this name, None if there is none."""
    return PRESETS[name].pipeline if isinstance(name, str) and name in PRESETS else None


def known_algorithm(name: str, pipeline: str | None = None) -> str:
    """The name, if it is one of this kind of run (None: of any); else ValueError that says what there is instead."""
    kind = kind_of_algorithm(name)
    if kind is not None and pipeline in (kind, None):
        return name
    if kind is not None:
        is_rl = kind == "rl"
        there = "reinforcement learning: pipeline: rlvr, or agentic" if is_rl else f"a run of its own: pipeline: {kind}"
        raise ValueError(f"{name} is {there}")
    names = [preset.name for preset in PRESETS.values() if pipeline in (preset.pipeline, None)]
    raise ValueError(f"{show(name)} is not one of {', '.join(names)}.{did_you_mean(name, names)}")


# What `algorithm` puts into a tree, and says in a plan. What a YAML says itself stays.

_OFF_AT_NULL = ("value_clip", "group_filter_cls")
"""Keys of which null is a value; at all others it means that nothing is said."""


def fill_algorithm(filled: dict[str, Any]) -> None:
    """Puts in what the algorithm of a raw tree asks for, where the tree says nothing."""
    name = filled.get("algorithm")
    preset = PRESETS.get(name) if isinstance(name, str) else None
    for key, value in preset.settings.items() if preset else ():
        for holder, last in _places(filled, key):
            if holder.get(last) is None and not (last in holder and last in _OFF_AT_NULL):
                holder[last] = value


def _places(tree: dict[str, Any], key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Places of a key in the tree, as (mapping, last part); none if its section is missing."""
    section, _, last = key.rpartition(".")
    if not section:
        yield tree, key
        return
    name, star, _ = section.partition(".*")
    inner = tree.get(name)
    if not isinstance(inner, Mapping):
        return
    tree[name] = {key: dict(value) if star and isinstance(value, Mapping) else value for key, value in inner.items()}
    yield from ((entry, last) for entry in (tree[name].values() if star else [tree[name]]) if isinstance(entry, dict))


def preset_rows(name: str | None, value: Any) -> Iterator[tuple[str, str]]:
    """Rows of a plan: what the algorithm has set, and what the YAML says instead. `value` gives the value of a key."""
    if name is None:
        return
    plain = {key: wanted for key, wanted in PRESETS[name].settings.items() if "." not in key}
    active = {key: wanted for key, wanted in plain.items() if value(key) == (None if wanted == "none" else wanted)}
    yield "algorithm", f"{name} sets " + ", ".join(f"{key} {_text(wanted)}" for key, wanted in active.items())
    if others := [key for key in plain if key not in active]:
        changes = ", ".join(f"{key} {_text(value(key))} instead of {_text(plain[key])}" for key in others)
        yield "", f"the YAML has {changes}"


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
