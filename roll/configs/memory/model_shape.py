"""Every weight of a model, from its config.json alone: exact numbers, without torch. Buffers are left out (GLM and
DeepSeek have a number for each expert)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from roll.configs.checks.mtp import NUM_HEADS
from roll.configs.memory.decoders import DECODERS
from roll.configs.memory.gpts import GPTS
from roll.configs.memory.hybrids import HYBRIDS
from roll.configs.memory.layer_shape import SHARED_GATE, Attention, Cut, Eager, LayerShape, ModelShape, Weight
from roll.configs.memory.mamba_types import MAMBA_TYPES
from roll.configs.memory.reader import (
    MOST,
    MOST_LAYERS,
    Form,
    HeadSizes,
    Reader,
    UnreadableModel,
    latent_sizes,
    own_weights,
)
from roll.configs.memory.single_types import SINGLE_TYPES
from roll.configs.memory.tower import in_whole_model, text_part, tower_weights
from roll.configs.strategies.model_facts import SINKS
from roll.configs.strategies.model_numbers import attention_cap
from roll.configs.tables.families import Family, Model, family_of
from roll.configs.tables.roles import Head
from roll.configs.tables.vision import VISION


def head_dim(model: Model, family: Family) -> int:
    return model.get("head_dim") or family.head_dim or model["hidden_size"] // model["num_attention_heads"]


def attention(model: Model, family: Family) -> Attention:
    heads, kv_heads = model["num_attention_heads"], model.get("num_key_value_heads") or model["num_attention_heads"]
    if not family.is_latent:
        size = head_dim(model, family)
        return HeadSizes(heads, kv_heads, size, has_norms=family.has(model, family.norms_heads)).attention
    plain, turned, value = (model[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    return latent_sizes(heads, model["q_lora_rank"] or 0, model["kv_lora_rank"], plain, turned, value)


def layer_weights(model: Model, family: Family, layer: int) -> Iterator[Weight]:
    """Every weight of a layer."""
    at, hidden = f"model.layers.{layer}", model["hidden_size"]
    for norm in ("input_layernorm", "post_attention_layernorm", *family.more_norms):
        yield Weight(f"{at}.{norm}.weight", (hidden,), "whole", layer, norm)
    parts = _latent_attention if family.is_latent else _attention
    yield from parts(model, family, layer, f"{at}.self_attn")
    if not family.is_sparse(model, layer):
        yield from _mlp(model, family, layer, f"{at}.mlp", model["intermediate_size"])
    elif family.experts is not None and family.experts.have_biases:
        yield from _gpt_oss_experts(model, layer, f"{at}.mlp")
    else:
        yield from _experts(model, family, layer, f"{at}.mlp")


def _attention(model: Model, family: Family, layer: int, at: str) -> Iterator[Weight]:
    hidden, width, heads = model["hidden_size"], head_dim(model, family), model["num_attention_heads"]
    kv_heads = model.get("num_key_value_heads") or heads
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield Weight(f"{at}.{name}_proj.weight", (rows * width, hidden), "tensor", layer, "qkv")
        if family.has(model, family.qkv_bias):
            yield Weight(f"{at}.{name}_proj.bias", (rows * width,), "tensor", layer, "bias of qkv")
    yield from _output(model, family, layer, at, heads * width)
    if family.has(model, family.norms_heads):
        for name in ("q", "k"):
            yield Weight(f"{at}.{name}_norm.weight", (width,), "whole", layer, f"norm of {name}")
    if family.has_sinks:
        yield Weight(f"{at}.sinks", (heads,), "tensor", layer, "sinks")


def _latent_attention(model: Model, family: Family, layer: int, at: str) -> Iterator[Weight]:
    hidden, heads, query, latent = (
        model[key] for key in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank")
    )
    plain, turned, value = (model[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    queries = heads * (plain + turned)
    narrow = [("kv_a_proj_with_mqa", latent + turned)]
    if query:
        narrow.append(("q_a_proj", query))
        yield Weight(f"{at}.q_a_layernorm.weight", (query,), "whole", layer, "norm of q")
        yield Weight(f"{at}.q_b_proj.weight", (queries, query), "tensor", layer, "q")
    else:
        yield Weight(f"{at}.q_proj.weight", (queries, hidden), "tensor", layer, "q")
    for name, rows in narrow:
        yield Weight(f"{at}.{name}.weight", (rows, hidden), "tensor", layer, name)
        if family.has(model, family.qkv_bias):
            yield Weight(f"{at}.{name}.bias", (rows,), "tensor", layer, f"bias of {name}")
    yield Weight(f"{at}.kv_a_layernorm.weight", (latent,), "whole", layer, "norm of kv")
    yield Weight(f"{at}.kv_b_proj.weight", (heads * (plain + value), latent), "tensor", layer, "kv")
    yield from _output(model, family, layer, at, heads * value)


def _output(model: Model, family: Family, layer: int, at: str, width: int) -> Iterator[Weight]:
    yield Weight(f"{at}.o_proj.weight", (model["hidden_size"], width), "tensor", layer, "output")
    if family.has(model, family.output_bias):
        yield Weight(f"{at}.o_proj.bias", (model["hidden_size"],), "whole", layer, "bias of output")


def _mlp(model: Model, family: Family, layer: int, at: str, width: int, of: str = "") -> Iterator[Weight]:
    """Weights of an MLP. `of` distinguishes its blocks from others of the layer."""
    matrices = _matrices(model["hidden_size"], width)
    if family.fuses_gate_up:
        matrices = {"gate_up": (2 * width, model["hidden_size"]), "down": matrices["down"]}
    for name, shape in matrices.items():
        block = f"{'down' if name == 'down' else 'gate and up'}{of}"
        yield Weight(f"{at}.{name}_proj.weight", shape, "tensor", layer, block)
        if family.has(model, family.mlp_bias):
            cut: Cut = "whole" if name == "down" else "tensor"
            yield Weight(f"{at}.{name}_proj.bias", shape[:1], cut, layer, f"bias of {block}")


def _experts(model: Model, family: Family, layer: int, at: str) -> Iterator[Weight]:
    experts, hidden = family.experts, model["hidden_size"]
    assert experts is not None
    count = model[experts.number]
    yield Weight(f"{at}.gate.weight", (count, hidden), "whole", layer, "router")
    for name, shape in _matrices(hidden, model[experts.width]).items():
        block = "down of the experts" if name == "down" else "gate and up of the experts"
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj.weight", shape, "expert", layer, block, count)
    if width := experts.shared_width(model):
        shared = "shared_expert" if experts.gates_shared else "shared_experts"
        yield from _mlp(model, family, layer, f"{at}.{shared}", width, " of what every token meets")
        if experts.gates_shared:
            yield Weight(f"{at}.shared_expert_gate.weight", (1, hidden), "whole", layer, SHARED_GATE)


def _gpt_oss_experts(model: Model, layer: int, at: str) -> Iterator[Weight]:
    """Yield the router and experts of gpt-oss: no layers of their own, so that no expert's name ends in `.weight`."""
    count, hidden, width = (model[key] for key in ("num_local_experts", "hidden_size", "intermediate_size"))
    yield Weight(f"{at}.router.weight", (count, hidden), "whole", layer, "router")
    yield Weight(f"{at}.router.bias", (count,), "whole", layer, "bias of the router")
    for name, shape in (("gate_up", (hidden, 2 * width)), ("down", (width, hidden))):
        block = "down of the experts" if name == "down" else "gate and up of the experts"
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj", shape, "expert", layer, block, count)
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj_bias", shape[1:], "expert", layer, f"bias of {block}", count)


