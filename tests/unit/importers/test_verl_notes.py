"""What an import takes for granted, cannot serve or does not know is told, whether or not a key asks for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from roll.importers.command import imported_from
from roll.importers.convert import Imported, read, source_keys
from roll.importers.script import find_command
from roll.importers.verl.files import Composed
from tests.helpers.cases import cases
from tests.unit.importers.test_import import entry
from tests.unit.importers.test_verl_meaning import ACTOR, GRPO, MODEL, ROLLOUT, at

DATA = ("data.train_files=a.parquet", "data.val_files=b.parquet")


def of(*words: str, version: str | None = None) -> Imported:
    return imported_from(read(None, [*GRPO, *DATA, *words]), "verl", version=version)


@cases("told")
def test_what_holds_by_default_is_told_where_no_key_asks_for_it(told: str) -> None:
    assert any(note.startswith("By default:") and told in note for note in of().notes)


@cases("word")
def test_no_pattern_of_keys_swallows_one_that_means_something(word: str) -> None:
    assert not of(word).is_as_meant, word


def by(program: str, *words: str) -> list[str]:
    """Changes of a script with this program, that its keys do not have by themselves."""
    found = find_command(f"{program} {' '.join([*GRPO, *DATA, *words])}")
    given = source_keys(Composed(), [*GRPO, *DATA, *words], found)
    return list(imported_from(given, "verl").changes)


@cases("program")
def test_trainers_of_verl_are_known_by_their_keys(program: str) -> None:
    assert by(program) == []


@cases("program, told")
def test_another_program_is_another_run(program: str, told: str) -> None:
    assert any(told in change for change in by(program))


@cases("words, told")
def test_a_validation_by_a_reward_model_is_told(words: list[str], told: bool) -> None:
    """verl's _validate calls val_reward_fn without rm_scores, and returns nothing for rows of the style model."""
    note = entry(of("reward_model.enable=true", "reward_model.model.path=rm", *words), "reward_model.model.path")[1]
    assert ("A validation has the model's scores here" in note) == told


def test_defaults_of_prime_are_those_of_its_own_file() -> None:
    """recipe/prime/config/prime_trainer.yaml has entropy_coeff 0.001, rloo, n 4, no first validation, and its model
    on; what a script says counts more."""
    words = ["reward_model.model.path=m", "reward_model.mini_batch_size=1", "data.oversample_factor=4", *DATA]
    found = find_command(f"python3 -m recipe.prime.main_prime {' '.join(words)}")
    made = imported_from(source_keys(Composed(), words, found), "verl")
    keys = ("adv_estimator", "num_return_sequences_in_group", "entropy_loss_coef", "val_before_train")
    assert [made.tree[key] for key in keys] == ["rloo", 4, 0.001, False]
    assert entry(made, "reward_model.model.path") == (
        "changes the run",
        "no reward model that learns beside the policy is here",
    )
    assert not any("does not know" in change or "is off" in change for change in made.changes)
    assert "rewards" in made.tree and "reward" not in made.tree
    sampled = by("python3 -m recipe.prime.main_prime", "data.oversample_factor=1", "reward_model.reward_kwargs.x=1")
    assert any("oversample_factor, 4 by default" in change for change in sampled)
    assert any("reward_args has the arguments of a reward" in change for change in sampled)


@cases("engine, key, outcome, told")
def test_arguments_of_another_engine_are_not_taken_for_those_of_this(
    engine: str, key: str, outcome: str, told: str
) -> None:
    found = of(f"{ROLLOUT}.name={engine}", f"{ROLLOUT}.engine_kwargs.{key}")
    entered = entry(found, f"{ROLLOUT}.engine_kwargs.{key.partition('=')[0]}")
    assert entered[0] == outcome and told in entered[1]
    config = at(found, "actor_infer.strategy_args.strategy_config")
    assert not {"attention_backend", "batch_wait_timeout_iters", "swap_space"} & config.keys()


