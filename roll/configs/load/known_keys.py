"""Keys that may stand in a section of a YAML: its fields, those of other systems that mean the same, and those that do
nothing here, of which no settings object has any (`keys_of_others.yaml`, which explains its tables)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, Literal, cast

import yaml

from roll.configs.base import Settings, holds_mapping, join, nested_class
from roll.configs.problems import Problem
from roll.configs.sections.cluster import StrategyArgs, WorkerConfig
from roll.configs.strategies.table import OTHER_NAMES, spec_of
from roll.utils.text import show

AROUND = "../"
"""Prefix of a key of the section around."""
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class InertKey:
    """`type`: what its value must be all the same, null aside. `reason`: why it does nothing; of a planned key the
    nearest thing. `inert`: values beside the default that ask for nothing."""

    kind: Literal["ignored", "unread", "planned", "section"]
    type: Any
    default: Any
    help: str
    reason: str = ""
    inert: tuple[Any, ...] = ()


class RouterArgs(Settings):
    """`router_args`: which engine replica gets a request."""


class TransferBackendArgs(Settings):
    """`transfer_backend`: another road for rollout data."""


class LLMProxyConfig(Settings):
    """`llm_proxy`: who answers in an episode."""


_SECTIONS = {cls.__name__: cls for cls in (WorkerConfig, RouterArgs, TransferBackendArgs, LLMProxyConfig)}
_TYPES: Mapping[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "dict": dict[str, Any]} | _SECTIONS


def _inert(
    kind: Any, type: Any, help: str, default: Any = None, reason: str = "", inert: tuple[Any, ...] = ()
) -> InertKey:
    form: Any = Literal[tuple(type)] if isinstance(type, list) else _TYPES[type]  # type: ignore[valid-type]
    reason = "ROLL declares this key and never reads it" if kind == "unread" else reason
    is_set = default is not None or kind == "section"
    return InertKey(kind, form if is_set else form | None, default, help, reason, tuple(inert))


def _by_section(table: Mapping[str, Mapping[str, str]]) -> Mapping[tuple[str, str], str]:
    return {(section, key): text for section, keys in table.items() for key, text in keys.items()}


_TABLES: Mapping[str, Any] = yaml.safe_load(File(__file__).with_name("keys_of_others.yaml").read_text(encoding="utf-8"))
RENAMED, DROPPED = _by_section(_TABLES["renamed"]), _by_section(_TABLES["dropped"])
INERT = {section: {key: _inert(**row) for key, row in rows.items()} for section, rows in _TABLES["inert"].items()}
ROLL_REWARDS: Mapping[str, str] = _TABLES["rewards"]
ROLL_REWARD_KEYS: Mapping[str, Mapping[str, Any]] = _TABLES["reward_keys"]
ROLL_WORKERS: tuple[str, ...] = tuple(_TABLES["workers"])
RETIRED: Mapping[str, Mapping[str, str]] = _TABLES["retired"]
FSDP2_KEYS: Mapping[str, str] = _TABLES["fsdp2"]


def inert_keys(settings: type[Settings]) -> dict[str, InertKey]:
    """The keys that do nothing in a section, those of the classes above it included."""
    names = [base.__name__ for base in reversed(settings.__mro__)]
    entries = {key: inert for name in names for key, inert in INERT.get(name, {}).items()}
    return {key: inert for key, inert in entries.items() if key not in settings.model_fields}


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


def foreign_keys(settings: type[Settings]) -> frozenset[str]:
    """The keys of these tables that may stand in a section."""
    names = {base.__name__ for base in settings.__mro__}
    return frozenset(key for table in (RENAMED, DROPPED) for name, key in table if name in names)


def spellings(settings: type[Settings]) -> frozenset[str]:
    """All keys that a section may have, those of other systems included."""
    return frozenset(known_keys(settings)) | foreign_keys(settings)


def apply_aliases(cls: type[Settings], tree: dict[str, Any]) -> tuple[list[Problem], list[str]]:
    """Renames and drops foreign keys of a raw tree in place. Returns problems (both spellings given) and warnings."""
    problems: list[Problem] = []
    warnings: list[str] = []
    _name_teachers(cls, tree)
    warnings += [*_of_students(cls, tree), *_domains_of_teachers(tree)]
    around: dict[tuple[Any, ...], dict[str, Any]] = {}
    for settings, node, place in sections(cls, tree):  # as they are named once those around them are done
        path, around[place] = path_text(place), node
        for key in list(node):
            here = join(path, key)
            names = [base.__name__ for base in settings.__mro__]
            target = next((RENAMED[name, key] for name in names if (name, key) in RENAMED), None)
            reason = next((DROPPED[name, key] for name in names if (name, key) in DROPPED), None)
            if target is not None:
                value, home, at = node.pop(key), cast(Any, node), path
                if target.startswith(AROUND):
                    target, home, at = target.removeprefix(AROUND), around[place[:-1]], path_text(place[:-1])
                other = join(at, target)
                *below, name = target.split(".")
                for section in below:
                    home = home.setdefault(section, {}) if isinstance(home, dict) else None
                if isinstance(home, dict) and home.setdefault(name, value) != value:
                    text = f"{here}: {show(value)} contradicts {other}: {show(home[name])}; both mean the same."
                    problems.append(Problem(f"{text} Keep one.", (here, other)))
            elif reason is not None and key not in known_keys(settings):
                node.pop(key)
                warnings.append(f"{here} does nothing here: {reason}.")
        if settings is StrategyArgs:
            warnings += _without_dropped(node, path)
            name = node.get("strategy_name")
            if isinstance(name, str) and name in OTHER_NAMES:
                ours = " or ".join(OTHER_NAMES[name].values())
                warnings.append(f"{join(path, 'strategy_name')}: {name} is taken as {ours}, whichever fits the role.")
    return problems, warnings


def _of_students(cls: type[Settings], tree: dict[str, Any]) -> Iterator[str]:
    """ROLL's roles of pure distillation, whose script sets the switch that no key of its YAMLs says."""
    named = next((key for key in STUDENTS if key in tree), None)
    if named and "is_pure_opd" in cls.model_fields and not {"is_pure_opd", "use_opd"} & tree.keys():
        tree["is_pure_opd"] = True
        yield f"{named}: is_pure_opd: true is taken from it, as ROLL's script for such roles sets it."