def _matrices(hidden: int, width: int) -> dict[str, tuple[int, int]]:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}


FORMS: Mapping[str, Form] = {**HYBRIDS, **MAMBA_TYPES, **DECODERS, **GPTS, **SINGLE_TYPES}
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim", "decoder_sparse_step", "num_experts", "num_experts_per_tok")
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "qkv_bias", "use_qk_norm")
_ACTIVATION = ("mlp_hidden_act", "hidden_activation", "activation_function", "activation", "hidden_act")
_CLAMPED, _CLAMPS = "swigluoai", ("gpt_oss", "minimax_m3_vl_text")  # whatever config.json says
_EXPERTS = ("num_experts", "num_local_experts")  # transformers takes one for the other


def model_shape(model: Mapping[str, Any], head: Head = "lm") -> tuple[ModelShape | None, str]:
    """The shape of the model of a config.json (with the role's overrides in it), or None and the reason."""
    if model.get("model_type") in VISION and isinstance(model.get("vision_config"), Mapping):
        return _shape_with_tower(model, head)
    if model.get("model_type") in FORMS:
        return _shape_by_form(model, head)
    family = family_of(model)
    if family is None:
        return None, f"the memory formulas know no {model.get('model_type')} models"
    number = family.experts.number if family.experts else ""
    if number in _EXPERTS:
        model = {**model, number: model.get(_EXPERTS[0]) or model.get(_EXPERTS[1])}
    needed = list(dict.fromkeys((*_NEEDED, *family.needed)))
    missing = [key for key in needed if model.get(key) is None]
    missing += [key for key in family.declared_keys if key not in model]
    if missing:
        return None, f"config.json lacks {', '.join(missing)}"
    if wrong := list(_wrong_values(model, needed)):
        return None, f"config.json: {', '.join(wrong)}"
    return _shape(model, family, head), ""


