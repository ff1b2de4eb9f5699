"""Weights and layers of types with attention alone that Megatron does not train here: as transformers 5.19 builds
them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from roll.configs.memory.layer_shape import Attention, LayerShape
from roll.configs.memory.reader import (
    GRANITE_FILES,
    Form,
    HeadSizes,
    LayerWeights,
    Reader,
    UnreadableModel,
    head_sizes,
    latent_attention,
)
from roll.configs.tables.families import Norm

Flag = bool | tuple[str, bool]  # or a key of config.json and what it means where it is missing
ATTENTION_BIAS, MLP_BIAS, _USE_BIAS = ("attention_bias", False), ("mlp_bias", False), ("use_bias", False)


@dataclass(frozen=True)
class Mixture:
    """Experts in place of the MLP. `shared`: name of what every token meets, and its width. `stored`: names of experts
    that files hold in two tensors; None: they can have no adapters; (): files have each matrix by itself. `in_fp32`:
    the router takes its input so."""

    count: tuple[str, ...] = ("n_routed_experts", "num_local_experts", "num_experts")
    width: str = "moe_intermediate_size"
    per_token: str = "num_experts_per_tok"
    at: str = "mlp"
    router: str = "gate"
    router_is_linear: bool = False  # a layer that can have an adapter
    shared: str = ""
    shared_width: Callable[[Reader], int] = lambda _: 0
    shared_bias: Flag = False
    is_sparse: Callable[[Reader, int], bool] = lambda model, layer: True
    vectors: Mapping[str, Callable[[int], tuple[int, ...]]] | None = None  # of the router, by the number of experts
    stored: tuple[str, str] | tuple[()] | None = ()
    in_fp32: bool = False


@dataclass(frozen=True)
class Traits:
    """A decoder's layer. `keys`: key-value heads are all heads where config.json names none; False: it has to.
    `head_norms`: norms of queries and keys per head, over all heads, or with a weight per head. `mlp`: its matrices,
    the last of which is down. `norms` are there, without a name, where they have no weights. `extra`: further vectors
    of a layer. `attentions`: how often queries and keys are multiplied, with other values. `saved`: what its attention
    keeps beside others, in the model's dtype and of further norms."""

    bias: Flag = False
    output_bias: Flag | None = None  # None: as the others
    all_keys: bool = True
    head_dim: int | None = None
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm: Norm = "rms"
    head_norms: tuple[str, str] = ("q_norm", "k_norm")
    normed: Literal["nothing", "head", "all", "each"] = "nothing"
    norms_heads: Flag = True
    mlp: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    mlp_at: str = "mlp"
    mlp_bias: Flag = False
    at: str = "self_attn"
    output: str = "o_proj"
    mixture: Mixture | None = None
    latent: bool = False
    extra: Callable[[Reader, HeadSizes], Mapping[str, tuple[int, ...]]] = lambda model, sizes: {}
    attentions: int = 1
    saved: Callable[[Reader, HeadSizes], tuple[int, int]] = lambda model, sizes: (0, 0)


def is_on(model: Reader, flag: Flag) -> bool:
    return flag if isinstance(flag, bool) else model.flag(*flag)


