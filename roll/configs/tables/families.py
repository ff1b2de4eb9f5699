"""The facts of each model family, by the model_type of config.json: its sizes, heads and experts, the head for further
tokens, its form in Megatron.

Memory, FLOPs, the checks of LoRA and of mixtures, and the families of Megatron read them here, and nowhere else. Plain
numbers and functions, without torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Model = Mapping[str, Any]
Bias = bool | str
Norm = Literal["rms", "rms in fp32"]
"""Norms by how transformers computes them. Both take fp32 inside; "in fp32" has the product with the weights in it,
too."""


@dataclass(frozen=True)
class Experts:
    """The experts of a mixture.

    - `number`, `width`, `shared`: keys of config.json. `shared` is of the width of what every token meets, as a number
      of experts if `counts_shared`.
    - `is_sparse(model, layer)`: whether a layer has experts; None: every layer has.
    - `have_biases`: biases are there, and all experts of a layer are one tensor (gpt-oss).
    - `norms_chosen`: of routers that weigh experts by a softmax, whether it is over the chosen ones where no
      norm_topk_prob says so; None: other routers.
    - `has_balance_loss`: transformers has a load-balancing loss for them.
    - `routes_in_fp32`: transformers' router takes its input in fp32.
    """

    number: str = "num_experts"
    width: str = "moe_intermediate_size"
    shared: str = ""
    counts_shared: bool = False
    is_sparse: Callable[[Model, int], bool] | None = None
    have_biases: bool = False
    norms_chosen: bool | None = None
    has_balance_loss: bool = True
    routes_in_fp32: bool = False

    @property
    def needed(self) -> tuple[str, ...]:
        names = (self.width, self.number, "num_experts_per_tok", self.shared)
        return tuple(name for name in names if name)

    @property
    def gates_shared(self) -> bool:
        """Whether what every token meets has a gate."""
        return bool(self.shared) and not self.counts_shared

    def shared_width(self, model: Model) -> int:
        """0: there is nothing that every token meets."""
        count = model[self.shared] if self.shared else 0
        return count * model[self.width] if self.counts_shared else count


@dataclass(frozen=True)
class MegatronForm:
    """How Megatron builds a family. `name`: of its `Family` in roll.models.megatron.families. `only` gives keys of
    config.json whose other values this form of the model cannot express, with the one that it can. `own_layers`: what
    only Megatron's own layers have here, not those of transformer-engine."""

    name: str
    only: Mapping[str, object]
    own_layers: str = ""


@dataclass(frozen=True)
class Family:
    """Traits that distinguish an architecture from others. A bias, and a norm of each head, is there or not, or a key
    of config.json says so, which means `default_bias` where it is missing."""

    qkv_bias: Bias = False
    output_bias: Bias = False
    mlp_bias: Bias = False
    norms_heads: Bias = False
    default_bias: bool = False
    head_dim: int | None = None  # where config.json does not say; None: hidden size / heads
    default_kv_heads: bool = True  # transformers has a number of its own where config.json has none; False: all heads
    is_measured: bool = False  # no closed form here: transformers is asked for its shape
    fuses_gate_up: bool = False
    more_norms: tuple[str, ...] = ()  # of a layer, beside those before attention and MLP, or of their outputs
    ties_head: bool = False  # the head is the embedding where config.json does not say
    has_sinks: bool = False  # in attention; sdpa and flash-attn 2 leave them out
    norm: Norm = "rms"  # of layers, and of heads where they have any
    has_mtp_head: bool = False  # files may hold an MTP head, as the layer behind the last
    names_in_files: Mapping[str, str] = field(default_factory=dict)  # of parts that transformers calls otherwise
    experts: Experts | None = None
    megatron: MegatronForm | None = None

    @property
    def declared_keys(self) -> tuple[str, ...]:
        """Keys of config.json that may be null, but have another meaning where they are missing."""
        kv_heads = ("num_key_value_heads",) if self.default_kv_heads else ()
        dense = ("first_k_dense_replace",) if self.experts and self.experts.is_sparse is _behind_first else ()
        return (*kv_heads, *dense)

    def has(self, model: Model, bias: Bias) -> bool:
        if not isinstance(bias, str):
            return bias
        value = model.get(bias)
        return self.default_bias if value is None else bool(value)

    def is_sparse(self, model: Model, layer: int) -> bool:
        if self.experts is None or self.experts.is_sparse is None:
            return self.experts is not None
        return self.experts.is_sparse(model, layer)


def _by_step(model: Model, layer: int) -> bool:
    dense, step = model.get("mlp_only_layers") or (), model.get("decoder_sparse_step") or 1
    return layer not in dense and (layer + 1) % step == 0


def _behind_first(model: Model, layer: int) -> bool:
    return layer >= (model["first_k_dense_replace"] or 0)


