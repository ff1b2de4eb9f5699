"""Numbers, attention and layers of a model, by its config.json and `model_facts`."""

from collections.abc import Iterable, Mapping
from typing import Any

from roll.configs.strategies import model_facts as facts

ATTENTION_CAP = "attn_logit_softcapping"
CHANGING_ROPE = frozenset({"dynamic", "longrope", "su"})  # su: as longrope was called
PACKABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})
STATES_IN_PARTS = "layers that carry a state from token to token, through whole rows"
_CACHED_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_STATE_LAYERS = frozenset({"conv", "linear_attention", "mamba"})
_WITHOUT = {"sdpa": "sdpa", "fa2": "flash-attn 2"}


def type_of(model: Mapping[str, Any]) -> str:
    """The model_type of the part for text."""
    kind = str(model.get("model_type"))
    return f"{kind}_text" if kind not in facts.TRIED and f"{kind}_text" in facts.TRIED else kind


def text_part(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of config.json that describes the text model."""
    inner = model.get("text_config")
    return {**model, **inner} if isinstance(inner, Mapping) else model


def attention_cap(model: Mapping[str, Any]) -> float | None:
    """The soft cap of a model's attention."""
    cap = model.get(ATTENTION_CAP, facts.CAPPED.get(type_of(model)))
    return cap or None


def unread_number(model: Mapping[str, Any]) -> str | None:
    """A number between the head and the logits that is not known for models of this type; None where there is none."""
    kind = type_of(model)
    readers: dict[str, Any] = {**facts.LOGIT_CAPS, **facts.LOGIT_FACTORS}
    for key, kinds in readers.items():
        value = model.get(key)
        if value is not None and value is not False and value not in (0, 1) and kind not in kinds:
            known = ", ".join(sorted(kinds)) or "none"
            return f"{key}: {value}, which is not supported for {kind} models. Supported for: {known}"
    return None


def attention_problem(implementation: str | None, model: Mapping[str, Any]) -> str | None:
    """Why attention of this kind (`attn_implementation`) would be another one than the model's, and what to use."""
    kind, cap = type_of(model), attention_cap(model)
    if implementation == "sdpa" and cap is not None:
        return f"sdpa has no soft cap, and {kind} has {ATTENTION_CAP}: {cap}. Use auto or eager, or fa2 on a GPU"
    if implementation in _WITHOUT and kind in facts.SINKS:
        return f"{_WITHOUT[implementation]} has no sinks, and {kind} has. Use auto or eager"
    if implementation == "eager" and kind == "falcon" and model.get("alibi"):
        return "eager attention of falcon adds alibi twice. Use auto or sdpa"
    return None


def unsampled(text: Mapping[str, Any]) -> str:
    """Name the part of a model that hf_infer cannot sample with; "": none is known."""
    kind, layers = type_of(text), {str(each) for each in text.get("layer_types") or ()}
    if kind in facts.STATES:
        return "a state in every layer and attention in none" if layers and layers <= _STATE_LAYERS else ""
    if others := sorted(layers - _CACHED_LAYERS):
        return f"layers of type {', '.join(others)}"
    if kind == "falcon":
        return facts.UNSAMPLED["bloom"] if text.get("alibi") else ""
    return facts.UNSAMPLED.get(kind, "") if kind != "llama4_text" or text.get("attn_temperature_tuning", True) else ""


def unpacked(text: Mapping[str, Any]) -> str:
    """Name the part of a model, by its type alone, that rules out packing; "": none is known."""
    return facts.UNPACKED.get(type_of(text), "") if type_of(text) != "falcon" or text.get("alibi") else ""


def is_dropout(key: str, value: object) -> bool:
    """Whether it is a share of numbers or layers that training leaves out at random."""
    return "drop" in key and isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def unpackable_layers(kind: str, layers: Iterable[object]) -> list[str]:
    """Types of layers that see past the end of a row in a pack, of a model of this type."""
    return [] if kind in facts.STATES else sorted({str(layer) for layer in layers} - PACKABLE_LAYERS)


def why_no_packs(text: Mapping[str, Any]) -> str:
    """Say what of a model's config.json (its part about text) keeps its rows from being packed; empty: nothing."""
    if (cap := attention_cap(text)) is not None:
        return f"which has a soft cap on attention ({ATTENTION_CAP}: {cap}) that the kernels for packs leave out"
    if others := unpackable_layers(type_of(text), text.get("layer_types") or ()):
        return f"whose config.json has layers of type {', '.join(others)}, which see past the end of a row"
    return f"which has {unpacked(text)}" if unpacked(text) else ""


def why_no_parts(text: Mapping[str, Any]) -> str:
    """Say the same of rows that are computed in parts: as trees, or by several ranks."""
    if why := why_no_packs(text):
        return why
    if type_of(text) in facts.STATES:
        return f"which has {STATES_IN_PARTS}"
    return "which has attention of its own" if type_of(text) in facts.OWN_ATTENTION else ""


def rope_kinds(text: Mapping[str, Any]) -> set[str]:
    """The rope_type of a model, or of each kind of its layers."""
    parameters = text.get("rope_parameters") or text.get("rope_scaling")
    section = parameters if isinstance(parameters, Mapping) else {}
    return {
        str(one.get("rope_type", one.get("type"))) for one in (section, *section.values()) if isinstance(one, Mapping)
    }
