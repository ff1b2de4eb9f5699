"""From epochs to steps."""

from pathlib import Path
from typing import Any

import pytest

from roll.configs.checks.roles import run_problems, run_warnings
from roll.configs.load.defaults import with_epochs
from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows, describe
from roll.configs.tables.roles import ROLES
from roll.errors import ConfigError
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.sft.sft_config import SFTConfig
from roll.run.loop import of_known_length
from tests.helpers.configs import config
from tests.unit.pipeline.test_rlvr_pipeline import rlvr_run


def length(num_rows: int, rows_per_step: int, **keys: Any) -> int:
    made = config(keys)
    return of_known_length(made, build_plan(made), num_rows, rows_per_step)[0].max_steps


@pytest.mark.parametrize(
    "epochs, rows, per_step, steps",
    [(3, 10, 4, 8), (2, 8, 4, 4), (1, 3, 4, 1), (0.5, 10, 4, 2), (0.1, 30, 3, 1), (0.3, 10, 1, 3), (1e-9, 10, 4, 1)],
)
def test_steps_are_what_the_passes_over_the_rows_take_rounded_up(
    epochs: float, rows: int, per_step: int, steps: int
) -> None:
    assert length(rows, per_step, num_train_epochs=epochs) == steps


def test_max_steps_wins_and_the_plan_promises_nothing_uncounted() -> None:
    both = {"num_train_epochs": 3, "max_steps": 7}
    assert length(10, 4, **both) == 7
    assert length(10, 4) == 500
    made = config(both)
    assert "num_train_epochs: 3 does nothing here: max_steps: 7 counts." in list(run_warnings(made, build_plan(made)))
    made = config({"num_train_epochs": 1.5, "actor_train.training_args.warmup_ratio": 0.1})
    plan = build_plan(made)
    text = describe(made, plan, batch_rows(made, plan))
    assert text.startswith("roll: 1.5 epochs (steps by the number of rows), seed 42")
    assert "updates by the number of rows, 10% of them warm-up" in text
    assert "500" not in text.splitlines()[0]
    made = AgenticConfig.model_validate({"num_train_epochs": 1})
    texts = [problem.text for problem in run_problems(made)]
    told = "num_train_epochs: only the environments roll_math and roll_qa have rows that epochs can count."
    assert f"{told} Set max_steps." in texts
    assert not RLVRConfig.model_validate({"max_steps": 3, "num_train_epochs": 1}).counts_epochs


def test_schedules_and_warm_up_follow_from_the_rows() -> None:
    """20 steps, of which the policy waits for 5; a step makes 1 update of it."""
    critic = {"strategy_args": {"strategy_name": "deepspeed_train"}, "training_args": {"warmup_ratio": 0.1}}
    critic["training_args"] |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 16}
    keys = {"critic": critic, "adv_estimator": "gae", "critic_warmup": 5, "actor_train.training_args.warmup_steps": 3}
    made = config({**keys, "num_train_epochs": 2})
    settled, plan = of_known_length(made, build_plan(made), 10 * made.num_groups, made.num_groups)
    known = build_plan(config({**keys, "max_steps": 20}))
    assert settled.max_steps == 20 and not settled.counts_epochs
    assert dict(plan.trains) == dict(known.trains)
    assert (plan.actor_train.steps, plan.actor_train.warmup_updates) == (15, 3)
    assert plan.critic is not None and plan.critic.warmup_updates == 2 * plan.critic.updates_per_step


def test_rolls_place_of_the_epochs_counts_where_the_run_says_nothing() -> None:
    args = {"num_train_epochs": 3, "learning_rate": 1e-5}
    tree = {"sft_train": {"training_args": args}, "pretrain": "model"}
    moved = with_epochs(tree, SFTConfig.role_table)
    assert moved == {
        "sft_train": {"training_args": {"learning_rate": 1e-5}},
        "pretrain": "model",
        "num_train_epochs": 3,
    }
    assert tree["sft_train"] == {"training_args": args}
    for key in ("max_steps", "total_epochs"):
        assert with_epochs({**tree, key: 10}, SFTConfig.role_table) == {**tree, key: 10}
    critic = {"critic": {"training_args": args}}
    assert with_epochs(critic, ROLES) == critic


def test_an_rlvr_run_counts_its_prompts_and_a_resumed_one_comes_to_the_same(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    data = [str(number) for number in range(70)]
    runs = [rlvr_run(tmp_path, tiny_model_dir, data, num_train_epochs=2) for _ in range(2)]
    for run in runs:
        run.prepare(None)
        run.loop.close()
        assert run.config.max_steps == run.plan.actor_train.steps == -(-140 // run.plan.num_groups)
        assert run.plan.val_prompt_length == run.config.prompt_length
    assert runs[0].config.model_dump() == runs[1].config.model_dump()


def test_a_critic_that_learns_alone_until_the_end_is_refused_once_the_rows_are_counted(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    critic = {"strategy_args": {"strategy_name": "deepspeed_train"}, "training_args": {}}
    critic["training_args"] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 16}
    keys = {"num_train_epochs": 1, "critic": critic, "adv_estimator": "gae", "critic_warmup": 4}
    run = rlvr_run(tmp_path, tiny_model_dir, ["1", "2"], **keys)
    with pytest.raises(
        ConfigError, match="critic_warmup: 4 leaves no step in which the policy is trained, max_steps: 1"
    ):
        run.prepare(None)
    run.loop.close()