def layer_of(traits: Traits, model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    """Adds a layer of a type with these traits."""
    hidden = model.hidden
    for norm in traits.norms if traits.norm != "without weights" else ():
        add.norm(norm, hidden, traits.norm == "layer")
    if traits.latent:
        own = latent_attention(add, model)
        sizes = HeadSizes(1, 1, 1)
    else:
        sizes = sizes_of(traits, model)
        own = attention_of(traits, model, add, sizes)
        more, normed = traits.saved(model, sizes)
        own = replace(
            own, saved=own.saved + more, normed=own.normed + normed, products=traits.attentions * own.products
        )
    for name, shape in traits.extra(model, sizes).items():
        add.tensor(name, *shape)
    num_norms = len(traits.norms)
    if traits.mixture is not None and traits.mixture.is_sparse(model, layer):
        shape = experts_of(traits.mixture, model, add)
    else:
        width = model.size("intermediate_size")
        mlp(traits, model, add, width)
        shape = LayerShape(ffn_width=width, is_gated=len(traits.mlp) > 2)
    return replace(shape, attention=own, num_norms=num_norms, num_inputs=min(2, num_norms))


def sizes_of(traits: Traits, model: Reader) -> HeadSizes:
    if not traits.all_keys:
        model.size("num_key_value_heads")
    return head_sizes(model, traits.head_dim)


def attention_of(traits: Traits, model: Reader, add: LayerWeights, sizes: HeadSizes) -> Attention:
    bias = is_on(model, traits.bias)
    output_bias = bias if traits.output_bias is None else is_on(model, traits.output_bias)
    has_norms = traits.normed != "nothing" and is_on(model, traits.norms_heads)
    sizes = replace(sizes, has_norms=has_norms, is_clipped=model.model.get("clip_qkv") is not None)
    own = add.attention(model.hidden, sizes, bias, output_bias, traits.at, traits.output)
    if has_norms and traits.norm != "without weights":
        for name, heads in zip(traits.head_norms, (sizes.heads, sizes.kv_heads), strict=True):
            shape = {"head": (sizes.size,), "all": (heads * sizes.size,), "each": (heads, sizes.size)}[traits.normed]
            add.tensor(f"{traits.at}.{name}.weight", *shape)
    return own


def mlp(traits: Traits, model: Reader, add: LayerWeights, width: int) -> None:
    """Adds an MLP of two or three matrices."""
    hidden, bias = model.hidden, is_on(model, traits.mlp_bias)
    at = f"{traits.mlp_at}." if traits.mlp_at else ""
    for name in traits.mlp[:-1]:
        add.linear(f"{at}{name}", width, hidden, bias, block="gate and up")
    add.linear(f"{at}{traits.mlp[-1]}", hidden, width, bias)


def experts_of(mixture: Mixture, model: Reader, add: LayerWeights) -> LayerShape:
    hidden, at = model.hidden, mixture.at
    count, width, per_token = model.size(*mixture.count), model.size(mixture.width), model.size(mixture.per_token)
    add.linear(f"{at}.{mixture.router}", count, hidden, cut="tensor" if mixture.router_is_linear else "whole")
    for name, shape in (mixture.vectors or {}).items():
        add.tensor(f"{at}.{name}", *shape(count))
    if mixture.stored == ():
        add.experts(f"{at}.experts", count, hidden, width)
    else:
        add.stacked_experts(f"{at}.experts", count, hidden, width, mixture.stored or None)
    shared = mixture.shared_width(model)
    if shared:
        add.gated(f"{at}.{mixture.shared}", hidden, shared, is_on(model, mixture.shared_bias))
    ffn_width = per_token * width + shared
    return LayerShape(
        ffn_width=ffn_width, experts_per_token=per_token, routes_in_fp32=mixture.in_fp32, has_shared=bool(shared)
    )


def numbered(count: str, width: str = "moe_intermediate_size", default: int | None = None) -> Callable[[Reader], int]:
    """Width of a number of shared experts."""
    return lambda model: model.size(count, default=default, least=0) * model.size(width)


def behind(key: str, default: int, by_kind: bool = True) -> Callable[[Reader, int], bool]:
    """Layers behind the first few have experts, or those that mlp_layer_types names."""

    def is_sparse(model: Reader, layer: int) -> bool:
        kinds = model.texts("mlp_layer_types", model.num_layers) if by_kind else None
        return kinds[layer] == "sparse" if kinds else layer >= model.size(key, default=default, least=0)

    return is_sparse


def _ernie_is_sparse(model: Reader, layer: int) -> bool:
    first, step = model.size("moe_layer_start_index", default=1, least=0), model.size("moe_layer_interval", default=1)
    last = model.size("moe_layer_end_index", default=-1, least=-1)
    return (layer + 1) % step == 0 and first <= layer <= (model.num_layers - 1 if last == -1 else last)


def _form(traits: Traits, **changes: Any) -> Form:
    return Form(partial(layer_of, traits), norm=traits.norm, **changes)


FOUR_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)  # fmt: skip
_BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm")
_LLAMA = Traits(ATTENTION_BIAS, mlp_bias=MLP_BIAS)
_MISTRAL = Traits(all_keys=False)
GEMMA = Traits(ATTENTION_BIAS, all_keys=False, head_dim=256, norm="rms in fp32")
_OLMO2 = Traits(ATTENTION_BIAS, norms=_BEHIND, normed="all", norm="rms in fp32")
_COHERE = Traits(ATTENTION_BIAS, norms=("input_layernorm",), norm="layer in fp32")
_ERNIE = Traits(_USE_BIAS, all_keys=False, mlp_bias=_USE_BIAS)
_PLAIN = ("up_proj", "down_proj")
LATENT = Traits(latent=True)
SHARED_EXPERTS = Mixture(shared="shared_experts", shared_width=numbered("n_shared_experts"), in_fp32=True)
_GRANITE_EXPERTS = Mixture(
    width="intermediate_size", at="block_sparse_moe", router="router", stored=GRANITE_FILES
)  # fmt: skip


