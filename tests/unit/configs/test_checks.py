"""What a configuration says against itself."""

from typing import Any

import pytest
from pydantic import ValidationError

from roll.configs.checks.training import unlikely_value_warnings
from roll.pipeline.rlvr.rlvr_checks import rlvr_warnings
from tests.helpers.configs import config, problems, warnings_of

CRITIC = {
    "strategy_args": {"strategy_name": "deepspeed_train"},
    "training_args": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2},
    "device_mapping": [0, 1],
}
MEGATRON = {"actor_train.strategy_args.strategy_name": "megatron_train"}
PACKED = {"actor_train.use_sequence_packing": True}
BALANCED = PACKED | {"actor_train.sequence_packing_args.algorithm": "load_balance"}
VALIDATION = {"data_args": {"file_name": "test.jsonl"}}
REFERENCE = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [0, 1]}

FULL_KL = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "full", "reference": REFERENCE}


def test_devices_of_a_reward_that_is_not_known_are_not_told_about() -> None:
    theirs = {"worker_cls": "my.Judge", "device_mapping": [3], "model_args": {"model_name_or_path": "org/judge"}}
    assert not [text for text in problems({"rewards.math": theirs}) if "run on the CPU" in text]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"response_length": ...}, "response_length is missing: set it, or sequence_length"),
        (
            {"sequence_length": 40},
            "sequence_length: 40 contradicts prompt_length 32 + response_length 12 = 44. Remove one of them: of a "
            "YAML of ROLL, where sequence_length counts, response_length.",
        ),
        (
            {"response_length": ..., "sequence_length": 20},
            "sequence_length: 20 leaves no room for a response after prompt_length: 32.",
        ),
        (
            {"actor_infer.generating_args.max_new_tokens": 100},
            "actor_infer.generating_args.max_new_tokens: 100 contradicts response_length = 12.",
        ),
        (
            {"actor_infer.strategy_args.strategy_config": {"max_model_len": 32}},
            "actor_infer.strategy_args.strategy_config.max_model_len: 32 leaves no room for a response after a prompt "
            "of 32 tokens (prompt_length). Set it to 44, which holds the longest sequence.",
        ),
        (
            {"actor_infer.strategy_args.strategy_config": {"max_model_len": 44}, "val_prompt_length": 48},
            "actor_infer.strategy_args.strategy_config.max_model_len: 44 leaves no room for a response after a prompt "
            "of 48 tokens",
        ),
        ({"actor_infer.generating_args.temperature": 0}, "actor_infer.generating_args.temperature: 0 is greedy"),
        (
            {"actor_infer.generating_args.num_return_sequences": 4},
            "actor_infer.generating_args.num_return_sequences: 4 contradicts num_return_sequences_in_group: 8.",
        ),
        ({"actor_infer.generating_args.min_new_tokens": 13}, "actor_infer.generating_args.min_new_tokens: 13 is more"),
        ({"adv_estimator": "gae"}, "adv_estimator: gae needs a critic, and there is no `critic` section."),
        (
            {"skip_idle_rows": True, "use_kl_loss": True, "kl_loss_coef": 0.1, "reference": REFERENCE},
            "skip_idle_rows: true can skip no rows: use_kl_loss adds a term to every row. Remove skip_idle_rows, or "
            "the other.",
        ),
        (
            {"skip_idle_rows": True, "entropy_loss_coef": 0.1},
            "skip_idle_rows: true can skip no rows: entropy_loss_coef adds a term to every row.",
        ),
        (
            {"skip_idle_rows": True, "actor_train.model_args.moe_aux_loss_coef": 0.01},
            "skip_idle_rows: true can skip no rows: actor_train.model_args.moe_aux_loss_coef adds a term to every ",
        ),
        (
            {"skip_idle_rows": True, "pg_variant": "rec", "rec_regularizer": "k2"},
            "skip_idle_rows: true can skip no rows: rec_regularizer adds a term to every row.",
        ),
        (
            {"pg_variant": "rec", "rec_clip_mode": "ring", "rec_epsilon_low": 0.7},
            "rec_epsilon_low: 0.7 is above rec_epsilon_low_prime: 0.6. Swap them.",
        ),
        (
            {"skip_idle_rows": True, "pg_variant": "kimi15"},
            "skip_idle_rows: true can skip no rows: pg_variant: kimi15 may use rows whose advantages are 0.",
        ),
        ({"critic_warmup": 3}, "critic_warmup: 3 needs a critic, but adv_estimator: grpo has none. Set it to 0."),
        (
            {"adv_estimator": "gae", "critic": CRITIC, "critic_warmup": 500},
            "critic_warmup: 500 leaves no step in which the policy is trained, max_steps: 500.",
        ),
        (
            {"use_kl_loss": True, "kl_loss_coef": 0.1},
            "reference is missing: use_kl_loss compares the policy with it. Add a `reference` section",
        ),
        (
            {"add_token_level_kl": True, "kl_penalty": "full", "reference": REFERENCE},
            "kl_penalty: full: the KL in the reward uses old log-probs, which exist for sampled tokens only. "
            "Choose k1, k2, k3 or abs, or compare whole distributions in the loss: use_kl_loss with "
            "kl_loss_type: full.",
        ),
        (
            FULL_KL | {"reference": REFERENCE | {"strategy_args": {"strategy_name": "megatron_infer"}}},
            "kl_loss_type: full with reference.strategy_args.strategy_name: megatron_infer, which does not hand over "
            "hidden states and its head. Supported by: deepspeed_infer, hf_infer, fsdp2_infer. Use one of them, or set "
            "kl_loss_type: k1, k2, k3 or abs.",
        ),
        (
            FULL_KL | MEGATRON | {"actor_train.strategy_args.strategy_config": {"tensor_model_parallel_size": 2}},
            "kl_loss_type: full takes the head of actor_train whole on a rank, and tensor parallel divides it by 2 "
            "(actor_train.strategy_args.strategy_config). Set kl_loss_type: k1, k2, k3 or abs, or no tensor parallel.",
        ),
        (
            FULL_KL | {"actor_train.model_args.lora_target": "all-linear", "reference": ...},
            "kl_loss_type: full needs hidden states and the head of a separate reference; with "
            "actor_train.model_args.lora_target the reference is the policy without its adapters",
        ),
        (
            {"adv_estimator": "remax", "user_defined_rollout_loop_cls": "mine:Loop"},
            "adv_estimator: remax compares rewards with that of the greedy response to the same prompt; "
            "user_defined_rollout_loop_cls makes groups of its own, without it. Choose rloo, or remove "
            "user_defined_rollout_loop_cls.",
        ),
        (
            {"adv_estimator": "remax", "experience_operators": [{"name": "std_filter"}]},
            "adv_estimator: remax compares rewards with that of the greedy response to the same prompt; "
            "experience_operators may change the others' alone.",
        ),
        (
            {"adv_estimator": "gdpo"},
            "adv_estimator: gdpo compares parts of a reward, but gdpo_reward_keys names no part of a reward.",
        ),
        (
            {"adv_estimator": "gdpo", "gdpo_reward_keys": ["a", "a"], "gdpo_reward_weights": [1, 2]},
            "adv_estimator: gdpo compares parts of a reward, but gdpo_reward_keys names a, a, one of them twice.",
        ),
        (
            {"adv_estimator": "gdpo", "gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1]},
            "gdpo_reward_weights has 1 weights for the 2 parts of gdpo_reward_keys.",
        ),
        (
            {"adv_estimator": "gdpo", "gdpo_reward_keys": ["a"], "experience_operators": [{"name": "std_filter"}]},
            "adv_estimator: gdpo compares parts of rewards, which experience_operators do not change.",
        ),
        (
            {"adv_estimator": "gdpo", "gdpo_reward_keys": ["reward_format", "boxed"]},
            "gdpo_reward_keys: rewards.math sends no reward_format; it has one part, of which it sends none. Add the "
            "part to rewards.math.reward_manager_config, or correct the name.",
        ),
        (
            {
                "adv_estimator": "gdpo",
                "gdpo_reward_keys": ["reward_overlong", "reward_lenght"],
                "rewards.math.reward_manager_config": [{"reward": "overlong", "reward_args": {"max_tokens": 64}}],
            },
            "gdpo_reward_keys: rewards.math sends no reward_lenght; it sends reward_",
        ),
        (
            {"num_return_sequences_in_group": 1, "rollout_batch_size": 64},
            "adv_estimator: grpo compares a reward with the others of its group, but num_return_sequences_in_group",
        ),
        (
            {
                "adv_estimator": "reinforce_plus_plus_baseline",
                "num_return_sequences_in_group": 1,
                "rollout_batch_size": 64,
            },
            "adv_estimator: reinforce_plus_plus_baseline compares a reward with the others of its group",
        ),
        (
            {
                "adv_estimator": "reinforce",
                "norm_mean_type": "leave_one_out",
                "num_return_sequences_in_group": 1,
                "rollout_batch_size": 64,
            },
            "adv_estimator: reinforce compares a reward with the others of its group",
        ),
        (
            {"train_infer_correction.is_weight": {"enabled": True, "detach": False}},
            "train_infer_correction.is_weight.detach: false asks for a gradient through the weight",
        ),
        (
            {"pg_variant": "dppo", "importance_sampling": "seq"},
            "importance_sampling: seq shares a ratio among tokens, and pg_variant: dppo compares the probabilities",
        ),
        ({"tis_lower_bound": 2}, "tis_lower_bound: 2 is above tis_upper_bound: 1. Swap them."),
        (
            {"validation": VALIDATION | {"generating_args": {"min_new_tokens": 5, "max_new_tokens": 3}}},
            "validation.generating_args.min_new_tokens: 5 is more than the longest response, 3 tokens.",
        ),
        (
            {"enable_old_logprobs_recompute": True, "force_disable_old_logprobs_recompute": True},
            "enable_old_logprobs_recompute and force_disable_old_logprobs_recompute exclude each other.",
        ),
        (
            {"adv_estimator": "optimal_token_baseline", "force_disable_old_logprobs_recompute": True},
            "adv_estimator: optimal_token_baseline weighs tokens by log-probs of the trainer, which",
        ),
        ({"pretrain": ...}, "actor_train and actor_infer have no model: pretrain is missing."),
        (
            {"actor_train.model_args.dtype": "fp32", "actor_train.training_args.bf16": True},
            "actor_train.training_args.bf16: true contradicts actor_train.model_args.dtype: fp32. Remove bf16.",
        ),
        (
            {"actor_train.training_args.lr_scheduler_kwargs": {"min_lr": 1e-7}},
            "actor_train.training_args.lr_scheduler_kwargs.min_lr: no schedule has this key. Known: min_lr_ratio.",
        ),
        (
            {"actor_train.use_dynamic_batching_in_train": True, "actor_train.max_tokens_per_microbatch_in_train": 20},
            "actor_train.max_tokens_per_microbatch_in_train: 20 must be at least one sequence, 44 tokens",
        ),
        (
            PACKED | {"actor_train.model_args.attn_implementation": "eager"},
            "actor_train.model_args.attn_implementation: eager with actor_train.use_sequence_packing: true, which it "
            "does not support. Use sdpa, or fa2 on a GPU.",
        ),
        (
            {"actor_infer.use_sequence_packing": True},
            "actor_infer.use_sequence_packing: true with vllm, which does not pack rows. No strategy for actor_infer "
            "does. Set it to false.",
        ),
        (
            {"actor_infer.use_sequence_packing": True, "actor_infer.strategy_args": {"strategy_name": "hf_infer"}},
            "actor_infer.use_sequence_packing: true with hf_infer, which does not pack rows. No strategy for "
            "actor_infer does. Set it to false.",
        ),
        (
            PACKED
            | {"actor_train.use_dynamic_batching_in_train": True, "actor_train.max_tokens_per_microbatch_in_train": 43},
            "actor_train.max_tokens_per_microbatch_in_train: 43 must be at least one sequence, 44 tokens",
        ),
        (
            MEGATRON | BALANCED | {"actor_train.sequence_packing_args.max_packed_sequence_length_forward": 44},
            "actor_train.sequence_packing_args.max_packed_sequence_length_train: 0 must be at least one sequence, 44",
        ),
        (
            MEGATRON
            | BALANCED
            | {
                "actor_train.sequence_packing_args.max_packed_sequence_length_forward": 44,
                "actor_train.sequence_packing_args.max_packed_sequence_length_train": 44,
                "actor_train.use_dynamic_batching_in_train": True,
            },
            "actor_train.use_dynamic_batching_in_train and actor_train.sequence_packing_args.algorithm: load_balance "
            "both make micro batches by tokens. Remove one.",
        ),
        (
            {"rewards.math.query_filter_config": {"type": "mean_filter", "filter_args": {"threshold": 0.1}}},
            "rewards.math.query_filter_config.filter_args has 'threshold'; mean_filter takes threshold_down, "
            "threshold_up",
        ),
        ({"actor_train.worker_cls": "my.Worker"}, "actor_train.worker_cls: my.Worker is not supported."),
        (
            {"actor_train.data_args.domain_interleave_probs": {"math": 0.5, "code": 0.5}},
            "actor_train.data_args.domain_interleave_probs.code: rewards has no such domain. Domains: math.",
        ),
        (
            {"actor_train.data_args.domain_interleave_probs": {"math": 0.0}},
            "actor_train.data_args.domain_interleave_probs: the shares [0.0] must be 0 or more, and one above 0.",
        ),
        (
            {"actor_train.data_args.prompt": "question", "actor_train.data_args.messages": "chat"},
            "actor_train.data_args.prompt: 'question' and actor_train.data_args.messages: 'chat' exclude each other",
        ),
        (
            {"global_template": "qwen3_codr"},
            "global_template: 'qwen3_codr' is not a template. Did you mean qwen3_coder? Known: plain, native, qwen2_5",
        ),
        (
            {"actor_train.strategy_args": {"strategy_name": "megatron_train", "strategy_config": {"bf16": False}}},
            "actor_train.strategy_args.strategy_config.bf16: set by model_args.dtype (true), which false contradicts.",
        ),
        ({"rewards": {}}, "rewards is missing: name at least one domain"),
        (
            {"tag_to_template": {"mat": "native"}},
            "tag_to_template.mat: no domain has this tag. Did you mean math? Known tags: math. Correct it, or add it "
            "to rewards.<domain>.tag_included.",
        ),
        ({"tag_to_template": {"math": "qwen9"}}, "tag_to_template.math: 'qwen9' is not a template."),
        ({"rewards.math.reward": ...}, "rewards.math.reward is missing: math_rule, exact_match, regex, "),
        (
            {"rewards.math.reward_manager_config": [{"reward": "overlongs"}]},
            "rewards.math.reward_manager_config.0.reward: 'overlongs' is not of the form package.module:object or one "
            "of ",
        ),
        (
            {"rewards.math.reward_manager_config": [{"reward": "regex"}, {"reward": "my:regex"}]},
            "rewards.math.reward_manager_config.1.reward: its metrics would have the same name as those of "
            "rewards.math.reward_manager_config.0.reward: regex. Set rewards.math.reward_manager_config.<index>.name.",
        ),
        (
            {"rewards.math.reward": "math_rul"},
            "rewards.math.reward: 'math_rul' is not of the form package.module:object or one of ",
        ),
        (
            {"rewards.math": {"worker_cls": "roll.pipeline.rlvr.rewards.code_sandbox_reward_worker.CodeSandbox"}},
            "rewards.math.worker_cls: roll.pipeline.rlvr.rewards.code_sandbox_reward_worker.CodeSandbox is not "
            "supported yet.",
        ),
        (
            {"rewards.math": {"worker_cls": "my.Worker", "reward": "math_rule"}},
            "rewards.math.worker_cls: my.Worker is not supported yet. Remove it: `reward: math_rule` says what runs.",
        ),
        ({"rewards.math.device_mapping": [3]}, "rewards.math.device_mapping: rewards run on the CPU."),
        (
            {"rewards.code": {"reward": "regex", "tag_included": ["math"]}},
            "rewards.code.tag_included: tag 'math' belongs to rewards.math already. A tag has one domain.",
        ),
        ({"adv_estimator": "gigpo"}, "adv_estimator: gigpo is for agentic runs."),
        ({"actor_train.data_args.file_name": ...}, "actor_train.data_args.file_name is missing"),
        ({"validation": {}}, "validation.data_args.file_name is missing"),
        (
            {"validation": {"data_args": {"file_name": "t.jsonl"}, "generating_args": {"max_new_tokens": 13}}},
            "validation.generating_args.max_new_tokens: 13 is more than the 12 tokens",
        ),
    ],
)
def test_a_contradiction_is_one_message_that_names_keys_and_values(changes: dict[str, Any], message: str) -> None:
    found = problems(changes)
    assert len(found) == 1, found
    assert found[0].startswith(message)


