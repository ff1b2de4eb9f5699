"""Checks of a configuration of reinforcement learning for contradictions, beside those of any run. Every check here
holds on any machine, in a dry run and in a real run."""

from collections.abc import Callable, Iterator

from roll.configs.checks.roles import IS_WEIGHT, RL, switched_off
from roll.configs.checks.rollout import (
    VAL_LENGTH_KEYS,
    async_problems,
    async_warnings,
    length_problems,
    mode_problems,
    mode_warnings,
)
from roll.configs.plan.batch_plan import batch_problems, critic_warmup_problems, role_train_plan
from roll.configs.plan.derive import (
    compares_within_groups,
    moves_idle_rows,
    old_log_probs,
    weighs_importance,
)
from roll.configs.plan.engine_limits import narrowing_settings
from roll.configs.problems import Problem, ids_text
from roll.configs.sections.algorithm import MODEL_LENGTH_KEYS, AlgorithmConfig
from roll.configs.sections.rollout import LENGTH_KEYS
from roll.configs.tables.estimators import ESTIMATORS
from roll.configs.tables.policy_losses import IN_ORDER, IN_ORDER_OF_A_RING, POLICY_FORMS

SAMPLING = "actor_infer.generating_args"
NORMED = "seq-mean-token-sum-norm"


def config_problems(config: AlgorithmConfig) -> list[Problem]:
    """Everything that cannot work, whatever the machine."""
    return [problem for check in CHECKS for problem in check(config)]


def tokenizer_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    policy, engine = (worker.model_args.tokenizer_path for worker in (config.actor_train, config.actor_infer))
    if policy != engine:
        keys = ("actor_infer.model_args.tokenizer_path", "actor_train.model_args.tokenizer_path")
        yield Problem(
            f"{keys[0]}: {engine} is not {keys[1]}: {policy or 'that of the model'}. The engine samples the tokens "
            f"that are trained on: set {keys[1]} alone.",
            keys,
        )


def answer_length_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    _, response, sequence = config.lengths
    limit = config.actor_infer.generating_args.max_new_tokens
    if limit is not None and limit != response and not config.is_multi_turn:
        yield Problem(
            f"{SAMPLING}.max_new_tokens: {limit} contradicts {_response_source(config)} = {response}. "
            "Remove it, or write ${response_length}.",
            (f"{SAMPLING}.max_new_tokens", *LENGTH_KEYS),
        )
    longest = max(config.prompt_length, config.val_lengths[0])
    if config.engine_length is not None and config.engine_length <= longest:
        key = next(key for key in MODEL_LENGTH_KEYS if config.actor_infer.strategy_config.get(key) is not None)
        at = f"actor_infer.strategy_args.strategy_config.{key}"
        yield Problem(
            f"{at}: {config.engine_length} leaves no room for a response after a prompt of {longest} tokens "
            f"(prompt_length). Set it to {max(sequence, config.val_lengths[2])}, which holds the longest sequence.",
            (at, *LENGTH_KEYS, *VAL_LENGTH_KEYS),
        )


def sampling_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    sampling = config.actor_infer.generating_args
    if sampling.temperature == 0:
        yield Problem(
            f"{SAMPLING}.temperature: 0 is greedy: all responses to a prompt would be the same and nothing could be "
            "learned. Set it above 0.",
            (f"{SAMPLING}.temperature",),
        )
    size_key = config.batch_keys[1]
    if sampling.num_return_sequences not in (None, config.group_size) and not config.is_multi_turn:
        yield Problem(
            f"{SAMPLING}.num_return_sequences: {sampling.num_return_sequences} contradicts {size_key}: "
            f"{config.group_size}. Remove it, or write ${{{size_key}}}.",
            (f"{SAMPLING}.num_return_sequences", size_key),
        )


