"""Configurations of other systems become YAMLs that a dry run takes, and a report with every key of theirs once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands.run import main
from roll.commands.table import main as roll
from roll.importers.command import ANOTHER_RUN, OK, imported_from
from roll.importers.convert import Imported, convert, read
from roll.importers.rows import Row, Table
from tests.helpers.cases import cases

FOLDER = Path(__file__).parents[2] / "importers"
SOURCES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".yaml", ".sh"))

NOT_AS_MEANT = ("guide_trinity_stages.yaml", "roll_old.yaml")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("TRAIN_FILE", "SUMS_CHECKPOINTS"):
        monkeypatch.setenv(name, f"data/{name}.parquet")
    return tmp_path


def imported(name: str, *overrides: str) -> Imported:
    path = FOLDER / name
    return imported_from(read(path, overrides), source=path)


def entry(found: Imported, key: str) -> tuple[str, str]:
    return next((entry.outcome, entry.note) for entry in found.entries if entry.key == key)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_what_is_imported_passes_a_dry_run(source: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert roll(["import", str(source), "--out", "my.yaml"]) == (3 if source.name in NOT_AS_MEANT else 0)
    pipeline = imported(source.name).pipeline
    code = main(pipeline, ["--config_path", str(place), "--config_name", "my", "--dry_run", "--elsewhere"])
    shown = capsys.readouterr()
    assert code == 0, shown.err + (place / "my.yaml").read_text()
    assert "The plan works." in shown.out
    of_source = "eval_steps: 100 does nothing: there is no section validation"  # as eval_interval does there
    said = shown.out.replace(of_source, "")
    assert " do nothing" not in said and "does nothing" not in said, shown.out


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_every_given_key_is_in_the_report_once(source: Path) -> None:
    given = read(source)
    told = Counter(entry.key for entry in imported(source.name).entries)
    words = {key for key in told if key.startswith("--")}  # of a launcher, beside the keys
    assert {key: told[key] for key in told.keys() - words} == {key: 1 for key, _ in given.keys}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_only_what_is_new_to_the_importer_is_unknown(source: Path) -> None:
    lost = {entry.key for entry in imported(source.name).entries if "does not know" in entry.note}
    assert lost == set()


def test_a_script_is_read_with_its_variables_arrays_and_arithmetic() -> None:
    tree = imported("verl_grpo_megatron.sh").tree
    assert tree["pretrain"] == "org/model"
    assert tree["prompt_length"] == 512 and tree["response_length"] == 1024
    assert tree["actor_train"]["data_args"]["file_name"] == [
        "${oc.env:HOME}/data/sums/train.parquet",
        "${oc.env:HOME}/data/sums/more.parquet",
    ]
    assert tree["actor_train"]["strategy_args"]["strategy_name"] == "megatron_train"  # by the name of the configuration
    assert tree["actor_train"]["model_args"]["model_config_kwargs"] == {"attention_dropout": 0.0}


def test_a_key_that_hydra_takes_away_is_gone_and_one_of_the_defaults_is_told(place: Path) -> None:
    source, words = FOLDER / "verl_ppo_fsdp.yaml", ["~critic.optim.lr", "~ray_kwargs.timeline"]
    given = read(source, words)
    assert "critic.optim.lr" in dict(read(source).keys) and "critic.optim.lr" not in dict(given.keys)
    assert given.taken == ("ray_kwargs.timeline",)
    assert roll(["import", str(source), *words, "--out", "my.yaml"]) == 0
    assert "~ray_kwargs.timeline removes one of their defaults" in (place / "my.report.md").read_text()


def test_the_other_systems_defaults_are_written_where_ours_differ() -> None:
    found = imported("verl_ppo_fsdp.yaml")
    assert found.tree["dual_clip_ratio_c"] == 3.0 and found.tree["loss_agg_mode"] == "token-mean"
    assert found.tree["critic"]["training_args"]["weight_decay"] == 0.01
    assert found.defaults["critic.training_args.weight_decay"] == "critic.optim.weight_decay is 0.01 there"
    assert found.tree["target_kl"] == 0.2 and found.tree["init_kl_coef"] == 0.002


def test_trinity_counts_updates_and_steps_here_are_whole_batches() -> None:
    words = ["algorithm.algorithm_type=grpo", "buffer.batch_size=8", "algorithm.repeat_times=4"]
    words += ["buffer.train_batch_size=16", "trainer.total_steps=100", "trainer.save_interval=20"]
    found = imported_from(read(None, words))
    assert (found.tree["max_steps"], found.tree["save_steps"]) == (50, 10)
    assert entry(found, "trainer.save_interval") == ("mapped", "save_steps: 20 x 16 of 32 samples = 10.")


@cases("name, group, settings")
def test_an_algorithm_of_trinity_has_its_own_group_and_bounds(name: str, group: int, settings: dict[str, Any]) -> None:
    words = [f"algorithm.algorithm_type={name}", "buffer.batch_size=8"]
    found = imported_from(read(None, words)).tree
    assert found["num_return_sequences_in_group"] == group
    assert {key: found[key] for key in settings} == settings
    given = imported_from(read(None, [*words, "algorithm.policy_loss_fn_args.clip_range=0.1"])).tree
    assert 0.1 in given.values() or name == "sapo"
    assert given.get("pg_clip_low") is None


@cases("word, told")
def test_a_value_that_counts_for_nothing_is_told_by_its_key(word: str, told: str) -> None:
    key = word.partition("=")[0]
    system = "trinity" if "_fn" in key else "verl"
    found = imported_from(read(None, ["algorithm.adv_estimator=grpo", word]), system)
    outcome, note = entry(found, key)
    assert told in note and (outcome in ("not available", "changes the run") or not told)


@pytest.mark.parametrize("section", ["cppo.", ""])
def test_cppo_of_verl_has_its_keys_in_a_section_or_beside_the_loss(section: str) -> None:
    """Its threshold is verl's clip_ratio, as DPPO's, and its policy that sampled the engine's (bypass_mode)."""
    loss = "actor_rollout_ref.actor.policy_loss"
    keys = {"w_min": 0.7, "delta_b": 0.03, "delta_b_q": 0.95, "delta_b_k": 0.5}
    words = [f"{loss}.{section}cppo_{name}={value}" for name, value in keys.items()]
    report = imported("verl_ppo_fsdp.yaml", f"{loss}.loss_mode=cppo", "actor_rollout_ref.actor.clip_ratio=0.15", *words)
    names = ("threshold", "weight_floor", "budget", "budget_quantile", "budget_scale", "highest_weight")
    assert report.tree["pg_variant"] == "cppo" and report.is_as_meant
    assert [report.tree[f"cppo_{name}"] for name in names] == [0.15, 0.7, 0.03, 0.95, 0.5, 3.0]
    assert not imported("verl_ppo_fsdp.yaml", *words).tree.keys() & {f"cppo_{name}" for name in names}


