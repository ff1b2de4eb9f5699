"""How much of a model is trained, and what LoRA puts beside it."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from roll.configs.memory.layer_shape import SHARED_GATE, ModelShape, Weight
from roll.configs.sections.model import ALL_LINEAR, ModelArgs
from roll.configs.tables.families import FAMILIES
from roll.configs.tables.sight import names_part

EXPERT = "{expert}"  # stands for the number of each
Experts = Literal["none", "named", "linear"]
"""Experts of a mixture that get adapters: none; in transformers, where they are no linear layers, those that are
named; in Megatron, where they are, those of all-linear as well."""
_UNFUSED = re.compile(r"\b(gate|up)_proj")
_OTHER_NAMES = {there: here for family in FAMILIES.values() for here, there in family.names_in_files.items()}


def is_frozen(weight: Weight, prefixes: tuple[str, ...]) -> bool:
    """True for a weight that model_args.freeze_module_prefix names, as files or as transformers call it."""
    named = tuple(prefix.replace("block_sparse_moe", "mlp") for prefix in prefixes)
    fused = _UNFUSED.sub("gate_up_proj", weight.name.replace(f"{EXPERT}.", "")) if EXPERT in weight.name else ""
    return weight.name.startswith(named) or fused.startswith(named) or any(names_part(weight.name, w) for w in prefixes)


def held_weights(shape: ModelShape, args: ModelArgs, experts: Experts = "named") -> list[tuple[Weight, bool]]:
    """The weights of a model that learns, and whether each is trained. With LoRA these are its adapters, copies of what
    additional_target names, and a critic's head."""
    if not args.has_lora:
        return [(weight, not is_frozen(weight, args.frozen_prefixes)) for weight in shape.weights]
    held = [(weight, shape.is_critic and weight.name.startswith("score.")) for weight in shape.weights]
    held += [(part, True) for weight in adapted(shape, args, experts) for part in _adapter(weight, args.lora_rank)]
    in_full = _in_full(shape, args)
    copied = (w for w in shape.weights if not is_frozen(w, args.frozen_prefixes) and _is_below(w, in_full))
    return held + [(weight, True) for weight in copied]


def adapted(shape: ModelShape, args: ModelArgs, experts: Experts = "named") -> list[Weight]:
    """The matrices that get adapters."""
    there = (w for w in linear(shape, experts) if not is_frozen(w, args.frozen_prefixes))
    in_full = set[str]() if experts == "linear" else _in_full(shape, args)  # what peft copies whole gets none
    return [w for w in there if is_target(w, args.lora_target, experts) and not _is_below(w, in_full)]


def _in_full(shape: ModelShape, args: ModelArgs) -> set[str]:
    return {module for module in modules_of(shape) if is_named(module, args.additional_target)}


def linear(shape: ModelShape, experts: Experts = "named") -> Iterator[Weight]:
    """Matrices that can have adapters. The gate of a shared expert and the head are such layers in transformers and not
    in Megatron, routers in neither; nor is a head that is the embedding."""
    cuts = ("tensor",) if experts == "none" else ("tensor", "expert")
    matrices = [weight for weight in shape.weights if len(weight.shape) == 2 and weight.name.endswith(".weight")]
    if experts == "named":
        stacked = (weight for weight in shape.weights if is_stacked(weight))
        matrices += [replace(weight, name=weight.stored or weight.name.replace(f"{EXPERT}.", "")) for weight in stacked]
    return (m for m in matrices if m.cut in cuts or (experts != "linear" and (_is_head(m) or m.block == SHARED_GATE)))


def is_stacked(weight: Weight) -> bool:
    """True for a matrix of experts that the model's files hold with those of the layer's other experts in one
    tensor."""
    return weight.cut == "expert" and len(weight.shape) == 2 and not weight.name.endswith(".weight")


def is_target(weight: Weight, names: tuple[str, ...], experts: Experts = "named") -> bool:
    """`all-linear` is every one but the head, and but the experts where they are no linear layers."""
    in_all = not _is_head(weight) and (weight.cut != "expert" or experts == "linear")
    return (ALL_LINEAR in names and in_all) or is_named(_module(weight), names)


def _is_head(weight: Weight) -> bool:
    return weight.name == "lm_head.weight"


def _module(weight: Weight) -> str:
    return weight.name.removesuffix(".weight")


def _is_below(weight: Weight, modules: Collection[str]) -> bool:
    parts = weight.name.split(".")
    return any(".".join(parts[:count]) in modules for count in range(1, len(parts)))


def modules_of(shape: ModelShape) -> list[str]:
    """All that have weights, those that hold others included."""
    prefixes: dict[str, None] = {}
    for weight in shape.weights:
        parts = weight.name.split(".")[:-1]
        prefixes |= dict.fromkeys(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return list(prefixes)


def is_named(module: str, names: tuple[str, ...]) -> bool:
    """True if one of `names` names the module. Mixtral's modules may be named as in its files."""
    others = (renamed(word, _OTHER_NAMES) for word in names)
    return any(ends_with(module, word) for word in (*names, *others))


def renamed(name: str, names: Mapping[str, str]) -> str:
    """The name with some of its parts replaced."""
    return ".".join(names.get(part, part) for part in name.split("."))


def ends_with(module: str, word: str) -> bool:
    """True if `word` is the whole name of the module or its last parts, as peft matches modules."""
    wanted = word.split(".")
    last = module.split(".")[-len(wanted) :]
    pairs = zip(last, wanted, strict=False)
    return len(last) == len(wanted) and all(a == b or (a == EXPERT and b.isdigit()) for a, b in pairs)


def _adapter(weight: Weight, rank: int) -> tuple[Weight, Weight]:
    rows, columns = weight.shape
    module = _module(weight)
    return (
        replace(weight, name=f"{module}.lora_A.weight", shape=(rank, columns)),
        replace(weight, name=f"{module}.lora_B.weight", shape=(rows, rank)),
    )
