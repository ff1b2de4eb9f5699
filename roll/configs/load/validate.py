"""Builds a settings object from a raw tree, and reports every problem of its shape at once."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from roll.configs.base import Settings, nested_class
from roll.configs.load.chosen_values import KeysInYaml, keys_in_yaml
from roll.configs.load.known_keys import Path, apply_aliases, inert_keys, known_keys, path_text, sections
from roll.configs.problems import Problem, did_you_mean, nearest
from roll.utils.imports import resolve
from roll.utils.secrets import is_secret_key
from roll.utils.text import show

C = TypeVar("C", bound=Settings)

TYPE_NAMES = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a mapping of keys to values"),
    "tuple_type": "must be a list",
    "string_type": "must be text (put quotes around it)",
    "invalid_key": "must be text (put quotes around it)",
}


@dataclass(frozen=True)
class Checked(Generic[C]):
    """`config` is built from what was right; `broken` are the paths that were not, so that later findings about them
    are left out. `tree` is what was right, under the names of here; `keys_in_yaml` are the keys that it says itself."""

    config: C | None
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    broken: frozenset[str] = field(default_factory=frozenset)
    tree: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys_in_yaml(self) -> KeysInYaml:
        return keys_in_yaml(self.tree)

    def about_sound_keys(self, problems: Iterable[Problem]) -> list[Problem]:
        """The findings that do not depend on a broken key."""
        return [problem for problem in problems if not any(_touches(key, self.broken) for key in problem.keys)]


def validate(cls: type[C], tree: Mapping[str, Any]) -> Checked[C]:
    """Checks names, types, limits and marks of all keys. Never raises for what a user wrote."""
    raw: dict[str, Any] = copy.deepcopy(dict(tree))
    problems, warnings = apply_aliases(cls, raw)
    problems += _boolean_numbers(cls, raw)
    more_problems, more_warnings = _about_inert_keys(cls, raw)
    problems += more_problems
    warnings += more_warnings
    broken = {key for problem in problems for key in problem.keys}
    taken: set[Path] = set()  # that are missing only since their values are wrong
    while True:
        config, errors = _build(cls, raw)
        if config is not None:
            return Checked(config, tuple(problems), tuple(warnings), frozenset(broken), raw)
        reported = {problem.text for problem in problems}
        wrong: set[Path] = set()
        for path, problem in _all_problems(cls, raw, errors):
            if path in taken:
                wrong.add(())
                continue
            broken |= set(problem.keys)
            wrong.add(_deepest_key(raw, path))
            problems += [] if problem.text in reported else [problem]
        if not wrong or () in wrong:
            return Checked(None, tuple(problems), tuple(warnings), frozenset(broken))
        for path in sorted(wrong, key=len, reverse=True):
            _node_at(raw, path[:-1]).pop(path[-1], None)
            taken.add(path)


def _all_problems(
    cls: type[Settings], raw: Mapping[str, Any], errors: list[ErrorDetails]
) -> Iterator[tuple[Path, Problem]]:
    """One per path, with it; a union reports once per member, and the first whose words we know speaks for all."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(_yaml_path(raw, error), []).append(error)
    filled = by_path.pop((), [])  # values that were filled in from others, which say what is wrong if they can
    if not by_path:
        by_path = {error["loc"]: [error] for error in filled}
    for path, group in by_path.items():
        literal = [error for error in group if error["type"] == "literal_error"]
        error = (literal or group)[0]
        text = path_text(path)
        keys = (text,)
        if error["type"] == "extra_forbidden":
            known = _fields_at(cls, path[:-1])
            match = nearest(str(path[-1]), known)
            if foreign := _foreign(cls, text, error["input"]):
                match, hint = None, _said_here(foreign)
            else:
                hint = f" Did you mean {match}?" if match else f" Known keys here: {', '.join(sorted(known)[:12])} ..."
            message = f"{text}: unknown key (value {_shown(path[-1], error['input'])}).{hint}"
            if foreign:
                keys = tuple(foreign.values())
            elif match is None or match in _node_at(raw, path[:-1]):
                keys = ()
            else:  # it may stand for that key, so that findings on its default would mislead
                keys = (path_text((*path[:-1], match)),)
        elif error["type"] == "missing" and isinstance(error["loc"][-1], int):
            message = f"{text}: {_shown(path[-1], error['input'])} has too few entries."
        elif error["type"] == "missing":
            message = f"{text} is missing."
        else:
            sections = _foreign(cls, text, error["input"]) if isinstance(error["input"], Mapping) else {}
            message = f"{text}: {_explain(path, error, group)}{_said_here(sections) if sections else ''}"
        yield path, Problem(message, keys)


def _explain(path: Path, error: ErrorDetails, group: list[ErrorDetails]) -> str:
    kind, value, context = error["type"], _shown(path[-1], error["input"]), error.get("ctx", {})
    if kind == "literal_error":
        names = [part.strip().strip("'\"") for part in context["expected"].replace(" or ", ", ").split(",")]
        return f"{value} is not one of {', '.join(names)}.{did_you_mean(str(error['input']), names)}"
    if kind == "value_error":
        text = str(context["error"])
        return text if text.endswith(("?", ".")) else f"{text}."
    first, *others = dict.fromkeys(
        TYPE_NAMES.get(item["type"], f"must {item['msg'].partition(' should ')[2] or item['msg']}") for item in group
    )
    return f"{value} {' or '.join([first, *(words.removeprefix('must be ') for words in others)])}."