def _by_kind(model: Model, layer: int) -> bool:
    kinds = model.get("mlp_layer_types")
    return kinds[layer] == "sparse" if kinds and layer < len(kinds) else layer > 0


_GLM_EXPERTS = Experts(
    "n_routed_experts",
    shared="n_shared_experts",
    counts_shared=True,
    is_sparse=_behind_first,
    has_balance_loss=False,
    routes_in_fp32=True,
)
_GATED: Mapping[str, object] = {"hidden_act": "silu"}
_FULL = {"attention_bias": False, "use_sliding_window": False, **_GATED}
_CORRECTED = {"norm_topk_prob": True, **_GATED}
_LATENT_CORRECTED = {"attention_bias": False, "rope_interleave": True, **_CORRECTED}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "attention_bias", "attention_bias", "mlp_bias", default_kv_heads=False,
        megatron=MegatronForm("llama", {"attention_bias": False, "mlp_bias": False, **_GATED}),
    ),
    "qwen2": Family(qkv_bias=True, megatron=MegatronForm("qwen2", {"use_sliding_window": False, **_GATED})),
    "qwen3": Family(
        "attention_bias", "attention_bias", norms_heads=True, head_dim=128, megatron=MegatronForm("qwen3", _FULL)
    ),
    "mistral": Family(),
    "mixtral": Family(
        names_in_files={"mlp": "block_sparse_moe", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"},
        experts=Experts("num_local_experts", "intermediate_size", norms_chosen=True),
        megatron=MegatronForm("mixtral", {"sliding_window": None, **_GATED}),
    ),
    "qwen2_moe": Family(
        "qkv_bias", default_bias=True,
        experts=Experts(shared="shared_expert_intermediate_size", is_sparse=_by_step, norms_chosen=False),
        megatron=MegatronForm("qwen2_moe", {"qkv_bias": True, "use_sliding_window": False, **_GATED}),
    ),
    "qwen3_moe": Family(
        "attention_bias", "attention_bias", norms_heads=True,
        experts=Experts(is_sparse=_by_step, norms_chosen=False),
        megatron=MegatronForm("qwen3_moe", _FULL),
    ),
    "glm": Family(
        "attention_bias", default_bias=True, head_dim=128, fuses_gate_up=True,
        megatron=MegatronForm("glm", _GATED),
    ),
    "glm4": Family(
        "attention_bias", default_bias=True, head_dim=128, fuses_gate_up=True,
        more_norms=("post_self_attn_layernorm", "post_mlp_layernorm"),
        megatron=MegatronForm("glm4", _GATED, "a norm behind attention"),
    ),
    "glm4_moe": Family(
        "attention_bias", norms_heads="use_qk_norm", has_mtp_head=True,
        experts=_GLM_EXPERTS,
        megatron=MegatronForm("glm4_moe", _CORRECTED),
    ),
    "glm4_moe_lite": Family(
        is_measured=True, has_mtp_head=True,
        experts=replace(_GLM_EXPERTS, is_sparse=_by_kind),
        megatron=MegatronForm("deepseek_v3", _LATENT_CORRECTED),
    ),
    "deepseek_v2": Family(
        is_measured=True,
        experts=_GLM_EXPERTS,
        megatron=MegatronForm("deepseek_v2", {"attention_bias": False, "mlp_bias": False, **_GATED}),
    ),
    "deepseek_v3": Family(
        is_measured=True, has_mtp_head=True,
        experts=_GLM_EXPERTS,
        megatron=MegatronForm("deepseek_v3", _LATENT_CORRECTED),
    ),
    "gemma3_text": Family(
        "attention_bias", "attention_bias", norms_heads=True, head_dim=256, ties_head=True, norm="rms in fp32",
        more_norms=("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
    "gpt_oss": Family(
        is_measured=True, has_sinks=True,
        experts=Experts("num_local_experts", "intermediate_size", have_biases=True, norms_chosen=True),
        megatron=MegatronForm("gpt_oss", {"attention_bias": True, "swiglu_alpha": 1.702}, "sinks in attention"),
    ),
}  # fmt: skip
"""Families by the model_type of config.json. A new family of Megatron adds its row here (docs/adding_a_model.md)."""


def family_of(model: Model) -> Family | None:
    """The row of the model of a config.json."""
    kind = model.get("model_type")
    return FAMILIES.get(kind) if isinstance(kind, str) else None


NUM_HEADS = "num_nextn_predict_layers"  # key of config.json: how many MTP heads there are
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of config.json, by family, for how many experts a layer has."""


def has_experts(model: Model) -> bool:
    """True if config.json describes a mixture. The language model may have a section of its own in it."""
    inner = model.get("text_config")
    return any((inner if isinstance(inner, Mapping) else model).get(key) for key in EXPERTS)