@pytest.mark.parametrize("mode", ["seq-mean-token-sum-norm", "token-mean"])
def test_what_verl_divides_the_sum_of_a_sample_by_counts_with_its_mode_alone(mode: str) -> None:
    key = "actor_rollout_ref.actor.loss_scale_factor"
    found = imported("verl_ppo_fsdp.yaml", f"actor_rollout_ref.actor.loss_agg_mode={mode}", f"{key}=512")
    is_normed = mode == "seq-mean-token-sum-norm"
    assert found.tree.get("loss_scale_factor") == (512 if is_normed else None)
    assert entry(found, key)[0] == ("approximated" if is_normed else "asks for nothing")


def test_mirror_descent_and_raft_of_trinity_are_those_of_here() -> None:
    words = ["buffer.batch_size=8", "algorithm.advantage_fn_args.tau=0.5", "algorithm.policy_loss_fn_args.tau=0.3"]
    found = imported_from(read(None, ["algorithm.algorithm_type=opmd", *words])).tree
    expected = {"adv_estimator": "opmd", "pg_variant": "opmd", "opmd_baseline_tau": 0.5, "opmd_tau": 0.3}
    assert {key: found[key] for key in expected} == expected
    found = imported_from(read(None, ["algorithm.algorithm_type=raft", *words[:1], "algorithm.repeat_times=4"])).tree
    expected = {"adv_estimator": "raft", "raft_keep": "positive", "pg_variant": "vanilla"}
    assert {key: found[key] for key in expected} == expected and found["num_return_sequences_in_group"] == 4


