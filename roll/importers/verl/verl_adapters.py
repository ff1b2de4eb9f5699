"""verl's keys of adapters: flat ones with FSDP, a section of Megatron Bridge's words with Megatron."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.importers.rows import CHANGES, Look, NotHere, Row, Sum, changes, needless, summed, to
from roll.importers.verl.common import TRAIN
from roll.importers.verl.verl_conditions import MODEL, SECTION, has_adapters, has_section

_ARGS = f"{TRAIN}.model_args"
_OURS: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_q": ("q_proj",),
    "linear_k": ("k_proj",),
    "linear_v": ("v_proj",),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc1_gate": ("gate_proj",),
    "linear_fc1_up": ("up_proj",),
    "linear_fc2": ("down_proj",),
}
"""Linear layers as Hugging Face names them, by Megatron's names."""
_ALL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_SHARED = "verl's adapter of a fused layer (linear_qkv, linear_fc1) has one A for its parts, here each has its own."

ROWS: tuple[Row, ...] = (
    summed(f"{MODEL}.lora_rank", "lora", 0),
    summed(f"{MODEL}.lora_alpha", "lora", 16, needs="lora"),
    summed(f"{MODEL}.target_modules", "lora", "all-linear", needs="lora"),
    to(f"{MODEL}.lora_adapter_path", f"{_ARGS}.adapter_name_or_path", needs="lora"),
    changes(f"{MODEL}.exclude_modules", "lora_target names what gets adapters"),
    summed(f"{SECTION}.rank", "lora", 0),
    summed(f"{SECTION}.alpha", "lora", 32, needs="lora section"),
    summed(f"{SECTION}.target_modules", "lora", list(_ALL), needs="lora section"),
    to(f"{SECTION}.dropout", f"{_ARGS}.lora_dropout", needs="lora section"),
    to(f"{SECTION}.adapter_path", f"{_ARGS}.adapter_name_or_path", needs="lora section"),
    changes(f"{SECTION}.exclude_modules", "lora_target names what gets adapters", []),
    changes(
        f"{SECTION}.type", "adapters are those of LoRA; canonical_lora is what they are here", "lora", "canonical_lora"
    ),
    needless(
        f"{SECTION}.merge",
        "engines get merged weights; actor_infer.strategy_args.strategy_config.enable_lora: true sends adapters (vLLM)",
    ),
    Row(
        f"{SECTION}.**",
        note="keys of adapters are lora_target, lora_rank, lora_alpha, lora_dropout (docs/lora.md)",
        outcome=CHANGES,
        needs="lora section",
        idle=(None, 0, False, True, "pre", "xavier", "zero"),
    ),
)


def adapters(look: Look) -> Sum:
    if has_section(look):
        return _of_section(look)
    if not has_adapters(look):
        return Sum({}, "lora_rank is 0: no adapters")
    names, rank = look(f"{MODEL}.target_modules"), look.number(f"{MODEL}.lora_rank")
    if rank > 0:
        return _given(names, rank, look(f"{MODEL}.lora_alpha"))
    near = "lora_rank and lora_alpha must be those of the adapter's own file: set them where it has others than 8, 16."
    return Sum({f"{_ARGS}.lora_target": names}, f"{_ARGS}.lora_target: {names}, by lora_adapter_path.", near)


def _of_section(look: Look) -> Sum:
    given = look(f"{SECTION}.target_modules")
    names = [given] if isinstance(given, str) else list(given)
    if unknown := [name for name in names if name not in _OURS]:
        raise NotHere(f"{SECTION}.target_modules: {unknown[0]} is none of {', '.join(_OURS)}. Set lora_target")
    ours: Any = list(dict.fromkeys(own for name in names for own in _OURS[name]))
    if set(_ALL) <= set(names):
        ours = "all-linear"
    found = _given(ours, look.number(f"{SECTION}.rank"), look(f"{SECTION}.alpha"))
    fused = look(f"{SECTION}.type", "lora") == "lora" and {"linear_qkv", "linear_fc1"} & set(names)
    return Sum(found.settings, found.text, nears={f"{SECTION}.rank": _SHARED} if fused else {})


def _given(names: Any, rank: int, alpha: Any) -> Sum:
    settings = {f"{_ARGS}.lora_target": names, f"{_ARGS}.lora_rank": rank, f"{_ARGS}.lora_alpha": alpha}
    return Sum(settings, f"{_ARGS}: lora_target {names}, lora_rank {rank}, lora_alpha {alpha} (docs/lora.md).")
