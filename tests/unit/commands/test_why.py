"""`roll why`: what it tests, and how it compares a changed run with the run itself."""

import json
import os
from pathlib import Path

import pytest

from roll.commands.why import HELPS, _changes, _effect, run
from roll.run.health.diagnosis import Cause
from roll.utils.imports import own_folders
from tests.unit.commands.test_fork import first_run

BEFORE = [(step, {"rollout/reward_mean": 0.1 + 0.01 * (step % 2)}) for step in range(1, 21)]


def test_a_change_helps_if_the_same_steps_earn_more_than_their_noise() -> None:
    better = [(step, {"rollout/reward_mean": row["rollout/reward_mean"] + 0.02 * step}) for step, row in BEFORE]
    found = _effect([BEFORE], [better], 0, 10)
    assert found.startswith("rollout/reward_mean over steps 6 to 10 0.104 -> 0.264 (+0.16 +- ")
    assert found.endswith(HELPS)
    noise = [(step, {"rollout/reward_mean": 0.105 + 0.02 * (step % 3 - 1)}) for step, _ in BEFORE]
    assert not _effect([BEFORE], [noise], 0, 20).endswith(HELPS)
    assert _effect([BEFORE], [better], 18, 20) == "2 equal steps are too few to compare"


def test_a_loss_is_better_if_it_is_lower() -> None:
    loss = [(step, {"train/nll_mean": 2.0 + 0.01 * (step % 2)}) for step in range(1, 11)]
    lower = [(step, {"train/nll_mean": 1.0}) for step in range(1, 11)]
    assert _effect([loss], [lower], 0, 10).endswith(HELPS) and not _effect([lower], [loss], 0, 10).endswith(HELPS)


def test_of_a_learning_rate_a_tenth_is_tested_too() -> None:
    key = "actor_train.training_args.learning_rate"
    assert list(_changes(Cause("too high", key, "1e-02"))) == [f"{key}=1e-02", f"{key}=1e-03"]
    assert list(_changes(Cause("no bound", "use_kl_loss", "true"))) == ["use_kl_loss=true"]


def test_a_change_must_help_with_every_seed() -> None:
    def more(by: float) -> list[tuple[int, dict[str, float]]]:
        return [(step, {"rollout/reward_mean": row["rollout/reward_mean"] + by}) for step, row in BEFORE]

    found = _effect([BEFORE] * 3, [more(0.2), more(0.3), more(0.1)], 0, 10)
    assert "(+0.2 +- 0.1, better with 3 of 3 seeds)" in found and found.endswith(HELPS)
    found = _effect([BEFORE] * 3, [more(0.5), more(0.5), more(-0.1)], 0, 10)
    assert "better with 2 of 3 seeds" in found and not found.endswith(HELPS)


def test_a_plan_says_which_runs_and_how_long(tmp_path: Path) -> None:
    first = first_run(tmp_path / "first", max_steps=40)
    rewards = {"rollout/reward_mean": 0.3, "rollout/reward_min": 0.0, "rollout/reward_max": 1.0}
    rows = [{"step": step, "time/step_s": 30.0, "actor/clip_fraction": 0.6, **rewards} for step in range(1, 31)]
    (first / "logs/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    *_, command, last = run([str(first), "--plan", "--steps", "20", "--causes", "1"])
    assert "actor_train.training_args.learning_rate=" in command
    assert command.startswith(f"cd {Path.cwd()} && PYTHONPATH={os.pathsep.join(own_folders())} roll run "), "it starts"
    assert last == "at most 2 runs of 20 steps: ~20 min at this run's 30 s a step, beside their starts"
    *_, last = run([str(first), "--plan", "--steps", "700", "--causes", "1"])
    assert last.startswith("at most 2 runs of 40 steps: "), "the run has no more"
    with pytest.raises(SystemExit):
        list(run([str(first), "--steps", "0"]))