def _shape_with_tower(model: Mapping[str, Any], head: Head) -> tuple[ModelShape | None, str]:
    """The language model's shape with the weights of what sees, which lie before its first layer and are cut by
    nothing."""
    text, why_not = model_shape(text_part(model), head)
    if text is None:
        return None, why_not
    try:
        tower = [Weight(name, shape, "whole", -1, "tower") for name, shape in tower_weights(model)]
    except (KeyError, TypeError) as error:
        return None, f"config.json: vision_config lacks a size ({error})"
    return replace(text, weights=(*map(in_whole_model, text.weights), *tower)), ""


def _wrong_values(model: Mapping[str, Any], needed: Iterable[str]) -> Iterator[str]:
    for key in dict.fromkeys((*needed, *_OPTIONAL)):
        value, most = model.get(key), MOST_LAYERS if key == "num_hidden_layers" else MOST
        if value is not None and not (type(value) is int and 1 <= value <= most):
            yield f"{key} is not a whole number from 1 to {most}"
    yield from (f"{key} is neither true nor false" for key in _FLAGS if not isinstance(model.get(key), bool | None))
    dense = model.get("mlp_only_layers")
    if dense is not None and not (isinstance(dense, list) and all(type(layer) is int for layer in dense)):
        yield "mlp_only_layers is not a list of whole numbers"
    first, rank = model.get("first_k_dense_replace"), model.get("q_lora_rank")
    for key, value, least in (("first_k_dense_replace", first, 0), ("q_lora_rank", rank, 1)):
        if value is not None and not (type(value) is int and least <= value <= MOST):
            yield f"{key} is not a whole number from {least} to {MOST}"
    kinds = model.get("mlp_layer_types")
    if kinds is not None and not (isinstance(kinds, list) and len(kinds) == model["num_hidden_layers"]):
        yield "mlp_layer_types is not a list with one entry per layer"
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    if type(hidden) is int and type(heads) is int and not model.get("head_dim") and heads > hidden:
        yield "num_attention_heads is larger than hidden_size"


def _shape(model: Mapping[str, Any], family: Family, head: Head) -> ModelShape:
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    weights = [Weight("model.embed_tokens.weight", (model["vocab_size"], hidden), "vocabulary", -1, "embedding")]
    for layer in range(layers):
        weights += layer_weights(model, family, layer)
    weights.append(Weight("model.norm.weight", (hidden,), "whole", layers, "norm"))
    shapes = [_layer_shape(model, family, layer) for layer in range(layers)]
    mtp = tuple(_mtp(model, family)) if head == "lm" else ()
    ties_head = bool(model.get("tie_word_embeddings", family.ties_head))
    return replace(_with_head(model, weights, shapes, head, ties_head, mtp), norm=family.norm)


