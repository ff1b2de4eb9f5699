"""The settings of a kind of run as fields of a form, from their schema."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from roll.configs.schema import schema_of
from roll.configs.strategies.table import STRATEGIES
from roll.configs.tables.estimators import ESTIMATORS
from roll.configs.tables.policy_losses import POLICY_FORMS
from roll.configs.tables.presets import PRESETS
from roll.envs.table import ENVIRONMENTS, TOOLS
from roll.rewards.config import BUILTINS
from roll.run.spec import PIPELINES
from roll.studio.yaml_edit import examples, tree_of

Path = tuple[str, ...]
FieldKind = Literal["choice", "switch", "number", "text", "yaml"]
_INERT = "It does nothing here."
MOST_USED = (
    "exp_name", "pretrain", "algorithm", "max_steps", "actor_train.data_args.file_name",
    "student.data_args.file_name", "train_env_manager.tags", "max_running_requests", "rollout_batch_size",
    "num_return_sequences_in_group", "prompt_length", "response_length", "sequence_length",
    "actor_train.training_args.learning_rate", "actor_train.training_args.per_device_train_batch_size",
    "actor_train.training_args.gradient_accumulation_steps", "student.training_args.learning_rate",
    "num_gpus_per_node", "actor_train.strategy_args.strategy_name", "actor_train.device_mapping",
    "actor_infer.strategy_args.strategy_name", "actor_infer.device_mapping", "student.device_mapping",
    "teacher_pretrain", "eval_steps", "save_steps", "max_ckpt_to_keep", "track_with",
)  # fmt: skip
"""Keys that most YAMLs set, in the order of the form; each kind shows those that its schema knows."""


@dataclass(frozen=True)
class Field:
    """A key. `kind`: how it is filled in; `yaml` is a list or a mapping, as text. `choices` of a text are names that
    it may have beside others. `default`: None where there is none to show."""

    path: Path
    kind: FieldKind
    choices: tuple[str, ...]
    help: str
    default: Any

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def section(self) -> str:
        return ".".join(self.path[:-1])


class Form:
    """All fields of a kind of run. The entries of a mapping, such as a reward, have the names that a YAML gives
    them."""

    def __init__(self, schema: Mapping[str, Any], kind: str):
        self._schema, self._kind = schema, kind

    def most_used(self) -> list[Field]:
        return [field for key in MOST_USED if (field := self.field(tuple(key.split(".")))) is not None]

    def set_in(self, tree: Mapping[str, Any]) -> list[Field]:
        """Return the fields that a YAML sets, in its order."""
        return [field for path in _leaves(tree, self, ()) if (field := self.field(path)) is not None]

    def search(self, query: str, tree: Mapping[str, Any], most: int = 30) -> list[Field]:
        """Return the fields with all of the words in their key or help; also entries of the mappings that a YAML has.

        First the key of that name, then those whose name has the words, then those whose section has them, then those
        whose help has; among equals those that the examples set most often.
        """
        terms = query.casefold().split()
        matches = [] if not terms else [
            (rank, -_usage()[field.key], -_usage()[field.path[-1]], len(field.path), number, field)
            for number, field in enumerate(self._fields((), self._schema, tree))
            if (rank := _rank(field, terms)) is not None
        ]  # fmt: skip
        return [field for *_, field in sorted(matches, key=lambda each: each[:-1])[:most]]

    def field(self, path: Path) -> Field | None:
        """None for a section, and for a key that nobody knows."""
        node: Mapping[str, Any] | None = self._schema
        for name in path[:-1]:
            node = self._below(node, name)
            if node is None:
                return None
        spec = (node or {}).get("properties", {}).get(path[-1])
        if spec is None or self._section(spec) is not None or _INERT in spec.get("description", ""):
            return None
        return _field(path, spec, self._kind)

    def is_section(self, path: Path) -> bool:
        """Whether keys stand below it: a section, or a mapping of sections."""
        node: Mapping[str, Any] | None = self._schema
        for name in path:
            node = self._below(node, name)
        return node is not None

    def _below(self, node: Mapping[str, Any] | None, name: str) -> Mapping[str, Any] | None:
        if node is None:
            return None
        if "entries" in node:
            return node["entries"]
        spec = node.get("properties", {}).get(name)
        return None if spec is None else self._section(spec)

    def _section(self, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The schema of a section, {"entries": ...} of a mapping of them, None of anything else."""
        for form in _forms(spec):
            if "$ref" in form and form["$ref"] != "#":
                return self._schema["$defs"][form["$ref"].rpartition("/")[2]]
            inner = form.get("additionalProperties")
            if isinstance(inner, Mapping) and (section := self._section(inner)) is not None:
                return {"entries": section}
        return None

    def _fields(self, path: Path, node: Mapping[str, Any], tree: Any) -> Iterator[Field]:
        tree = tree if isinstance(tree, Mapping) else {}
        if "entries" in node:
            for name in tree:
                yield from self._fields((*path, str(name)), node["entries"], tree[name])
            return
        for name, spec in node.get("properties", {}).items():
            section = self._section(spec)
            if section is not None:
                yield from self._fields((*path, name), section, tree.get(name))
            elif spec.get("description") and _INERT not in spec["description"]:
                yield _field((*path, name), spec, self._kind)