def correction_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """A correction compares what the engine reports with what the trainer computes: both are to be log-probs of one
    distribution, the whole one."""
    engine, sampling = config.actor_infer.strategy_name, config.actor_infer.generating_args
    narrowing, keys = narrowing_settings(engine, sampling), config.train_infer_correction
    on = ["train_infer_correction.is_weight.enabled"] * bool(keys.is_weight.enabled)
    on += [f"train_infer_correction.filters.{i}.enabled" for i, item in enumerate(keys.filters) if item.enabled]
    if not narrowing or not on:
        return
    yield Problem(
        f"{on[0]}: true takes the log-probs of {engine} for those of the whole distribution, but with "
        f"{' and '.join(narrowing)} on they are those of the rest of it: each token's loss would be weighted, or left "
        f"out, by how much was cut. Switch {' and '.join(f'{SAMPLING}.{name}' for name in narrowing)} off, or "
        "set it to false.",
        (*on, *(f"{SAMPLING}.{name}" for name in narrowing), "actor_infer.strategy_args.strategy_name"),
    )


def algorithm_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    if config.needs_critic and config.critic is None:
        yield Problem(
            f"adv_estimator: {config.adv_estimator} needs a critic, and there is no `critic` section. Add one "
            "(strategy_args, training_args, device_mapping, as in actor_train), or choose adv_estimator: grpo.",
            ("adv_estimator", "critic"),
        )
    if config.critic_warmup and not config.needs_critic:
        yield Problem(
            f"critic_warmup: {config.critic_warmup} needs a critic, but adv_estimator: {config.adv_estimator} has "
            "none. Set it to 0.",
            ("critic_warmup", "adv_estimator"),
        )
    elif not config.counts_epochs:
        yield from critic_warmup_problems(config)
    if config.needs_reference and not config.policy_is_reference and config.reference is None:
        why = ", ".join(config.kl_terms) or "enable_reference"
        yield Problem(
            f"reference is missing: {why} compares the policy with it. Add a `reference` section "
            "(strategy_args.strategy_name: hf_infer and a device_mapping), or switch that off.",
            ("reference", *config.kl_terms, "enable_reference"),
        )
    for lowest, highest in (*IN_ORDER, *(IN_ORDER_OF_A_RING if config.rec_clip_mode == "ring" else ())):
        if (low := config.value(lowest)) > (high := config.value(highest)):
            yield Problem(f"{lowest}: {low:g} is above {highest}: {high:g}. Swap them.", (lowest, highest))
    if config.policy_form.reads_probabilities and config.importance_sampling != "token":
        yield Problem(
            f"importance_sampling: {config.importance_sampling} shares a ratio among tokens, and pg_variant: "
            f"{config.policy_form.name} compares the probabilities of each. Set importance_sampling: token.",
            ("importance_sampling", "pg_variant"),
        )
    weight = config.train_infer_correction.is_weight
    if weight.enabled and not weight.detach:
        key = "train_infer_correction.is_weight.detach"
        yield Problem(
            f"{key}: false asks for a gradient through the weight, but the weight compares old log-probs, which are "
            "constants. Remove it.",
            (key,),
        )
    if (
        config.group_size == 1
        and not config.is_pure_opd
        and (config.estimator.needs_groups or compares_within_groups(config))
    ):
        size_key = config.batch_keys[1]
        yield Problem(
            f"adv_estimator: {config.adv_estimator} compares a reward with the others of its group, but {size_key} is "
            f"1: every advantage would be 0. Set {size_key} to 2 or more.",
            ("adv_estimator", size_key, "norm_mean_type"),
        )
    if config.estimator.needs_parts:
        yield from _part_problems(config)
    if config.estimator.weighs_tokens and config.force_disable_old_logprobs_recompute:
        yield Problem(
            f"adv_estimator: {config.adv_estimator} weighs tokens by log-probs of the trainer, which "
            "force_disable_old_logprobs_recompute leaves out. Remove that key, or choose rloo.",
            ("adv_estimator", "force_disable_old_logprobs_recompute"),
        )
    for key, why in moves_idle_rows(config).items() if config.skip_idle_rows else ():
        text = f"skip_idle_rows: true can skip no rows: {why} Remove skip_idle_rows, or the other."
        yield Problem(text, ("skip_idle_rows", key))
    if config.enable_old_logprobs_recompute and config.force_disable_old_logprobs_recompute:
        yield Problem(
            "enable_old_logprobs_recompute and force_disable_old_logprobs_recompute exclude each other. Remove one.",
            ("enable_old_logprobs_recompute", "force_disable_old_logprobs_recompute"),
        )


