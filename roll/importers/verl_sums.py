"""What several keys of verl say together: the form of the loss, rewards, rows, trackers; and the table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roll.importers.arithmetic import devices
from roll.importers.rows import Look, NotHere, Sum
from roll.importers.verl_adapters import adapters
from roll.importers.verl_conditions import ACTOR, CRITIC, OVERLONG, REF, ROLLOUT, validates
from roll.importers.verl_correction import CORRECTION_SUMS
from roll.importers.verl_counts import (
    batches,
    engine_arguments,
    gpus,
    micro_batch,
    placement,
    scoring,
    token_batches,
)
from roll.importers.verl_mtp import head_training
from roll.importers.words import trackers

DOMAIN = "verl"


def policy_form(look: Look) -> Sum:
    mode = look(f"{ACTOR}.policy_loss.loss_mode")
    low, high = (look.amount(f"{ACTOR}.clip_ratio_{side}", look(f"{ACTOR}.clip_ratio")) for side in ("low", "high"))
    if mode == "cispo":
        settings: dict[str, Any] = {"pg_variant": "cispo", "cispo_epsilon_low": low, "cispo_epsilon_high": high}
        return Sum(settings, f"pg_variant: cispo, weights in [1 - {low:g}, 1 + {high:g}].")
    if mode == "geo_mean":
        settings = {"pg_variant": "gmpo", "gmpo_clip_low": low, "gmpo_clip_high": high}
        return Sum(settings, f"pg_variant: gmpo, log r in [-{low:g}, {high:g}], a mean over the answers.")
    if mode == "gpg":
        return Sum({"pg_variant": "vanilla"}, "pg_variant: vanilla: the policy gradient without a ratio.")
    if mode == "opmd":
        return Sum({"pg_variant": "opmd"}, "pg_variant: opmd: the policy gradient / (1 + opmd_tau).")
    if mode == "sapo":
        taus = {f"sapo_tau_{kind}": look.amount(f"{ACTOR}.tau_{kind[:3]}") for kind in ("positive", "negative")}
        told = ", ".join(f"{key} {value:g}" for key, value in taus.items())
        return Sum({"pg_variant": "sapo", **taus}, f"pg_variant: sapo, {told}.")
    if mode in ("rec", "sppo", "topr"):  # of Trinity-RFT alone
        return Sum({"pg_variant": mode}, f"pg_variant: {mode}.")
    if mode == "kl_cov":
        return Sum({"pg_variant": "kl_cov"}, "pg_variant: kl_cov: in each micro batch, as there.")
    if mode == "clip_cov":
        near = "Tokens are spread evenly over those in the range, where verl draws them at random."
        return Sum({"pg_variant": "clip_cov", **clip_range(low, high)}, "pg_variant: clip_cov.", near)
    near = ""
    if mode not in ("vanilla", "gspo"):
        near = f"There is no loss {mode} here; the clipped ratio stands in (pg_variant: ppo)."
    settings = {"pg_variant": "ppo", "dual_clip_loss": mode != "gspo"}
    if mode == "gspo":
        settings["importance_sampling"] = "seq"
    settings |= clip_range(low, high)
    if mode != "gspo":
        settings["dual_clip_ratio_c"] = look.amount(f"{ACTOR}.clip_ratio_c")
    ratio = "one ratio per answer" if mode == "gspo" else "a ratio per token"
    bound = "" if mode == "gspo" else f", dual clip at {settings['dual_clip_ratio_c']:g}"
    return Sum(settings, f"pg_variant: ppo, {ratio} in [1 - {low:g}, 1 + {high:g}]{bound}.", near)


def clip_range(low: float, high: float) -> dict[str, Any]:
    if low == high:
        return {"pg_clip": low}
    return {"use_pg_clip_range": True, "pg_clip_low": low, "pg_clip_high": high}


def norms(look: Look) -> Sum:
    """What verl does to advantages by definition."""
    name = look("algorithm.adv_estimator")
    if name == "gae":
        return Sum({"whiten_advantages": True}, "whiten_advantages: true: verl whitens what GAE gives.")
    by_deviation = ("grpo", "grpo_vectorized", "grpo_passk")
    if name in by_deviation and not look("algorithm.norm_adv_by_std_in_grpo"):
        return Sum({"norm_std_type": "none"}, "norm_std_type: none: advantages are not divided by the deviation.")
    return Sum({}, "as the estimator has it here")


# --- rewards


def rewards(look: Look) -> Sum:
    """One domain takes all rows. verl chooses a function by the column data_source; here a table of names does."""
    at = f"rewards.{DOMAIN}"
    lost = {}
    if look("custom_reward_function.path"):
        lost["custom_reward_function.path"] = (
            "a reward of one's own takes other arguments here: math_rule stands in; put yours into "
            f"{at}.reward (docs/adding_a_reward.md)"
        )
    if look("reward_model.enable"):
        return _reward_model(look, at, lost)
    parts: list[dict[str, Any]] = []
    text = f"{at}.reward: math_rule."
    buffer = _overlong(look)
    if buffer:
        most = look.number("data.max_response_length")
        args = {"max_tokens": most, "cache_tokens": look.size(f"{buffer}.len")}
        weight = look.amount(f"{buffer}.penalty_factor", 1.0)
        parts = [{"reward": "overlong", "reward_args": args, "weight": weight}]
        text += f" overlong: 0 up to {most - args['cache_tokens']} tokens, then down to -{weight:g} at {most}."
    settings: dict[str, Any] = {f"{at}.reward": "math_rule"}
    settings |= {f"{at}.reward_manager_config": parts} if parts else {}
    near = "verl chooses the reward by the column data_source; here math_rule scores all rows (docs/rewards.md)."
    return Sum(settings, text, near, lost)


def _overlong(look: Look) -> str:
    """The section of DAPO's buffer, wherever this version of verl has it; empty where it is off."""
    return next((at for at in OVERLONG if look(f"{at}.enable") and look(f"{at}.len")), "")


