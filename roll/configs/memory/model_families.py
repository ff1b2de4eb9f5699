"""What each architecture makes of its config.json: the weights of a layer, as transformers has them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Model = Mapping[str, Any]
Cut = Literal["whole", "tensor", "vocabulary", "expert"]
Bias = bool | str
SHARED_GATE = "gate of the shared expert"  # a block


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
class Attention:
    """Elements per token of one layer. `projected`: of all that the projections before the scores put out. `mixed`: of
    what goes into the one behind them. `cached`: of what an engine keeps, which at most `cache_cuts` devices can
    share. `products`: multiplications for the scores of a pair of tokens and the sum over values."""

    projected: int
    mixed: int
    cached: int
    cache_cuts: int
    products: int


@dataclass(frozen=True)
class Experts:
    """Keys of config.json that describe a mixture's experts.

    - `number`, `width`: number and width of the experts
    - `shared`: width of the part that every token meets, or a number of experts if `counts_shared`
    - `is_sparse(model, layer)`: whether a layer has experts
    """

    number: str = "num_experts"
    width: str = "moe_intermediate_size"
    shared: str = ""
    counts_shared: bool = False
    is_sparse: Callable[[Model, int], bool] = lambda model, layer: True

    @property
    def needed(self) -> tuple[str, ...]:
        names = (self.width, self.number, "num_experts_per_tok", self.shared)
        return tuple(name for name in names if name)

    def shared_width(self, model: Model) -> int:
        """0: there is nothing that every token meets."""
        count = model[self.shared] if self.shared else 0
        return count * model[self.width] if self.counts_shared else count


@dataclass(frozen=True)
class Family:
    """What tells an architecture from others. A bias, and a norm of each head, is there or not, or a key of config.json
    says so, which means `bias_unless_told` where it is missing."""

    qkv_bias: Bias = False
    output_bias: Bias = False
    mlp_bias: Bias = False
    norms_heads: Bias = False
    bias_unless_told: bool = False
    head_dim: int | None = None  # where config.json does not say; None: hidden size / heads
    default_kv_heads: bool = True  # transformers has a number of its own where config.json has none; False: all heads
    is_latent: bool = False  # queries, keys and values through narrow layers (DeepSeek-V2, arXiv 2405.04434)
    fuses_gate_up: bool = False
    norms_outputs: bool = False  # also what attention and MLP put out
    is_gpt_oss: bool = False
    experts: Experts | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """Keys of config.json that are whole numbers above 0."""
        return (*(_LATENT if self.is_latent else ()), *(self.experts.needed if self.experts else ()))

    @property
    def told(self) -> tuple[str, ...]:
        """Keys of config.json that may be null, but have another meaning where they are missing."""
        kv_heads = ("num_key_value_heads",) if self.default_kv_heads and not self.is_latent else ()
        dense = ("first_k_dense_replace",) if self.experts and self.experts.is_sparse is _behind_first else ()
        return (*kv_heads, *(("q_lora_rank",) if self.is_latent else ()), *dense)

    def has(self, model: Model, bias: Bias) -> bool:
        if not isinstance(bias, str):
            return bias
        given = model.get(bias)
        return self.bias_unless_told if given is None else bool(given)

    def is_sparse(self, model: Model, layer: int) -> bool:
        return self.experts is not None and self.experts.is_sparse(model, layer)


_LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _by_step(model: Model, layer: int) -> bool:
    dense, step = model.get("mlp_only_layers") or (), model.get("decoder_sparse_step") or 1
    return layer not in dense and (layer + 1) % step == 0


def _behind_first(model: Model, layer: int) -> bool:
    return layer >= (model["first_k_dense_replace"] or 0)


def _by_kind(model: Model, layer: int) -> bool:
    kinds = model.get("mlp_layer_types")
    return kinds[layer] == "sparse" if kinds and layer < len(kinds) else layer > 0


def _glm_experts(is_sparse: Callable[[Model, int], bool]) -> Experts:
    return Experts("n_routed_experts", shared="n_shared_experts", counts_shared=True, is_sparse=is_sparse)


_LATENT_FAMILY = {"qkv_bias": "attention_bias", "output_bias": "attention_bias", "is_latent": True}

FAMILIES: Mapping[str, Family] = {  # by the model_type of config.json
    "llama": Family("attention_bias", "attention_bias", "mlp_bias", default_kv_heads=False),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family("attention_bias", "attention_bias", norms_heads=True, head_dim=128),
    "mixtral": Family(experts=Experts("num_local_experts", "intermediate_size")),
    "qwen2_moe": Family(
        "qkv_bias", bias_unless_told=True, experts=Experts(shared="shared_expert_intermediate_size", is_sparse=_by_step)
    ),
    "qwen3_moe": Family(
        "attention_bias", "attention_bias", norms_heads=True, experts=Experts(is_sparse=_by_step)
    ),
    "glm": Family("attention_bias", bias_unless_told=True, head_dim=128, fuses_gate_up=True),
    "glm4": Family("attention_bias", bias_unless_told=True, head_dim=128, fuses_gate_up=True, norms_outputs=True),
    "glm4_moe": Family("attention_bias", norms_heads="use_qk_norm", experts=_glm_experts(_behind_first)),
    "glm4_moe_lite": Family(**_LATENT_FAMILY, experts=_glm_experts(_by_kind)),
    "deepseek_v2": Family(**_LATENT_FAMILY, mlp_bias="mlp_bias", experts=_glm_experts(_behind_first)),
    "deepseek_v3": Family(**_LATENT_FAMILY, experts=_glm_experts(_behind_first)),
    "gpt_oss": Family(
        "attention_bias", "attention_bias", bias_unless_told=True, head_dim=64, is_gpt_oss=True,
        experts=Experts("num_local_experts", "intermediate_size"),
    ),
}  # fmt: skip


def head_dim(model: Model, family: Family) -> int:
    return model.get("head_dim") or family.head_dim or model["hidden_size"] // model["num_attention_heads"]


def attention(model: Model, family: Family) -> Attention:
    heads, kv_heads = model["num_attention_heads"], model.get("num_key_value_heads") or model["num_attention_heads"]
    if not family.is_latent:
        size = head_dim(model, family)
        return Attention((heads + 2 * kv_heads) * size, heads * size, 2 * kv_heads * size, kv_heads, 2 * heads * size)
    key, value = model["qk_nope_head_dim"] + model["qk_rope_head_dim"], model["v_head_dim"]
    latent = model["kv_lora_rank"] + model["qk_rope_head_dim"]
    projected = (model["q_lora_rank"] or 0) + latent + heads * (2 * key + value)
    return Attention(projected, heads * value, latent, 1, heads * (key + value))


def layer_weights(model: Model, family: Family, layer: int) -> Iterator[Weight]:
    """Every weight of a layer."""
    at, hidden = f"model.layers.{layer}", model["hidden_size"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family.norms_outputs:
        norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
    for norm in norms:
        yield Weight(f"{at}.{norm}.weight", (hidden,), "whole", layer, norm)
    parts = _latent_attention if family.is_latent else _attention
    yield from parts(model, family, layer, f"{at}.self_attn")
    if not family.is_sparse(model, layer):
        yield from _mlp(model, family, layer, f"{at}.mlp", model["intermediate_size"])
    elif family.is_gpt_oss:
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
    if family.is_gpt_oss:
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
        shared = "shared_experts" if experts.counts_shared else "shared_expert"
        yield from _mlp(model, family, layer, f"{at}.{shared}", width, " of what every token meets")
        if not experts.counts_shared:
            yield Weight(f"{at}.shared_expert_gate.weight", (1, hidden), "whole", layer, SHARED_GATE)


def _gpt_oss_experts(model: Model, layer: int, at: str) -> Iterator[Weight]:
    """No layers of their own in transformers, nor in files: no name ends in `.weight`."""
    count, hidden, width = (model[key] for key in ("num_local_experts", "hidden_size", "intermediate_size"))
    yield Weight(f"{at}.router.weight", (count, hidden), "whole", layer, "router")
    yield Weight(f"{at}.router.bias", (count,), "whole", layer, "bias of the router")
    for name, shape in (("gate_up", (hidden, 2 * width)), ("down", (width, hidden))):
        block = "down of the experts" if name == "down" else "gate and up of the experts"
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj", shape, "expert", layer, block, count)
        yield Weight(f"{at}.experts.{{expert}}.{name}_proj_bias", shape[1:], "expert", layer, f"bias of {block}", count)


def _matrices(hidden: int, width: int) -> dict[str, tuple[int, int]]:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
