"""Facts about transformers' models by the model_type of config.json: those of `model_facts.yaml`, which explains each,
with what `FAMILIES` knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from roll.configs.tables.families import FAMILIES

_FACTS: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("model_facts.yaml").read_text(encoding="utf-8"))


def _types(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _reasons(rows: Mapping[str, str]) -> dict[str, str]:
    return {kind: why for kinds, why in rows.items() for kind in kinds.split()}


TRIED = _types(_FACTS["tried"]) | FAMILIES.keys()
CAPPED: Mapping[str, float] = _FACTS["capped"]
SINKS = _types(_FACTS["sinks"]) | {kind for kind, family in FAMILIES.items() if family.has_sinks}
POSITION_BIAS = _types(_FACTS["position_bias"])
LOGIT_CAPS: Mapping[str, frozenset[str]] = {key: _types(kinds) for key, kinds in _FACTS["logit_caps"].items()}
LOGIT_FACTORS: Mapping[str, Mapping[str, int]] = {
    key: {kind: power for power, kinds in rows.items() for kind in kinds.split()}
    for key, rows in _FACTS["logit_factors"].items()
}
ALPHA_ROPE = _types(_FACTS["alpha_rope"])
DELTA_RULES = _types(_FACTS["delta_rules"])
VLLM_NOT_ON_CPU: Mapping[str, str] = {
    **dict.fromkeys(DELTA_RULES, "its kernels for gated delta rules crash there"),
    **_reasons(_FACTS["vllm_not_on_cpu"]),
}
VLLM_REFUSED: Mapping[str, str] = _reasons(_FACTS["vllm_refused"])
STATES = DELTA_RULES | _types(_FACTS["states"])
UNTRAINED = _types(_FACTS["untrained"])
WITHOUT_PREFIXES = STATES | {"mamba2"}
"""Types of which vLLM on a CPU shares no prefixes, and does not start unless that is off."""
UNPACKED: Mapping[str, str] = {
    **dict.fromkeys(SINKS, "sinks in its attention, which the kernels for packs do not have"),
    **dict.fromkeys(
        POSITION_BIAS, "a bias by distance (ALiBi) in its attention, which counts from the pack's beginning"
    ),
    **_reasons(_FACTS["unpacked"]),
}
OWN_ATTENTION = _types(_FACTS["own_attention"])
EXACT_MIXTURES = _types(_FACTS["exact_mixtures"])
UNSAMPLED: Mapping[str, str] = {
    **dict.fromkeys(POSITION_BIAS, "biases by distance (ALiBi), which do not know a batch's padding"),
    **_reasons(_FACTS["unsampled"]),
}
DIVIDED_EXPERTS: tuple[str, ...] = tuple(_FACTS["divided_experts"].split())
