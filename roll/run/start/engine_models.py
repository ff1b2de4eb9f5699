"""Whether an engine, or transformers, has the architecture of a model, read in their files: importing one takes many
seconds."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_numbers import text_part, type_of, unsampled
from roll.configs.strategies.spec import ModelRegistry
from roll.configs.strategies.table import spec_of
from roll.models.multimodal import senses

_SGLANG_ENTRY = re.compile(r"^EntryClass\s*(?::[^=\n]+)?=\s*(\[[^\]]*\]|\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Registry:
    """Architectures that an engine has code of its own for, and those that it had, each with the last version. Empty
    where its files are not what they are known to be."""

    known: frozenset[str]
    dropped: Mapping[str, str]


NOTHING = Registry(frozenset(), {})


def engine_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """An architecture that neither the engine nor transformers has, whose code engines run otherwise; a type that the
    engine is known to fail with."""
    of, kind = spec_of(choice.worker.strategy_name).registry, type_of(text_part(model))
    if of is not None and kind in of.refused:
        model_key = f"{choice.role.name}.model_args.model_name_or_path"
        text = f"{choice.name_key}: {of.engine} cannot sample from {kind} models: {of.refused[kind]}."
        yield Problem(f"{text} {_other_engine(model)}", (choice.name_key, model_key))
        return
    unknown = _unknown(choice, model)
    if unknown is None or _transformers_has(model):
        return
    kinds, registry, engine = unknown
    key = choice.name_key
    last = next((registry.dropped[kind] for kind in kinds if kind in registry.dropped), None)
    had = f" {engine} {last} was the last with it." if last else ""
    yield Problem(
        f"{key}: neither the installed {engine} nor transformers knows {' or '.join(kinds)}, the architecture of "
        f"{choice.worker.model_args.model_name_or_path}.{had} Install a version that does, or name another model.",
        (key,),
        "machine",
    )


def _other_engine(model: Mapping[str, Any]) -> str:
    """Say what samples in place of an engine that cannot."""
    why = unsampled(text_part(model))
    return f"Use sglang, if it has them, or another model: hf_infer cannot either ({why})." if why else "Use hf_infer."


def asked_key_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problem of a model whose config.json lacks a key that the engine goes by."""
    of = spec_of(choice.worker.strategy_name).registry
    asked = None if of is None else of.asked_keys.get(str(model.get("model_type")))
    if of is None or asked is None or text_part(model).get(asked[0]) is True:
        return
    yield Problem(
        f"{choice.name_key}: config.json of {choice.worker.model_args.model_name_or_path} has no text_config."
        f"{asked[0]}: true, as models of type {model['model_type']} have, and {of.engine} goes by it: {asked[1]}. "
        "Write it there, or use hf_infer.",
        (choice.name_key, f"{choice.role.name}.model_args.model_name_or_path"),
    )


def engine_model_warning(choice: Choice, model: Mapping[str, Any]) -> str | None:
    """An architecture for which the engine has to run the code of transformers."""
    unknown = _unknown(choice, model)
    if unknown is None or not _transformers_has(model):
        return None
    return (
        f"{choice.role.name}: the installed {unknown[2]} does not implement {' or '.join(unknown[0])}, the "
        f"architecture of {choice.worker.model_args.model_name_or_path}. It runs transformers' implementation, which "
        "is slower and may fail at the start. Try the model in a small run, or set strategy_name: hf_infer."
    )


def _unknown(choice: Choice, model: Mapping[str, Any]) -> tuple[list[str], Registry, str] | None:
    """The architectures of a model of which the engine has none, its registry, and its name. None as well where nobody
    can tell: the engine is not here, or plugins may bring more."""
    of, kinds = spec_of(choice.worker.strategy_name).registry, model.get("architectures")
    if of is None or not isinstance(kinds, list) or not kinds or choice.role.use != "generate":
        return None
    registry = installed(choice.worker.strategy_name)
    if not registry.known or registry.known.intersection(map(str, kinds)) or _has_plugins(of):
        return None
    return [str(kind) for kind in kinds], registry, of.engine


def _has_plugins(of: ModelRegistry) -> bool:
    return any(not plugin.value.startswith(f"{of.package}.") for plugin in entry_points(group=of.plugins))


@cache
def installed(strategy: str) -> Registry:
    """Return the models that the installed engine knows; an empty registry if none is installed."""
    spec = spec_of(strategy)
    root = None if spec.registry is None else _folder(spec.registry.package)
    return NOTHING if spec.registry is None or root is None else spec.call_hook(spec.registry.read, Registry, root)


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]) if places else None


def _transformers_has(model: Mapping[str, Any]) -> bool:
    root, kind = _folder("transformers"), model.get("model_type")
    if root is None or not isinstance(kind, str) or not (root / "models").is_dir():
        return True  # nobody can tell
    named = kind.replace("-", "_").replace(".", "_")
    return bool(named) and ((root / "models" / named).is_dir() or f'"{kind}"' in _auto_names(root))


@cache
def _auto_names(root: Path) -> str:
    """The text in which transformers lists its families; some of them live in the folder of another."""
    files = sorted((root / "models" / "auto").glob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8") for file in files if "config" in file.name or "mapp" in file.name)


_HEADS = {"value": "TOKEN_CLASSIFICATION", "sequence": "SEQUENCE_CLASSIFICATION", "reward": "SEQUENCE_CLASSIFICATION"}


def headless_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """A model of text for which transformers has no head that gives values or rewards."""
    mapping, root, kind = _HEADS.get(choice.role.head or ""), _folder("transformers"), model.get("model_type")
    if mapping is None or root is None or not isinstance(kind, str) or "auto_map" in model or senses(model):
        return
    known = _types_with(root, mapping)
    if known and kind not in known:
        key = f"{choice.role.name}.model_args.model_name_or_path"
        yield Problem(
            f"{key}: transformers has no {choice.role.head} head for {kind} models. Name a model of another type"
            f"{', or an adv_estimator without a critic' if choice.role.head == 'value' else ''}.",
            (key,),
            "machine",
        )


@cache
def _types_with(root: Path, mapping: str) -> frozenset[str]:
    """Types of models in a table of transformers' automatic classes; none where the file has another form."""
    file = root / "models" / "auto" / "modeling_auto.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    _, _, after = text.partition(f"MODEL_FOR_{mapping}_MAPPING_NAMES = OrderedDict(")
    return frozenset(re.findall(r'^\s*\("([^"]+)",', after.partition("\n)")[0], re.MULTILINE))


def vllm_registry(root: Path) -> Registry:
    try:
        tree = ast.parse((root / "model_executor" / "models" / "registry.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return NOTHING
    known: set[str] = set()
    dropped: dict[str, str] = {}
    for node in tree.body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if not isinstance(target, ast.Name) or not target.id.endswith("_MODELS") or not isinstance(value, ast.Dict):
            continue
        for name, entry in zip(value.keys, value.values, strict=True):
            if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
                continue
            if "PREVIOUSLY" in target.id and isinstance(entry, ast.Constant):
                dropped[name.value] = str(entry.value)
            elif isinstance(entry, ast.Tuple):
                known.add(name.value)
    return Registry(frozenset(known), dropped)


def sglang_registry(root: Path) -> Registry:
    known: set[str] = set()
    for file in (root / "srt" / "models").glob("*.py"):
        for entry in _SGLANG_ENTRY.findall(file.read_text(encoding="utf-8", errors="replace")):
            known.update(re.findall(r"\w+", re.sub(r"#.*", "", entry)))
    return Registry(frozenset(known), {})
