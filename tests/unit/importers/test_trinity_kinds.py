"""Trinity-RFT's data operators, DPO, parts of runs, mix and distillation become ours, and of its stages the last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from tests.helpers.cases import cases
from tests.unit.importers.test_trinity_meaning import FOLDER, TASKS, at, entry
from tests.unit.importers.test_trinity_meaning import imported as of

TASK, SAMPLES = "data_processor.task_pipeline", "data_processor.experience_pipeline"


def imported(name: str, *words: str) -> Imported:
    return of(*words, name=f"trinity_{name}")


def operators(*words: str) -> tuple[Imported, list[dict[str, Any]]]:
    """Of an experience pipeline in the words of a command line."""
    found = imported("ppo_megatron", *words)
    return found, found.tree.get("experience_operators", [])


def test_of_several_stages_the_last_is_imported_and_the_others_are_told() -> None:
    path = FOLDER / "guide_trinity_stages.yaml"
    found = imported_from(read(path), source=path)
    assert (found.pipeline, found.tree["adv_estimator"]) == ("rlvr", "grpo") and "stages" not in found.tree
    outcome, note = entry(found, "stages.0.algorithm.algorithm_type")
    assert outcome == "changes the run" and "import its keys as a YAML without stages" in note
    assert entry(found, "stages.1.stage_name")[0] == "asks for nothing"
    assert [each.key for each in found.entries] == [key for key, _ in read(path).keys]


def test_operators_on_tasks_run_by_data_juicers_own_package() -> None:
    words = (
        f"{TASK}.operators=[{{name: llm_difficulty_score_filter, args: {{text_key: q, min_score: 0.3, a: [b]}}}}]",
    )
    found = imported("ppo_megatron", *words)
    wanted = {"column": "q", "op_args": {"min_score": 0.3, "a": ["b"]}}
    made = found.tree["actor_train"]["data_args"]["operators"]
    assert made == [{"name": "data_juicer:llm_difficulty_score_filter", "args": wanted}]
    assert entry(found, f"{TASK}.operators.0.args.min_score")[0] == "mapped"


def test_the_least_deviation_is_that_of_a_sample() -> None:
    """Of 4 answers the deviation over n - 1 is sqrt(4 / 3) times that over n: .3 becomes .346."""
    _, made = operators(f"{SAMPLES}.operators=[{{name: reward_std_filter, args: {{threshold: 0.3}}}}]")
    assert made[0]["args"]["std_threshold"] == pytest.approx(0.34641, abs=1e-5)


def test_operators_that_are_not_here_are_told_one_by_one() -> None:
    names = ("reward_shaping_mapper", "dapo_dynamic_sampling", "invalid_reward_filter", "mask_response_truncated")
    found, made = operators(f"{SAMPLES}.operators=[{', '.join(f'{{name: {name}}}' for name in names)}]")
    assert made == [{"name": "mean_filter", "args": {"threshold_down": 0.0, "threshold_up": 1.0}}]
    told = [entry(found, f"{SAMPLES}.operators.{i}.name")[0] for i in range(4)]
    assert told == ["changes the run", "approximated", "approximated", "approximated"]
    assert found.tree["max_len_mask"] is True


def test_dpo_has_its_beta_its_pairs_and_a_reference_beside_the_learner() -> None:
    found = imported("dpo")
    tree = found.tree
    assert (found.pipeline, tree["beta"], tree["label_smoothing"]) == ("dpo", 0.2, 0.1)
    assert (tree["prompt_key"], tree["chosen_key"], tree["rejected_key"]) == ("question", "good", "bad")
    args = tree["actor_train"]["training_args"]
    assert args["per_device_train_batch_size"] == 4 and args["gradient_accumulation_steps"] == 4, "64 pairs on 4 ranks"
    assert (args["learning_rate"], args["weight_decay"], tree["max_grad_norm"]) == (5e-7, 0.05, 0.5)
    assert tree["reference"]["device_mapping"] == tree["actor_train"]["device_mapping"] == "list(range(0, 4))"
    assert tree["sequence_length"] == 1536 and tree["num_train_epochs"] == 2 and "sft_train" not in tree


def test_the_coefficient_of_a_kl_is_beta_only_where_no_beta_is_given() -> None:
    found = imported("dpo", "algorithm.policy_loss_fn_args.beta=0.5")
    assert found.tree["beta"] == 0.5
    assert entry(found, "algorithm.kl_loss_fn_args.kl_coef")[0] == "not available"
    assert imported("dpo", "algorithm.kl_loss_fn_args=null").tree["beta"] == 0.1


def test_pairs_share_sequences_and_fill_packs_as_they_say() -> None:
    """64 pairs on 4 / 2 ranks; packs of 2048 x 2 tokens."""
    words = ["trainer.ulysses_sequence_parallel_size=2", "trainer.use_dynamic_bsz=true"]
    role = imported("dpo", *words, "trainer.ppo_max_token_len_per_gpu=2048").tree["actor_train"]
    args = role["training_args"]
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * 2 == 64
    assert (role["model_args"]["ulysses_size"], role["max_tokens_per_microbatch_in_train"]) == (2, 4096)


def test_rows_to_learn_from_have_trinitys_defaults_and_not_verls() -> None:
    tree = imported("sft", "buffer.trainer_input.experience_buffer.format={prompt_type: plaintext}").tree
    assert (tree["prompt_key"], tree["response_key"]) == ("prompt", "response")
    assert tree["sft_train"]["model_args"]["disable_gradient_checkpointing"] is False


@pytest.mark.parametrize("value, part", [("true", "all"), ("false", "last"), ("null", "last")])
def test_of_a_conversation_the_last_answer_is_learnt_unless_all_are_asked_for(value: str, part: str) -> None:
    key = "buffer.trainer_input.experience_buffer.format.enable_concatenated_multi_turn"
    found = imported(
        "sft", f"{key}={value}", "algorithm.optimizer.warmup_style=cosine", "algorithm.optimizer.min_lr_ratio=.1"
    )
    assert found.tree["train_on"] == part and entry(found, key)[0] == "mapped"
    assert found.tree["sft_train"]["training_args"]["lr_scheduler_kwargs"] == {"min_lr_ratio": 0.1}


def test_adapters_and_sampling_of_the_model_section_are_taken() -> None:
    words = [
        "model.lora_configs=[{name: lora, lora_rank: 16, lora_alpha: 8}]",
        "model.temperature=0.7",
        "model.top_k=20",
    ]
    words += ["buffer.explorer_input.taskset.rollout_args.top_k=5", "algorithm.policy_loss_fn_args.clip_ratio_c=4"]
    tree = imported("dapo", *words).tree
    args = tree["actor_train"]["model_args"]
    assert [args[f"lora_{key}"] for key in ("target", "rank", "alpha")] == ["all-linear", 16, 8]
    sampling = tree["actor_infer"]["generating_args"]
    assert sampling["top_k"] == 5 and tree["dual_clip_ratio_c"] == 4, "what the tasks say counts"
    assert sampling["temperature"] == 0.7


@pytest.mark.parametrize(("name", "role"), [("sft", "sft_train"), ("dpo", "actor_train")])
def test_rows_of_an_update_are_those_of_batch_size_where_train_batch_size_is_not_given(name: str, role: str) -> None:
    found = imported(name, "buffer.train_batch_size=null", "buffer.batch_size=24", "cluster.gpu_per_node=8")
    args = found.tree[role]["training_args"]
    ranks = found.tree["num_nodes"] * 8
    assert args["per_device_train_batch_size"] * args["gradient_accumulation_steps"] * ranks == 24
    assert entry(found, "buffer.batch_size")[0] in ("mapped", "approximated")
    both = imported(name, "buffer.train_batch_size=48", "buffer.batch_size=24")
    assert entry(both, "buffer.batch_size") == ("asks for nothing", "train_batch_size counts")
    neither = imported(name, "buffer.train_batch_size=null")
    assert any("buffer.train_batch_size is missing" in change for change in neither.changes)


BUFFER = "buffer.trainer_input.experience_buffer"


def test_further_sets_stand_beside_the_validation_under_their_names() -> None:
    found = imported("ppo_megatron")
    assert found.tree["validation"]["data_args"]["file_name"] == ["data/test"]
    assert found.tree["eval_sets"] == {
        "other": {
            "data_args": {
                "file_name": ["data/other"],
                "split": "train",
                "prompt": "prompt",
                "ground_truth": "response",
                "truncation": "left",
            },
            "generating_args": {"temperature": 1.0},
        }
    }
    outcome, note = entry(found, "buffer.explorer_input.eval_tasksets.1.path")
    assert outcome == "mapped" and "eval_sets.other" in note


@pytest.mark.parametrize("mode", ["explore", "train", "bench"])
def test_a_part_of_a_run_is_imported_as_such(mode: str) -> None:
    words = [f"mode={mode}", f"{BUFFER}.max_read_timeout=60", "explorer.bench_on_latest_checkpoint=true"]
    found = imported("ppo_megatron", *words, *(["buffer.total_steps=8"] if mode == "train" else []))
    assert found.is_as_meant and found.tree["mode"] == mode
    if mode == "bench":
        assert found.tree["resume_from_checkpoint"] is True and "experience" not in found.tree
    else:
        assert found.tree["experience"] == {"read_timeout_s": 60.0, "on_timeout": "partial"}


def test_what_a_run_in_one_process_has_no_use_for_is_said() -> None:
    at = f"{BUFFER}.replay_buffer"
    found = imported("ppo_megatron", f"{at}.enable=true", f"{BUFFER}.max_read_timeout=60")
    outcome, note = entry(found, f"{at}.enable")
    assert outcome == "asks for nothing" and "without reuse_cooldown_time" in note
    back = imported("ppo_megatron", f"{at}.enable=true", f"{at}.reuse_cooldown_time=30")
    outcome, note = entry(back, f"{at}.reuse_cooldown_time")
    assert outcome == "changes the run" and "experience.reuse" in note
    assert entry(found, f"{BUFFER}.max_read_timeout")[0] == "asks for nothing"
    assert entry(found, f"{BUFFER}.storage_type")[0] == "asks for nothing"
    assert "experience" not in found.tree
    assert entry(imported("ppo_megatron", "mode=serve"), "mode") == (
        "changes the run",
        "mode: serve is not here: both, colocate, explore, train, bench are",
    )


AT, ARGS = "buffer.trainer_input.auxiliary_buffers.sft_dataset", "algorithm.policy_loss_fn_args"
MIX = ("algorithm.algorithm_type=mix", f"{AT}.path=expert", "algorithm.sample_strategy=mix")


def test_a_mix_is_imported_with_its_share_its_weight_and_its_columns() -> None:
    found = imported(
        "dapo", *MIX, "algorithm.sample_strategy_args.expert_data_ratio=0.2", f"{ARGS}.mu=0.3",
        f"{AT}.format.messages_key=messages", f"{AT}.format.prompt_type=messages", f"{AT}.total_epochs=25",
        f"{ARGS}.use_token_level_loss_in_sft=false", "algorithm.entropy_loss_fn=mix", "algorithm.kl_loss_fn=k2",
    )  # fmt: skip
    assert found.tree["mix"] == {
        "weight": 0.3,
        "loss_agg_mode": "seq-mean-token-mean",
        "rows": {"sft_dataset": {"share": 0.2, "data_args": {"file_name": ["expert"], "messages": "messages"}}},
    }
    outcome, note = entry(found, "algorithm.sample_strategy_args.expert_data_ratio")
    assert outcome == "approximated" and "join all samples" in note
    assert "counts 1 - weight as well" in entry(found, f"{ARGS}.mu")[1]
    for key in ("algorithm.sample_strategy", "algorithm.entropy_loss_fn", f"{AT}.total_epochs"):
        assert entry(found, key)[0] == "asks for nothing", key


@cases("words, weights")
def test_the_weight_of_chord_rises_and_falls_as_it_did(words: list[str], weights: dict[str, Any]) -> None:
    found = imported("dapo", *MIX, "algorithm.algorithm_type=mix_chord", *(f"{ARGS}.{word}" for word in words))
    rows = found.tree["mix"].pop("rows")["sft_dataset"]
    assert found.tree["mix"] == weights | {"loss_agg_mode": "token-mean"}
    assert (rows["share"], rows["prompt_key"], rows["response_key"]) == (0.5, "prompt", "response")


def test_keys_of_a_mix_without_one_ask_for_nothing_and_a_mix_without_rows_says_so() -> None:
    found = imported("dapo", f"{ARGS}.mu=0.3", f"{AT}.path=expert")
    assert entry(found, f"{ARGS}.mu")[0] == "asks for nothing" and "mix" not in found.tree
    outcome, note = entry(imported("dapo", *MIX[::2], f"{ARGS}.mu=0.3"), f"{ARGS}.mu")
    assert outcome == "not available" and "mix.rows.sft_dataset.data_args.file_name" in note


def test_the_older_name_of_the_experts_rows_is_known_and_without_a_mix_they_are_not_lost() -> None:
    older = "buffer.trainer_input.sft_warmup_dataset"
    words = (f"{older}.path=expert", f"{older}.split=train", f"{older}.format.messages_key=messages")
    found = imported("dapo", *MIX[::2], *words)
    rows = found.tree["mix"]["rows"]["sft_dataset"]
    assert rows["data_args"] == {"file_name": ["expert"], "split": "train", "messages": "messages"}
    assert entry(found, f"{older}.path")[0] == "mapped"
    outcome, note = entry(imported("dapo", f"{older}.path=expert"), f"{older}.path")
    assert outcome == "not available" and "in a stage before" in note


OPD = (
    "algorithm.algorithm_type=on_policy_distill",
    "algorithm.advantage_fn_args.kl_coef=0.7",
    "explorer.auxiliary_models=[{model_path: org/teacher, engine_num: 1, tensor_parallel_size: 2, seed: 4}]",
    "explorer.rollout_model.engine_num=2",
    "explorer.rollout_model.tensor_parallel_size=1",
    "cluster.node_num=1",
    "cluster.gpu_per_node=8",
)


def test_the_first_auxiliary_model_is_the_teacher_on_the_last_devices() -> None:
    found = imported("dapo", *OPD)
    assert found.tree["is_pure_opd"] is True and found.tree["opd_kl_coef"] == 0.7 and not found.tree["use_kl_loss"]
    assert found.tree["teacher"] == {
        "model_args": {"model_name_or_path": "org/teacher"},
        "strategy_args": {"strategy_name": "fsdp2_infer"},
        "device_mapping": "list(range(6, 8))",
    }
    places = [found.tree[role]["device_mapping"] for role in ("actor_train", "actor_infer")]
    assert places == ["list(range(0, 4))", "list(range(4, 6))"]
    outcomes = {entry.key: entry.outcome for entry in found.entries}
    assert outcomes["explorer.auxiliary_models.0.model_path"] == "approximated", "it scores, with no engine"
    assert outcomes["explorer.auxiliary_models.0.seed"] == "asks for nothing"


@pytest.mark.parametrize("words", [OPD[0] + ",advantage_fn=jsd", "algorithm.algorithm_type=jsd"])
def test_jsd_compares_teacher_and_policy_with_their_mixture(words: str) -> None:
    first, _, function = words.partition(",")
    more = [f"algorithm.{function}"] if function else []
    found = imported("dapo", first, *more, *OPD[1:], "algorithm.advantage_fn_args.lambda_coef=0.3")
    keys = ("is_pure_opd", "opd_advantage", "opd_js_weight", "opd_kl_coef", "num_return_sequences_in_group")
    assert [found.tree[key] for key in keys] == [True, "js_divergence", 0.3, 0.7, 16]
    (change,) = found.changes
    assert f"algorithm.{function or 'algorithm_type'}".split("=")[0] in change and "its updates raise it" in change
    assert "opd_advantage" not in imported("dapo", *OPD).tree
    nothing = imported("dapo", first, *more, *OPD[1:], "algorithm.advantage_fn_args.lambda_coef=1.0")
    assert any("nothing is learned there" in change for change in nothing.changes)


@cases("name, estimator")
def test_an_advantage_may_be_named_beside_the_algorithm(name: str, estimator: str) -> None:
    words = OPD if name == "on_policy_distill" else ("algorithm.algorithm_type=grpo",)
    found = imported("dapo", *words, f"algorithm.advantage_fn={name}")
    assert found.tree["adv_estimator"] == estimator and not found.changes


def test_a_teacher_for_which_no_device_is_left_takes_turns() -> None:
    large = "explorer.auxiliary_models=[{model_path: org/teacher, engine_num: 3, tensor_parallel_size: 4}]"
    found = imported("dapo", *OPD[:2], large, *OPD[3:])
    roles = ("teacher", "actor_train", "actor_infer")
    assert {found.tree[role]["device_mapping"] for role in roles} == {"list(range(0, 8))"}


def test_a_second_teacher_is_not_the_run_that_was_meant() -> None:
    both = "explorer.auxiliary_models=[{model_path: org/a, engine_num: 1}, {model_path: org/b, engine_num: 1}]"
    found = imported("dapo", *OPD[:2], both, *OPD[3:])
    assert found.tree["teacher"]["model_args"]["model_name_or_path"] == "org/a"
    keys = [change.partition(": the first")[0] for change in found.changes]
    assert keys == [f"explorer.auxiliary_models.1.{name}" for name in ("model_path", "engine_num")]


def test_without_a_teacher_it_says_what_to_set() -> None:
    found = imported("dapo", *OPD[:2], "explorer.auxiliary_models.0.engine_num=1")
    (note,) = [one.note for one in found.entries if one.key == "explorer.auxiliary_models.0.engine_num"]
    assert "set teacher.model_args.model_name_or_path" in note
    assert not imported("dapo", *OPD[:1]).is_as_meant, "nothing says what is distilled"


def test_m2po_is_a_loss_with_ratios_to_what_sampled() -> None:
    words = ("algorithm.algorithm_type=grpo", "algorithm.policy_loss_fn=m2po")
    found = imported("dapo", *words, "algorithm.policy_loss_fn_args.m2_threshold=0.02")
    keys = ("pg_variant", "m2po_threshold", "force_disable_old_logprobs_recompute")
    assert [found.tree[key] for key in keys] == ["m2po", 0.02, True] and not found.changes
    assert "m2po_threshold" not in imported("dapo", *words).tree, "the default of both is .04"


def test_a_ratio_without_a_clip_is_one_that_none_meets() -> None:
    found = imported("dapo", *OPD, "algorithm.policy_loss_fn=importance_sampling")
    assert (found.tree["pg_variant"], found.tree["dual_clip_loss"]) == ("ppo", False)
    assert (found.tree["pg_clip_low"], found.tree["pg_clip_high"]) == (1.0, 1e9)


BASE: dict[str, Any] = {
    "project": "games",
    "name": "lake",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 8},
    "model": {"model_path": "org/model", "max_prompt_tokens": 2048, "max_response_tokens": 1024},
    "cluster": {"node_num": 1, "gpu_per_node": 8},
    "buffer": {
        "batch_size": 32,
        "total_epochs": 2,
        "explorer_input": {
            "taskset": {"storage_type": "file", "path": "/d/train.jsonl", "split": "train"},
            "eval_tasksets": [{"path": "/d/test.jsonl", "rollout_args": {"n": 4}}],
        },
    },
    "explorer": {
        "eval_interval": 10,
        "max_timeout": 360,
        "rollout_model": {"engine_num": 2, "tensor_parallel_size": 2},
    },
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_of_verls_keys_beside_the_yaml_is_read(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    words = ["trainer.trainer_config_path=examples/games/train.yaml", "trainer.grad_clip=0.5"]
    key = "trainer.trainer_config_path"
    lost = imported_from(read(place / "run.yaml", words), source=place / "run.yaml")
    assert entry(lost, key)[0] == "changes the run"
    actor = {"ppo_epochs": 2, "grad_clip": 3.0, "optim": {"lr_warmup_steps_ratio": 0.1}}
    (place / "train.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": {"actor": actor}}))
    found = imported_from(read(place / "run.yaml", words), source=place / "run.yaml")
    assert entry(found, key) == ("asks for nothing", "the file beside this one is read") and found.is_as_meant
    assert (found.tree["ppo_epochs"], found.tree["max_grad_norm"]) == (2, 0.5)
    assert at(found, "actor_train.training_args.warmup_ratio") == 0.1


def test_references_in_the_file_of_verls_keys_are_to_itself(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    reference = "${actor_rollout_ref.actor.ulysses_sequence_parallel_size}"
    actor = {"ulysses_sequence_parallel_size": 2}
    ref = {"ulysses_sequence_parallel_size": reference}
    (place / "train.yaml").write_text(yaml.safe_dump({"actor_rollout_ref": {"actor": actor, "ref": ref}}))
    found = imported_from(
        read(place / "run.yaml", ["trainer.trainer_config_path=train.yaml"]), "trinity", place / "run.yaml"
    )
    assert found.unresolved == () and "$" not in yaml.safe_dump(found.tree)


def test_trainer_and_engines_of_one_place_take_turns(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    found = imported_from(read(place / "run.yaml", ["mode=colocate"]), source=place / "run.yaml")
    assert found.is_as_meant and "mode" not in found.tree
    assert {at(found, f"{role}.device_mapping") for role in ("actor_train", "actor_infer")} == {"list(range(0, 8))"}


def test_an_evaluation_of_mathematics_is_scored_as_training_in_mathematics_is(place: Path) -> None:
    (place / "run.yaml").write_text(yaml.safe_dump(BASE))
    key = "buffer.explorer_input.default_eval_workflow_type"
    for flow, outcome in (("math_boxed_workflow", "approximated"), ("simple_workflow", "not available")):
        words = [f"{TASKS}.default_workflow_type={flow}", f"{key}=math_eval_workflow"]
        found = imported_from(read(place / "run.yaml", words), source=place / "run.yaml")
        assert entry(found, key)[0] == outcome, entry(found, key)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_the_name_of_the_monitor_is_that_of_the_run(kind: str) -> None:
    path = FOLDER / f"trinity_{kind}.yaml"
    found = imported_from(read(path, ["name=null", "monitor.name=mine", "monitor.project=sums"]), source=path)
    assert at(found, "exp_name") == "mine" and entry(found, "monitor.project")[0] != "changes the run"


@cases("kind, key, outcome")
def test_embedded_keys_of_verls_trainer_are_told_as_what_they_are(kind: str, key: str, outcome: str) -> None:
    path = FOLDER / f"trinity_{kind}.yaml"
    word = f"trainer.trainer_config.{key}"
    found = imported_from(read(path, [word]), source=path)
    assert entry(found, word.partition("=")[0])[0] == outcome