def warnings(changes: dict[str, Any]) -> list[str]:
    made = config(changes)
    return warnings_of(made) + rlvr_warnings(made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"critic": CRITIC}, "critic is not started: adv_estimator: grpo uses none."),
        ({"reference": REFERENCE}, "reference is not started: no KL term is in use"),
        ({"use_kl_loss": True}, "use_kl_loss is on, but kl_loss_coef is 0: no KL loss."),
        (
            {"recorder": {"num_groups": 0, "log_prob_steps": 5}},
            "recorder.log_prob_steps does nothing: recorder.num_groups is 0",
        ),
        (
            {"recorder": {"num_groups": 0, "tracked_samples": 5}},
            "recorder.tracked_samples does nothing: recorder.num_groups is 0",
        ),
        (
            {"recorder": {"tracked_samples": 5}, "track_with": ["jsonl", "stdout"]},
            "recorder.tracked_samples does nothing: none of wandb, mlflow, swanlab, tensorboard is in track_with.",
        ),
        ({"recorder": {"tracked_steps": 5}}, "recorder.tracked_steps does nothing: recorder.tracked_samples is 0."),
        ({"kl_loss_coef": 0.1}, "kl_loss_coef: 0.1 does nothing while use_kl_loss is off."),
        (
            {"add_token_level_kl": True, "init_kl_coef": 0, "reference": REFERENCE, "enable_reference": True},
            "add_token_level_kl is on, but init_kl_coef is 0",
        ),
        (
            {"add_token_level_kl": True, "kl_penalty": "mse", "reference": REFERENCE},
            "kl_penalty: k2 in the reward does not pull towards the reference",
        ),
        ({"pg_clip_high": 0.28}, "pg_clip_low and pg_clip_high do nothing while use_pg_clip_range is off."),
        ({"use_pg_clip_range": True, "pg_clip": 0.3}, "pg_clip does nothing while use_pg_clip_range is on."),
        ({"target_kl": 0.1}, "target_kl does nothing while add_token_level_kl is off."),
        ({"value_clip": 0.2}, "value_clip does nothing: adv_estimator: grpo has no critic."),
        (
            {"pg_variant": "vanilla", "importance_sampling": "seq"},
            "importance_sampling: seq does nothing with pg_variant: vanilla.",
        ),
        (
            {"validation": VALIDATION | {"data_args": {"file_name": "t", "shuffle": False}}},
            "validation.data_args.shuffle does nothing: all rows are validated, in their order.",
        ),
        ({"kimi15_tau": 0.5}, "kimi15_tau does nothing with pg_variant: ppo; it belongs to kimi15."),
        (
            {"loss_scale_factor": 512},
            "loss_scale_factor does nothing with loss_agg_mode: seq-mean-token-mean; it belongs to "
            "seq-mean-token-sum-norm.",
        ),
        ({"lambd": 0.9}, "lambd does nothing with adv_estimator: grpo; it belongs to gae."),
        (
            {"pg_variant": "vanilla", "dual_clip_loss": True},
            "dual_clip_loss does nothing with pg_variant: vanilla; it belongs to ppo.",
        ),
        (
            {"actor_train.topr_negative_weight": 0.5},
            "actor_train.topr_negative_weight does nothing with pg_variant: ppo; it belongs to topr.",
        ),
        ({"actor_infer.pg_variant": "tis"}, "actor_infer: pg_variant does nothing here: this role generates."),
        (
            {"pg_variant": "ppo", "actor_train.pg_variant": "tis"},
            "pg_variant: ppo does nothing: actor_train.pg_variant: tis counts.",
        ),
        (
            {"pg_variant": "rec", "rec_epsilon_high_prime": 3.0},
            "rec_epsilon_high_prime does nothing with rec_clip_mode: one-side.",
        ),
        (
            {"pg_variant": "rec", "rec_weight_temp": 0.5},
            "rec_weight_temp does nothing with rec_weight: none.",
        ),
        (
            {"pg_variant": "rec", "rec_regularizer_coef": 0.5},
            "rec_regularizer_coef does nothing with rec_regularizer: none.",
        ),
        ({"kl_cov_ratio": 0.1}, "kl_cov_ratio does nothing with pg_variant: ppo; it belongs to kl_cov."),
        (
            {"pg_variant": "tis", "pg_clip": 0.3},
            "pg_clip does nothing with pg_variant: tis; it belongs to ppo, clip_cov.",
        ),
        (
            {"dual_clip_loss": True, "pg_clip": 0.1},
            "dual_clip_loss bounds by dual_clip_ratio_c: 3, its default; ROLL, which has no such key, by 1 + 2 x "
            "pg_clip = 1.2. Set dual_clip_ratio_c to the one you mean.",
        ),
        ({"dual_clip_ratio_c": 4.0}, "dual_clip_ratio_c does nothing while dual_clip_loss is off."),
        (
            {"actor_infer.generating_args.top_p": 0.9},
            "actor_infer.generating_args: with top_p on, the log-probs of",
        ),
        (
            {"actor_train.training_args.warmup_steps": 100, "max_steps": 10},
            "actor_train.training_args: the warm-up of 100 updates is not over when the run ends after 40.",
        ),
        (
            {"actor_train.sequence_packing_args.algorithm": "load_balance"},
            "actor_train.sequence_packing_args does nothing while actor_train.use_sequence_packing is off.",
        ),
        (
            PACKED
            | {
                "actor_train.use_dynamic_batching_in_train": True,
                "actor_train.max_tokens_per_microbatch_in_train": 44,
                "actor_train.sequence_length_round_in_train": 8,
            },
            "actor_train.sequence_length_round_in_train does nothing with actor_train.use_sequence_packing: true: rows",
        ),
        (
            MEGATRON | PACKED | {"actor_train.sequence_packing_args.max_packed_sequence_length_train": 100},
            "actor_train.sequence_packing_args: max_packed_sequence_length_train does nothing with algorithm: none",
        ),
        (
            {
                "validation": {
                    "data_args": {"file_name": "t"},
                    "generating_args": {"temperature": 0, "num_return_sequences": 4},
                }
            },
            "validation.generating_args: temperature 0 is greedy, so all 4 responses to a prompt are the same.",
        ),
    ],
)
def test_what_would_have_no_effect_is_said(changes: dict[str, Any], message: str) -> None:
    found = warnings(changes)
    assert len(found) == 1 and found[0].startswith(message), found