def _reward_model(look: Look, at: str, lost: Mapping[str, str]) -> Sum:
    path, everything = look("reward_model.model.path"), devices(0, gpus(look))
    micro = micro_batch(look, "reward_model", ("micro_batch_size",), gpus(look))
    settings: dict[str, Any] = {
        f"{at}.reward": "reward_model",
        f"{at}.strategy_args.strategy_name": "hf_infer",
        f"{at}.device_mapping": everything,
    }
    settings |= {f"{at}.model_args.model_name_or_path": path} if path else {}
    settings |= {f"{at}.infer_batch_size": micro} if micro else {}
    if look("reward_model.max_length"):
        settings[f"{at}.reward_args.max_length"] = look.number("reward_model.max_length")
    if not path:
        raise NotHere(f"reward_model.model.path is missing: set {at}.model_args.model_name_or_path")
    return Sum(settings, f"{at}: the reward model {path} on all GPUs, in turn (docs/reward_models.md).", lost=lost)


# --- the rest


def board(look: Look) -> Sum:
    """Trackers, and the project's name in those that have projects."""
    found = trackers(look("trainer.logger"))
    names, near = (found.value, found.note) if not isinstance(found, list) else (found, "")
    settings: dict[str, Any] = {"track_with": names}
    if "wandb" in names:
        settings["tracker_kwargs"] = {"wandb": {"project": look("trainer.project_name")}}
    return Sum(settings, f"track_with: {', '.join(names)}.", near)


