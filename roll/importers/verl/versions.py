"""Meaning of verl's keys in the version of a file, and keys that take their value from another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from roll.importers.rows import Change
from roll.importers.verl.common import (
    ACTOR,
    CRITIC,
    ENGINE_GROUP,
    MEGATRON,
    MODEL,
    REF,
    ROLLOUT,
    SPLITS,
    strategy_of_group,
)

_OLD = (
    f"{ACTOR}.fsdp_config.grad_offload",
    f"{ACTOR}.ppo_micro_batch_size",
    f"{REF}.log_prob_micro_batch_size",
    f"{ROLLOUT}.log_prob_micro_batch_size",
    "data.return_raw_input_ids",
)
"""Keys of verl before 0.2; those of later versions tell more."""
_REMOVED = (f"{ACTOR}.fsdp_config.grad_offload", "data.return_raw_input_ids")
"""Keys of these that no later version takes."""
_MANAGER = "reward_model.reward_manager"  # came shortly before 0.2
_NEW = (
    "algorithm.use_kl_in_reward",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{ACTOR}.loss_agg_mode",
    f"{ACTOR}.clip_ratio_c",
    f"{ROLLOUT}.mode",
    f"{ROLLOUT}.multi_turn.enable",
    _MANAGER,
)
AVERAGES_PASSES = "the loss is a mean of means"
"""A default that stands for verl's fine-tuning on FSDP alone, and for no key."""
IS_OLD = "before 0.2"
"""A default that stands for the version, and for no key."""
_BEFORE_0_3 = "trainer.val_generations_to_log_to_wandb"
"""A key that 0.3 gave another name, log_val_generations."""
_OF_LOOPS = ("num_workers", "default_agent_loop", "agent_loop_config_path", "agent_loop_manager_class")
_SINCE_0_3 = (
    "algorithm.use_kl_in_reward",
    "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.filter_groups.",
    "algorithm.rollout_",
    f"{ACTOR}.loss_agg_mode",
    f"{ACTOR}.clip_ratio_",
    f"{ACTOR}.policy_loss.",
    f"{ACTOR}.checkpoint.",
    f"{ACTOR}.fsdp_config.forward_prefetch",
    f"{ROLLOUT}.mode",
    f"{ROLLOUT}.multi_turn.",
    f"{ROLLOUT}.val_kwargs.",
    f"{ROLLOUT}.engine_kwargs.",
    *(f"{ROLLOUT}.agent.{name}" for name in _OF_LOOPS),
    f"{ROLLOUT}.agent.custom_async_server.",
    f"{MODEL}.lora_",
    f"{MODEL}.use_fused_kernels",
    *("data.custom_cls.", "data.sampler.", "data.datagen.", "data.apply_chat_template_kwargs."),
    *("algorithm.use_pf_ppo", "algorithm.gdpo_", "distillation.", "transfer_queue.", "ray_init.", "ray_kwargs."),
    "trainer.device",
    "trainer.use_legacy_worker_impl",
    f"{ACTOR}.optim.lr_scheduler_type",
    "reward_model.overlong_buffer.",
    "reward_model.reward_kwargs.",
    "trainer.log_val_generations",
    "trainer.v1.",
    "reward.",
    ENGINE_GROUP,
)
"""Keys, and beginnings of keys, that came with 0.3 or later. Forks of older versions have keys of their own in
rollout.agent."""
_ESTIMATORS_BEFORE_0_3 = (None, "gae", "grpo", "rloo", "remax", "reinforce_plus_plus")
_NEEDED = (f"{MODEL}.path", "model.partial_pretrain", "data.train_files")
_KLS = ("algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss")
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
_SIZES += ("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel")
_OF_MEGATRON = tuple(f"{section}.{MEGATRON}." for section in (ACTOR, REF, CRITIC))
"""Sections that verl's configuration of FSDP has not: with a key of them no other runs."""
_INHERITED = (
    "ulysses_sequence_parallel_size",
    *(f"megatron.{name}" for name in _SIZES),
    *(f"megatron.override_transformer_config.{name}" for name in SPLITS),
)
"""Keys of the reference that are the policy's where they are not given."""