@cache
def form_of(kind: str) -> Form:
    """Form of a built-in kind of run."""
    return Form(schema_of(PIPELINES[kind].config_class()), kind)


def _rank(field: Field, terms: Sequence[str]) -> int | None:
    """How well a field fits the words of a search, 0 the best; None where one of them is nowhere."""
    name, key = field.path[-1].casefold(), field.key.casefold()
    if "_".join(terms) == name or ".".join(terms) == key:
        return 0
    if all(word in name.split("_") for word in terms):
        return 1
    if all(word in name for word in terms):
        return 2
    if all(word in key for word in terms):
        return 3
    text = f"{key} {field.help}".casefold()
    return 4 if all(word in text for word in terms) else None


@cache
def _usage() -> Counter[str]:
    """How many examples set a key, by its path and by its last name."""
    counts: Counter[str] = Counter()
    for draft in examples():
        paths = list(_all_paths(tree_of(draft.text), ()))
        counts.update({name for path in paths for name in (".".join(path), path[-1])})
    return counts


def _all_paths(tree: Mapping[str, Any], path: Path) -> Iterator[Path]:
    for name, value in tree.items():
        yield (*path, str(name))
        if isinstance(value, Mapping):
            yield from _all_paths(value, (*path, str(name)))


def _algorithms(path: Path, kind: str) -> Sequence[str]:
    pipeline = "rl" if kind in ("rlvr", "agentic") else kind
    return [preset.name for preset in PRESETS.values() if preset.pipeline == pipeline]


def _strategies(path: Path, kind: str) -> Sequence[str]:
    """Strategies that do what a role is for, where its name tells; else all."""
    use = "train" if re.fullmatch("actor_train|critic|student", path[0]) else None
    use = "generate" if path[0] == "actor_infer" else use
    return [name for name, spec in STRATEGIES.items() if use is None or use in spec.classes]


_NAMED: Mapping[str, Callable[[Path, str], Sequence[str]]] = {
    "algorithm": lambda path, kind: _algorithms(path, kind) if len(path) == 1 else (),
    "strategy_name": _strategies,
    "adv_estimator": lambda path, kind: list(ESTIMATORS),
    "pg_variant": lambda path, kind: list(POLICY_FORMS),
    "reward": lambda path, kind: list(BUILTINS),
    "env_type": lambda path, kind: list(ENVIRONMENTS),
    "tool_id": lambda path, kind: list(TOOLS),
    "pipeline": lambda path, kind: list(PIPELINES),
}
"""Keys whose values are names of a table, and the names; all but `algorithm` take a dotted path to code of one's own
as well."""


def _leaves(tree: Mapping[str, Any], form: Form, path: Path) -> Iterator[Path]:
    for name, value in tree.items():
        inner = (*path, str(name))
        if isinstance(value, Mapping) and form.is_section(inner):
            yield from _leaves(value, form, inner)
        else:
            yield inner


def _forms(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The possibilities that a key has, nested ones too."""
    inner: Sequence[Mapping[str, Any]] = spec.get("anyOf", ())
    if not inner:
        yield spec
    for form in inner:
        yield from _forms(form)


def _field(path: Path, spec: Mapping[str, Any], pipeline: str) -> Field:
    forms = [form for form in _forms(spec) if form.get("pattern") != r"\$\{"]
    types = {form.get("type") for form in forms} - {"null", None}
    choices = tuple(str(value) for form in forms for value in _values(form))
    kind: FieldKind = "yaml"
    if choices and types <= {"string"}:
        kind = "choice"
    elif types == {"boolean"}:
        kind = "switch"
    elif types and types <= {"integer", "number"}:
        kind = "number"
    elif types == {"string"}:
        kind = "text"
        choices = tuple(_NAMED[path[-1]](path, pipeline)) if path[-1] in _NAMED else ()
        kind = "choice" if choices and path == ("algorithm",) else "text"
    return Field(path, kind, choices, spec.get("description", ""), spec.get("default"))


def _values(form: Mapping[str, Any]) -> Sequence[Any]:
    return [form["const"]] if "const" in form else form.get("enum", ())
