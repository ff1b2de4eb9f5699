"""verl's keys of adapters, flat ones with FSDP and a section of Megatron's, and of MTP heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll.importers.rows import ChangesRun, CombinedKeys, SourceLookup
from roll.importers.verl.common import (
    ACTOR,
    MEGATRON,
    MODEL,
    NO_ADAPTERS,
    SECTION,
    has_adapters,
    has_section,
    runs_on,
    strategy_of,
)

_ARGS = "actor_train.model_args"
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
_A_INIT = f"{SECTION}.lora_A_init_method"
_XAVIER = "xavier begins A about 2.4 times as wide as here, where it is kaiming."
_SHARED = "verl's adapter of a fused layer (linear_qkv, linear_fc1) has one A for its parts, here each has its own."

_UNREAD_RANK = (
    "verl's workers on {0} do not read it and train the whole model, while its trainer, which does, starts no "
    "reference. For adapters give {1} instead after the file, without it for none"
)


def adapters(source: SourceLookup) -> CombinedKeys:
    trainer, flat, nested = strategy_of(source, ACTOR), f"{MODEL}.lora_rank", f"{SECTION}.rank"
    read, other = (nested, flat) if trainer == MEGATRON else (flat, nested)
    is_read = has_section(source) if trainer == MEGATRON else has_adapters(source)
    if not is_read and source.number(other, 0) > 0:
        return CombinedKeys({}, "", changes={other: _UNREAD_RANK.format(trainer, read)})
    if has_section(source):
        return _of_section(source)
    return flat_adapters(source, MODEL, _ARGS)


def flat_adapters(source: SourceLookup, model: str, args: str) -> CombinedKeys:
    """Adapters of a policy, or of fine-tuning, by the keys of its section `model`."""
    if not has_adapters(source, model):
        return CombinedKeys({}, NO_ADAPTERS)
    names, rank = source(f"{model}.target_modules"), source.number(f"{model}.lora_rank")
    if rank > 0:
        return _lora_keys(args, names, rank, source(f"{model}.lora_alpha"))
    near = "lora_rank and lora_alpha must be those of the adapter's own file: set them where it has others than 8, 16."
    return CombinedKeys({f"{args}.lora_target": names}, f"{args}.lora_target: {names}, by lora_adapter_path.", near)


def _of_section(source: SourceLookup) -> CombinedKeys:
    modules = source(f"{SECTION}.target_modules", list(_ALL))
    names = [modules] if isinstance(modules, str) else list(modules)
    if unknown := [name for name in names if name not in _OURS]:
        raise ChangesRun(f"{SECTION}.target_modules: {unknown[0]} is none of {', '.join(_OURS)}. Set lora_target")
    ours: Any = list(dict.fromkeys(module for name in names for module in _OURS[name]))
    if set(_ALL) <= set(names):
        ours = "all-linear"
    made = _lora_keys(_ARGS, ours, source.number(f"{SECTION}.rank"), source(f"{SECTION}.alpha", 32))
    fused = source(f"{SECTION}.type", "lora") == "lora" and {"linear_qkv", "linear_fc1"} & set(names)
    begins = source(_A_INIT, "xavier")
    near = [*([_SHARED] if fused else []), *([_XAVIER] if begins == "xavier" else [])]
    changes = {} if begins in ("kaiming", "xavier") else {_A_INIT: "A begins by kaiming (docs/lora.md)"}
    return CombinedKeys(made.settings, made.text, " ".join(near), changes=changes)


def _lora_keys(args: str, names: Any, rank: int, alpha: Any) -> CombinedKeys:
    settings = {f"{args}.lora_target": names, f"{args}.lora_rank": rank, f"{args}.lora_alpha": alpha}
    return CombinedKeys(settings, f"{args}: lora_target {names}, lora_rank {rank}, lora_alpha {alpha} (docs/lora.md).")


_MTP = f"{MODEL}.mtp"


def head_training(source: SourceLookup) -> CombinedKeys:
    """Converts MTP training of a policy on Megatron, the one trainer that supports it in both systems."""
    if not (source(f"{_MTP}.enable") and source(f"{_MTP}.enable_train")):
        return CombinedKeys({}, "no MTP head is trained: those of the files are saved as they were.")
    if reason := _missing(source):
        return CombinedKeys({}, "MTP heads are saved as they were.", lost={f"{_MTP}.enable_train": reason})
    mode, factor = (
        "standalone" if source(f"{_MTP}.detach_encoder") else "joint",
        source.amount(f"{_MTP}.mtp_loss_scaling_factor", 0.1),
    )
    near = "" if mode == "joint" else "Embedding and output matrix are kept from the head's loss as well."
    settings = {"actor_train.mtp_training_mode": mode, "actor_train.mtp_loss_scaling_factor": factor}
    return CombinedKeys(settings, f"mtp_training_mode: {mode}, weight {factor:g}.", near)


def _missing(source: SourceLookup) -> str:
    """Why the head cannot be trained here."""
    if reason := runs_on(ACTOR, megatron=True)(source):
        return f"{reason}: megatron_train alone trains heads"
    if source(f"{MODEL}.lora_rank") or source(f"{MODEL}.lora.rank"):
        return "adapters leave heads as they are"
    return ""
