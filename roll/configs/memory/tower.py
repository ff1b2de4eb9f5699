"""The weights of models that see: those of the language model, and those of the tower before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roll.configs.tables.vision import DEEPSTACK, LANGUAGE, MERGER, PROJECTOR, TOWER, VISION, VISUAL, side_of

if TYPE_CHECKING:
    from roll.configs.memory.layer_shape import Weight

_TEXT_KINDS = {
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "gemma3": "gemma3_text",
}
"""The text family of each kind; others say it in their text_config."""
_QWEN3 = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
_CHANNELS = 3
_Tower = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[tuple[str, tuple[int, ...]]]]
_GEMMA3: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
}
"""Sizes that files of Gemma-3 leave out."""


def text_part(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model of a model that sees, as a config.json of a family of text. Older files have its keys beside
    those of the tower."""
    kind = str(model.get("model_type"))
    text = {**(_GEMMA3 if kind == "gemma3" else {}), **model, **(model.get("text_config") or {})}
    text["tie_word_embeddings"] = bool(text.get("tie_word_embeddings", model.get("tie_word_embeddings", False)))
    if kind == "glm4v":  # has no keys for these
        text |= {"head_dim": None, "attention_bias": True}
        if type(text.get("hidden_size")) is int and type(text.get("num_attention_heads")) is int:
            text["head_dim"] = text["hidden_size"] // max(text["num_attention_heads"], 1)
    return {**text, "model_type": _TEXT_KINDS.get(kind) or text["model_type"]}


def in_whole_model(weight: Weight) -> Weight:
    """A weight of the language model under its name in the whole model."""
    if not weight.name.startswith("model."):
        return weight
    return replace(weight, name=LANGUAGE + weight.name.removeprefix("model."))


