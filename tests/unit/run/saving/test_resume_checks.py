import json
from pathlib import Path
from typing import Any

import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.strategies.table import required_facts
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.errors import ConfigError
from roll.run.saving.checkpoint import Checkpoint, DriverState
from roll.run.saving.resume import RLState, check_resume, data_place, state_of_roles
from tests.helpers.configs import config

RATE = "actor_train.training_args.learning_rate"


def saved(directory: Path, settings: dict[str, Any], **run: Any) -> Checkpoint:
    """A checkpoint as a run with these settings writes it, without weights."""
    made = config(settings)
    plan = build_plan(made)
    for role, worker in made.learning_roles.items():
        (directory / role).mkdir(exist_ok=True)
        SavedFacts(required_facts(worker, plan.trains[role].dp_size)).write(directory / role)
    state = {"data": {}, "kl_coef": 0.2, "running_moments": {}, **state_of_roles(made, plan), **run}
    return Checkpoint(directory, DriverState(steps_done=3, run=state, config=made.model_dump(mode="json")))


def resume(checkpoint: Checkpoint, settings: dict[str, Any]) -> frozenset[str]:
    made = config(settings)
    return check_resume(checkpoint, made, build_plan(made), RLState)[1]


def refusal(checkpoint: Checkpoint, settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        resume(checkpoint, settings)
    return str(caught.value)


def test_what_is_applied_is_told_in_a_line_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert resume(saved(tmp_path, {}), {"output_dir": "elsewhere", "save_steps": 7}) == frozenset()
    assert caplog.messages == []
    assert resume(saved(tmp_path, {RATE: 1e-5, "pg_clip": 0.2}), {RATE: 1e-6, "pg_clip": 0.3}) == {RATE, "pg_clip"}
    assert [message.split(" (")[0] for message in caplog.messages] == [
        f"resuming with another setting: {RATE}: 1e-05 -> 1e-06",
        "resuming with another setting: pg_clip: 0.2 -> 0.3",
    ]


def test_everything_that_cannot_go_on_is_refused_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = {
        "seed": 43,
        "actor_train.data_args.shuffle": False,
        "actor_train.strategy_args.strategy_config": {"zero_optimization": {"stage": 2}},
        "actor_train.model_args.dtype": "fp32",
    }
    text = refusal(saved(tmp_path, {}), now)
    assert "seed: 42 -> 43 since the checkpoint, but the order of the data comes from it" in text
    assert "actor_train.data_args.shuffle: true -> false since the checkpoint" in text
    assert "actor_train was saved with dtype 'bf16' (now 'fp32'), zero_stage 0 (now 2)" in text
    assert caplog.messages == []


def test_another_number_of_updates_per_step_needs_a_constant_rate(tmp_path: Path) -> None:
    checkpoint, more = saved(tmp_path, {}), {"rollout_batch_size": 64}
    assert "4 updates per step in the checkpoint, 8 now" in refusal(checkpoint, more)
    constant = {"actor_train.training_args.lr_scheduler_type": "constant"}
    assert resume(checkpoint, more | constant) == {"rollout_batch_size", *constant}


def test_another_number_of_ranks_is_refused_for_deepspeed(tmp_path: Path) -> None:
    text = refusal(saved(tmp_path, {}), {"actor_train.device_mapping": [0]})
    assert "actor_train was saved with dp_size 2 (now 1)" in text


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    for name, layers in (("small", 2), ("large", 3)):
        (tmp_path / name).mkdir()
        content = {"model_type": "qwen2", "num_hidden_layers": layers, "text_config": ["none"]}
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    checkpoint = saved(tmp_path, {"pretrain": str(tmp_path / "small")})
    text = refusal(checkpoint, {"pretrain": str(tmp_path / "large")})
    assert "actor_train: the model had num_hidden_layers 2 (now 3): its weights do not fit." in text
    content = {"model_type": "qwen2", "vocab_size": 8, "text_config": ["none"]}
    (tmp_path / "large" / "config.json").write_text(json.dumps(content))
    text = refusal(checkpoint, {"pretrain": str(tmp_path / "large")})
    assert "the model had num_hidden_layers 2 (now None)" in text
    (tmp_path / "small").rename(tmp_path / "moved")
    assert resume(checkpoint, {"pretrain": str(tmp_path / "moved")}) == frozenset()


LORA = {"actor_train.model_args.lora_target": "q_proj"}


def test_adapters_go_on_with_the_model_that_they_were_trained_on(tmp_path: Path) -> None:
    """A checkpoint holds them alone. Without LoRA the weights come from it, wherever the model lies now."""
    found = refusal(saved(tmp_path, LORA), LORA | {"pretrain": "org/another"})
    assert (
        "actor_train.model_args.model_name_or_path: org/model -> org/another since the checkpoint, which hol" in found
    )
    assert resume(saved(tmp_path, {}), {"pretrain": "org/another"}) == frozenset()
    assert resume(saved(tmp_path, LORA), LORA) == frozenset()


def test_adapters_of_another_form_are_refused(tmp_path: Path) -> None:
    then = saved(tmp_path, LORA)
    assert "was saved with lora 'q_proj of rank 8 and alpha 16' (now 'q_proj of rank 4 and alpha 8')" in refusal(
        then, LORA | {"actor_train.model_args.lora_rank": 4}
    )
    assert "was saved with lora 'q_proj of rank 8 and alpha 16' (now None)" in refusal(then, {})


def test_a_critic_that_the_checkpoint_lacks_is_refused(tmp_path: Path) -> None:
    critic = {
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "training_args": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2},
        "device_mapping": "list(range(0, 2))",
    }
    assert "critic: " in refusal(saved(tmp_path, {}), {"adv_estimator": "gae", "critic": critic})


def test_weight_decay_may_come_and_go(tmp_path: Path) -> None:
    decay = {"actor_train.training_args.weight_decay": 0.1}
    assert resume(saved(tmp_path, {}), decay) == set(decay)


def test_a_place_in_another_kind_of_data_is_refused(tmp_path: Path) -> None:
    from roll.pipeline.agentic.env_rollouter import EnvTaskSource

    made = config({})
    state, _ = check_resume(saved(tmp_path, {}, data={"drawn": {}}), made, build_plan(made), RLState)
    with pytest.raises(ConfigError, match="its place in the data cannot be read"):
        data_place(EnvTaskSource(("a",), (0, 9), 1), state.data, tmp_path)
