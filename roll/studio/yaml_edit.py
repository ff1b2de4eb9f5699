"""Changing one key of a YAML's text; comments, order and everything else stay as a person wrote them."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

import roll
from roll.commands.fork import hidden_keys, settings_again
from roll.errors import ConfigError
from roll.importers.command import imported_from, report, yaml_text
from roll.importers.convert import YAML_ENDINGS, read
from roll.report.run_files import RunFiles
from roll.run.kind import kind_of
from roll.run.spec import PIPELINES
from roll.utils.text import show

KeyPath = tuple[str, ...]


def tree_of(text: str) -> dict[str, Any]:
    """Parse the text. Raises ConfigError where it is no YAML of keys, with the place."""
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"This is no YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"A configuration has keys; this is {show(tree)}.")
    return tree


def value_of(text: str) -> Any:
    """A value as it stands behind a key. Raises ConfigError for what is none."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{show(text)} is no value of a YAML: {' '.join(str(error).split())}") from None


def written(value: Any) -> str:
    """A value on one line. Example: written([0, 1]) == "[0, 1]", written("a: b") == "'a: b'"."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def get(tree: Any, path: KeyPath) -> Any:
    """The value at a path; None where nothing is."""
    for name in path:
        if not isinstance(tree, dict) or name not in tree:
            return None
        tree = tree[name]
    return tree


def line_of(text: str, path: KeyPath) -> int | None:
    """The line, from 1, of a key, or of its section where only that is there; None where neither is.

    Example: line_of("a:\\n  b: 1", ("a", "b")) == 2
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    line = None
    for name in path:
        pairs = node.value if isinstance(node, MappingNode) else []
        key, node = next(((key, inner) for key, inner in pairs if key.value == name), (None, None))
        if key is None:
            break
        line = key.start_mark.line + 1
    return line


def broken_line(text: str) -> int | None:
    """The line, from 1, at which a text stops to be a YAML; None where it is one."""
    try:
        yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        return min(error.problem_mark.line, text.rstrip().count("\n")) + 1 if error.problem_mark else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return None


def set_key(text: str, path: KeyPath, value: Any) -> str:
    """The text with another value at a path, and with its sections where they are missing; `value` None takes the key
    away. Raises ConfigError where that cannot be done, as in a section that is no mapping."""
    tree_of(text)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    changed = _changed(text, root, path, value)
    read_back = get(tree_of(changed), path)
    if read_back != value:  # an anchor, a merge, a flow over several lines
        raise ConfigError(f"{'.'.join(path)} cannot be changed by the form here: change it in the text.")
    return changed


def _changed(text: str, root: Node | None, path: KeyPath, value: Any) -> str:
    node, indent = root, 0
    for depth, name in enumerate(path):
        if node is None:
            return text if value is None else _appended(text, path, value)
        if not isinstance(node, MappingNode):
            raise ConfigError(f"{'.'.join(path[:depth])} has a value and no keys below it: change it in the text.")
        pair = next(((key, inner) for key, inner in node.value if key.value == name), None)
        if pair is None:
            return text if value is None else _inserted(text, node, indent, path[depth:], value)
        key, inner = pair
        if depth == len(path) - 1:
            return _replaced(text, key, inner, value)
        indent = key.start_mark.column + 2 if not isinstance(inner, MappingNode) else _column(inner)
        if isinstance(inner, ScalarNode) and not inner.value:  # `section:` and nothing below
            lines = _lines(path[depth + 1 :], value, key.start_mark.column + 2)
            end = _line_end(text, key.end_mark.index)
            return text if value is None else f"{text[:end]}\n{lines.removesuffix(chr(10))}{text[end:]}"
        node = inner
    return text


def _replaced(text: str, key: Node, inner: Node, value: Any) -> str:
    start, end = inner.start_mark.index, _end(text, inner)
    if value is None:
        first = text.rfind("\n", 0, key.start_mark.index) + 1
        if text[first : key.start_mark.index].strip():  # of a flow mapping
            return text
        last = _line_end(text, max(end, key.end_mark.index))
        return text[:first] + text[last + 1 :]
    if inner.start_mark.line != key.start_mark.line and end > start:  # a block below its key
        start = text.index(":", key.end_mark.index) + 1
        return f"{text[:start]} {written(value)}{text[end:]}"
    space = "" if text[start - 1 : start] in (" ", "\t") else " "
    return f"{text[:start]}{space}{written(value)}{text[end:]}"