def test_a_variant_that_weighs_by_a_ratio_of_1_is_said() -> None:
    args = "actor_train.training_args"
    several = {"pg_variant": "tis", "rollout_batch_size": 64}
    assert warnings(several) == []
    one = several | {f"{args}.gradient_accumulation_steps": 64, f"{args}.per_device_train_batch_size": 4}
    (found,) = warnings(one)
    assert found.startswith("pg_variant: tis weighs by the ratio of new to old policy, which is always 1")


def test_the_roles_variant_stands_over_the_runs() -> None:
    assert config({}).policy_form.name == "ppo"
    assert config({"pg_variant": "topr"}).policy_form.name == "topr"
    assert config({"pg_variant": "topr", "actor_train.pg_variant": "cispo"}).policy_form.name == "cispo"


def test_norm_scopes_null_is_the_estimators_own_and_none_is_off() -> None:
    assert config({"norm_std_type": None}).norm_std_type == "default"
    assert config({"norm_std_type": "none"}).norm_std_type is None


def test_leave_one_out_is_a_mean_and_no_deviation() -> None:
    assert config({"norm_mean_type": "leave_one_out"}).norm_mean_type == "leave_one_out"
    with pytest.raises(ValidationError, match="Input should be 'default', 'batch', 'group' or 'running'"):
        config({"norm_std_type": "leave_one_out"})


