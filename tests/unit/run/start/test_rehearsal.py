"""A run that would wait for ever is refused with its numbers, before it starts."""

import pytest

from roll.run.start.start_checks import rehearsal_problems
from tests.helpers.configs import config


def test_a_sound_run_passes() -> None:
    assert list(rehearsal_problems(config())) == []


def test_a_deadlock_is_a_problem_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.distributed.scheduler.rehearsal.rehearse", lambda *numbers: f"deadlock of {numbers}")
    made = config({"rollout_batch_size": 8, "is_use_additional_prompts": True, "max_steps": 3})
    (problem,) = rehearsal_problems(made)
    assert problem.keys == ("rollout_batch_size",)
    assert problem.text.startswith("8 groups a step, 8 in flight: deadlock of (RolloutBounds(num_groups=8,")
    assert problem.text.endswith(", 8, 3).")