def test_the_gates_of_trinity_are_those_of_here() -> None:
    args = "algorithm.policy_loss_fn_args"
    words = ("algorithm.algorithm_type=rec", f"{args}.clip_mode=ring", f"{args}.epsilon_low=0.1")
    tree = imported("trinity_ppo_megatron.yaml", *words, f"{args}.weight=importance_sampling").tree
    assert (tree["pg_variant"], tree["adv_estimator"], tree["norm_std_type"]) == ("rec", "grpo", "none")
    assert [tree[f"rec_{key}"] for key in ("clip_mode", "epsilon_low", "epsilon_high_prime")] == ["ring", 0.1, 2.0]
    assert tree["rec_weight"] == "importance_sampling" and not tree["use_kl_loss"]
    words = (f"{args}.weight=advantage", f"{args}.temp=0.5", f"{args}.regularizer=k2", f"{args}.regularizer_coef=0.1")
    tree = imported("trinity_ppo_megatron.yaml", "algorithm.algorithm_type=rec", *words).tree
    divided = imported(
        "trinity_ppo_megatron.yaml",
        "algorithm.algorithm_type=rec",
        "algorithm.advantage_fn_args.std_normalize=true",
    ).tree
    assert tree["norm_std_type"] == "none" and "norm_std_type" not in divided
    expected = {"clip_mode": "none", "weight": "advantage", "weight_temp": 0.5, "regularizer": "k2"}
    expected |= {"regularizer_coef": 0.1}
    assert {key: value for key, value in tree.items() if key.startswith("rec_")} == {
        f"rec_{key}": value for key, value in expected.items()
    }
    tree = imported("trinity_ppo_megatron.yaml", "algorithm.algorithm_type=sppo", f"{args}.epsilon=0.4").tree
    assert (tree["pg_variant"], tree["sppo_epsilon"]) == ("sppo", 0.4) and "rec_clip_mode" not in tree


def test_ratios_of_trinity_are_to_the_log_probs_of_the_engine() -> None:
    words = ["buffer.batch_size=8", "algorithm.repeat_times=4", "synchronizer.sync_interval=8"]
    found = imported_from(read(None, ["algorithm.algorithm_type=topr", *words])).tree
    expected = {"adv_estimator": "reinforce", "pg_variant": "topr", "force_disable_old_logprobs_recompute": True}
    assert {key: found.get(key) for key in expected} == expected and "dual_clip_loss" not in found
    found = imported_from(read(None, ["algorithm.algorithm_type=opmd", *words])).tree
    assert "force_disable_old_logprobs_recompute" not in found, "it has none"


def test_keys_alone_are_taken_without_a_file() -> None:
    words = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8", "data.train_batch_sise=64"]
    found = imported_from(read(None, words))
    assert found.tree["num_return_sequences_in_group"] == 8
    outcome, note = entry(found, "data.train_batch_sise")
    assert outcome == "changes the run" and "Did you mean data.train_batch_size?" in note