def test_settings_that_work_otherwise_than_written_say_what_happens() -> None:
    shares = {"math": 0.6, "logic": 0.3}
    changes = {
        "rewards": {name: {"reward": "math_rule"} for name in ("math", "logic", "code")},
        "actor_train.data_args.domain_interleave_probs": shares,
        "actor_infer.strategy_args.strategy_config": {"max_model_len": 40},
    }
    assert problems(changes) == []
    found = "\n".join(warnings_of(config(changes)))
    at = "actor_train.data_args.domain_interleave_probs"
    assert f"{at} leaves out code: no prompt of a step belongs to it." in found
    assert f"{at} sums to 0.9, not to 1. The shares are taken in proportion: math 0.667, logic 0.333." in found
    assert "sequences end at the engine's 40 tokens, before the 44 of prompt and response: the longest" in found
    assert "leaves 8 of the 12 tokens for its response." in found


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("qwen2-vl", "qwen2-vl is the tokenizer's own template: videos are shown as pictures, frame by frame."),
        ("base", "base has its own wording of ROLL's template; for ROLL's exact wording write a Jinja file."),
    ],
)
def test_a_template_that_is_not_quite_rolls_says_so(template: str, said: str) -> None:
    changes = {"actor_train.data_args.template": template}
    assert problems(changes) == []
    assert f"actor_train.data_args.template: {said}" in rlvr_warnings(config(changes))
    assert rlvr_warnings(config({"actor_train.data_args.template": "qwen3"})) == rlvr_warnings(config())


def test_values_that_can_hardly_be_meant_are_warned_of() -> None:
    odd: dict[str, Any] = {
        "pg_clip": 2,
        "max_grad_norm": 1e-30,
        "actor_train.training_args.learning_rate": 0,
        "actor_train.training_args.weight_decay": 50,
        "actor_infer.generating_args.temperature": 1000,
        "rewards.math.timeout_s": 1e-9,
    }
    assert [text.split(":")[0] for text in unlikely_value_warnings(config(odd))] == list(odd)
    assert list(unlikely_value_warnings(config({"max_grad_norm": 0}))) == []


def test_a_schedule_of_validations_without_their_data_does_nothing() -> None:
    said = "eval_steps: 20 does nothing: there is no section validation."
    assert said in warnings_of(config({"eval_steps": 20}))
    assert not [text for text in warnings_of(config()) if text.startswith("eval_steps")]
