"""What a stage has of its YAML, what it leaves out, and whose model its roles start from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.errors import ConfigError
from roll.run.stages.entries import PLACES
from roll.run.stages.planned import Stage
from tests.helpers.cases import cases
from tests.helpers.configs import config
from tests.unit.run.stages.conftest import LEARNER, LONG, SHORT, WARM_UP

Planner = Callable[..., list[Stage]]
REFERENCE = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [3]}
PAIRS = {"data_args": {"file_name": "sft.jsonl"}, **LEARNER}
JUDGE: dict[str, Any] = {"name": "judge", "pipeline": "rm", "max_steps": 3, "reward_train": PAIRS}
KL = {"reference": REFERENCE, "use_kl_loss": True, "kl_loss_coef": 0.01}


def refused(plan: Planner, *stages: Any, **given: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as error:
        plan(*stages, **given)
    return error.value.problems


def test_keys_of_stages_change_the_yaml_and_are_never_left_out(plan: Planner) -> None:
    warm_up, short, long = plan(shared={"seed": 7, "max_steps": 50})
    assert [stage.loaded.config.seed for stage in (warm_up, short, long)] == [7, 7, 7]
    assert [stage.loaded.config.max_steps for stage in (warm_up, short, long)] == [6, 4, 5]
    lengths = [stage.loaded.config.value("response_length") for stage in (short, long)]
    assert lengths == [8, 12]
    assert [stage.spec.name for stage in (warm_up, short, long)] == ["sft", "rlvr", "rlvr"]
    shared = {"actor_infer.generating_args": {"stop_strings": ["a", "b"], "top_p": 0.9}, "max_grad_norm": 0.5}
    changes = {"actor_infer": {"generating_args": {"stop_strings": ["c"]}}, "max_grad_norm": None}
    (stage,) = plan({**SHORT, **changes}, shared=shared)
    sampling = stage.loaded.config.value("actor_infer").generating_args
    assert (sampling.stop_strings, sampling.top_p) == (("c",), 0.9)
    assert stage.loaded.config.max_grad_norm == 1.0
    _, second = plan(SHORT, {**LONG, "max_steps": "${many}"}, shared={"many": 9})
    assert second.loaded.config.max_steps == 9
    (problem,) = refused(plan, shared={"rolout_batch_size": 32})
    assert "(long): rolout_batch_size: unknown key (value 32). Did you mean rollout_batch_size?" in problem
    (problem,) = refused(plan, {**WARM_UP, "rollout_batch_size": 32}, SHORT)
    assert problem.startswith("stages[0] (warm-up): rollout_batch_size: unknown key")


def test_every_stage_has_folders_of_its_own(plan: Planner) -> None:
    shared = {"logging_dir": "logs", "checkpoint_config.output_dir": "ckpt", "exp_name": "sums"}
    _, short, long = plan(WARM_UP, {**SHORT, "logging_dir": "elsewhere"}, LONG, shared=shared)
    assert (short.loaded.config.exp_name, long.loaded.config.exp_name) == ("sums-short", "sums-long")
    assert (short.loaded.config.output_dir, short.loaded.config.logging_dir) == ("out/2-short", "elsewhere")
    assert (long.loaded.config.output_dir, long.loaded.config.logging_dir) == ("out/3-long", "logs/3-long")
    assert str(long.loaded.config.checkpoint_dir) == "ckpt/3-long"
    assert long.loaded.config.value("rollout_dump_dir") == "out/3-long/rollouts"
    warm_up, *_ = plan(shared={"output_dir": ...})
    assert warm_up.loaded.config.output_dir == "./output/run/1-warm-up"
    assert {*PLACES, "output_dir"} >= config({"profiler_timeline": True}).directories.keys()


def test_variables_have_the_value_of_their_stage(plan: Planner) -> None:
    shared = {"length": 10, "response_length": "${length}", "zero": {"zero_optimization": {"stage": 2}}}
    shared["actor_train.strategy_args.strategy_config"] = "${zero}"
    clip = {"actor_train": {"strategy_args": {"strategy_config": {"wall_clock_breakdown": True}}}}
    first, second = plan({**LONG, **clip}, {"name": "more", "length": 11, "max_steps": 2}, shared=shared)
    assert [stage.loaded.config.value("response_length") for stage in (first, second)] == [10, 11]
    options = [stage.loaded.config.value("actor_train").strategy_config for stage in (first, second)]
    assert options == [
        {"zero_optimization": {"stage": 2}, "wall_clock_breakdown": True},
        {"zero_optimization": {"stage": 2}},
    ]


def test_kinds_of_stages_are_named_or_follow_from_keys(plan: Planner) -> None:
    shared = {"validation": {"data_args": {"file_name": "sft.jsonl"}, "generating_args": {"temperature": 0.0}}}
    warm_up, short, _ = plan(shared={**shared, "total_epochs": 3, "use_additional_prompts": False})
    left_out = set(warm_up.left_out)
    assert left_out >= {"actor_train", "actor_infer", "rewards", "rollout_batch_size", "use_additional_prompts"}
    assert "validation" not in left_out and warm_up.loaded.config.value("validation") is not None
    assert short.left_out == ()
    assert f"left out: {', '.join(warm_up.left_out)}" in "\n".join(warm_up.lines(3))
    named = {**{key: value for key, value in WARM_UP.items() if key != "pipeline"}, "algorithm": "sft"}
    warm_up, short = plan(named, SHORT, shared={"algorithm": "grpo", "adv_estimator": ...})
    assert (warm_up.spec.name, short.spec.name) == ("sft", "rlvr")
    assert warm_up.loaded.config.value("algorithm") == "sft" and short.loaded.config.value("algorithm") == "grpo"
    inherits, _ = plan(WARM_UP, SHORT, shared={"algorithm": "grpo", "adv_estimator": ...})
    assert inherits.loaded.config.value("algorithm") is None and "algorithm" in inherits.left_out
    (stage,) = plan(SHORT, script=None)
    assert stage.spec.name == "rlvr"
    both, _ = plan({**SHORT, "pipeline": "rlvr"}, {**LONG, "pipeline": "rlvr"}, script="sft")
    assert both.spec.name == "rlvr"


def test_stages_that_cannot_follow_each_other_are_refused(plan: Planner) -> None:
    problems = refused(plan, {**WARM_UP, "sequence_length": 0}, SHORT, {**LONG, "rollout_batch_size": 33})
    assert problems[0] == "stages[0] (warm-up): sequence_length: 0 must be greater than or equal to 2."
    assert problems[1].startswith("stages[2] (long): ") and "Set rollout_batch_size to a multiple of 8" in problems[1]
    assert len(problems) == 2
    (problem,) = refused(plan, shared={"save_steps": -1})
    assert problem.startswith("save_steps: -1 saves nothing.")
    (problem,) = refused(plan, shared={"mode": "train"})
    assert problem == "mode: 'train': a stage samples and trains in one process. Take it out."
    (problem,) = refused(plan, shared={"resume_from_checkpoint": "out/step_000003"})
    assert problem.startswith("resume_from_checkpoint: stages resume by themselves.")


def test_a_policy_is_handed_to_every_role_that_the_yaml_would_start_from_pretrain(plan: Planner) -> None:
    warm_up, short, long = plan(WARM_UP, {**SHORT, **KL}, {**LONG, **KL})
    assert warm_up.models == {}
    assert short.models == dict.fromkeys(("actor_train", "actor_infer", "reference"), "warm-up")
    assert long.models == dict.fromkeys(("actor_train", "actor_infer", "reference"), "short")
    config = long.over({"short": "out/2-short/checkpoints/step_000004"}).config
    for role in long.models:
        assert config.model_roles[role].model_args.model_name_or_path == "out/2-short/checkpoints/step_000004/hf_model"
    assert long.loaded.config.value("actor_train").model_args.model_name_or_path == "model", "whose shape it has"
    assert "actor_train, actor_infer, reference: the model that short leaves" in "\n".join(long.lines(3))


@cases("changes, expected")
def test_a_stage_may_say_otherwise(plan: Planner, changes: dict[str, Any], expected: dict[str, str]) -> None:
    *_, long = plan(WARM_UP, SHORT, {**LONG, **changes}, shared=KL)
    assert long.models == expected


def test_what_was_learnt_takes_the_place_of_models_that_the_yaml_names(plan: Planner) -> None:
    shared = {**KL, "reference.model_args.model_name_or_path": "first", "actor_train.model_args.dtype": "fp32"}
    *_, long = plan(WARM_UP, LONG, shared=shared)
    assert long.models["reference"] == "warm-up"
    *_, long = plan(WARM_UP, {**LONG, "models": {"reference": "start"}}, shared=shared)
    assert long.loaded.config.value("reference").model_args.model_name_or_path == "first"
    lora = {"lora_target": "all-linear", "lora_rank": 4, "adapter_name_or_path": "adapters"}
    shared = {"actor_train.model_args": lora}
    first, second = plan(SHORT, LONG, shared=shared)
    assert first.loaded.config.value("actor_train").model_args.adapter_name_or_path == "adapters"
    assert second.loaded.config.value("actor_train").model_args.adapter_name_or_path is None
    assert second.loaded.config.value("actor_train").model_args.lora_rank == 4
    teacher = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [0]}
    models = {"actor_train": "start", "actor_infer": "start", "teacher": "short"}
    _, long = plan(SHORT, {**LONG, "is_pure_opd": True, "teacher": teacher, "models": models})
    assert (long.models, long.shown.config.value("teacher.model_args.model_name_or_path")) == (
        {"teacher": "short"},
        "of short/hf_model",
    )


def test_a_reward_model_is_handed_to_what_scores_with_one_and_the_policy_stays_the_policys(plan: Planner) -> None:
    reward = {"reward": "reward_model", "strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [4]}
    critic = {**LEARNER, "device_mapping": [0, 1], "training_args": {"per_device_train_batch_size": 16}}
    shared = {"rewards": {"math": reward}, "critic": critic, "adv_estimator": "gae"}
    _, judge, rl = plan(WARM_UP, JUDGE, {**LONG, "name": "rl"}, shared=shared)
    assert judge.models == {"reward_train": "warm-up"}
    assert rl.models == {
        "actor_train": "warm-up",
        "actor_infer": "warm-up",
        "critic": "judge",
        "rewards.math": "judge",
    }
    config = rl.over({"warm-up": "a", "judge": "b"}).config
    assert config.model_roles["rewards.math"].model_args.model_name_or_path == "b/hf_model"


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"refrence": "start"}, "models.refrence: there is no such role with a model in this stage."),
        ({"actor_train": "long"}, "models.actor_train: long is no stage before this one."),
        ({"actor_train": "judge"}, "models.actor_train: judge leaves a reward model, from which actor_train cannot"),
    ],
)
def test_models_that_cannot_be_are_refused(plan: Planner, models: dict[str, str], message: str) -> None:
    (problem,) = refused(plan, WARM_UP, JUDGE, {**LONG, "models": models})
    assert problem.startswith(f"stages[2] (long): {message}")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "stages: [] must be a list of stages, each with a name and the keys that it changes."),
        ("warm-up", "stages: 'warm-up' must be a list of stages"),
        (["warm-up"], "stages[0]: 'warm-up' must be a mapping with a name"),
        ([{"max_steps": 3}], "stages[0].name is missing."),
        ([{"name": "1st"}], "stages[0].name: '1st' must be a letter"),
        ([{"name": "a/b"}], "stages[0].name: 'a/b' must be a letter"),
        ([{"name": "start"}], "stages[0].name: 'start' must be a letter"),
        ([SHORT, SHORT], "stages[1].name: short is the name of stages[0] as well."),
        ([{**SHORT, "output_dir": "x"}], "stages[0].output_dir: a stage writes to <output_dir>/<number>-<name>"),
        ([{**SHORT, "resume_from_checkpoint": "x"}], "stages[0].resume_from_checkpoint: stages resume by themselves"),
        ([{**SHORT, "stages": []}], "stages[0].stages: a stage has none of its own."),
        ([{**SHORT, "mode": "explore"}], "stages[0].mode: 'explore': a stage samples and trains in one process."),
        ([{**SHORT, "models": 3}], "stages[0].models: 3 must be a mapping of keys to values."),
        ([{**SHORT, "pipeline": "sfd"}], "stages[0] (short): pipeline: "),
    ],
)
def test_a_list_that_is_none_is_refused(
    folder: Path, write: Callable[..., None], stages: Any, message: str, plan: Planner
) -> None:
    from roll.configs.load.loader import compose_tree
    from roll.run.stages.planned import plan_stages

    write()
    raw = compose_tree(folder, "run", ())
    raw.tree["stages"] = stages
    with pytest.raises(ConfigError) as error:
        plan_stages(raw, (), "rlvr")
    (problem,) = error.value.problems
    assert problem.startswith(message)


def test_overrides_name_a_stage_or_its_place(plan: Planner) -> None:
    overrides = ("stages.short.max_steps=9", "stages.2.max_steps=8", "seed=3")
    _, short, long = plan(overrides=overrides)
    assert [stage.loaded.config.max_steps for stage in (short, long)] == [9, 8]
    assert long.loaded.config.seed == 3
    (problem,) = refused(plan, overrides=("stages.shrt.max_steps=9",))
    assert problem == (
        "override stages.shrt.max_steps=9: shrt is not a position in a list of 3, and none of its names: warm-up, "
        "short, long."
    )


def test_what_is_to_be_taken_away_is_told_as_it_was_written(plan: Planner) -> None:
    (problem,) = refused(plan, overrides=("~stages.shrt",))
    assert problem.startswith("override ~stages.shrt: shrt is not a position in a list of 3, and none of its names: ")
    (problem,) = refused(plan, shared={"max_steps": 3}, overrides=("~max_steps",))
    assert problem.startswith(
        "override '~max_steps' changes nothing: every stage has a max_steps of its own. Write ~st"
    )


def test_an_override_in_whose_place_every_stage_has_its_own_is_refused(plan: Planner) -> None:
    (problem,) = refused(plan, overrides=("max_steps=9",))
    assert problem == (
        "override 'max_steps=9' changes nothing: every stage has a max_steps of its own. Write "
        "stages.warm-up.max_steps=value for one of them."
    )