def test_secrets_are_in_no_report(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert roll(["import", str(FOLDER / "trinity_dapo.yaml"), "--out", "my.yaml"]) == 0
    assert "sk-sums" not in (place / "my.report.md").read_text() + capsys.readouterr().out


def test_an_old_yaml_of_roll_loses_what_would_be_refused() -> None:
    found = imported("roll_old.yaml")
    assert "frobnicate" not in found.tree and "apply_loss_scale" not in found.tree["actor_train"]
    assert entry(found, "actor_train.apply_loss_scale")[0] == "not available"
    assert entry(found, "frobnicate")[0] == "changes the run"
    assert entry(found, "val_greedy")[0] == "asks for nothing"
    assert entry(found, "actor_train.model_args.flash_attn") == (
        "mapped",
        "attn_implementation is its name here; this one is understood as well: 'fa2'",
    )


@cases("words, told")
def test_what_cannot_be_imported_is_refused_with_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roll(words) == 2
    assert told in capsys.readouterr().err


def test_files_that_are_there_are_kept(place: Path) -> None:
    (place / "my.yaml").write_text("mine: 1\n")
    words = ["import", str(FOLDER / "verl_sft.sh"), "--out", "my.yaml"]
    assert roll(words) == 2 and (place / "my.yaml").read_text() == "mine: 1\n"
    assert roll([*words, "--force"]) == 0 and yaml.safe_load((place / "my.yaml").read_text())["pretrain"] == "org/model"
    assert json.dumps(imported("verl_sft.sh").tree)


def test_what_is_not_the_run_that_was_meant_ends_with_a_code_of_its_own(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ["actor_rollout_ref.model.path=m", "data.train_files=d", "custom_reward_function.path=r.py"]
    whole.append("algorithm.use_kl_in_reward=false")
    words = ["import", "--from", "verl", "--out", "a.yaml", "--force", *whole]
    assert roll([*words, "data.no_such_key=1"]) == 3
    last = capsys.readouterr().out.splitlines()
    assert "  data.no_such_key: the importer does not know this key of verl." in last
    assert last[-1] == "This YAML is not the run that its author meant: see above. --lossy accepts it."
    assert "## Not the run that its author meant" in (place / "a.report.md").read_text()
    assert roll([*words, "data.no_such_key=1", "--lossy"]) == 0
    assert roll([*words, "data.no_such_key=null"]) == 0


def test_two_names_of_one_key_that_differ_are_told() -> None:
    rows = (Row("a.x", ("y",)),)
    table = Table("verl", "rlvr", rows, {}, {}, canonical=lambda key: key.removeprefix("old."))
    found = convert([("a.x", 1), ("old.a.x", 2)], table)
    assert found.tree == {"y": 1}
    assert entry(found, "old.a.x") == ("not available", "a.x is 1 and counts")
    assert entry(convert([("a.x", 1), ("old.a.x", 1)], table), "old.a.x")[0] == "asks for nothing"


def test_a_yaml_of_rolls_dpo_keeps_its_loss_and_its_columns() -> None:
    found = imported("roll_dpo.yaml")
    keys = ("beta", "ipo", "label_smoothing", "chosen_key", "rejected_key")
    assert (found.pipeline, [found.tree[key] for key in keys]) == ("dpo", [0.1, False, 0.0, "chosen", "rejected"])
    outcome, note = entry(found, "train_batch_size")
    assert outcome == "approximated" and "max_steps count updates here" in note


def test_sequences_that_ranks_share_are_shared_in_fine_tuning() -> None:
    """64 rows on 8 / 2 = 4 ranks: 4 x 4 of each; packs of 512 x 2 tokens, and one of the longest row at least."""
    words = ["ulysses_sequence_parallel_size=2", "trainer.n_gpus_per_node=8", "data.use_dynamic_bsz=true"]
    found = imported("verl_sft.sh", *words, "data.max_token_len_per_gpu=512")
    role = found.tree["sft_train"]
    args = role["training_args"]
    assert (args["per_device_train_batch_size"], args["gradient_accumulation_steps"]) == (4, 4)
    assert role["model_args"]["ulysses_size"] == 2
    assert role["max_tokens_per_microbatch_in_train"] == 1024 and role["use_dynamic_batching_in_train"]
    found = imported("verl_sft.sh", *words, "data.max_token_len_per_gpu=128")
    assert found.tree["sft_train"]["max_tokens_per_microbatch_in_train"] == 512, "a row has up to 512"
    assert entry(found, "data.max_token_len_per_gpu")[0] == "approximated"
    assert "ulysses_size" not in imported("verl_sft.sh").tree["sft_train"]["model_args"]


def written(text: str, place: Path) -> Path:
    path = place / "run.sh"
    path.write_text(text)
    return path


def test_a_choice_of_files_stands_beside_the_keys_of_its_section(place: Path) -> None:
    """64 rows on 8 ranks, since Megatron has no Ulysses: 4 x 2 of each, packs of 1024 tokens at least."""
    script = """torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer engine=megatron optim=megatron optim.lr=2e-5 \\
        optim.warmup_style=cosine optim.min_lr_ratio=0.1 optim.lr_warmup_steps=5 engine.fsdp_size=-1 \\
        engine.ulysses_sequence_parallel_size=2 data.train_batch_size=64 data.micro_batch_size_per_gpu=4 \\
        data.messages_key=turns data.use_dynamic_bsz=True data.max_token_len_per_gpu=1024 model.path=org/model"""
    path = written(script, place)
    found = imported_from(read(path), source=path)
    role, args = found.tree["sft_train"], found.tree["sft_train"]["training_args"]
    assert role["strategy_args"]["strategy_name"] == "megatron_train"
    assert (args["learning_rate"], args["warmup_steps"], args["lr_scheduler_type"]) == (2e-5, 5, "cosine")
    assert args["lr_scheduler_kwargs"] == {"min_lr_ratio": 0.1} and role["data_args"]["messages"] == "turns"
    assert role["max_tokens_per_microbatch_in_train"] == 1024 and args["gradient_accumulation_steps"] == 2
    assert any(note.startswith("engine=megatron chooses one of their files") for note in found.notes)
    assert not any("does not know" in entry.note for entry in found.entries)
    more = imported_from(read(path, ["engine.strategy=fsdp2"]), source=path).tree
    assert more["sft_train"]["strategy_args"]["strategy_name"] == "fsdp2_train", "what is said of it counts"


def test_fine_tuning_on_engines_has_other_defaults_than_that_on_fsdp_alone(place: Path) -> None:
    """By sft_trainer_engine.yaml of verl 0.9.1: conversations, micro batches by tokens, a constant rate of 1e-3."""
    script = """torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer data.train_files=a.parquet \\
        model.path=org/model data.max_length=512 data.train_batch_size=64"""
    path = written(script, place)
    found = imported_from(read(path), source=path)
    role = found.tree["sft_train"]
    assert role["data_args"]["messages"] == "messages" and not {"prompt_key", "response_key"} & found.tree.keys()
    assert role["max_tokens_per_microbatch_in_train"] == 8192 and role["use_sequence_packing"] is True
    args = role["training_args"]
    assert (args["learning_rate"], args["lr_scheduler_type"], args["warmup_ratio"]) == (1e-3, "constant_with_warmup", 0)
    assert (args["adam_beta1"], args["adam_beta2"]) == (0.9, 0.999)
    older = imported("verl_sft.sh").tree
    assert older["prompt_key"] == "question" and older["sft_train"]["training_args"]["adam_beta2"] == 0.95
    assert older["sft_train"]["training_args"]["lr_scheduler_type"] == "cosine"
    rate = imported_from(read(path, ["optim.lr_warmup_steps_ratio=0.2"]), source=path).tree
    assert rate["sft_train"]["training_args"]["warmup_ratio"] == 0.2
    rows = imported_from(read(path, ["data.use_dynamic_bsz=False"]), source=path).tree
    assert "max_tokens_per_microbatch_in_train" not in rows["sft_train"]


def test_fine_tuning_on_megatron_has_its_sizes_and_its_least_rate(place: Path) -> None:
    """32 rows on 8 / (2 x 2) ranks: 16 of each."""
    script = """torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer engine=megatron optim=megatron optim.lr=1e-5 \\
        optim.lr_warmup_init=0 optim.lr_decay_style=cosine optim.min_lr=1e-6 engine.tensor_model_parallel_size=2 \\
        engine.pipeline_model_parallel_size=2 engine.virtual_pipeline_model_parallel_size=null \\
        engine.context_parallel_size=1 data.train_batch_size=32 data.micro_batch_size_per_gpu=4 model.path=org/model \\
        trainer.test_freq=after_each_epoch trainer.save_freq=after_each_epoch engine.param_offload=False"""
    path = written(script, place)
    found = imported_from(read(path), source=path)
    role = found.tree["sft_train"]
    args, config = role["training_args"], role["strategy_args"]["strategy_config"]
    assert (config["tensor_model_parallel_size"], config["pipeline_model_parallel_size"]) == (2, 2)
    assert config["sequence_parallel"] is True and "ulysses_size" not in role.get("model_args", {})
    assert (args["per_device_train_batch_size"], args["gradient_accumulation_steps"]) == (4, 4)
    assert args["lr_scheduler_type"] == "cosine"
    assert args["lr_scheduler_kwargs"]["min_lr_ratio"] == pytest.approx(0.1, rel=1e-9)
    for key in ("trainer.test_freq", "trainer.save_freq"):
        assert "set eval_steps and save_steps" in entry(found, key)[1]
    assert found.is_as_meant, found.changes
    linear = imported_from(read(path, ["optim.lr_decay_style=linear"]), source=path)
    assert entry(linear, "optim.min_lr")[0] == "changes the run"
    sizes = imported_from(read(path, ["engine.strategy=fsdp2"]), source=path)
    assert entry(sizes, "engine.tensor_model_parallel_size")[0] == "asks for nothing"


def test_what_words_of_a_command_leave_open_is_noted(place: Path) -> None:
    script = """torchrun --nproc_per_node=$1 -m verl.trainer.sft_trainer --config-name=mine data.max_length=64 \\
        optim.lr=$rate_of_loop data.train_batch_size=$((2**5)) trainer.seed=$((1 << 3))"""
    path = written(f"for rate_of_loop in $(ls); do\n{script}\ndone", place)
    found = imported_from(read(path), source=path)
    assert any("--config-name mine has keys of its own" in change for change in found.changes)
    told = "the script leaves it open: set sft_train.training_args.learning_rate in the YAML"
    assert entry(found, "optim.lr") == ("not available", told)
    assert found.tree["seed"] == 8


_LORA = "actor_rollout_ref.model.lora"


@cases("overrides, expected")
def test_adapters_of_megatron_come_from_the_section_of_its_own(
    overrides: list[str], expected: dict[str, object]
) -> None:
    found = imported("verl_grpo_megatron.sh", *(f"{_LORA}{each}" for each in overrides))
    args = found.tree["actor_train"]["model_args"]
    assert {key: value for key, value in args.items() if key.startswith("lora_")} == expected
    outcome, note = entry(found, f"{_LORA}.rank")
    assert (outcome == "approximated" and "one A" in note) == bool(expected)
    assert ("xavier begins A about 2.4 times as wide" in note) == (".alpha=64" in overrides and bool(expected))
    assert found.is_as_meant != (".lora_A_init_method=normal" in overrides)


@cases("file, unread, read")
def test_a_rank_that_the_trainer_of_the_policy_does_not_read_is_another_run(file: str, unread: str, read: str) -> None:
    found = imported(file, f"{unread}=16")
    outcome, note = entry(found, unread)
    assert outcome == "changes the run" and f"give {read} instead" in note
    assert "lora_rank" not in found.tree["actor_train"]["model_args"]
    both = imported(file, f"{unread}=16", f"{read}=8")
    assert both.tree["actor_train"]["model_args"]["lora_rank"] == 8 and entry(both, unread)[0] != "changes the run"


def test_what_a_script_leaves_open_and_trains_later_is_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = """for level in 1 2; do
        python3 -m verl.trainer.main_ppo data.train_files=$1/$level.parquet actor_rollout_ref.model.path=m \\
            trainer.n_gpus_per_node=2 data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8 \\
            algorithm.use_kl_in_reward=false
    done
    """
    words = ["import", str(written(script, place)), "--out", str(place / "my.yaml"), "--force"]
    assert roll(words) == ANOTHER_RUN
    shown = capsys.readouterr().out
    page = (place / "my.report.md").read_text()
    assert "`data.train_files='${1}/1.parquet'`" in page and "leaves it open: set it in the YAML" in page
    assert "trainings of the script:\n  --training 2: data.train_files=${1}/2.parquet\n" in shown
    assert "The script trains 2 times, and this is number 1." in shown
    assert roll([*words, "--training", "2"]) == OK
    assert "${1}/2.parquet" in (place / "my.report.md").read_text()
    assert roll([*words, "--training", "2", "--gpus", "4"]) == ANOTHER_RUN
    assert "--gpus 4 is given, and changes nothing" in capsys.readouterr().out
    assert roll([*words, "--gpus", "0"]) == 2 and "--gpus 0: a machine" in capsys.readouterr().err
    assert roll([*words, "--training", "3"]) == 2
    assert "have the numbers 1 to 2." in capsys.readouterr().err
    yaml_words = ["import", str(FOLDER / "verl_ppo_fsdp.yaml"), "--out", str(place / "my.yaml"), "--training", "1"]
    assert roll(yaml_words) == 2 and "the commands of a script" in capsys.readouterr().err


def test_a_report_says_each_cause_once_and_where_a_value_stands(place: Path) -> None:
    (place / "mine.yaml").write_text("defaults: [ppo_trainer, _self_]\ndata: {own: 1, max_prompt_length: 128}\n")
    words = "data.other=2 data.train_files=d trainer.nnodes=1 trainer.n_gpus_per_node=4"
    (place / "run.sh").write_text(f"python3 -m verl.trainer.main_ppo --config-name mine {words}\n")
    assert roll(["import", "run.sh", "--out", "my.yaml"]) == 3
    page = (place / "my.report.md").read_text()
    assert "- `data.own=1, own file`, `data.other=2`: the importer does not know this key of verl.\n" in page
    assert "- `trainer.nnodes=1`, `trainer.n_gpus_per_node=4`: 1 x 4 GPUs" in page
    order = [page.index(title) for title in ("What will run", "Not the run", "Not given", "Mapped", "Notes")]
    assert order == sorted(order) and "GPUs 1 x 4" in page[: order[1]]