STUDENTS = ("student_train", "student_infer")


def _name_teachers(cls: type[Settings], tree: dict[str, Any]) -> None:
    """ROLL's `teacher` holds one teacher, or several by name. One that `teachers` names as well stays where it is, and
    is refused there."""
    section, others = tree.get("teacher"), tree.get("teachers") or {}
    if not isinstance(section, dict) or not section or {"teacher", "teachers"} - cls.model_fields.keys():
        return
    if holds_teachers(section) and isinstance(others, dict) and not section.keys() & others.keys():
        tree["teachers"] = {**tree.pop("teacher"), **others}


def holds_teachers(section: object) -> bool:
    """True for a section `teacher` in ROLL's second form: several teachers by name."""
    return (
        isinstance(section, dict)
        and bool(section)
        and all(isinstance(each, dict) for each in section.values())
        and not section.keys() & known_keys(WorkerConfig).keys()
    )


def _domains_of_teachers(tree: dict[str, Any]) -> Iterator[str]:
    """ROLL chooses a teacher by the tag of a row, roll by its domain: tags of a teacher become the domain of which they
    are all the tags. Others stay, and are refused as domains that are not there."""
    rewards, teachers = tree.get("rewards"), tree.get("teachers")
    if not isinstance(rewards, dict) or not isinstance(teachers, dict):
        return
    tags_of = {name: set(_names(each)) for name, each in rewards.items() if isinstance(each, dict)}
    for name, teacher in teachers.items():
        tags = list(_names(teacher)) if isinstance(teacher, dict) else []
        whole = {domain: all_ for domain, all_ in tags_of.items() if all_ - {domain} and all_ <= set(tags)}
        for domain, all_ in whole.items():
            tags = list(dict.fromkeys([*(tag for tag in tags if tag not in all_ or tag in rewards), domain]))
            listed = ", ".join(sorted(all_))
            yield f"teachers.{name}.tag_included: {listed} is taken as the domain {domain}, whose rows have this tag."
        if whole:
            teacher["tag_included"] = tags


def _names(section: Mapping[str, Any]) -> Iterator[str]:
    value = section.get("tag_included")
    yield from (item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _without_dropped(node: dict[str, Any], path: str) -> Iterator[str]:
    """Takes the keys that its engine does not have out of a raw `strategy_args`."""
    config, name = node.get("strategy_config"), node.get("strategy_name")
    if not isinstance(config, dict) or not isinstance(name, str):
        return
    dropped = {**RETIRED.get(name, {}), **spec_of(name).retired}
    for key in list(config):
        if key in dropped:
            config.pop(key)
            yield f"{join(path, 'strategy_config')}.{key} does nothing here: {dropped[key]}."
