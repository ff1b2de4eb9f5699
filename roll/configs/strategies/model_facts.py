"""Facts measured on transformers' models (5.19), by the model_type of config.json: which of its numbers they compute
with, and which paths here compute with them too. tests/parity/families tries every entry with numbers far from
neutral."""

from collections.abc import Mapping

from roll.configs.tables.families import FAMILIES

TRIED: frozenset[str] = frozenset(
    (
        *FAMILIES,
        *("afmoe", "apertus", "arcee", "aria_text", "axk1", "axk2", "bamba", "biogpt", "bitnet", "bloom"),
        *("codegen", "cohere", "cohere2", "cohere2_moe", "cwm", "deepseek_v32", "diffllama", "doge", "dots1"),
        *("ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon", "falcon_h1", "falcon_mamba", "flex_olmo"),
        *("gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "glm_moe_dsa"),
        *("gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "granite", "granite_swa", "granitemoe"),
        *("granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium", "hrm_text", "hunyuan_v1_dense"),
        *("hunyuan_v1_moe", "hy_v3", "hy_v4", "hyperclovax", "jais2", "jamba", "kimi_linear", "laguna", "lfm2"),
        *("lfm2_moe", "llama4_text", "longcat_flash", "mamba", "mamba2", "mellum", "mimo_v2_flash", "minimax"),
        *("minimax_m2", "minimax_m3_vl_text", "ministral", "ministral3", "mistral", "nanochat", "nemotron"),
        *("nemotron_h", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "opt", "persimmon", "phi", "phi3"),
        *("phimoe", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_vl_text"),
        *("glm4v_text", "glm4v_moe_text", "qwen3_vl_moe_text"),
        *("qwen3_next", "recurrent_gemma", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2"),
        *("vaultgemma", "xglm", "youtu"),
    )
)
"""Their log-probs and gradients here are those of transformers with eager attention."""

CAPPED: Mapping[str, float | None] = {"gemma2": 50.0, "vaultgemma": 50.0}
"""Model types with a soft cap in attention (attn_logit_softcapping), and the cap if config.json names none.
transformers' sdpa leaves it out."""

SINKS: frozenset[str] = frozenset(
    (
        *(kind for kind, family in FAMILIES.items() if family.has_sinks),
        *("granite_swa", "granitemoe_swa", "mimo_v2_flash", "deepseek_v4", "hy_v4"),
    )
)
"""Model types whose attention has sinks."""

POSITION_BIAS: frozenset[str] = frozenset(("bloom", "mpt"))
"""Model types whose attention adds a bias by distance (ALiBi), whatever config.json says; falcon's does with alibi:
true."""

LOGIT_CAPS: Mapping[str, frozenset[str]] = {
    "final_logit_softcapping": frozenset(
        ("gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "nanochat", "vaultgemma")
    ),
    "logits_soft_cap": frozenset(("recurrent_gemma",)),
    "output_logit_soft_cap": frozenset(("xlstm",)),
}
"""Keys with a soft cap of the logits, and the types that read them."""

LOGIT_FACTORS: Mapping[str, Mapping[str, int]] = {
    "logits_scaling": {"hyperclovax": 1}
    | dict.fromkeys(
        ("granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared", "granitemoehybrid", "minicpm3"),
        -1,
    ),
    "logit_scale": dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), 1),
    "lm_head_multiplier": {"falcon_h1": 1},
    "logits_mup_width_multiplier": {},
}
"""Keys with a factor of the logits, and the types that read them: whether they multiply by it (1) or divide (-1)."""

OTHER_NUMBERS: Mapping[str, frozenset[str]] = {
    "attn_logit_softcapping": frozenset(CAPPED),
    "attention_multiplier": frozenset(LOGIT_FACTORS["logits_scaling"]) - {"minicpm3"},
    "query_pre_attn_scalar": frozenset(("gemma2", "gemma3_text", "vaultgemma")),
    "alibi": frozenset(("falcon",)),
}
"""Further keys that change attention, and the types that compute what they say. Others leave it out silently."""

PARTIAL_ROTARY: frozenset[str] = frozenset(
    (
        *(kind for kind, family in FAMILIES.items() if family.turns_part),
        *("bamba", "glm4v_moe_text", "glm4v_text", "gpt_neox", "laguna", "mellum", "mimo_v2_flash"),
        *("minimax_m2", "minimax_m3_vl_text", "nemotron", "persimmon", "phi", "phi3", "qwen3_5_moe_text"),
        *("qwen3_5_text", "qwen3_next", "recurrent_gemma", "solar_open", "stablelm"),
    )
)
"""Types that turn a part of each head, where partial_rotary_factor says so. Others turn all of it."""

ROTARY_DIM: frozenset[str] = PARTIAL_ROTARY | {"codegen", "gptj"}
"""Types that turn as many numbers of each head as rotary_dim says, or have the share of it by another name."""

ALPHA_ROPE: frozenset[str] = frozenset(("hunyuan_v1_dense", "hunyuan_v1_moe"))
"""Types that read `alpha` of rotary embeddings of type dynamic."""

ROUTERS: Mapping[str, Mapping[str, object]] = {
    kind: family.experts.router for kind, family in FAMILIES.items() if family.experts and family.experts.router
} | {kind: {"scoring_func": "sigmoid", "topk_method": "noaux_tc"} for kind in ("deepseek_v32", "glm4v_moe_text")}
"""Keys of routers that transformers does not read, and the one value that it computes. vLLM goes by some of them."""

DELTA_RULES: frozenset[str] = frozenset(("olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"))
"""Types with gated delta rules. vLLM 0.32 on a CPU computes those of Qwen3-Next in bf16 alone, for some sizes of heads,
and does not start OLMo-hybrid."""

VLLM_NOT_ON_CPU: Mapping[str, str] = dict.fromkeys(DELTA_RULES, "its kernels for gated delta rules crash there") | {
    "deepseek_v32": "it has no sparse attention there",
    "glm_moe_dsa": "it has no sparse attention there",
    "falcon_mamba": "it has no selective scan there",
    "hy_v4": "it has no sparse attention there",
    "jamba": "it has no selective scan there",
    "kimi_linear": "its layers need CUTLASS",
    "mamba": "it has no selective scan there",
}
"""Types that vLLM 0.32 does not start on a CPU, or computes otherwise there, and why: tests/parity/families/
test_vllm.py."""

VLLM_REFUSED: Mapping[str, str] = dict.fromkeys(("codegen", "gpt_neo", "xglm"), "it has no such models") | {
    "aria_text": "it does not find how many experts a token has",
    "axk1": "it wants a norm in layers without experts, which they do not have",
    "axk2": "it has no sparse attention of their kind",
    "bamba": "vLLM 0.23 was the last with them",
    "biogpt": "it does not find their head",
    "diffllama": "it has no attention of their kind",
    "doge": "it leaves out their masks",
    "hrm_text": "it lets tokens of a prompt attend to later ones, which trainers do not",
    "longcat_flash": "it has no matrices of zero experts, which trainers send",
    "minimax": "vLLM 0.23 was the last with them",
    "minimax_m3_vl_text": "it computes another activation in their experts",
    "recurrent_gemma": "it has no recurrent layers of their kind",
}
"""Types that vLLM 0.32 does not start on any device, or computes otherwise, and why: for some of them it runs
transformers' code, with parts of its own."""

STATES: frozenset[str] = DELTA_RULES | frozenset(
    (*("bamba", "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "nemotron_h"),)
)
"""Types with layers that carry a state from token to token (convolutions, gated delta rules, Mamba) beside attention.
hf_infer caches these states, and packs begin anew with each row."""

UNTRAINED: frozenset[str] = frozenset(("indexer", "expert_bias", "e_score_correction_bias"))
"""Parts of names of weights that no gradient reaches: what chooses tokens (sparse attention), and biases by which
routers choose experts. They stay as they are."""

WITHOUT_PREFIXES: frozenset[str] = STATES | {"mamba2"}
"""Types of which vLLM on a CPU shares no prefixes, and does not start unless that is off."""

WITHOUT_OUT_PROJ: frozenset[str] = frozenset(("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"))
"""Types to whose layers of this name peft (0.21) gives no adapters."""

UNPACKED: Mapping[str, str] = (
    dict.fromkeys(SINKS, "sinks in its attention, which the kernels for packs do not have")
    | dict.fromkeys(
        POSITION_BIAS, "a bias by distance (ALiBi) in its attention, which counts from the pack's beginning"
    )
    | dict.fromkeys(("nemotron", "stablelm"), "attention that does not know where rows begin")
    | dict.fromkeys(
        ("falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "rwkv"), "states that continue into the next row"
    )
    | {"jamba": "layers whose states continue into the next row"}
    | {
        "doge": "masks of its own",
        "biogpt": "masks of its own",
        "xglm": "positions of its own",
        "falcon": "masks of its own",
    }
)
"""Types whose rows cannot be packed, and what config.json does not tell of them."""

OWN_ATTENTION: frozenset[str] = frozenset(("codegen", "gpt_neo", "gptj"))
"""Types whose attention transformers does not let be replaced. It takes packs, by their positions, but no trees, no
parts of sequences, and is not exact."""

EXACT_MIXTURES: frozenset[str] = frozenset(
    (
        *("afmoe", "aria_text", "axk1", "cohere2_moe", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe"),
        *("exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "granitemoe"),
        *("granitemoeshared", "hunyuan_v1_moe", "hy_v3", "laguna", "mellum", "minimax_m2", "minimax_m3_vl_text"),
        *("mixtral", "olmoe", "phimoe", "qwen3_moe", "solar_open"),
    )
)
"""Types whose experts exact passes compute one after the other (roll/models/exact/experts.py)."""

UNSAMPLED: Mapping[str, str] = (
    dict.fromkeys(POSITION_BIAS, "biases by distance (ALiBi), which do not know a batch's padding")
    | dict.fromkeys(
        ("falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "rwkv", "xlstm"), "a state, not a key-value cache"
    )
    | {
        "cpmant": "positions of its own",
        "doge": "masks of its own",
        "hrm_text": "matrices that trainers send as one, as its files hold them",
        "openai-gpt": "no key-value cache",
        "llama4_text": "attention scaled by columns of the batch (attn_temperature_tuning), padding included",
    }
)
"""Types that hf_infer cannot sample from, and why."""