WHOLE_STEPS: Mapping[str, Any] = {"data.drop_last": True}
"""verl's loaders leave the rest of an epoch out, which fills no batch."""


_OF_ENGINES: Mapping[str, Any] = {
    "data.multiturn.enable": True,
    "data.use_dynamic_bsz": True,
    "use_remove_padding": True,
    "optim.lr": 1e-3,
    "optim.betas": [0.9, 0.999],
    "optim.warmup_steps_ratio": 0.0,
    "optim.lr_scheduler": "constant",
    "trainer.resume_mode": "auto",
}
"""Defaults of the fine-tuning on engines, `verl.trainer.sft_trainer`, which replaced that on FSDP alone."""


_SINCE_RESUME = (
    "trainer.resume_from_path",
    "trainer.device",
    "optim.lr_warmup_steps_ratio",
    "trainer.profile_interval",
)
"""Keys of fine-tuning that came with or after trainer.resume_mode, whose default is auto."""


def sft_defaults(module: str = "") -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return defaults of fine-tuning that depend on its program: `sft_trainer` runs on engines, learns conversations,
    and has an optimizer's section with other defaults than `fsdp_sft_trainer`, which it replaced. Where the module does
    not tell, the keys do: the newer one names its model in model.path."""

    def defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
        is_newer = _is_on_engines(module, values)
        resumes = any(key in _SINCE_RESUME or key.startswith(("trainer.checkpoint.", "checkpoint.")) for key in values)
        older = {AVERAGES_PASSES: True, **({"trainer.resume_mode": "auto"} if resumes else {})}
        return {**WHOLE_STEPS, **(_OF_ENGINES if is_newer else older)}

    return defaults


def sft_names(module: str, values: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what `sft_trainer` calls the keys of `fsdp_sft_trainer`, if that is the program."""
    return _NAMES_OF_ENGINES if _is_on_engines(module, values) else {}


_NAMES_OF_ENGINES: Mapping[str, str] = {
    "model.strategy": "engine.strategy",
    "model.partial_pretrain": "model.path",
    "ulysses_sequence_parallel_size": "engine.ulysses_sequence_parallel_size",
    "use_remove_padding": "model.use_remove_padding",
    "optim.lr_scheduler": "optim.lr_scheduler_type",
    "optim.warmup_steps_ratio": "optim.lr_warmup_steps_ratio",
    "data.multiturn.messages_key": "data.messages_key",
}


def _is_on_engines(module: str, values: Mapping[str, Any]) -> bool:
    name = module.rpartition(".")[2]
    if "sft_trainer" in name:
        return "fsdp" not in name
    signs = ("model.path", "data.pad_mode", "data.ignore_input_ids_mismatch")
    is_newer = any(key in signs or key.startswith("engine.") for key in values)
    return is_newer and "model.partial_pretrain" not in values


def is_old(values: Mapping[str, Any]) -> bool:
    """True for keys of verl before 0.2, where every run without a KL in the loss has one in the reward."""
    keys = {key for key, value in values.items() if value is not None}
    new = keys.intersection(_NEW)
    return (bool(keys.intersection(_OLD)) and not new) or (bool(keys.intersection(_REMOVED)) and new <= {_MANAGER})


def derived(values: Mapping[str, Any]) -> Mapping[str, Any]:
    defaults = {f"{REF}.{name}": values.get(f"{ACTOR}.{name}") for name in _INHERITED}
    defaults = {key: value for key, value in defaults.items() if value is not None}
    if any(key.startswith(_OF_MEGATRON) and value is not None for key, value in values.items()):
        defaults[f"{ACTOR}.strategy"] = MEGATRON
    defaults |= {**WHOLE_STEPS, **strategy_of_group(values)}
    if is_old(values):
        defaults |= {IS_OLD: True, f"{ACTOR}.clip_ratio_c": 0, f"{MODEL}.enable_gradient_checkpointing": False}
        defaults |= {f"{ACTOR}.entropy_coeff": 0.001, "data.filter_overlong_prompts": True}
        defaults["trainer.resume_mode"] = "disable"
        defaults["algorithm.use_kl_in_reward"] = not values.get(f"{ACTOR}.use_kl_loss")
    return defaults


