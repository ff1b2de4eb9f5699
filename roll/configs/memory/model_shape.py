"""Every weight of a model, from its config.json alone: exact numbers, without torch."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from roll.configs.roles import Head

Cut = Literal["whole", "tensor", "vocabulary", "expert"]
Bias = bool | str


@dataclass(frozen=True)
class Weight:
    """A tensor of the model under the name that transformers has for it, or `count` equal ones (a layer's experts).

    `cut`: what divides it: nothing, tensor parallel, tensor parallel with padding (a row per token), or expert
    parallel. `layer`: -1 before the first, number of layers after the last. Weights of a layer with the same
    `block` are one tensor in engines that fuse them.
    """

    name: str
    shape: tuple[int, ...]
    cut: Cut
    layer: int
    block: str
    count: int = 1

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape) * self.count


@dataclass(frozen=True)
class ModelShape:
    """`ffn_width` is what one token meets in a layer: of a mixture, the experts it goes to together. `ties_head`: the
    head is the embedding. A critic has a value head instead, a reward model one of some labels; neither is ever tied,
    and `is_critic` says so of both."""

    weights: tuple[Weight, ...]
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    vocab_size: int
    experts_per_token: int  # 0: a dense model
    ties_head: bool
    is_critic: bool

    @property
    def num_elements(self) -> int:
        return sum(weight.num_elements for weight in self.weights)


@dataclass(frozen=True)
class _Family:
    """What tells an architecture from others. A bias is there or not, or a key of config.json says so."""

    qkv_bias: Bias = False
    output_bias: Bias = False
    mlp_bias: Bias = False
    norms_heads: bool = False
    head_dim: int | None = None  # where config.json does not say; None: hidden size / heads
    expert_width: str = ""  # the key of config.json; only mixtures have one
    has_dense_layers: bool = False  # beside those with experts, as config.json says
    default_kv_heads: bool = True  # transformers has a number of its own where config.json has none; False: all heads


_FAMILIES: Mapping[str, _Family] = {  # by the model_type of config.json
    "llama": _Family("attention_bias", "attention_bias", "mlp_bias", default_kv_heads=False),
    "qwen2": _Family(qkv_bias=True),
    "qwen3": _Family("attention_bias", "attention_bias", norms_heads=True, head_dim=128),
    "mixtral": _Family(expert_width="intermediate_size"),
    "qwen3_moe": _Family(
        "attention_bias",
        "attention_bias",
        norms_heads=True,
        expert_width="moe_intermediate_size",
        has_dense_layers=True,
    ),
}
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim", "decoder_sparse_step", "num_experts", "num_experts_per_tok")
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
_MOST = 10**7  # of any of these numbers; what is above is damaged, and counting its layers would take for ever
_MOST_LAYERS = 10_000


def model_shape(model: Mapping[str, Any], head: Head = "lm") -> tuple[ModelShape | None, str]:
    """The shape of the model of a config.json (with the role's overrides in it), or None and the reason."""
    kind = model.get("model_type")
    family = _FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        return None, f"the arithmetic knows no {kind} models; it knows {', '.join(_FAMILIES)}"
    model = {**model, "num_experts": model.get("num_experts") or model.get("num_local_experts")}
    needed = [*_NEEDED, *((family.expert_width, "num_experts", "num_experts_per_tok") if family.expert_width else ())]
    missing = [key for key in needed if model.get(key) is None]
    if family.default_kv_heads and "num_key_value_heads" not in model:
        missing.append("num_key_value_heads")
    if missing:
        return None, f"config.json does not say {', '.join(missing)}"
    if wrong := list(_wrong_values(model, needed)):
        return None, f"config.json: {', '.join(wrong)}"
    return _shape(model, family, head), ""


def _wrong_values(model: Mapping[str, Any], needed: Iterable[str]) -> Iterator[str]:
    for key in dict.fromkeys((*needed, *_OPTIONAL)):
        value, most = model.get(key), _MOST_LAYERS if key == "num_hidden_layers" else _MOST
        if value is not None and not (type(value) is int and 1 <= value <= most):
            yield f"{key} is no whole number from 1 to {most}"
    yield from (f"{key} is neither true nor false" for key in _FLAGS if not isinstance(model.get(key), bool | None))
    dense = model.get("mlp_only_layers")
    if dense is not None and not (isinstance(dense, list) and all(type(layer) is int for layer in dense)):
        yield "mlp_only_layers is no list of whole numbers"
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    if type(hidden) is int and type(heads) is int and not model.get("head_dim") and heads > hidden:
        yield "num_attention_heads is larger than hidden_size"


def _shape(model: Mapping[str, Any], family: _Family, head: Head) -> ModelShape:
    is_critic = head != "lm"
    heads, hidden, layers = model["num_attention_heads"], model["hidden_size"], model["num_hidden_layers"]
    ties_head = bool(model.get("tie_word_embeddings", False)) and not is_critic
    weights = [Weight("model.embed_tokens.weight", (model["vocab_size"], hidden), "vocabulary", -1, "embedding")]
    for layer in range(layers):
        weights += _layer(model, family, layer)
    weights.append(Weight("model.norm.weight", (hidden,), "whole", layers, "norm"))
    if head == "sequence":
        weights.append(Weight("score.weight", (num_labels(model), hidden), "whole", layers, "score"))
    elif head == "reward":
        weights.append(Weight("score.weight", (1, hidden), "whole", layers, "score"))
    elif head == "value":
        weights.append(Weight("score.weight", (1, hidden), "whole", layers, "score"))
        weights.append(Weight("score.bias", (1,), "whole", layers, "bias of the score"))
    elif not ties_head:
        weights.append(Weight("lm_head.weight", (model["vocab_size"], hidden), "vocabulary", layers, "head"))
    per_token = model["num_experts_per_tok"] if family.expert_width else 0
    width = per_token * model[family.expert_width] if per_token else model["intermediate_size"]
    return ModelShape(
        weights=tuple(weights),
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=model.get("num_key_value_heads") or heads,
        head_dim=_head_dim(model, family),
        ffn_width=width,
        vocab_size=model["vocab_size"],
        experts_per_token=per_token,
        ties_head=ties_head,
        is_critic=is_critic,
    )


def num_labels(model: Mapping[str, Any]) -> int:
    """Numbers that a sequence-classification head gives, as transformers reads them from a config.json."""
    given, names = model.get("num_labels"), model.get("id2label")
    if type(given) is int and given > 0:
        return given
    return len(names) if isinstance(names, Mapping) and names else 2


def _head_dim(model: Mapping[str, Any], family: _Family) -> int:
    return model.get("head_dim") or family.head_dim or model["hidden_size"] // model["num_attention_heads"]


def _layer(model: Mapping[str, Any], family: _Family, layer: int) -> Iterator[Weight]:
    hidden, width = model["hidden_size"], _head_dim(model, family)
    heads, kv_heads = model["num_attention_heads"], model.get("num_key_value_heads") or model["num_attention_heads"]
    at = f"model.layers.{layer}"
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Weight(f"{at}.{norm}.weight", (hidden,), "whole", layer, norm)
    for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield Weight(f"{at}.self_attn.{name}_proj.weight", (rows * width, hidden), "tensor", layer, "qkv")
        if _has(model, family.qkv_bias):
            yield Weight(f"{at}.self_attn.{name}_proj.bias", (rows * width,), "tensor", layer, "bias of qkv")
    yield Weight(f"{at}.self_attn.o_proj.weight", (hidden, heads * width), "tensor", layer, "output")
    if _has(model, family.output_bias):
        yield Weight(f"{at}.self_attn.o_proj.bias", (hidden,), "whole", layer, "bias of output")
    if family.norms_heads:
        for name in ("q", "k"):
            yield Weight(f"{at}.self_attn.{name}_norm.weight", (width,), "whole", layer, f"norm of {name}")
    if _is_sparse(model, family, layer):
        yield from _experts(model, model[family.expert_width], layer, at)
        return
    for name, shape in _matrices(hidden, model["intermediate_size"]).items():
        block = "down" if name == "down" else "gate and up"
        yield Weight(f"{at}.mlp.{name}_proj.weight", shape, "tensor", layer, block)
        if _has(model, family.mlp_bias):
            cut: Cut = "whole" if name == "down" else "tensor"
            yield Weight(f"{at}.mlp.{name}_proj.bias", shape[:1], cut, layer, f"bias of {block}")


def _experts(model: Mapping[str, Any], width: int, layer: int, at: str) -> Iterator[Weight]:
    hidden, count = model["hidden_size"], model["num_experts"]
    yield Weight(f"{at}.mlp.gate.weight", (count, hidden), "whole", layer, "router")
    for name, shape in _matrices(hidden, width).items():
        block = "down of the experts" if name == "down" else "gate and up of the experts"
        yield Weight(f"{at}.mlp.experts.{{expert}}.{name}_proj.weight", shape, "expert", layer, block, count)


def _matrices(hidden: int, width: int) -> dict[str, tuple[int, int]]:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}


def _is_sparse(model: Mapping[str, Any], family: _Family, layer: int) -> bool:
    if not family.has_dense_layers:
        return bool(family.expert_width)
    return (
        layer not in (model.get("mlp_only_layers") or ()) and (layer + 1) % (model.get("decoder_sparse_step") or 1) == 0
    )


def _has(model: Mapping[str, Any], bias: Bias) -> bool:
    return bool(model.get(bias, False)) if isinstance(bias, str) else bias
