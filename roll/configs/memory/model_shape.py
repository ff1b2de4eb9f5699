"""Every weight of a model, from its config.json alone: exact numbers, without torch. Buffers are left out (GLM and
DeepSeek have a number for each expert)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roll.configs.checks.mtp import NUM_HEADS
from roll.configs.memory.model_families import Attention, Weight, attention, layer_weights
from roll.configs.tables.families import FAMILIES, Family, family_of
from roll.configs.tables.roles import Head


@dataclass(frozen=True)
class ModelShape:
    """`ffn_width` is what one token meets in a layer: of a mixture, the experts it goes to together. `ties_head`: the
    head is the embedding. A critic has a value head instead, a reward model one of some labels; neither is ever tied,
    and `is_critic` says so of both. `further`: weights of the head for further tokens that files of the model have
    behind its layers, which only those hold who train it."""

    weights: tuple[Weight, ...]
    further: tuple[Weight, ...]
    num_layers: int
    hidden_size: int
    attention: Attention
    ffn_width: int
    vocab_size: int
    experts_per_token: int  # 0: a dense model
    ties_head: bool
    is_critic: bool

    @property
    def num_elements(self) -> int:
        return sum(weight.num_elements for weight in self.weights)


_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim", "decoder_sparse_step", "num_experts", "num_experts_per_tok")
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "qkv_bias", "use_qk_norm")
_EXPERTS = ("num_experts", "num_local_experts")  # transformers takes one for the other
_MOST = 10**7  # of any of these numbers; what is above is damaged, and counting its layers would take for ever
_MOST_LAYERS = 10_000


def model_shape(model: Mapping[str, Any], head: Head = "lm") -> tuple[ModelShape | None, str]:
    """The shape of the model of a config.json (with the role's overrides in it), or None and the reason."""
    family = family_of(model)
    if family is None:
        return None, f"the arithmetic knows no {model.get('model_type')} models; it knows {', '.join(FAMILIES)}"
    number = family.experts.number if family.experts else ""
    if number in _EXPERTS:
        model = {**model, number: model.get(_EXPERTS[0]) or model.get(_EXPERTS[1])}
    needed = list(dict.fromkeys((*_NEEDED, *family.needed)))
    missing = [key for key in needed if model.get(key) is None]
    missing += [key for key in family.told if key not in model]
    if missing:
        return None, f"config.json lacks {', '.join(missing)}"
    if wrong := list(_wrong_values(model, needed)):
        return None, f"config.json: {', '.join(wrong)}"
    return _shape(model, family, head), ""


def _wrong_values(model: Mapping[str, Any], needed: Iterable[str]) -> Iterator[str]:
    for key in dict.fromkeys((*needed, *_OPTIONAL)):
        value, most = model.get(key), _MOST_LAYERS if key == "num_hidden_layers" else _MOST
        if value is not None and not (type(value) is int and 1 <= value <= most):
            yield f"{key} is not a whole number from 1 to {most}"
    yield from (f"{key} is neither true nor false" for key in _FLAGS if not isinstance(model.get(key), bool | None))
    dense = model.get("mlp_only_layers")
    if dense is not None and not (isinstance(dense, list) and all(type(layer) is int for layer in dense)):
        yield "mlp_only_layers is not a list of whole numbers"
    first, rank = model.get("first_k_dense_replace"), model.get("q_lora_rank")
    for key, value, least in (("first_k_dense_replace", first, 0), ("q_lora_rank", rank, 1)):
        if value is not None and not (type(value) is int and least <= value <= _MOST):
            yield f"{key} is not a whole number from {least} to {_MOST}"
    kinds = model.get("mlp_layer_types")
    if kinds is not None and not (isinstance(kinds, list) and len(kinds) == model["num_hidden_layers"]):
        yield "mlp_layer_types is not a list with one word per layer"
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    if type(hidden) is int and type(heads) is int and not model.get("head_dim") and heads > hidden:
        yield "num_attention_heads is larger than hidden_size"


def _shape(model: Mapping[str, Any], family: Family, head: Head) -> ModelShape:
    is_critic = head != "lm"
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    ties_head = bool(model.get("tie_word_embeddings", False)) and not is_critic
    weights = [Weight("model.embed_tokens.weight", (model["vocab_size"], hidden), "vocabulary", -1, "embedding")]
    for layer in range(layers):
        weights += layer_weights(model, family, layer)
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
    per_token, width = 0, model["intermediate_size"]
    if family.experts is not None:
        per_token = model["num_experts_per_tok"]
        width = per_token * model[family.experts.width] + family.experts.shared_width(model)
    return ModelShape(
        weights=tuple(weights),
        further=tuple(_further(model, family)) if head == "lm" else (),
        num_layers=layers,
        hidden_size=hidden,
        attention=attention(model, family),
        ffn_width=width,
        vocab_size=model["vocab_size"],
        experts_per_token=per_token,
        ties_head=ties_head,
        is_critic=is_critic,
    )


def _further(model: Mapping[str, Any], family: Family) -> Iterator[Weight]:
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
    given, names = model.get("num_labels"), model.get("id2label")
    if type(given) is int and given > 0:
        return given
    return len(names) if isinstance(names, Mapping) and names else 2