def _sinks(model: Reader, sizes: HeadSizes) -> Mapping[str, tuple[int, ...]]:
    return {"self_attn.sinks": (sizes.heads,)}


def _granite_shared(traits: Traits, model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    """Granite's mixtures with an MLP for every token beside them."""
    shape = layer_of(traits, model, layer, add)
    shared = model.size("shared_intermediate_size", default=0, least=0)
    if shared:
        add.linear("shared_mlp.input_linear", 2 * shared, model.hidden)
        add.linear("shared_mlp.output_linear", model.hidden, shared)
    return replace(shape, ffn_width=shape.ffn_width + shared, has_shared=bool(shared))


def _stablelm(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    norms = ("input_layernorm",) if model.flag("use_parallel_residual") else Traits.norms
    traits = Traits(("use_qkv_bias", False), False, all_keys=False, norms=norms, norm="layer")
    shape = layer_of(traits, model, layer, add)
    if model.flag("qk_layernorm"):
        sizes = sizes_of(traits, model)
        for name, heads in (("q", sizes.heads), ("k", sizes.kv_heads)):
            for head in range(heads):
                add.norm(f"self_attn.{name}_layernorm.norms.{head}", sizes.size)
        shape = replace(shape, attention=replace(sizes, has_norms=True).attention)
    return shape


def _of_two_attentions(model: Reader, sizes: HeadSizes) -> tuple[int, int]:
    """Return what DiffLlama keeps beside one attention: the second one's values and result, both side by side, and
    their difference behind its norm."""
    width = sizes.heads * sizes.size
    return 3 * width + sizes.kv_heads * sizes.size, width


def _hyperclovax(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    norms = (*Traits.norms, "post_norm1", "post_norm2") if model.flag("use_post_norm", True) else Traits.norms
    return layer_of(replace(_LLAMA, norms=norms), model, layer, add)


_HUNYUAN = Traits(ATTENTION_BIAS, normed="head", head_norms=("query_layernorm", "key_layernorm"))
_HUNYUAN_EXPERTS = Mixture(
    width="intermediate_size", per_token="moe_topk", router="gate.wg", router_is_linear=True, shared="shared_mlp",
    shared_width=lambda model: model.size("intermediate_size"), in_fp32=True,
)  # fmt: skip


def _hunyuan_moe(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    """Hunyuan's mixtures; the files of A13B say for each layer how many experts a token has."""
    if isinstance(model.model.get("moe_topk"), list):
        numbers = model.numbers("moe_topk")
        if len(numbers) != model.num_layers:
            raise UnreadableModel("config.json: moe_topk is not a list with one number per layer")
        model = Reader({**model.model, "moe_topk": numbers[layer]})
    return layer_of(replace(_HUNYUAN, mixture=_HUNYUAN_EXPERTS), model, layer, add)


def _phi3(model: Reader, layer: int, add: LayerWeights) -> LayerShape:
    hidden, sizes = model.hidden, head_sizes(Reader({**model.model, "head_dim": None}))
    add.linear("self_attn.o_proj", hidden, sizes.heads * sizes.size)
    add.linear("self_attn.qkv_proj", (sizes.heads + 2 * sizes.kv_heads) * sizes.size, hidden)
    width = model.size("intermediate_size")
    add.linear("mlp.gate_up_proj", 2 * width, hidden)
    add.linear("mlp.down_proj", hidden, width)
    for norm in Traits.norms:
        add.norm(norm, hidden)
    return LayerShape(replace(sizes, is_fused=True).attention, ffn_width=width)


_NORM = ("model.norm.weight", "model.norm.bias")


DECODERS: Mapping[str, Form] = {
    "apertus": _form(
        Traits(
            ATTENTION_BIAS, norms=("attention_layernorm", "feedforward_layernorm"), normed="head", mlp=_PLAIN,
            extra=lambda model, sizes: {"mlp.act_fn.alpha_p": (1,), "mlp.act_fn.alpha_n": (1,)},
        )
    ),
    "arcee": _form(replace(_LLAMA, mlp=_PLAIN)),
    "aria_text": _form(
        Traits(
            ATTENTION_BIAS,
            mixture=Mixture(
                count=("moe_num_experts",), width="intermediate_size", per_token="moe_topk", router="router",
                shared="shared_experts", shared_width=numbered("moe_num_shared_experts", "intermediate_size"),
                shared_bias=MLP_BIAS, stored=("mlp.experts.fc1", "mlp.experts.fc2"),
            ),
        )
    ),
    "bitnet": _form(
        Traits(
            ATTENTION_BIAS, all_keys=False,
            extra=lambda model, sizes: {
                "self_attn.attn_sub_norm.weight": (model.hidden,),
                "mlp.ffn_sub_norm.weight": (model.size("intermediate_size"),),
            },
            saved=lambda model, sizes: (model.hidden, model.hidden + model.size("intermediate_size")),
        )
    ),
    "cohere": _form(replace(_COHERE, normed="each", norms_heads=("use_qk_norm", False)), ties_head=True),
    "cohere2": _form(_COHERE, ties_head=True),
    "cohere2_moe": _form(
        replace(
            _COHERE, head_dim=128,
            mixture=Mixture(
                width="intermediate_size", shared="shared_experts",
                shared_width=numbered("num_shared_experts", "intermediate_size", default=0),
                is_sparse=behind("first_k_dense_replace", 0),
            ),
        ),
        ties_head=True,
    ),
    "cwm": _form(Traits(all_keys=False, head_dim=128, mlp_bias=MLP_BIAS)),
    "diffllama": _form(
        Traits(
            ATTENTION_BIAS,
            extra=lambda model, sizes: {f"self_attn.lambda_{name}": (sizes.size,) for name in ("q1", "k1", "q2", "k2")},
            attentions=2, saved=_of_two_attentions,
        )
    ),
    "dots1": _form(
        Traits(
            ATTENTION_BIAS, all_keys=False, normed="head",
            mixture=replace(SHARED_EXPERTS, is_sparse=behind("first_k_dense_replace", 0, by_kind=False)),
        )
    ),
    "ernie4_5": _form(replace(_ERNIE, head_dim=128), ties_head=True),
    "ernie4_5_moe": _form(
        replace(
            _ERNIE,
            mixture=Mixture(
                count=("moe_num_experts", "num_experts"), per_token="moe_k", shared="shared_experts",
                shared_width=numbered("moe_num_shared_experts", default=2), is_sparse=_ernie_is_sparse,
                shared_bias=_USE_BIAS, in_fp32=True,
                vectors={"gate.moe_statics.e_score_correction_bias": lambda count: (1, count)},
            ),
        ),
        head_bias=lambda model: model.flag("use_bias"),
        ties_head=True,
    ),
    "exaone4": _form(Traits(all_keys=False, norms=_BEHIND, normed="head")),
    "exaone_moe": _form(
        Traits(
            all_keys=False, normed="head",
            mixture=Mixture(
                shared="shared_experts", shared_width=numbered("num_shared_experts", default=1),
                is_sparse=behind("first_k_dense_replace", 1), in_fp32=True,
            ),
        )
    ),
    "flex_olmo": _form(replace(_OLMO2, mixture=Mixture(width="intermediate_size"))),
    "gemma": _form(GEMMA, ties_head=True),
    "gemma2": _form(replace(GEMMA, norms=FOUR_NORMS), ties_head=True),
    "vaultgemma": _form(replace(GEMMA, norms=("input_layernorm", "pre_feedforward_layernorm")), ties_head=True),
    "granite": _form(_LLAMA),
    "granite_swa": _form(replace(_LLAMA, all_keys=False, extra=_sinks), ties_head=True),
    "granitemoe": _form(Traits(ATTENTION_BIAS, mixture=_GRANITE_EXPERTS)),
    "granitemoeshared": Form(partial(_granite_shared, Traits(ATTENTION_BIAS, mixture=_GRANITE_EXPERTS))),
    "granitemoe_swa": Form(
        partial(_granite_shared, Traits(ATTENTION_BIAS, mixture=_GRANITE_EXPERTS, extra=_sinks))
    ),
    "helium": _form(
        Traits(ATTENTION_BIAS, False, all_keys=False, head_dim=128, mlp_bias=MLP_BIAS, norm="rms in fp32")
    ),
    "hunyuan_v1_dense": _form(_HUNYUAN),
    "hunyuan_v1_moe": Form(_hunyuan_moe),
    "hy_v3": _form(
        Traits(
            ATTENTION_BIAS, all_keys=False, head_dim=128, normed="head", mlp_bias=MLP_BIAS,
            mixture=Mixture(
                count=("num_experts", "num_local_experts"), shared="shared_experts", shared_bias=MLP_BIAS,
                shared_width=numbered("num_shared_experts", default=1), is_sparse=behind("", 1), in_fp32=True,
            ),
        )
    ),
    "hyperclovax": Form(_hyperclovax),
    "jais2": _form(
        Traits(("attention_bias", True), norm="layer", mlp=_PLAIN, mlp_bias=("mlp_bias", True)), ends=_NORM
    ),
    "mellum": _form(
        Traits(
            ATTENTION_BIAS, all_keys=False, head_dim=128, normed="head",
            mixture=Mixture(is_sparse=behind("first_k_dense_replace", 0)),
        )
    ),
    "minimax_m2": _form(
        Traits(all_keys=False, head_dim=128, normed="all", mixture=Mixture(width="intermediate_size"))
    ),
    "ministral": _form(_MISTRAL),
    "ministral3": _form(replace(_MISTRAL, head_dim=128)),
    "mistral": _form(_MISTRAL),
    "nanochat": _form(Traits(ATTENTION_BIAS, norm="without weights", mlp=("fc1", "fc2"), normed="head"), ends=()),
    "nemotron": _form(replace(_LLAMA, norm="layer", mlp=_PLAIN), ends=_NORM),
    "olmo": _form(Traits(ATTENTION_BIAS, norm="without weights"), ends=()),
    "olmo2": _form(_OLMO2),
    "olmo3": _form(_OLMO2),
    "olmoe": _form(Traits(ATTENTION_BIAS, normed="all", mixture=Mixture(width="intermediate_size"))),
    "phi3": Form(_phi3),
    "phimoe": _form(
        Traits(
            ATTENTION_BIAS, all_keys=False, norm="layer",
            mixture=Mixture(
                count=("num_local_experts",), width="intermediate_size", router="router", router_is_linear=True
            ),
        ),
        ends=_NORM,
        head_bias=lambda model: model.flag("lm_head_bias"),
    ),
    "seed_oss": _form(
        Traits(
            ("attention_bias", True), ("attention_out_bias", False), all_keys=False, head_dim=128, mlp_bias=MLP_BIAS
        )
    ),
    "smollm3": _form(replace(_LLAMA, all_keys=False), ties_head=True),
    "solar_open": _form(
        Traits(ATTENTION_BIAS, False, all_keys=False, head_dim=128, mixture=SHARED_EXPERTS)
    ),
    "stablelm": Form(_stablelm, ends=_NORM, norm="layer"),
    "starcoder2": _form(
        Traits(
            ("use_bias", True), all_keys=False, norm="layer", mlp=("c_fc", "c_proj"), mlp_bias=("use_bias", True)
        ),
        ends=_NORM,
        ties_head=True,
    ),
    "youtu": _form(LATENT, ties_head=True),
}  # fmt: skip
"""Types by the model_type of config.json."""
