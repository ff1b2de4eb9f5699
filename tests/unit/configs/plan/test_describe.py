"""The lines of a plan: devices, batches, defaults and what is learnt."""

from typing import Any

from roll.configs.load.chosen_values import keys_in_yaml
from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows, describe
from roll.configs.plan.describe_learning import algorithm_rows
from tests.helpers.cases import cases
from tests.helpers.configs import config, tree


def text(changes: dict[str, object] | None = None) -> str:
    made = config(changes)
    plan = build_plan(made)
    return describe(made, plan, batch_rows(made, plan))


def test_the_plan_shows_batches_packs_and_idle_nodes_in_a_line_each() -> None:
    assert "validate  never: there is no section validation" in text()
    given = {"data_args": {"file_name": "val.jsonl"}}
    assert "validate  at the start, every 10 steps, at the end" in text({"validation": given})
    assert "validate  never\n" in text({"validation": given, "eval_steps": -1})
    shown = text()
    assert "32 prompts x 8 samples = 256 = 64 per update (16 x 2 x 2) x 4 updates; 2000 updates in the run" in shown
    assert "a pass of their own: a step has 4 updates" in shown
    # Rows are at most 44 tokens here: two of full length fit into 100.
    by_rows = text({"actor_train.use_sequence_packing": True})
    assert "actor_train: 16 rows in training, where 32 rows of a rank are at most 2 packs; 16 rows in scor" in by_rows
    by_tokens = text(PACKED)
    assert "actor_train: up to 100 tokens in training, where 32 rows of a rank are at most 16 packs" in by_tokens
    assert "packs" not in text()
    shown = text({"num_nodes": 100_000, "num_gpus_per_node": 1_000})
    assert "node 1..99999" in shown
    assert len(shown.splitlines()) < 40


@cases("keys, said")
def test_the_plan_says_when_the_model_is_validated(keys: dict[str, object], said: str) -> None:
    assert f"validate  {said}\n" in text({"validation": {"data_args": {"file_name": "val.jsonl"}}, **keys})


def test_the_device_map_shows_who_shares_who_is_apart_and_what_is_free() -> None:
    shown = text(
        {
            "num_nodes": 2,
            "actor_train.device_mapping": "list(range(0,8))",
            "actor_train.training_args.per_device_train_batch_size": 4,
            "actor_infer.device_mapping": "list(range(8,12))",
            "actor_infer.num_gpus_per_worker": 2,
            "reference": {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": "list(range(0,8))"},
            "enable_reference": True,
        }
    )
    assert "Devices: 2 nodes x 8" in shown
    assert "node 0  0..7    actor_train, reference (take turns)" in shown
    assert "node 1  8..11   actor_infer" in shown
    assert "12..15  free" in shown
    assert "actor_train and reference share 0..7 and take turns" in shown
    assert "actor_train and actor_infer are disjoint" in shown
    assert "2 workers (tensor parallel 2)" in shown


@cases("changes, line")
def test_the_share_of_an_engine_is_shown_where_it_is_given_or_follows_from_the_placement(
    changes: dict[str, object], line: str | None
) -> None:
    shown = [each for each in text(changes).splitlines() if "of each GPU" in each]
    assert shown == ([] if line is None else [f"  actor_infer {line}"])


@cases("changes, line")
def test_answers_of_an_engine_are_shown_with_how_many_run_at_once(changes: dict[str, object], line: str) -> None:
    assert line in text(changes)


def test_expert_sizes_and_packing_are_shown_with_the_workers() -> None:
    shown = text(
        {
            "actor_train.strategy_args": {
                "strategy_name": "megatron_train",
                "strategy_config": {
                    "tensor_model_parallel_size": 2,
                    "sequence_parallel": True,
                    "expert_model_parallel_size": 4,
                    "expert_tensor_parallel_size": 2,
                },
            },
            "actor_train.device_mapping": "list(range(0,8))",
            "actor_train.use_sequence_packing": True,
            "actor_infer.device_mapping": [8],
            "num_nodes": 2,
            "rollout_batch_size": 64,
        }
    )
    assert "8 workers (tensor parallel 2, expert parallel 4, expert tensor parallel 2, rows packed)" in shown


PACKED = {
    "actor_train.use_sequence_packing": True,
    "actor_train.use_dynamic_batching_in_train": True,
    "actor_train.max_tokens_per_microbatch_in_train": 100,
}


def test_the_plan_says_who_shares_prefixes_and_why_auto_does_not() -> None:
    once = "common prefixes of rows in a micro batch are computed once if the model allows it"
    assert f"actor_train: auto, {once}" in text()
    assert "actor_infer: auto" not in text()
    divided = text({"actor_train.model_args.ulysses_size": 2})
    assert "actor_train: auto; off here: model_args.ulysses_size, whose ranks divide rows" in divided
    megatron = text({"actor_train.strategy_args.strategy_name": "megatron_train"})
    assert "actor_train: auto; off here: megatron_train does not compute rows that begin alike as a tree" in megatron
    amd = text({"platform": "rocm"})
    assert "actor_train: auto; off here: prefix sharing works on NVIDIA's GPUs and on CPUs, and devices are of" in amd
    assert "prefix sharing" not in text({"actor_train.use_prefix_sharing": "off"})


def test_the_plan_asks_config_json_whether_auto_shares_prefixes() -> None:
    made = config()
    plan = build_plan(made)

    def said(model: dict[str, object]) -> str:
        return describe(made, plan, batch_rows(made, plan), models={"actor_train": model})

    assert "actor_train: auto, common prefixes of rows in a micro batch are computed once\n" in said(
        {"model_type": "qwen2"}
    )
    name = made.actor_train.model_args.model_name_or_path
    off = f"actor_train: auto; off here: {name}, which has"
    assert f"{off} layers that carry a state" in said({"model_type": "falcon_h1"})
    assert f"{off} a soft cap" in said({"model_type": "gemma2", "attn_logit_softcapping": 50.0})


LEFT_OUT: dict[str, Any] = {"adv_estimator": ..., "prompt_length": ..., "rollout_batch_size": ...}


def rows(changes: dict[str, Any] | None = None) -> dict[str, str]:
    made = config(changes)
    return {row[0]: row[1] for row in algorithm_rows(made, build_plan(made), keys_in_yaml(tree(changes)))}


def test_a_plan_names_what_the_run_learns_by_a_line_each() -> None:
    assert list(rows()) == [
        "algorithm", "advantages", "loss", "clip", "KL", "temperature", "learning rate", "updates", "groups", "lengths",
    ]  # fmt: skip
    assert keys_in_yaml({"a": None, "b": {"c": None, "d": 0}}) == {"b", "b.d"}
    reference = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [0]}
    shown = rows({"reference": reference, "use_kl_loss": True, "kl_loss_coef": 0.001, "add_token_level_kl": True})
    loss, reward = shown["KL"].split("; ")
    assert loss == "0.001 x KL to the reference in the loss, k3"
    assert reward == "0.2 x KL to the reference in the reward, k1"
    validation = {"data_args": {"file_name": "val.jsonl"}}
    assert list(rows({"mode": "bench", "validation": validation})) == ["temperature", "lengths"]


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


@cases("keys, row, said")
def test_each_line_follows_the_keys(keys: dict[str, Any], row: str, said: str) -> None:
    assert rows(keys)[row].startswith(said)
