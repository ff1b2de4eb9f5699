"""LoRA against a model's config.json, before anything starts."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from roll.configs.memory.layer_shape import Weight
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.trained import (
    EXPERT,
    Experts,
    adapted,
    ends_with,
    is_target,
    linear,
    modules_of,
    renamed,
)
from roll.configs.problems import Problem
from roll.configs.sections.model import ALL_LINEAR, ModelArgs
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import strategies_with, supports
from roll.configs.tables.families import family_of

EXPERTS_AND_RSLORA = (
    "true with adapters on the experts of a mixture, whose gate and up peft fuses as it loads them: it keeps alpha / "
    "r, not alpha / sqrt(r). Set it to false, and lora_alpha to as much more"
)
EXPERTS_WITHOUT_DOWN = (
    "adapts gate and up of experts without down, which peft does not read: it would load the model without adapters on "
    "its experts. Name all three, or down alone"
)
_TIED = ("embed_tokens", "lm_head")
_ONE_MATRIX = (("gate_proj", "up_proj"), ("w1", "w3"))  # of experts
_DOWN = {"up_proj": "down_proj", "w3": "w2"}


def lora_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks lora_target against a model's config.json, if its weights are known."""
    args, key = choice.worker.model_args, f"{choice.role.name}.model_args.lora_target"
    if not args.lora_target:
        return
    experts = _experts(choice)
    shape, _ = model_shape(model, choice.role.head or "lm")
    if shape is None or not args.has_lora:
        return
    family = family_of(model)
    files = family.names_in_files if experts != "none" and family is not None else {}
    weights = list(linear(shape, experts))
    layers = [renamed(weight.name.removesuffix(".weight"), files) for weight in weights]
    there = sorted({layer.rpartition(".")[2] for layer in layers})
    asked = [word for word in args.lora_target if word != ALL_LINEAR]
    unknown = [word for word in asked if not any(ends_with(layer, word) for layer in layers)]
    if family is None:  # files of some have other names for experts
        unknown = [word for word in unknown if not any(is_target(weight, (word,), experts) for weight in weights)]
    for word in unknown:
        text = f"{key}: no linear layer of the model is named {word}. It has {', '.join(there)}"
        mixture = shape.experts_per_token and experts == "none"
        why = f" (with {choice.worker.strategy_name} the experts of a mixture get no adapters;" if mixture else ""
        others = ", ".join(strategies_with(Feature.LORA_EXPERTS, choice.role.use))
        why += f" with {others} they do)" if mixture else ""
        yield Problem(f"{text}{why}, or write {ALL_LINEAR}.", (key,))
    chosen = adapted(shape, args, experts)
    if not unknown:
        yield from _expert_problems(chosen, set(layers), files, args, key, experts)
    modules = modules_of(shape)
    at = f"{choice.role.name}.model_args.additional_target"
    if experts != "linear":
        modules = [module for module in modules if EXPERT not in module]
        yield from _in_full_problems(modules, shape.ties_head, args, at)
        return
    layer_names = {w.name.rpartition(".")[0] for w in shape.weights if w.name.endswith((".weight", ".bias"))}
    modules = [renamed(module, files) for module in modules if module in layer_names]
    yield from _in_full_problems(modules, shape.ties_head, args, at, "weights of its own")


def _experts(choice: Choice) -> Experts:
    if not supports(choice, Feature.LORA_EXPERTS):
        return "none"
    return "named" if supports(choice, Feature.TRANSFORMERS_MODEL) else "linear"


def _expert_problems(
    chosen: Sequence[Weight], there: Set[str], files: Mapping[str, str], args: ModelArgs, key: str, experts: Experts
) -> Iterator[Problem]:
    """Checks adapters of experts, whatever trains them: peft reads them as those of transformers' stacked matrices, all
    experts of a layer in one, gate and up together, and these beside down alone."""
    of_experts = [weight for weight in chosen if weight.cut == "expert"]
    names = [renamed(weight.name.removesuffix(".weight"), files) for weight in of_experts]
    for weight in of_experts:
        numbers = [_expert_of(word) for word in args.lora_target if is_target(weight, (word,), experts)]
        if None not in numbers and len(set(numbers)) < weight.count:
            text = f"{key}: {', '.join(args.lora_target)} names {len(set(numbers))} of {weight.count} experts"
            yield Problem(f"{text}, and peft reads adapters of all alone. Name them without a number.", (key,))
            return
    for partners in _ONE_MATRIX:
        for layer in names:
            last = layer.rpartition(".")[2]
            if last in partners and any(
                (name := layer.removesuffix(last) + other) in there and name not in names for other in partners
            ):
                text = f"{key}: {' and '.join(partners)} of experts are one matrix, and {', '.join(args.lora_target)}"
                yield Problem(f"{text} names a part of it. Name both, or none.", (key,))
                return
    for layer in names:
        stem, _, last = layer.rpartition(".")
        if last in _DOWN and f"{stem}.{_DOWN[last]}" not in names:
            yield Problem(f"{key}: {', '.join(args.lora_target)} {EXPERTS_WITHOUT_DOWN}.", (key,))
            return


def _expert_of(word: str) -> str | None:
    """The number of the expert that a target names; None: it names all of them. Example: experts.7.w1 -> 7."""
    number = f".{word}".split(".")[-2]
    return number if number.isdigit() else None


def _in_full_problems(
    modules: Sequence[str], ties_head: bool, args: ModelArgs, key: str, what: str = "weights"
) -> Iterator[Problem]:
    """Checks additional_target: the modules that are trained in full beside the adapters."""
    for word in args.additional_target:
        if ties_head and word.rpartition(".")[2] in _TIED:
            text = f"{key}: {word}: embedding and head are one weight in this model (tie_word_embeddings); this would"
            yield Problem(f"{text} make two of it. Remove it.", (key,))
        elif not any(ends_with(module, word) for module in modules):
            there = ", ".join(sorted({name for module in modules if not (name := module.rpartition(".")[2]).isdigit()}))
            yield Problem(f"{key}: no module of the model that has {what} is named {word}. It has {there}.", (key,))