def tower_weights(model: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tower's weights, the mergers' too. KeyError where config.json lacks a size."""
    kind = str(model.get("model_type"))
    facts, tower = VISION[kind], model["vision_config"]
    if kind in _OTHER_TOWERS:
        yield from _OTHER_TOWERS[kind](tower, model)
        return
    width = tower["embed_dim"] if kind == "qwen2_vl" else tower["hidden_size"]
    out = tower["hidden_size"] if kind == "qwen2_vl" else tower["out_hidden_size"]
    inner = int(width * tower["mlp_ratio"]) if kind == "qwen2_vl" else tower["intermediate_size"]
    side, merged = (
        tower.get("patch_size") or facts.patch_size,
        (tower.get("spatial_merge_size") or facts.merge_size) ** 2,
    )
    at = VISUAL
    yield f"{at}patch_embed.proj.weight", (width, _CHANNELS, tower.get("temporal_patch_size") or 2, side, side)
    if kind in _QWEN3:
        yield f"{at}patch_embed.proj.bias", (width,)
        yield f"{at}pos_embed.weight", (tower["num_position_embeddings"], width)
    for block in range(tower["depth"]):
        yield from _block(f"{at}blocks.{block}.", kind, width, inner)
    yield from _mergers(kind, width, width * merged, out, len(tower.get("deepstack_visual_indexes") or ()))


def _glm_tower(tower: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    facts = VISION[str(model["model_type"])]
    side, merge = tower.get("patch_size") or facts.patch_size, tower.get("spatial_merge_size") or facts.merge_size
    width, out, inner = (tower[key] for key in ("hidden_size", "out_hidden_size", "intermediate_size"))
    biased = bool(tower.get("attention_bias"))
    yield f"{VISUAL}embeddings.position_embedding.weight", ((tower["image_size"] // side) ** 2, width)
    yield f"{VISUAL}patch_embed.proj.weight", (width, _CHANNELS, tower.get("temporal_patch_size") or 2, side, side)
    yield f"{VISUAL}patch_embed.proj.bias", (width,)
    for block in range(tower["depth"]):
        at = f"{VISUAL}blocks.{block}."
        yield from ((f"{at}{norm}.weight", (width,)) for norm in ("norm1", "norm2"))
        yield f"{at}attn.qkv.weight", (3 * width, width)
        if biased:
            yield f"{at}attn.qkv.bias", (3 * width,)
        yield f"{at}attn.proj.weight", (width, width)
        yield from _gated(f"{at}mlp.", width, out)
    yield f"{MERGER}proj.weight", (out, out)
    yield from ((f"{MERGER}post_projection_norm.{part}", (out,)) for part in ("weight", "bias"))
    yield from _gated(MERGER, out, inner)
    yield from ((f"{VISUAL}{norm}.weight", (width,)) for norm in ("post_conv_layernorm", "post_layernorm"))
    yield f"{VISUAL}downsample.weight", (out, width, merge, merge)
    yield f"{VISUAL}downsample.bias", (out,)


def _siglip_tower(tower: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tower of Gemma-3."""
    width, inner, side = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    yield f"{TOWER}embeddings.patch_embedding.weight", (width, _CHANNELS, side, side)
    yield f"{TOWER}embeddings.patch_embedding.bias", (width,)
    yield f"{TOWER}embeddings.position_embedding.weight", ((tower["image_size"] // side) ** 2, width)
    for layer in range(tower["num_hidden_layers"]):
        at = f"{TOWER}encoder.layers.{layer}."
        for norm in ("layer_norm1", "layer_norm2"):
            yield from _with_bias(f"{at}{norm}", width)
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            yield from _with_bias(f"{at}self_attn.{name}", width, width)
        yield from _with_bias(f"{at}mlp.fc1", inner, width)
        yield from _with_bias(f"{at}mlp.fc2", width, inner)
    yield from _with_bias(f"{TOWER}post_layernorm", width)
    yield f"{PROJECTOR}mm_input_projection_weight", (width, model["text_config"]["hidden_size"])
    yield f"{PROJECTOR}mm_soft_emb_norm.weight", (width,)


def _internvl_tower(tower: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner, out = tower["hidden_size"], tower["intermediate_size"], model["text_config"]["hidden_size"]
    side = side_of(tower["patch_size"])
    num_patches = (side_of(tower["image_size"]) // side) ** 2
    yield f"{TOWER}embeddings.cls_token", (1, 1, width)
    if tower.get("use_mask_token"):
        yield f"{TOWER}embeddings.mask_token", (1, 1, width)
    if tower.get("use_absolute_position_embeddings", True):
        yield f"{TOWER}embeddings.position_embeddings", (1, num_patches + 1, width)
    yield from _with_bias(f"{TOWER}embeddings.patch_embeddings.projection", width, _CHANNELS, side, side)
    for layer in range(tower["num_hidden_layers"]):
        yield from _internvl_layer(f"{TOWER}encoder.layer.{layer}.", tower, width, inner)
    if tower.get("use_mean_pooling") is False:
        yield from _with_bias(f"{TOWER}layernorm", width)
    merged = width * int(1 / (model.get("downsample_ratio") or 0.5)) ** 2
    yield from _with_bias(f"{PROJECTOR}layer_norm", merged)
    yield from _with_bias(f"{PROJECTOR}linear_1", out, merged)
    yield from _with_bias(f"{PROJECTOR}linear_2", out, out)


def _internvl_layer(at: str, tower: Mapping[str, Any], width: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{at}{name}", (width,)) for name in ("lambda_1", "lambda_2"))
    for name in ("q_proj", "k_proj", "v_proj"):
        yield f"{at}attention.{name}.weight", (width, width)
        if tower.get("attention_bias"):
            yield f"{at}attention.{name}.bias", (width,)
    yield from _with_bias(f"{at}attention.projection_layer", width, width)
    if tower.get("use_qk_norm"):
        yield from ((f"{at}attention.{name}.weight", (width,)) for name in ("q_norm", "k_norm"))
    yield from _with_bias(f"{at}mlp.fc1", inner, width)
    yield from _with_bias(f"{at}mlp.fc2", width, inner)
    for norm in ("layernorm_before", "layernorm_after"):
        yield f"{at}{norm}.weight", (width,)
        if tower.get("norm_type") != "rms_norm":
            yield f"{at}{norm}.bias", (width,)


def _with_bias(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


_OTHER_TOWERS: Mapping[str, _Tower] = {
    "glm4v": _glm_tower,
    "glm4v_moe": _glm_tower,
    "gemma3": _siglip_tower,
    "internvl": _internvl_tower,
}


def _gated(at: str, width: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((f"{at}{name}_proj.weight", (inner, width)) for name in ("gate", "up"))
    yield f"{at}down_proj.weight", (width, inner)


def _block(at: str, kind: str, width: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for norm in ("norm1", "norm2"):
        yield f"{at}{norm}.weight", (width,)
        if kind != "qwen2_5_vl":  # whose norms have no bias (RMSNorm)
            yield f"{at}{norm}.bias", (width,)
    layers = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
    if kind == "qwen2_5_vl":
        layers |= {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
    else:
        first, second = ("mlp.fc1", "mlp.fc2") if kind == "qwen2_vl" else ("mlp.linear_fc1", "mlp.linear_fc2")
        layers |= {first: (inner, width), second: (width, inner)}
    for name, (rows, columns) in layers.items():
        yield f"{at}{name}.weight", (rows, columns)
        yield f"{at}{name}.bias", (rows,)


def _mergers(kind: str, width: int, merged: int, out: int, deepstack: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    named = ("norm", "linear_fc1", "linear_fc2") if kind in _QWEN3 else ("ln_q", "mlp.0", "mlp.2")
    norm, first, second = named
    places = [(MERGER, width), *((f"{DEEPSTACK}{i}.", merged) for i in range(deepstack))]
    for at, normed in places:
        yield f"{at}{norm}.weight", (normed,)
        if kind != "qwen2_5_vl":
            yield f"{at}{norm}.bias", (normed,)
        for name, rows in ((first, merged), (second, out)):
            yield f"{at}{name}.weight", (rows, merged)
            yield f"{at}{name}.bias", (rows,)