def _inserted(text: str, node: MappingNode, indent: int, rest: KeyPath, value: Any) -> str:
    """The text with a new value behind the last key of a section."""
    if node.flow_style:
        comma = ", " if node.value else ""
        last = node.end_mark.index - 1
        return f"{text[:last]}{comma}{written(_nested(rest, value))[1:-1]}{text[last:]}"
    end = max(_end(text, inner) for _, inner in node.value)
    end = _line_end(text, max(end, max(key.end_mark.index for key, _ in node.value)))
    return f"{text[:end]}\n{_lines(rest, value, indent).removesuffix(chr(10))}{text[end:]}"


def _appended(text: str, path: KeyPath, value: Any) -> str:
    return text + ("" if not text or text.endswith("\n") else "\n") + _lines(path, value, 0)


def _nested(path: KeyPath, value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _lines(path: KeyPath, value: Any, indent: int) -> str:
    """Sections of which each stands below the other, and the key."""
    heads = [f"{' ' * (indent + 2 * depth)}{written(name)}:" for depth, name in enumerate(path)]
    return "\n".join(heads) + f" {written(value)}\n"


def _column(node: MappingNode) -> int:
    return node.value[0][0].start_mark.column if node.value else 0


def _end(text: str, node: Node) -> int:
    """Position behind the last character of a value. The mark of a block is behind the blank lines and comments that
    follow."""
    if isinstance(node, ScalarNode) and node.style not in ("|", ">"):
        return node.end_mark.index
    if isinstance(node, CollectionNode) and node.flow_style:
        return node.end_mark.index
    if isinstance(node, MappingNode):
        return max((max(key.end_mark.index, _end(text, inner)) for key, inner in node.value), default=0)
    if isinstance(node, ScalarNode):
        return len(text[: node.end_mark.index].rstrip())
    return max((_end(text, inner) for inner in node.value), default=node.start_mark.index)


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end


# What a new configuration begins from: the examples, and configurations of other systems.

_EXAMPLES = Path(roll.__path__[0]).parent / "examples"


@dataclass(frozen=True)
class Draft:
    """A text to begin from. `directory`: which its relative paths start from, `folders`: of code that it names; empty:
    those of the studio. `is_of_run`: a run says so, which anybody may have written."""

    name: str
    kind: str
    text: str
    directory: str = ""
    folders: tuple[str, ...] = ()
    is_of_run: bool = False


NO_DRAFT = Draft("", "", "")


def draft_of(run: RunFiles, name: str) -> Draft | None:
    """The settings of a run without its secrets; None where they are not recorded, and for an evaluation."""
    if run.story is None or not run.settings or run.is_evaluation:
        return None
    hidden = dict.fromkeys(hidden_keys(run.settings))
    head = f"# Secrets are not recorded. Left out here, set them again: {', '.join(hidden)}\n" if hidden else ""
    text = head + yaml.safe_dump(_without(hidden, settings_again(run.story)), sort_keys=False, allow_unicode=True)
    return Draft(name, kind_of_text(text) or "stages", text, run.story.directory, run.story.folders, is_of_run=True)


def _without(hidden: Collection[str], node: Any, key: str = "") -> Any:
    if isinstance(node, dict):
        paths = {name: f"{key}.{name}".lstrip(".") for name in node}
        return {name: _without(hidden, node[name], path) for name, path in paths.items() if path not in hidden}
    return [_without(hidden, value, key) for value in node] if isinstance(node, list) else node


def examples() -> list[Draft]:
    """Drafts from the examples, by kind and name; none if the package is installed without its checkout."""
    drafts = []
    for path in sorted(_EXAMPLES.glob("*/*.yaml")):
        text = path.read_text(encoding="utf-8")
        if path.parent.name != "config":
            drafts.append(Draft(f"{path.parent.name}/{path.stem}", kind_of_text(text) or "stages", text))
    order = [*PIPELINES, "stages"]
    return sorted(drafts, key=lambda draft: (order.index(draft.kind), "tiny" not in draft.name, draft.name))


def kind_of_text(text: str) -> str | None:
    """None where nothing tells, as of stages, and of a text that is no YAML."""
    try:
        tree = tree_of(text)
        return None if "stages" in tree else kind_of(tree).name
    except ConfigError:
        return None


def imported(name: str, content: bytes) -> tuple[str, str]:
    """The YAML and the report of an import of a YAML or a script of another system. Raises ConfigError for what cannot
    be imported."""
    with tempfile.TemporaryDirectory(prefix="roll-studio-") as folder:
        ending = Path(name).suffix
        file = Path(folder) / f"given{ending if ending in YAML_ENDINGS else '.sh'}"
        file.write_bytes(content)
        result = imported_from(read(file), source=file)
    shown = Path(name).name
    return yaml_text(result, shown), report(result, shown, "imported.yaml")