def version_notes(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes about what the version of a file decides without a key."""
    for key in _NEEDED:
        if values.get(key) == "":
            yield Change(f"{key} is empty: what it names is set outside of the script. Give it after the file.")
    whole, own = values.get("data.max_response_length"), values.get(f"{ROLLOUT}.response_length")
    if isinstance(own, int) and own != whole and (whole is None or isinstance(whole, int)):
        yield Change(
            f"{ROLLOUT}.response_length is {own}, and data.max_response_length "
            f"{'not given' if whole is None else whole}: engines there sample by the first. Give "
            f"data.max_response_length={own} after the file."
        )
    if is_old(values) and (newer := _since_0_3(values)):
        older = next(key for key in _OLD if values.get(key) is not None)
        kl = str(not values.get(f"{ACTOR}.use_kl_loss")).lower()
        yield Change(
            f"{older} is a key of verl before 0.2, and {newer} came with 0.3: before it a run without a KL loss had a "
            "KL in the reward, entropy_coeff was 0.001, and there was no dual clip; since then they are none, 0, and "
            f"clip_ratio_c 3. Say which after the file: algorithm.use_kl_in_reward={kl} with "
            f"{_entropy(values, 0.001)} and {ACTOR}.clip_ratio_c=0, or algorithm.use_kl_in_reward=false with "
            f"{_entropy(values, 0)}."
        )
    elif is_old(values):
        yield (
            "Read as verl before 0.2, by its keys: a KL in the reward (kl_ctrl.kl_coef) unless actor.use_kl_loss, "
            "entropy_coeff 0.001, no dual clip, and prompts that are too long are left out. Give "
            "algorithm.use_kl_in_reward=false after the file to change that."
        )
    elif (
        values.get("algorithm.kl_ctrl.kl_coef")
        and not any(values.get(key) is not None for key in _KLS)
        and not _since_0_3(values)
    ):
        yield Change(
            "algorithm.kl_ctrl.kl_coef is given and algorithm.use_kl_in_reward is not: before 0.3 that was a KL in the "
            "reward, entropy_coeff was 0.001, and there was no dual clip; since then it is none, 0, and clip_ratio_c "
            f"3. Say which after the file: algorithm.use_kl_in_reward=true with {_entropy(values, 0.001)} and "
            "actor_rollout_ref.actor.clip_ratio_c=0, or algorithm.use_kl_in_reward=false with "
            f"{_entropy(values, 0)}."
        )
    elif values.get(f"{ACTOR}.entropy_coeff") != 0 and (key := _before_0_3(values)):
        told = "is a key of verl before 0.3" if key == _BEFORE_0_3 else "is given, and no key that came with 0.3"
        yield Change(
            f"{key} {told}: before it entropy_coeff was 0.001 and there was no dual clip; since then they are 0 and "
            "clip_ratio_c 3. Say which after the file: actor_rollout_ref.actor.clip_ratio_c=0 with "
            f"{_entropy(values, 0.001)}, or actor_rollout_ref.actor.clip_ratio_c=3 with {_entropy(values, 0)}."
        )


def _entropy(values: Mapping[str, Any], default: float) -> str:
    """The coefficient that a version gets: the given one in any."""
    return f"{ACTOR}.entropy_coeff={values.get(f'{ACTOR}.entropy_coeff', default)}"


def _since_0_3(values: Mapping[str, Any]) -> str:
    """Return the first key that came with 0.3 or later; empty if none is given."""
    given = [key for key, value in values.items() if value is not None]
    is_newer = (key for key in given for newer in _SINCE_0_3 if _is_of(key, newer))
    return next(is_newer, "")


def _is_of(key: str, name: str) -> bool:
    return key == name or (name[-1:] in "._" and key.startswith(name))


def _before_0_3(values: Mapping[str, Any]) -> str:
    """Return a key that tells of a version before 0.3, if no key tells of a later one."""
    given = [key for key, value in values.items() if value is not None]
    if _since_0_3(values):
        return ""
    if values.get("algorithm.adv_estimator") not in _ESTIMATORS_BEFORE_0_3:
        return ""
    return next((key for key in (_BEFORE_0_3, "algorithm.kl_ctrl.kl_coef") if key in given), "")
