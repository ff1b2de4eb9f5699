"""Sections of verl's keys, and what decides whether they ask for anything."""

from __future__ import annotations

import re
from collections.abc import Mapping

from roll.importers.rows import Condition, Look

ACTOR, ROLLOUT, REF, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic"
MODEL = "actor_rollout_ref.model"
SECTION = f"{MODEL}.lora"  # of Megatron's adapters
MEGATRON = "megatron"


OVERLONG = (
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "custom_reward_function.overlong_buffer",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
"""Sections in which versions of verl have DAPO's soft penalty."""


PICTURES: Mapping[str, str] = {"data.image_key": "images", "data.video_key": "videos", "data.audio_key": "audios"}
"""Columns with their names by default."""
_SEES = re.compile(
    r"(?i)[-_.\d](vl|vision|omni|vlm)([-_.\d/]|$)|minicpm-?[vo]|internvl|llava|glm-?4\.\dv|glm45v|gemma-?3-(4|12|27)b"
)


def sees(look: Look) -> bool:
    """True for a model whose name says that it reads pictures."""
    return name_sees(look(f"{MODEL}.path"))


def name_sees(name: object) -> bool:
    return _SEES.search(str(name or "").rstrip("/").rpartition("/")[2]) is not None


PER_ANSWER = ("gspo", "sapo", "geo_mean")
"""Losses that verl averages over answers, whatever loss_agg_mode says."""


def has_critic(look: Look) -> str:
    enable = look(f"{CRITIC}.enable")
    name = look("algorithm.adv_estimator")
    is_there = name == "gae" if enable is None else enable
    return "" if is_there else f"no critic runs: algorithm.adv_estimator is {name}"


def kl_in_loss(look: Look) -> str:
    return "" if look(f"{ACTOR}.use_kl_loss") else "actor.use_kl_loss is off: no KL in the loss"


def kl_in_reward(look: Look) -> str:
    return "" if look("algorithm.use_kl_in_reward") else "algorithm.use_kl_in_reward is off: no KL in the reward"


def has_reference(look: Look) -> str:
    return kl_in_loss(look) and kl_in_reward(look) and "no KL term is on: no reference runs"


def _adapts_kl(look: Look) -> str:
    return kl_in_reward(look) or ("" if look("algorithm.kl_ctrl.type") == "adaptive" else "kl_ctrl.type is fixed")


def _aggregates(look: Look) -> str:
    mode = look(f"{ACTOR}.policy_loss.loss_mode")
    return f"loss_mode: {mode} is seq-mean-token-mean in any case" if mode in PER_ANSWER else ""


def _has_loss(name: str) -> Condition:
    def condition(look: Look) -> str:
        mode = look(f"{ACTOR}.policy_loss.loss_mode")
        return "" if mode == name else f"loss_mode: {mode} has no such setting"

    return condition


def _has_opmd_baseline(look: Look) -> str:
    name = look("algorithm.adv_estimator")
    return "" if name == "opmd" else f"{name} has no such setting"


def _is_normed(look: Look) -> str:
    mode = look(f"{ACTOR}.loss_agg_mode")
    return "" if mode == "seq-mean-token-sum-norm" else f"loss_agg_mode: {mode} divides by no such number"


def _has_reward_model(look: Look) -> str:
    return "" if look("reward_model.enable") else "reward_model.enable is off"


def has_adapters(look: Look) -> bool:
    """True if the flat keys ask for LoRA. An initial adapter means LoRA too, whatever lora_rank says."""
    return look.is_given(f"{MODEL}.lora_adapter_path") or look.number(f"{MODEL}.lora_rank", 0) > 0


def has_section(look: Look) -> bool:
    """True if the keys that only Megatron reads ask for LoRA."""
    return strategy_of(look, ACTOR) == MEGATRON and look.number(f"{SECTION}.rank", 0) > 0


def _is_cosine(section: str) -> Condition:
    def condition(look: Look) -> str:
        name = look(f"{section}.optim.lr_scheduler_type") or look(f"{section}.optim.warmup_style")
        return "" if name == "cosine" else "only a cosine ends above 0"

    return condition


def runs_on(section: str, megatron: bool) -> Condition:
    """That a role trains with Megatron, or that it does not."""

    def condition(look: Look) -> str:
        if section != ACTOR and (reason := (has_critic if section == CRITIC else has_reference)(look)):
            return reason
        name = strategy_of(look, section)
        return "" if (name == MEGATRON) == megatron else f"{section} runs on {name}"

    return condition


def drafts(look: Look) -> str:
    """That engines guess tokens with a head for further ones."""
    on = look(f"{MODEL}.mtp.enable") and look(f"{MODEL}.mtp.enable_rollout")
    return "" if on else "model.mtp.enable_rollout is off: no engine uses the head"


def validates(look: Look) -> str:
    return "" if look("data.val_files") else "there are no data.val_files: no validation"


def counts_epochs(look: Look) -> str:
    return "" if look("trainer.total_training_steps") is None else "trainer.total_training_steps counts"


def _filters(look: Look) -> str:
    return "" if look("algorithm.filter_groups.enable") else "algorithm.filter_groups.enable is off"


CONDITIONS: Mapping[str, Condition] = {
    "critic": has_critic,
    "kl loss": kl_in_loss,
    "kl reward": kl_in_reward,
    "adaptive kl": _adapts_kl,
    "reference": has_reference,
    "own aggregation": _aggregates,
    "norm": _is_normed,
    "clip cov": _has_loss("clip_cov"),
    "kl cov": _has_loss("kl_cov"),
    "opmd": _has_loss("opmd"),
    "opmd baseline": _has_opmd_baseline,
    "rec": _has_loss("rec"),
    "drafts": drafts,
    "sppo": _has_loss("sppo"),
    "reward model": _has_reward_model,
    "lora": lambda look: "" if has_adapters(look) else "lora_rank is 0: no adapters",
    "lora section": lambda look: "" if has_section(look) else "no adapters of Megatron",
    "turns": lambda look: "" if look(f"{ROLLOUT}.multi_turn.enable") else "multi_turn.enable is off",
    "validation": validates,
    "filter": _filters,
    "epochs": counts_epochs,
    "actor cosine": _is_cosine(ACTOR),
    "critic cosine": lambda look: has_critic(look) or _is_cosine(CRITIC)(look),
    "actor fsdp": runs_on(ACTOR, megatron=False),
    "actor megatron": runs_on(ACTOR, megatron=True),
    "ref fsdp": runs_on(REF, megatron=False),
    "ref megatron": runs_on(REF, megatron=True),
    "critic fsdp": runs_on(CRITIC, megatron=False),
    "critic megatron": runs_on(CRITIC, megatron=True),
}


def strategy_of(look: Look, section: str) -> str:
    return str(look(f"{section}.strategy") or look(f"{ACTOR}.strategy"))