def rows_of_data(look: Look) -> Sum:
    """Prompts above the limit are left out before the run, or treated as truncation says. Rows of verl have their
    answer in a column of mappings."""
    if look("data.filter_overlong_prompts"):
        rule, near = "drop", ""
    else:
        rule, near = look("data.truncation"), ""
        if rule == "middle":
            rule, near = "left", "Nothing is cut in the middle here; left keeps the end of a prompt."
    sections = ["actor_train", *([] if validates(look) else ["validation"])]
    settings = {f"{section}.data_args.truncation": rule for section in sections}
    settings |= {f"{section}.data_args.messages": look("data.prompt_key") for section in sections}
    settings |= {f"{section}.data_args.ground_truth": "reward_model.ground_truth" for section in sections}
    return Sum(settings, f"data_args.truncation: {rule}.", near)


def validation_sampling(look: Look) -> Sum:
    at = f"{ROLLOUT}.val_kwargs"
    sampled = look(f"{at}.do_sample")
    temperature = look.amount(f"{at}.temperature") if sampled else 0.0
    args = "validation.generating_args"
    answers = look.number(f"{at}.n")
    settings = {f"{args}.temperature": temperature, f"{args}.num_return_sequences": answers}
    if temperature:
        settings |= {f"{args}.top_p": look.amount(f"{at}.top_p"), f"{args}.top_k": look.number(f"{at}.top_k")}
    text = f"{args}: {'greedy' if not temperature else f'temperature {temperature:g}'}, {answers} per prompt."
    return Sum(settings, text)


def group_filter(look: Look) -> Sum:
    """Dynamic sampling: groups whose answers are all right or all wrong are replaced."""
    prompts, at = look.number("data.train_batch_size"), f"rewards.{DOMAIN}.query_filter_config"
    more = max(0, look.number("data.gen_batch_size", prompts) - prompts)
    settings = {
        f"{at}.type": "std_filter",
        f"{at}.filter_args": {"std_threshold": 0.0},
        "is_use_additional_prompts": True,
        "max_additional_running_prompts": more,
    }
    return Sum(
        settings,
        f"{at}: groups with equal rewards are dropped; {more} more prompts than the {prompts} of a step run at once.",
        "A step starts at most as many groups again as it has, where verl counts max_num_gen_batches.",
    )


def resume(look: Look) -> Sum:
    mode, path = look("trainer.resume_mode"), look("trainer.resume_from_path")
    value: Any = {"auto": True, "disable": False, "resume_path": path}.get(mode, mode)
    return Sum({"resume_from_checkpoint": value}, f"resume_from_checkpoint: {value}.")


SUMS: Mapping[str, Callable[[Look], Sum]] = {
    "placement": placement,
    "actor batches": batches("actor_train"),
    "critic batches": batches("critic"),
    "policy": policy_form,
    "norms": norms,
    **CORRECTION_SUMS,
    "rewards": rewards,
    "trackers": board,
    "rows": rows_of_data,
    "validation": validation_sampling,
    "engine": engine_arguments,
    "filter": group_filter,
    "lora": adapters,
    "mtp": head_training,
    "resume": resume,
    "actor scoring": scoring("actor_train", ROLLOUT, ("log_prob_micro_batch_size",)),
    "ref scoring": scoring("reference", REF, ("log_prob_micro_batch_size",)),
    "critic scoring": scoring("critic", CRITIC, ("forward_micro_batch_size", "ppo_micro_batch_size")),
    "actor tokens": token_batches("actor_train", ACTOR, "use_dynamic_bsz", "ppo_max_token_len_per_gpu", "train"),
    "actor scoring tokens": token_batches(
        "actor_train", ROLLOUT, "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "infer"
    ),
    "ref tokens": token_batches(
        "reference", REF, "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "infer"
    ),
    "critic tokens": token_batches("critic", CRITIC, "use_dynamic_bsz", "ppo_max_token_len_per_gpu", "train"),
    "critic scoring tokens": token_batches(
        "critic", CRITIC, "use_dynamic_bsz", "forward_max_token_len_per_gpu", "infer"
    ),
}
"""By the name that rows give. Those of roles or switches that are off write nothing."""
