"""What a configuration of verl means is in the YAML, or the report says that it is lost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.algorithms.advantage import AdvantageSettings, group_advantages
from roll.importers.command import imported_from
from roll.importers.convert import Imported, read
from roll.importers.row_files import filled
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry

ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref", "model"))
GRPO = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=4", f"{MODEL}.path=org/model", "algorithm.use_kl_in_reward=false")
PPO = "verl.trainer.main_ppo"
MEGATRON = (*GRPO, f"{ACTOR}.strategy=megatron")
OVERRIDE = f"{ACTOR}.megatron.override_transformer_config"


def of(*words: str, version: str | None = None) -> Imported:
    return imported_from(read(None, [*GRPO, *words]), "verl", version=version)


def at(found: Imported, target: str) -> Any:
    node: Any = found.tree
    for part in target.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


@cases("words, meaning")
def test_words_of_verl_mean_here_what_they_mean_there(words: list[str], meaning: Mapping[str, Any]) -> None:
    """`tree`: values by their keys, null where none is written; `keys`: outcomes, with parts of their notes; `changes`:
    parts of what makes it another run; `lacks`: parts that no note of a key has."""
    found = of(*map(str, map(filled, words)))
    for target, value in meaning.get("tree", {}).items():
        assert at(found, target) == value, target
    for key, (outcome, *parts) in filled(meaning.get("keys", {})).items():
        told = entry(found, key)
        assert told[0] == outcome and all(part in told[1] for part in parts), told
        assert not any(part in told[1] for part in meaning.get("lacks", ()))
    assert all(any(part in change for change in found.changes) for part in meaning.get("changes", ()))
    assert list(found.unresolved) == meaning.get("open", [])
    assert found.is_as_meant == meaning.get("as meant", found.is_as_meant)


@cases("word")
def test_what_makes_it_another_run_is_told_as_that(word: str) -> None:
    assert not of(word).is_as_meant, word


@cases("words")
def test_what_asks_for_nothing_changes_nothing(words: list[str]) -> None:
    assert of(*words).changes == ()


@pytest.mark.parametrize("value", ["[1, 2]", "{a: 1}", "x", "-1", "1e400", "true", "${a", "${1:-x}", "[[]]", "9" * 30])
@cases("key")
def test_a_value_of_another_kind_is_told_and_breaks_nothing(key: str, value: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"{key}: {value if value[:2] != '${' else repr(value)}\n")
    found = imported_from(read(path), "verl")
    assert [entry.key for entry in found.entries if entry.key.startswith(key)]


def test_verl_before_02_has_a_kl_in_the_reward_and_no_dual_clip() -> None:
    words = ("algorithm.kl_ctrl.kl_coef=0.005", "algorithm.kl_penalty=kl", "data.train_files=/d/gsm8k.parquet")
    unsaid = "~algorithm.use_kl_in_reward"
    old = of(unsaid, *words, version="v0.1")
    assert (at(old, "init_kl_coef"), at(old, "add_token_level_kl"), at(old, "dual_clip_loss")) == (0.005, True, False)
    assert at(old, "reference.device_mapping") is not None
    assert of(unsaid, "algorithm.adv_estimator=gae", *words, version="v0.1").is_as_meant
    without = of(unsaid, f"{ACTOR}.use_kl_loss=true", version="v0.1")
    assert not at(without, "add_token_level_kl")
    new = of(f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", "algorithm.use_kl_in_reward=false")
    assert not at(new, "add_token_level_kl") and at(new, "dual_clip_ratio_c") == 3.0


@pytest.mark.parametrize("key", ["megatron.context_parallel_size", "ulysses_sequence_parallel_size"])
def test_ranks_that_share_a_sequence_share_their_limits_of_tokens(key: str) -> None:
    """verl's limits are per GPU: 16384 on each of 2 that share rows are 32768 of a pass, in training and scoring."""
    words = (f"{ACTOR}.{key}=2", f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=16384")
    found = of(*words)
    assert at(found, "actor_train.max_tokens_per_microbatch_in_train") == 32768
    assert at(found, "actor_train.max_tokens_per_microbatch_in_infer") == 32768
    assert "16384 x 2 ranks that share sequences" in entry(found, f"{ACTOR}.ppo_max_token_len_per_gpu")[1]


def test_a_reference_is_split_as_the_policy_is() -> None:
    sizes = (f"{ACTOR}.megatron.tensor_model_parallel_size=4", f"{ACTOR}.megatron.pipeline_model_parallel_size=2")
    ends = f"{OVERRIDE}.num_layers_in_last_pipeline_stage=10"
    found = of(f"{ACTOR}.strategy=megatron", *sizes, ends, f"{ACTOR}.use_kl_loss=true")
    config = at(found, "reference.strategy_args.strategy_config")
    assert (config["tensor_model_parallel_size"], config["pipeline_model_parallel_size"]) == (4, 2)
    assert config["num_layers_in_last_pipeline_stage"] == 10
    own = of(
        f"{ACTOR}.strategy=megatron",
        *sizes,
        f"{ACTOR}.use_kl_loss=true",
        f"{REF}.megatron.tensor_model_parallel_size=1",
    )
    assert at(own, "reference.strategy_args.strategy_config.tensor_model_parallel_size") == 1
    ulysses = of(f"{ACTOR}.ulysses_sequence_parallel_size=4", f"{ACTOR}.use_kl_loss=true")
    assert at(ulysses, "reference.model_args.ulysses_size") == 4


@cases("word, key, value")
def test_a_critic_learns_by_numbers_of_its_own(word: str, key: str, value: float | None) -> None:
    words = [
        "algorithm.adv_estimator=gae",
        f"{MODEL}.path=org/model",
        f"{ACTOR}.grad_clip=0.5",
        f"{ACTOR}.ppo_epochs=4",
        "algorithm.use_kl_in_reward=false",
    ]
    words += [f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", "critic.ppo_micro_batch_size_per_gpu=1"]
    found = imported_from(read(None, [*words, f"critic.{word}"]), "verl")
    assert entry(found, f"critic.{word.partition('=')[0]}")[0] == "mapped" and found.changes == ()
    assert (at(found, "max_grad_norm"), at(found, "ppo_epochs")) == (0.5, 4)
    if value is None:
        passes = [at(found, f"{role}.training_args.gradient_accumulation_steps") for role in ("actor_train", "critic")]
        assert passes == [32, 4]
    else:
        assert at(found, key if key == "value_clip" else f"critic.{key}") == value


def test_what_is_set_outside_of_a_script_is_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text(f"python -m {PPO} {' '.join(GRPO[:2])} {MODEL}.path=$models data.train_files=$train_files")
    assert imported_from(read(script)).unresolved == (f"{MODEL}.path", "data.train_files")


def test_a_whole_configuration_of_verl_is_the_run_that_it_means() -> None:
    """Every key of its defaults asks for what is here, or for nothing."""
    words = {
        "data.image_key": "images", "data.video_key": "videos", f"{ROLLOUT}.multi_turn.enable": "false",
        f"{ACTOR}.profile.use_profile": "false", "trainer.worker_nsight_options.kill": "none",
        f"{MODEL}.lora.rank": "0", f"{MODEL}.lora.dropout_position": "pre", "reward_manager.source": "register",
        "reward_manager.name": "naive", f"{REF}.router_replay.mode": "disabled", "critic.model.lora.type": "lora",
        f"{ROLLOUT}.use_fire_sampling": "false", f"{REF}.megatron.use_distributed_optimizer": "true",
        f"{ACTOR}.use_kl_loss": "false", f"{ACTOR}.clip_ratio_c": "3.0", "algorithm.use_kl_in_reward": "false",
        "algorithm.kl_ctrl.kl_coef": "0.001", "trainer.device": "cuda", "custom_reward_function.name": "compute_score",
    }  # fmt: skip
    assert of(*(f"{key}={value}" for key, value in words.items())).changes == ()


def test_a_reward_function_of_verls_form_is_called_as_there() -> None:
    words = ("custom_reward_function.path=/r/mine.py", "custom_reward_function.name=score")
    found = of(*words, "+custom_reward_function.reward_kwargs.scale=2", "data.reward_fn_key=source")
    reward = found.tree["rewards"]["verl"]
    args = {"path": "/r/mine.py", "name": "score", "kwargs": {"scale": 2}, "data_source_key": "source"}
    assert (reward["reward"], reward["reward_args"]) == ("verl_function", args) and found.is_as_meant


def test_a_configuration_of_ones_own_is_read_beside_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "examples" / "mine" / "config"
    (folder / "data").mkdir(parents=True)
    (folder / "base.yaml").write_text("data: {max_prompt_length: 100, max_response_length: 50}\n")
    (folder / "data" / "small.yaml").write_text("train_batch_size: 16\n")
    own = "defaults: [ppo_megatron_trainer, base, data: small, _self_]\n"
    (folder / "own.yaml").write_text(own + "data: {max_response_length: 60}\nactor_rollout_ref: {rollout: {n: 8}}\n")
    script = tmp_path / "examples" / "mine" / "run.sh"
    script.write_text(
        'P="$(pwd)"\npython -m verl.trainer.main_ppo --config-path="$P/examples/mine/config" --config-name=own '
        "algorithm.adv_estimator=grpo data.max_prompt_length=200"
    )
    tree = imported_from(read(script)).tree
    lengths = (tree["prompt_length"], tree["response_length"], tree["rollout_batch_size"])
    assert (*lengths, tree["num_return_sequences_in_group"]) == (200, 60, 16, 8)
    assert tree["actor_train"]["strategy_args"]["strategy_name"] == "megatron_train"
    (folder / "own.yaml").unlink()
    assert any("own has keys of its own" in change for change in imported_from(read(script)).changes)
    yaml = folder / "whole.yaml"
    yaml.write_text("defaults: [ppo_trainer, base, gone, _self_]\nactor_rollout_ref: {rollout: {n: 8}}\n")
    found = imported_from(read(yaml))
    assert found.tree["prompt_length"] == 100 and any("gone of the defaults" in change for change in found.changes)


def test_rewards_have_the_names_of_newer_versions_as_well() -> None:
    old = of("custom_reward_function.path=f.py", "reward_model.reward_manager=dapo")
    new = of("reward.custom_reward_function.path=f.py", "reward.reward_manager.name=dapo")
    assert new.tree == old.tree and new.is_as_meant and new.tree["rewards"]["verl"]["reward"] == "verl_function"
    scored = of("reward.reward_model.enable=true", "reward.reward_model.model_path=/rm")
    assert at(scored, "rewards.verl.model_args.model_name_or_path") == "/rm"
    assert not of("reward.reward_manager.name=mine").is_as_meant
    module = of("reward.custom_reward_function.path=pkg://own.rewards")
    assert at(module, "rewards.verl.reward_args.path") == "own.rewards"
    buffer = "reward.reward_kwargs.overlong_buffer_cfg"
    words = (f"{buffer}.enable=true", f"{buffer}.len=9")
    cut = of(*words, "reward.reward_manager.name=dapo")
    assert at(cut, "rewards.verl.reward_manager_config")[0]["reward"] == "overlong"
    uncut = of(*words)
    assert at(uncut, "rewards.verl.reward_manager_config") is None
    outcome, note = entry(uncut, f"{buffer}.enable")
    assert outcome == "asks for nothing" and "naive has no such penalty" in note


@cases("words, is_as_meant")
def test_what_stands_beside_a_switch_that_is_off_asks_for_nothing(words: list[str], is_as_meant: bool) -> None:
    assert of(*words).is_as_meant == is_as_meant


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo"])
def test_one_answer_alone_is_its_own_advantage(name: str) -> None:
    assert of(f"algorithm.adv_estimator={name}").tree["adv_estimator"] == name
    assert of(f"algorithm.adv_estimator={name}", f"{ROLLOUT}.n=1").tree["adv_estimator"] == "reinforce"


@cases("name, more, outcome")
def test_a_kl_in_the_reward_is_part_of_what_verl_compares(name: str, more: list[str], outcome: str) -> None:
    words = ("algorithm.use_kl_in_reward=true", f"algorithm.adv_estimator={name}", *more)
    assert entry(of(*words), "algorithm.adv_estimator")[0] == outcome
    assert of(*words).is_as_meant == (outcome != "changes the run")


@pytest.mark.parametrize("name", ["rloo", "opo", "reinforce_plus_plus_baseline"])
def test_credit_differs_by_the_kl_that_the_report_of_an_import_names(name: str) -> None:
    """Compares per token what verl has, scores less the KL of whole answers and then the estimator, with the KL that
    comes off afterwards. Before any whitening."""
    rewards, kl, group = (
        np.array([1.0, 0.0, 0.0]),
        np.array([[0.2, 0.1], [0.0, 0.3], [0.4, 0.0]]),
        np.zeros(3, np.int64),
    )
    settings, lengths = AdvantageSettings(name), np.full(3, 2)
    there, _ = group_advantages(rewards - kl.sum(1), group, settings, lengths=lengths)
    plain, _ = group_advantages(rewards, group, settings, lengths=lengths)
    here = plain[:, None] - np.cumsum(kl[:, ::-1], axis=1)[:, ::-1]
    before = np.cumsum(kl, axis=1) - kl
    mean = (kl.sum() - kl.sum(1)) / 2 if name == "rloo" else np.full(3, kl.sum() / 3)
    assert here == pytest.approx(there[:, None] - (mean[:, None] - before), abs=1e-6)  # float32


@cases("schedule, ratio")
def test_the_least_rate_of_megatron_is_a_share_of_the_peak(schedule: str, ratio: float | None) -> None:
    words = [f"{ACTOR}.strategy=megatron", f"{ACTOR}.optim.lr=1e-5", f"{ACTOR}.optim.min_lr=1e-6"]
    found = of(*words, f"{ACTOR}.optim.{schedule}")
    kept = at(found, "actor_train.training_args.lr_scheduler_kwargs.min_lr_ratio")
    assert (kept is None) if ratio is None else kept == pytest.approx(ratio)
    assert found.is_as_meant
    assert not of(*words, f"{ACTOR}.optim.lr_decay_style=linear").is_as_meant


SFT = ("model.partial_pretrain=org/model", "data.train_files=a.parquet", "data.train_batch_size=64")


def tuned(*words: str) -> Imported:
    return imported_from(read(None, [*SFT, "data.micro_batch_size_per_gpu=1", *words]), "verl")


@pytest.mark.parametrize(("said", "steps"), [((), 1_000_000), (("trainer.save_freq=-1",), 1_000_000)])
def test_fine_tuning_saves_what_it_trained_after_the_last_step(said: tuple[str, ...], steps: int) -> None:
    """By fsdp_sft_trainer.py and sft_trainer.py of verl: is_last_step saves, whatever save_freq says."""
    assert tuned(*said).tree["save_steps"] == steps
    assert tuned("trainer.save_freq=7").tree["save_steps"] == 7


def test_fine_tuning_reads_overrides_of_the_model_and_of_the_optimizer() -> None:
    model, optimizer = "model.override_config", "optim.override_optimizer_config"
    found = tuned(
        f"+{model}.attn_implementation=flash_attention_2",
        f"+{model}.output_router_logits=true",
        f"+{optimizer}.adam_beta1=0.8",
        f"+{optimizer}.optimizer_cpu_offload=false",
        f"+{optimizer}.use_precision_aware_optimizer=false",
    )
    args = at(found, "sft_train.model_args")
    assert (args["attn_implementation"], args["model_config_kwargs"]) == ("fa2", {"output_router_logits": True})
    assert at(found, "sft_train.training_args.adam_beta1") == 0.8
    assert found.is_as_meant
    assert not tuned(f"+{optimizer}.lr_mult=2").is_as_meant


def test_betas_in_quotes_of_quotes_are_two_numbers() -> None:
    args = at(tuned("optim.betas='[0.9,0.95]'"), "sft_train.training_args")
    assert (args["adam_beta1"], args["adam_beta2"]) == (0.9, 0.95)


@pytest.mark.parametrize("key", ["reward_model.reward_manager", "reward.reward_manager.name"])
def test_a_reward_manager_that_is_not_here_asks_for_its_function(key: str) -> None:
    found = of(f"{key}=mine")
    assert not found.is_as_meant and "custom_reward_function.path=FILE" in entry(found, key)[1]
    assert of(f"{key}=batch").is_as_meant and entry(of(f"{key}=batch"), key)[0] == "approximated"
    assert of(f"{key}=dapo").is_as_meant


@pytest.mark.parametrize("mode", ["gspo", "sapo", "geo_mean"])
@cases("words, terms")
def test_terms_beside_a_loss_over_answers_are_averaged_over_tokens_there(
    mode: str, words: list[str], terms: str
) -> None:
    """verl fixes the mean over answers in the policy's loss alone; its KL and entropy follow loss_agg_mode."""
    note = entry(of(f"{ACTOR}.policy_loss.loss_mode={mode}", *words), f"{ACTOR}.policy_loss.loss_mode")[1]
    assert (f"The {terms} of the loss: averaged by loss_agg_mode token-mean there" in note) == bool(terms)
    assert ("of the loss: averaged" in note) == bool(terms)


def test_gspo_of_newer_versions_is_averaged_by_its_key() -> None:
    mode = f"{ACTOR}.policy_loss.loss_mode"
    found = of(f"{mode}=gspo", f"{ACTOR}.loss_agg_mode=token-mean")
    assert "Verl from 0.9.1 on averages the policy's loss by loss_agg_mode as well" in entry(found, mode)[1]
    assert "before 0.9.1 and here" in entry(found, f"{ACTOR}.loss_agg_mode")[1]
    assert entry(of(f"{mode}=gspo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"), mode)[0] == "mapped"
    assert not any("pg_variant" in note for note in found.notes)  # the row of the key says it


@pytest.mark.parametrize("key", ["reward_model.reward_manager", "reward.reward_manager.name"])
def test_an_answer_that_the_manager_prime_cannot_score_is_learnt_from_there(key: str) -> None:
    """The manager gives such an answer 0, after 300 s at the latest; here it is left out, by default after 30."""
    found = of(f"{key}=prime", "custom_reward_function.path=mine.py")
    outcome, note = entry(found, key)
    assert outcome == "approximated" and "has reward 0 there" in note
    assert at(found, "rewards.verl.timeout_s") == 300 and found.is_as_meant
    assert entry(of(f"{key}=naive"), key)[0] == "asks for nothing"


@cases("words, steps, ratio")
def test_a_number_of_warm_up_steps_counts_before_a_share(
    words: list[str], steps: int | None, ratio: float | None
) -> None:
    """verl's workers on FSDP take the share only where the number is less than 0."""
    found = of(*(f"{ACTOR}.optim.lr_warmup_steps{word}" for word in words), *UPDATE_A_STEP)
    args = at(found, "actor_train.training_args")
    assert (args.get("warmup_steps"), args.get("warmup_ratio")) == (steps, ratio)
    given = entry(found, f"{ACTOR}.optim.lr_warmup_steps")
    assert (
        given[0] == ("approximated" if words == ["=0", "_ratio=0.1"] else given[0]) and "not given" not in given[1][:9]
    )


UPDATE_A_STEP = ("data.train_batch_size=512", f"{ACTOR}.ppo_mini_batch_size=512")


@cases("words, updates")
def test_a_warm_up_of_steps_is_one_of_their_updates(words: list[str], updates: int) -> None:
    """verl's schedules move once per step, whatever updates it has; those of here with each update."""
    found = of(*words, f"{ACTOR}.optim.lr_warmup_steps=10")
    assert at(found, "actor_train.training_args.warmup_steps") == updates
    outcome, note = entry(found, f"{ACTOR}.optim.lr_warmup_steps")
    assert outcome == "approximated" and ("rises with each step" in note) == (updates != 10)
    assert "has (k - 1) / n of the peak there" in note


@pytest.mark.parametrize("rule", ["middle", "left", "error"])
def test_a_cut_is_that_of_verl(rule: str) -> None:
    found = of(f"data.truncation={rule}", "data.val_files=v.parquet")
    assert [at(found, f"{name}.data_args.truncation") for name in ("actor_train", "validation")] == [rule] * 2
    words = ["model.partial_pretrain=m", "data.train_files=t", "data.val_files=v", f"data.truncation={rule}"]
    sft = imported_from(read(None, words), "verl")
    assert [at(sft, f"{name}.data_args.truncation") for name in ("sft_train", "validation")] == [rule] * 2


@pytest.mark.parametrize(("freq", "steps"), [("-1", 1_000_000), ("20", 20)])
def test_fine_tuning_validates_its_last_step_and_not_before_the_first(freq: str, steps: int) -> None:
    words = ["model.partial_pretrain=m", "data.train_files=t", "data.val_files=v", f"trainer.test_freq={freq}"]
    found = imported_from(read(None, words), "verl")
    assert at(found, "eval_steps") == steps and at(found, "val_before_train") is False
    alone = imported_from(read(None, [*words[:2], words[3]]), "verl")
    assert at(alone, "eval_steps") == -1 and at(alone, "val_before_train") is None


@pytest.mark.parametrize("word", ["engine=fsdp", "engine=megatron", "optim=fsdp"])
def test_the_choice_of_a_section_needs_no_other_key_of_it(word: str) -> None:
    words = ["data.train_files=t", "model.path=m", "data.max_length=64", "trainer.n_gpus_per_node=8", word]
    found = imported_from(read(None, words), "verl")
    name = "megatron_train" if "megatron" in word else "fsdp2_train"
    assert found.is_as_meant and at(found, "sft_train.strategy_args.strategy_name") == name


def test_rewards_of_verl_before_02_are_asked_for_where_no_file_tells_them() -> None:
    words = "data.train_files=/d/mine.parquet"
    assert any("in its own main_ppo.py" in change for change in of(words, version="v0.1").changes)
    assert of(words, "custom_reward_function.path=mine.py", version="v0.1").is_as_meant


@pytest.mark.parametrize("key", ["reward_api=http://x", "sandbox_fusion.url=http://x", "reward_kwargs.mine=1"])
def test_keys_of_rewards_count_beside_a_reward_model_that_is_off(key: str) -> None:
    assert not of("reward_model.enable=false", f"reward_model.{key}").is_as_meant
    assert of("reward_model.enable=false", "reward_model.model.path=m", "reward_model.model.loss_type=ce").is_as_meant


def test_engines_of_verl_have_names_of_here() -> None:
    found = {name: of(f"{ROLLOUT}.name={name}") for name in ("hf", "vllm", "sglang", "sglang_async", "trtllm")}
    names = [at(each, "actor_infer.strategy_args.strategy_name") for each in found.values()]
    assert names == ["hf_infer", "vllm", "sglang", "sglang", "vllm"] and all(f.is_as_meant for f in found.values())


@cases("word")
def test_a_value_that_cannot_be_read_is_no_run_that_anyone_meant(word: str) -> None:
    """Without its batch, its rate or its engine a YAML would run with those of here."""
    assert not of(*word.split()).is_as_meant