def _part_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    names, weights = config.gdpo_reward_keys, config.gdpo_reward_weights
    if not names or len(set(names)) < len(names):
        said = "names no part of a reward" if not names else f"names {', '.join(names)}, one of them twice"
        yield Problem(
            f"adv_estimator: {config.adv_estimator} compares parts of a reward, but gdpo_reward_keys {said}. Name "
            "metrics that every reward gives, such as [reward_math_rule, reward_overlong].",
            ("adv_estimator", "gdpo_reward_keys"),
        )
    if weights is not None and len(weights) != len(names):
        yield Problem(
            f"gdpo_reward_weights has {len(weights)} weights for the {len(names)} parts of gdpo_reward_keys. Give one "
            "for each, or remove it.",
            ("gdpo_reward_weights", "gdpo_reward_keys"),
        )


def data_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    shares, key = config.actor_train.data_args.domain_interleave_probs, "actor_train.data_args.domain_interleave_probs"
    if shares is None:
        return
    unknown = [domain for domain in shares if domain not in config.domains]
    for domain in unknown:
        yield Problem(
            f"{key}.{domain}: rewards has no such domain. Domains: {', '.join(config.domains) or 'none'}.",
            (key, "rewards"),
        )
    if any(share < 0 for share in shares.values()) or not any(shares.values()):
        yield Problem(f"{key}: the shares {list(shares.values())} must be 0 or more, and one above 0.", (key,))


def _share_warnings(config: AlgorithmConfig) -> Iterator[str]:
    shares = config.actor_train.data_args.domain_interleave_probs
    absent = [domain for domain in config.domains if domain not in shares] if shares else []
    if absent:
        yield (
            f"actor_train.data_args.domain_interleave_probs leaves out {', '.join(absent)}: no prompt of a step "
            "belongs there."
        )


def _length_warnings(config: AlgorithmConfig) -> Iterator[str]:
    limit = config.engine_length
    for (prompt, _, sequence), where in ((config.lengths, ""), (config.val_lengths, " in validation")):
        if limit is not None and prompt < limit < sequence:
            yield (
                f"actor_infer.strategy_args.strategy_config: sequences end at the engine's {limit} tokens, before the "
                f"{sequence} of prompt and response{where}: the longest prompt leaves {limit - prompt} of the "
                f"{sequence - prompt} tokens for its response."
            )
            return


def _age_warnings(config: AlgorithmConfig) -> Iterator[str]:
    plan = role_train_plan(config, "actor_train", config.actor_train)
    yield from async_warnings(config, old_log_probs(config, plan.updates_per_step).source != "rollout")
    every, key = config.actor_train.model_update_frequency, "actor_train.model_update_frequency"
    if config.save_steps > 0 and config.save_steps % every:
        yield (
            f"save_steps: {config.save_steps} is not a multiple of {key}: {every}. A run that resumes between two "
            "updates of the engine samples from the checkpoint's weights, newer than those of an uninterrupted run."
        )