def _shape_by_form(model: Mapping[str, Any], head: Head) -> tuple[ModelShape | None, str]:
    form, reader = FORMS[str(model["model_type"])], Reader(model)
    try:
        weights, layers = own_weights(reader, form)
        ties = form.ties_head
        if ties is not None:
            ties = reader.flag("tie_embedding", reader.flag("tie_word_embeddings", ties))
        has_bias = head == "lm" and form.head_bias(reader)
    except UnreadableModel as error:
        return None, str(error)
    shape = replace(_with_head(model, weights, layers, head, bool(ties), name=form.head), norm=form.norm)
    if has_bias:
        bias = Weight(f"{form.head}.bias", (shape.vocab_size,), "vocabulary", len(layers), "bias of the head")
        shape = replace(shape, weights=(*shape.weights, bias))
    return shape, ""


def _with_head(
    model: Mapping[str, Any],
    weights: list[Weight],
    layers: list[LayerShape],
    head: Head,
    ties_head: bool,
    mtp: tuple[Weight, ...] = (),
    name: str = "lm_head",
) -> ModelShape:
    """The shape of a model whose first weight is the embedding."""
    vocab_size, hidden = weights[0].shape
    last, is_critic = len(layers), head != "lm"
    ties_head = ties_head and not is_critic
    if head == "sequence":
        weights.append(Weight("score.weight", (num_labels(model), hidden), "whole", last, "score"))
    elif head == "reward":
        weights.append(Weight("score.weight", (1, hidden), "whole", last, "score"))
    elif head == "value":
        weights.append(Weight("score.weight", (1, hidden), "whole", last, "score"))
        weights.append(Weight("score.bias", (1,), "whole", last, "bias of the score"))
    elif not ties_head:
        weights.append(Weight(f"{name}.weight", (vocab_size, hidden), "vocabulary", last, "head"))
    shape = ModelShape(tuple(weights), mtp, tuple(layers), hidden, vocab_size, ties_head, is_critic, _eager(model))
    named = next((str(model[key]) for key in _ACTIVATION if model.get(key)), "")
    return replace(shape, activation=_CLAMPED if model.get("model_type") in _CLAMPS else named)


def _eager(model: Mapping[str, Any]) -> Eager:
    kind = str(model.get("model_type"))
    if attention_cap(model) is not None:
        return "capped"
    return _EAGER.get(kind, "sinks" if kind in SINKS else "no")


_EAGER: Mapping[str, Eager] = {
    **dict.fromkeys(("granite_swa", "granitemoe_swa"), "capped"),  # sinks, in two fp32 copies
    **dict.fromkeys(("bloom", "codegen", "gpt_neo", "gptj"), "plain"),
    "xglm": "sinks",  # one copy, without sinks
}
"""Types that know no other attention, and what it keeps."""


def _layer_shape(model: Mapping[str, Any], family: Family, layer: int) -> LayerShape:
    own, num_norms = attention(model, family), 2 + len(family.more_norms)
    if family.experts is None or not family.is_sparse(model, layer):
        return LayerShape(own, ffn_width=model["intermediate_size"], num_norms=num_norms)
    per_token, experts = model["num_experts_per_tok"], family.experts
    width = per_token * model[experts.width] + experts.shared_width(model)
    return LayerShape(
        own,
        ffn_width=width,
        experts_per_token=per_token,
        num_norms=num_norms,
        num_inputs=3 if experts.gates_shared else 2,
        routes_in_fp32=experts.routes_in_fp32,
        has_shared=bool(experts.shared_width(model)),
    )


def _mtp(model: Mapping[str, Any], family: Family) -> Iterator[Weight]:
    """Weights of the one MTP head that megatron_train supports (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""
    if model.get(NUM_HEADS) != 1 or family.experts is None:
        return
    hidden, layer = model["hidden_size"], model["num_hidden_layers"]
    at = f"model.layers.{layer}"
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield Weight(f"{at}.{norm}.weight", (hidden,), "whole", layer, norm)
    yield Weight(f"{at}.eh_proj.weight", (hidden, 2 * hidden), "tensor", layer, "eh_proj")
    yield from layer_weights(model, family, layer)


def num_labels(model: Mapping[str, Any]) -> int:
    """Numbers that a sequence-classification head gives, as transformers reads them from a config.json."""
    count, names = model.get("num_labels"), model.get("id2label")
    if type(count) is int and count > 0:
        return count
    return len(names) if isinstance(names, Mapping) and names else 2