def _shown(key: object, value: object) -> str:
    """A value for a message; what is stored under the name of a secret stays hidden."""
    return "***" if is_secret_key(str(key)) else show(value)


def _yaml_path(raw: Mapping[str, Any], error: ErrorDetails) -> Path:
    """pydantic's location without the names of union members it adds at the end."""
    node: Any = raw
    path: list[str | int] = []
    for part in error["loc"]:
        try:
            node = node[part]
        except (LookupError, TypeError):
            if error["type"] == "missing" and isinstance(node, Mapping):
                path.append(part)
            break
        path.append(part)
    return tuple(path)


def _class_at(cls: type[Settings], path: Path) -> type[Settings] | None:
    """The class of the settings under a path."""
    current: type[Settings] | None = cls
    for part in path:
        if current is not None and part in (keys := known_keys(current)):
            current = nested_class(keys[str(part)])
    return current


def _fields_at(cls: type[Settings], path: Path) -> list[str]:
    """Names of the keys that may stand under a path."""
    current = _class_at(cls, path)
    return list(known_keys(current)) if current else []


_FOREIGN = "roll.importers.names:foreign_names"  # looked up by path: it takes the importers' tables


def _foreign(cls: type[Settings], key: str, value: object) -> dict[str, str]:
    """Keys of other systems in and below an unknown key, with those of here."""

    def has(ours: str) -> bool:
        parts = tuple(ours.partition(".strategy_config.")[0].split("."))  # what is in there is the engine's own
        return all("<" in part or part in _fields_at(cls, parts[:place]) for place, part in enumerate(parts))

    find: Any = resolve(_FOREIGN)
    return find(key, value, has)


def _said_here(foreign: Mapping[str, str]) -> str:
    return f" Here {', '.join(f'{name} is {ours}' for name, ours in foreign.items())}."


def _about_inert_keys(cls: type[Settings], raw: dict[str, Any]) -> tuple[list[Problem], list[str]]:
    """Return the messages about keys that do nothing: problems (for values that ask for something) and warnings."""
    problems: list[Problem] = []
    warnings: list[str] = []
    for settings, node, path in sections(cls, raw):
        known = inert_keys(settings)
        unknown = () if settings.model_fields else node.keys() - known.keys()
        problems += [
            Problem(f"{path_text((*path, key))}: unknown key (value {_shown(key, node[key])}).") for key in unknown
        ]
        for key, value in node.items():
            if (inert := known.get(str(key))) is None:
                continue
            here = path_text((*path, key))
            is_asked = value is not None and value not in (inert.default, *inert.inert)
            if inert.kind == "unread" or (inert.kind == "ignored" and is_asked):
                warnings.append(f"{here}: {_shown(key, value)} does nothing here: {inert.reason}.")
            elif inert.kind == "planned" and is_asked:
                remedy = f"Remove it, or set {show(inert.default)}."
                remedy += f" The nearest: {inert.reason}." if inert.reason else ""
                problems.append(Problem(f"{here}: {show(value)} is not implemented yet. {remedy}", (here,)))
    return problems, warnings


def _build(cls: type[C], raw: Mapping[str, Any]) -> tuple[C | None, list[ErrorDetails]]:
    """The settings, without the keys that do nothing; or what is wrong with names, types and limits."""
    tree = copy.deepcopy(dict(raw))
    for settings, node, _ in reversed(list(sections(cls, tree))):  # sections before what holds them
        for key in inert_keys(settings):
            node.pop(key, None)
    try:
        return cls.model_validate(tree), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _boolean_numbers(cls: type[Settings], raw: dict[str, Any]) -> list[Problem]:
    """true and false where a number belongs: YAML and pydantic would both let them pass as 1 and 0."""
    problems: list[Problem] = []
    for settings, node, path in sections(cls, raw):
        types = known_keys(settings)
        for key, value in node.items():
            if isinstance(value, bool) and types.get(str(key)) in (int, float, int | None, float | None):
                here = path_text((*path, key))
                problems.append(Problem(f"{here}: {show(value)} must be a number.", (here,)))
    return problems


def _deepest_key(raw: Mapping[str, Any], path: Path) -> Path:
    """The longest part of a path that leads through mappings of the tree: what to take out so that the rest can be
    checked."""
    node: Any = raw
    for i, part in enumerate(path):
        if not isinstance(node, Mapping) or part not in node:
            return path[:i]
        node = node[part]
    return path


def _node_at(raw: Mapping[str, Any], path: Path) -> Any:
    node: Any = raw
    for part in path:
        node = node[part]
    return node


def _touches(key: str, broken: Iterable[str]) -> bool:
    return any(_holds(key, other) or _holds(other, key) for other in broken)


def _holds(outer: str, inner: str) -> bool:
    """Whether a key is another, or holds it: a.b and a[0] are in a."""
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))