def sync_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    trainers, engines = (
        {device // config.num_gpus_per_node for device in worker.device_mapping or ()}
        for worker in (config.actor_train, config.actor_infer)
    )
    if config.weight_sync_route == "memory" and (alone := sorted(engines - trainers)):
        yield Problem(
            "weight_sync_route: memory works between processes of one node, but actor_infer is on "
            f"node{'s' if len(alone) > 1 else ''} {ids_text(alone)}, where actor_train is not. Use auto or broadcast.",
            ("weight_sync_route", "actor_train.device_mapping", "actor_infer.device_mapping", "num_gpus_per_node"),
        )


CHECKS: tuple[Callable[[AlgorithmConfig], Iterator[Problem]], ...] = (
    length_problems,
    tokenizer_problems,
    answer_length_problems,
    sampling_problems,
    correction_problems,
    algorithm_problems,
    data_problems,
    batch_problems,
    sync_problems,
    async_problems,
    mode_problems,
)


def config_warnings(config: AlgorithmConfig) -> list[str]:
    """Return warnings about settings that work but may not be intended."""
    warnings = [
        *_unused(config),
        *_kl_warnings(config),
        *_length_warnings(config),
        *_share_warnings(config),
        *_age_warnings(config),
        *mode_warnings(config),
        *switched_off(config, RL if weighs_importance(config) else {**RL, **IS_WEIGHT}),
    ]
    worker = config.actor_infer
    if narrowing := narrowing_settings(worker.strategy_name, worker.generating_args):
        warnings.append(
            f"{SAMPLING}: with {' and '.join(narrowing)} on, the log-probs of {worker.strategy_name} are not those of "
            "the whole distribution. They are not used as old log-probs, and train_infer/log_prob_diff_* shows the "
            "difference."
        )
    return warnings


def _kl_warnings(config: AlgorithmConfig) -> Iterator[str]:
    if config.use_kl_loss and config.kl_loss_coef == 0:
        yield "use_kl_loss is on, but kl_loss_coef is 0: no KL loss."
    if config.add_token_level_kl and config.init_kl_coef == 0:
        yield "add_token_level_kl is on, but init_kl_coef is 0: no KL in the reward."
    if config.add_token_level_kl and config.kl_penalty not in ("k1", "kl"):
        yield (
            f"kl_penalty: {config.kl_penalty} in the reward does not pull towards the reference: it also penalises "
            "tokens that have become too unlikely. Set kl_penalty: k1, or use_kl_loss (docs/algorithms.md)."
        )


def _unused(config: AlgorithmConfig) -> Iterator[str]:
    if config.critic is not None and not config.needs_critic:
        yield f"critic is not started: adv_estimator: {config.adv_estimator} uses none."
    if config.value_clip is not None and not config.needs_critic:
        yield f"value_clip does nothing: adv_estimator: {config.adv_estimator} has no critic."
    if config.reference is not None and not config.needs_reference:
        yield "reference is not started: no KL term is in use (see use_kl_loss, add_token_level_kl, enable_reference)."
    if config.reference is not None and config.policy_is_reference:
        yield "reference is not started: with LoRA its log-probs are those of actor_train without its adapters."
    if config.policy_is_reference and config.actor_train.model_args.adapter_name_or_path is not None:
        yield (
            "actor_train.model_args.adapter_name_or_path: the KL compares with the model without any adapter, not "
            "with the policy that the run starts from."
        )
    yield from _unused_of_the_estimator(config)
    yield from _unused_of_the_policy_loss(config)


def _unused_of_the_estimator(config: AlgorithmConfig) -> Iterator[str]:
    row = config.estimator
    for key in dict.fromkeys(key for other in ESTIMATORS.values() for key in other.keys):
        if key in type(config).model_fields and key not in row.keys and config.is_changed(key):
            owners = ", ".join(other.name for other in ESTIMATORS.values() if key in other.keys)
            yield f"{key} does nothing with adv_estimator: {row.name}; it belongs to {owners}."


def _unused_of_the_policy_loss(config: AlgorithmConfig) -> Iterator[str]:
    form, variant = config.policy_form, config.actor_train.pg_variant
    if config.pg_variant is not None and variant not in (None, config.pg_variant):
        yield f"pg_variant: {config.pg_variant} does nothing: actor_train.pg_variant: {variant} counts."
    for key in dict.fromkeys(key for other in POLICY_FORMS.values() for key in other.keys):
        if key not in form.keys and config.is_changed(key):
            owners = ", ".join(other.name for other in POLICY_FORMS.values() if key in other.keys)
            yield f"{key} does nothing with pg_variant: {form.name}; it belongs to {owners}."
    if not form.reads_ratio and config.importance_sampling != "token":
        yield f"importance_sampling: {config.importance_sampling} does nothing with pg_variant: {form.name}."
    if config.loss_scale_factor is not None and config.loss_agg_mode != NORMED:
        yield f"loss_scale_factor does nothing with loss_agg_mode: {config.loss_agg_mode}; it belongs to {NORMED}."
    if config.use_pg_clip_range and config.is_changed("pg_clip"):
        yield "pg_clip does nothing while use_pg_clip_range is on."
    if form.name == "ppo" and config.dual_clip_loss and "dual_clip_ratio_c" not in config.model_fields_set:
        yield (
            f"dual_clip_loss bounds by dual_clip_ratio_c: {config.dual_clip_ratio_c:g}, its default; ROLL, which has "
            f"no such key, by 1 + 2 x pg_clip = {1 + 2 * config.pg_clip:g}. Set dual_clip_ratio_c to the one you mean."
        )


def _response_source(config: AlgorithmConfig) -> str:
    return "response_length" if config.response_length is not None else "sequence_length - prompt_length"