@cases("engine, value, outcome, argument")
def test_engines_of_eight_bits_are_those_of_vllm(engine: str, value: str, outcome: str, argument: str | None) -> None:
    found = of(f"{ROLLOUT}.name={engine}", f"+{ROLLOUT}.quantization={value}")
    assert entry(found, f"{ROLLOUT}.quantization")[0] == outcome
    assert at(found, "actor_infer.strategy_args.strategy_config").get("quantization") == argument
    assert found.is_as_meant == (outcome != "changes the run")


@cases("words, outcome, weight")
def test_the_loss_of_balance_has_its_weight(words: list[str], outcome: str, weight: float | None) -> None:
    config = f"{ACTOR}.megatron.override_transformer_config"
    names = {"coeff": "moe_aux_loss_coeff", "type": "moe_router_load_balancing_type"}
    given = [f"+{config}.{names[word.partition('=')[0]]}={word.partition('=')[2]}" for word in words]
    found = of(f"{ACTOR}.strategy=megatron", *given, version="v0.5.0")
    assert entry(found, f"{config}.moe_aux_loss_coeff")[0] == outcome
    assert at(found, "actor_train.model_args").get("moe_aux_loss_coef") == weight
    assert found.is_as_meant == (outcome != "changes the run")


def test_verl_before_0_2_has_its_entropy_and_leaves_long_prompts_out() -> None:
    old = of(f"{ACTOR}.ppo_micro_batch_size=16", "data.train_batch_size=256", version="v0.1")
    assert at(old, "entropy_loss_coef") == 0.001 and at(old, "actor_train.data_args.truncation") == "drop"
    new = of(f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", "data.train_batch_size=256")
    assert at(new, "entropy_loss_coef") == 0.0 and at(new, "actor_train.data_args.truncation") == "error"
    said = of(f"{ACTOR}.ppo_micro_batch_size=16", f"{ACTOR}.entropy_coeff=0", "data.filter_overlong_prompts=false")
    assert at(said, "entropy_loss_coef") == 0.0 and at(said, "actor_train.data_args.truncation") == "error"


@pytest.mark.parametrize(("mode", "temperature"), [("async", 0.7), ("sync", 0.0), (None, 0.7)])
def test_validation_of_loops_samples_whatever_do_sample_says(mode: str | None, temperature: float) -> None:
    kwargs = f"{ROLLOUT}.val_kwargs"
    words = (f"{kwargs}.temperature=0.7", f"{kwargs}.top_p=0.8", f"{kwargs}.do_sample=false")
    found = of(*words, *([f"{ROLLOUT}.mode={mode}"] if mode else []))
    args = at(found, "validation.generating_args")
    assert args["temperature"] == temperature and args.get("top_p") == (0.8 if temperature else None)
    told = entry(found, f"{kwargs}.do_sample")
    assert ("rollout.mode is async" in told[1]) == (mode != "sync")


@cases("exported, logger, kwargs")
@pytest.mark.parametrize("trainer", ["main_ppo", "sft_trainer"])
def test_variables_of_trackers_are_their_settings(
    exported: str, logger: str, kwargs: object, trainer: str, tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    words = "custom_reward_function.path=/f.py" if trainer == "main_ppo" else "data.max_length=8"
    words = f"{words} trainer.logger={logger} trainer.project_name=p data.train_files=/d"
    script.write_text(f"WANDB_ENTITY=me\nexport {exported}\npython -m verl.trainer.{trainer} {words}")
    found = imported_from(read(script), "verl")
    assert found.tree.get("tracker_kwargs") == kwargs
    names = [entry.key for entry in found.entries if entry.key.startswith("$")]
    assert names == [f"${word.partition('=')[0]}" for word in exported.split() if "id)" not in word and "=" in word]
    assert any("is taken from a program" in note for note in found.notes) == ("id)" in exported)


FILTER = "algorithm.filter_groups"


@cases("metric, words, told")
def test_a_filter_says_which_number_it_looks_at(metric: str, words: list[str], told: str) -> None:
    found = of(f"{FILTER}.enable=true", f"{FILTER}.metric={metric}", *words)
    outcome, note = entry(found, f"{FILTER}.metric")
    assert outcome == "approximated" and told in note
    assert ("Filters here look at" in note) == bool(told)


def test_the_choice_of_an_engine_s_files_is_the_strategy_of_all_roles() -> None:
    words = (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.megatron.tensor_model_parallel_size=2")
    chosen = of("model_engine=megatron", *words)
    assert chosen.is_as_meant and entry(chosen, "model_engine")[0] == "mapped"
    roles = {role: chosen.tree[role]["strategy_args"]["strategy_name"] for role in ("actor_train", "reference")}
    assert roles == {"actor_train": "megatron_train", "reference": "megatron_infer"}
    assert chosen.tree["reference"]["strategy_args"]["strategy_config"]["tensor_model_parallel_size"] == 2
    assert of("model_engine=dp").tree == of().tree
    both = of("model_engine=megatron", f"{ACTOR}.strategy=fsdp2", *words)
    assert both.tree["actor_train"]["strategy_args"]["strategy_name"] == "fsdp2_train"
    assert any("no trainer 'veomni'" in change for change in of("model_engine=veomni").changes)


@pytest.mark.parametrize("key", ["data.apply_chat_template_kwargs.chat_template", f"{MODEL}.custom_chat_template"])
def test_a_template_that_is_written_out_is_told_of_thinking(key: str) -> None:
    text = "{% for m in messages %}{{ m.content }}{% endfor %}"
    switch = "data.apply_chat_template_kwargs.enable_thinking"
    found = of(f"+{key}='{text}'", f"{switch}=false")
    assert found.is_as_meant and found.tree["global_template"] == text
    for role in ("actor_train", "validation"):
        assert found.tree[role]["data_args"]["template_kwargs"] == {"enable_thinking": False}
    alone = of(f"+{key}='{text}'", f"{switch}=null")
    assert alone.tree["global_template"] == text and "template_kwargs" not in alone.tree["actor_train"]["data_args"]


def test_parts_of_a_reward_are_compared_each_by_itself() -> None:
    keys = ("algorithm.gdpo_reward_keys=[accuracy, format]", "algorithm.gdpo_reward_weights=[1.0, 0.5]")
    own = ("reward.custom_reward_function.path=f.py", "reward.reward_manager.name=gdpo")
    found = of("algorithm.adv_estimator=gdpo", *keys, *own)
    tree = found.tree
    assert found.is_as_meant and tree["adv_estimator"] == "gdpo"
    assert (tree["gdpo_reward_keys"], tree["gdpo_reward_weights"]) == (["accuracy", "format"], [1.0, 0.5])
    penalised = of("algorithm.adv_estimator=gdpo", *keys, *own, "algorithm.use_kl_in_reward=true")
    assert "the KL in the reward counts here" in entry(penalised, "algorithm.adv_estimator")[1]
    assert not of(*keys).tree.keys() & {"gdpo_reward_keys", "gdpo_reward_weights"}, "grpo compares whole rewards"


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_a_baseline_for_every_token_is_one_here(name: str) -> None:
    found = of(f"algorithm.adv_estimator={name}", f"{ACTOR}.calculate_sum_pi_squared=true")
    assert found.is_as_meant and found.tree["adv_estimator"] == "optimal_token_baseline"
    assert "second-longest response" in entry(found, "algorithm.adv_estimator")[1]
    alone = of(f"algorithm.adv_estimator={name}", f"{ROLLOUT}.n=1")
    assert alone.tree["adv_estimator"] == "reinforce"
    kl = of(f"algorithm.adv_estimator={name}", "algorithm.use_kl_in_reward=true")
    assert "before answers are compared" not in entry(kl, "algorithm.adv_estimator")[1]


@pytest.mark.parametrize("name", ["reinforce", "raft", "opmd", "asymre"])
def test_an_estimator_that_verl_has_not_is_of_a_fork(name: str) -> None:
    """Trinity-RFT has these names, and what they mean there they mean here."""
    found = of(f"algorithm.adv_estimator={name}")
    (change,) = found.changes
    assert f"verl has no estimator {name}" in change and found.tree["adv_estimator"] == name


def test_the_time_of_a_reward_is_told_where_verl_has_no_limit() -> None:
    own = of("custom_reward_function.path=mine.py")
    outcome, note = entry(own, "custom_reward_function.path")
    assert outcome == "approximated" and "timeout_s, 30 s by default" in note
    assert any("timeout_s, 30 s by default" in note for note in of().notes), "verl's own function"
    prime = of("custom_reward_function.path=mine.py", "reward_model.reward_manager=prime")
    assert entry(prime, "custom_reward_function.path")[0] == "mapped"
    assert not any("30 s" in note for note in of("data.train_files=/d/gsm8k/a.parquet").notes), "math_rule is quick"


def test_arguments_of_a_reward_reach_it_as_they_are_written() -> None:
    kwargs = "custom_reward_function.reward_kwargs={weights: {form: 0.1}, parts: [{name: a}, {name: b}]}"
    made = at(of("custom_reward_function.path=mine.py", f"+{kwargs}"), "rewards.verl.reward_args")
    assert made["kwargs"] == {"weights": {"form": 0.1}, "parts": [{"name": "a"}, {"name": "b"}]}


def test_a_torchrun_without_a_number_starts_one_process() -> None:
    command = "torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=a model.partial_pretrain=m"
    tree, notes = _launched(command)
    assert tree["num_gpus_per_node"] == 1 and any("starts one process" in note for note in notes)
    tree, notes = _launched(f"{command} trainer.n_gpus_per_node=4")
    assert tree["num_gpus_per_node"] == 4 and not any("starts one process" in note for note in notes)
    assert _launched(command.replace("torchrun", "python3"))[0]["num_gpus_per_node"] == 8


def _launched(command: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    found = find_command(command)
    imported = imported_from(source_keys(Composed(), list(found.overrides), found), "verl")
    return imported.tree, imported.notes


@cases("module, told")
def test_groups_that_the_program_itself_would_not_filter_are_told(module: str, told: bool) -> None:
    command = find_command(f"python3 -m {module} {' '.join([*GRPO, *DATA])} algorithm.filter_groups.enable=True")
    found = imported_from(source_keys(Composed(), (), command), "verl")
    assert (
        any("main_ppo reads algorithm.filter_groups since" in note for note in found.notes) == told
        and found.is_as_meant
    )


def test_an_engine_that_is_not_here_is_named_once() -> None:
    found = of(f"{ROLLOUT}.name=vllm_omni", f"{ROLLOUT}.gpu_memory_utilization=0.6")
    (change,) = found.changes
    assert change.startswith(f"{ROLLOUT}.name: there is no engine 'vllm_omni' here")
    assert entry(found, f"{ROLLOUT}.gpu_memory_utilization")[0] == "asks for nothing"


def test_lengths_of_engines_that_differ_from_those_of_the_data_are_another_run() -> None:
    longer = of("data.max_response_length=2048", f"{ROLLOUT}.response_length=10240")
    assert any("Give data.max_response_length=10240 after the file" in change for change in longer.changes)
    assert not of("data.max_response_length=2048", f"{ROLLOUT}.response_length=2048").changes


def test_variables_of_the_workers_of_ray_are_those_of_workers_here() -> None:
    key = "ray_kwargs.ray_init.runtime_env.env_vars.JUDGE_SERVER"
    found = of(f'+{key}="http://judge:8000/v1"', "ray_kwargs.ray_init.num_cpus=8")
    assert found.tree["system_envs"] == {"JUDGE_SERVER": "http://judge:8000/v1"}
    assert entry(found, key)[0] == "mapped" and found.is_as_meant
    at = "ray_kwargs.ray_init.runtime_env.env_vars"
    others = of(f"+{at}.N=1", f"+{at}.JUDGE_API_KEY=sk-0123456789", f"+{at}.CUDA_VISIBLE_DEVICES='0,1'")
    assert others.tree["system_envs"] == {"N": "1"}
    assert entry(others, f"{at}.JUDGE_API_KEY")[0] == "not available"
    assert entry(others, f"{at}.CUDA_VISIBLE_DEVICES")[0] == "asks for nothing"


@pytest.mark.parametrize(("key", "is_told"), [("custom_reward_function.path=r.py", True), ("data.seed=1", False)])
def test_variables_that_a_reward_of_ones_own_may_read_go_with_the_run(key: str, is_told: bool) -> None:
    script = "export REWARD_MODE=partial MODEL=/m/a NCCL_DEBUG=INFO PYTHONUNBUFFERED=1 PYTHONPATH=/code HOME=/h\n"
    command = f"python3 -m verl.trainer.main_ppo {' '.join([*GRPO, *DATA])} {MODEL}.path=$MODEL {key}"
    found = imported_from(source_keys(Composed(), (), find_command(script + command)), "verl")
    told = [note for note in found.notes if "The script exports" in note]
    assert [note.split(", which")[0] for note in told] == (["The script exports PYTHONPATH"] if is_told else [])
    assert found.tree.get("system_envs") == ({"MODEL": "/m/a", "REWARD_MODE": "partial"} if is_told else None)


@pytest.mark.parametrize(("program", "cut"), [("recipe.dapo.main_dapo", True), ("verl.trainer.main_ppo", False)])
def test_the_recipe_of_dapo_has_its_own_defaults(program: str, cut: bool) -> None:
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    words = [f"{buffer}.enable=true", f"{buffer}.len=128", "trainer.logger=[wandb]"]
    found = imported_from(
        source_keys(Composed(), (), find_command(f"python3 -m {program} {' '.join([*GRPO, *DATA, *words])}")), "verl"
    )
    assert (at(found, "rewards.verl.reward_manager_config") is not None) is cut
    assert at(found, "tracker_kwargs.wandb.project") == ("verl-dapo" if cut else "verl_examples")


@pytest.mark.parametrize(("filters", "is_as_meant"), [("true", True), ("false", False)])
def test_prompts_that_the_recipe_of_dapo_generates_count_without_its_filter(filters: str, is_as_meant: bool) -> None:
    words = ["data.gen_batch_size=384", "data.train_batch_size=128", f"algorithm.filter_groups.enable={filters}"]
    command = find_command(f"python3 -m recipe.dapo.main_dapo {' '.join([*GRPO, *DATA, *words])}")
    found = imported_from(source_keys(Composed(), (), command), "verl")
    told = [*found.changes, *found.notes]
    assert any("rows / 384 steps" in each for each in told) is is_as_meant
    assert any("Give data.train_batch_size=384" in each for each in told) is not is_as_meant


@pytest.mark.parametrize(("filters", "is_as_meant"), [("true", True), ("false", False)])
def test_prompts_that_main_ppo_generates_are_those_that_it_trains_on(filters: str, is_as_meant: bool) -> None:
    words = ["data.gen_batch_size=384", "data.train_batch_size=128", f"algorithm.filter_groups.enable={filters}"]
    command = find_command(f"python3 -m verl.trainer.main_ppo {' '.join([*GRPO, *DATA, *words])}")
    found = imported_from(source_keys(Composed(), (), command), "verl")
    assert any("trains on all 384 prompts" in note for note in found.notes) is is_as_meant
    assert any("Give data.train_batch_size=384" in change for change in found.changes) is not is_as_meant


@cases("words, is_as_meant")
def test_a_part_of_the_validation_matters_where_one_takes_place(words: list[str], is_as_meant: bool) -> None:
    assert of("data.val_max_samples=100", "trainer.test_freq=0", *words).is_as_meant is is_as_meant
    assert not of("data.train_max_samples=100", "trainer.test_freq=0", *words).is_as_meant
