"""What a plan says a run learns by, and which of it the YAML leaves to roll."""

from typing import Any

import pytest

from roll.configs.load.chosen_values import keys_in_yaml
from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe_learning import algorithm_rows
from tests.helpers.configs import config, tree

LEFT_OUT: dict[str, Any] = {"adv_estimator": ..., "prompt_length": ..., "rollout_batch_size": ...}


def rows(changes: dict[str, Any] | None = None) -> dict[str, str]:
    made = config(changes)
    return {row[0]: row[1] for row in algorithm_rows(made, build_plan(made), keys_in_yaml(tree(changes)))}


def test_a_plan_names_what_the_run_learns_by_one_line_each() -> None:
    assert list(rows()) == [
        "algorithm", "advantages", "loss", "clip", "KL", "temperature", "learning rate", "updates", "groups", "lengths",
    ]  # fmt: skip


def test_what_the_yaml_leaves_out_is_marked_as_a_default() -> None:
    shown = rows(LEFT_OUT)
    assert shown["algorithm"] == "grpo (default)"
    assert shown["loss"] == "ppo (default), seq-mean-token-mean (default)"
    assert shown["clip"] == "ratio within 0.8 and 1.2 (pg_clip, by default)"
    assert shown["KL"] == "none (default)" and shown["temperature"] == "1 (default)"
    assert shown["learning rate"].startswith("actor_train 5e-5 (default), linear to 0")
    assert shown["groups"] == "128 prompts x 8 samples = 1024 samples a step (rollout_batch_size by default)"
    assert shown["lengths"] == "prompt 1024 + response 12 = 1036 tokens (prompt_length by default)"


def test_what_the_yaml_says_is_not_marked_even_where_it_says_the_default() -> None:
    keys = {
        "pg_variant": "ppo", "loss_agg_mode": "seq-mean-token-mean", "pg_clip": 0.2, "use_kl_loss": False,
        "actor_infer.generating_args": {"temperature": 1.0},
        "actor_train.training_args.learning_rate": 5e-5,
    }  # fmt: skip
    shown = rows(keys)
    assert not [text for text in shown.values() if "default" in text]
    assert shown["updates"] == "actor_train 4 updates a step, 64 samples each"


def test_null_leaves_a_key_out() -> None:
    assert keys_in_yaml({"a": None, "b": {"c": None, "d": 0}}) == {"b", "b.d"}


@pytest.mark.parametrize(
    ("keys", "row", "said"),
    [
        ({"algorithm": "dapo"}, "loss", "ppo (dapo), token-mean (dapo)"),
        ({"algorithm": "dapo"}, "clip", "ratio within 0.8 and 1.28 (pg_clip_low and pg_clip_high)"),
        ({"norm_std_type": "none"}, "advantages", "grpo: reward minus the mean of its group"),
        ({"adv_estimator": "rloo"}, "advantages", "rloo: reward minus the mean of the others in its group"),
        ({"adv_estimator": "reinforce"}, "advantages", "reinforce"),
        (
            {"adv_estimator": "reinforce", "use_opd": True},
            "advantages",
            "reinforce, and the teacher's of each token (use_opd)",
        ),
        ({"is_pure_opd": True}, "algorithm", "on-policy distillation (is_pure_opd)"),
        (
            {"is_pure_opd": True},
            "advantages",
            "of the teacher alone, token by token: rewards, and so adv_estimator, have no say (is_pure_opd)",
        ),
        ({"pg_variant": "vanilla"}, "clip", "vanilla has none"),
        ({"pg_variant": "cispo", "cispo_epsilon_high": 0.3}, "clip", "cispo_epsilon_low 0.1 (default), cispo_eps"),
        ({"importance_sampling": "seq"}, "loss", "ppo (default), ratio per seq, seq-mean-token-mean (default)"),
        ({"actor_infer.generating_args": {"temperature": 0.6, "top_p": 0.9}}, "temperature", "0.6, top_p 0.9"),
        (
            {"actor_infer.strategy_args.strategy_name": "sglang", "actor_infer.generating_args": {"top_k": 50}},
            "temperature",
            "1 (default), top_k 50",
        ),
        ({"ppo_epochs": 2}, "updates", "actor_train 8 updates a step, 64 samples each"),
        ({"val_sequence_length": 100}, "", "in validation 32 + 68 = 100"),
    ],
)
def test_each_line_follows_the_keys(keys: dict[str, Any], row: str, said: str) -> None:
    assert rows(keys)[row].startswith(said)


def test_both_kl_terms_are_named_with_weight_and_estimator() -> None:
    reference = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [0]}
    shown = rows({"reference": reference, "use_kl_loss": True, "kl_loss_coef": 0.001, "add_token_level_kl": True})
    loss, reward = shown["KL"].split("; ")
    assert loss == "0.001 x KL to the reference in the loss, k3"
    assert reward == "0.2 x KL to the reference in the reward, k1"


def test_a_run_that_only_measures_names_no_loss() -> None:
    validation = {"data_args": {"file_name": "val.jsonl"}}
    assert list(rows({"mode": "bench", "validation": validation})) == ["temperature", "lengths"]
