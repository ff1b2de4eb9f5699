"""The estimator, the loss and the reward of docs/adding_an_estimator.md, adding_a_loss.md and adding_a_reward.md in one
run, with their files, a module of external_lib and the YAML in a folder outside the repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.pages import snippets, write_files
from tests.helpers.runs import REPOSITORY, Run

REGISTERS = '''"""A module that says in which roles it was imported, and that no model was loaded there before."""
import os, sys
from pathlib import Path

assert "transformers.modeling_utils" not in sys.modules or "ROLL_ROLE" not in os.environ
Path(__file__).with_name("imported-" + os.environ.get("ROLL_ROLE", "driver")).touch()
'''
REWARD = "rewards.sort"


@pytest.mark.slow
def test_an_estimator_a_loss_and_a_reward_from_a_folder_outside_train(
    sort_data: Path, start_run: Callable[..., Run], tmp_path: Path
) -> None:
    """8 answers to a prompt of which k are right give a right one (8 - k) / k: a whole number or a fraction that GRPO
    never gives. Two updates per step move the policy, so the gate is open at 1 in the first and less after it; the
    driver computes the one, the workers of actor_train the other, a process of the reward what is right, each from the
    user's file. No answer has 0 characters, so that none earns the part for a short one."""
    folder = tmp_path / "mine"
    folder.mkdir()
    codes = snippets("adding_an_estimator.md", "python") + snippets("adding_a_loss.md", "python")
    assert {"maxrl", "soft_gate"} <= {*write_files(codes, folder)}
    (folder / "my_rewards.py").write_text(snippets("adding_a_reward.md", "python")[0])
    (folder / "registers.py").write_text(REGISTERS)
    shutil.copy(REPOSITORY / "examples" / "tiny-sort" / "tiny_sort.yaml", folder / "mine.yaml")
    run = start_run(
        sort_data,
        "mine",
        "adv_estimator=maxrl:max_rl",
        "pg_variant=soft_gate:SoftGate",
        "pg_args={tau_negative: 1.1}",
        "rewards.sort.reward=my_rewards:brevity",
        "~rewards.sort.reward_args.pattern",
        "rewards.sort.reward_args.max_chars=0",
        "actor_train.training_args.gradient_accumulation_steps=2",
        "external_lib=registers",
        "max_steps=3",
        "eval_steps=-1",
        "save_steps=-1",
        example=folder,
    ).finished()
    possible = [(8 - k) / k for k in range(1, 8)]
    for step in (1, 2, 3):
        row = run.metrics[step]
        assert any(row["actor/advantage_max"] == pytest.approx(value, rel=1e-5) for value in possible), row
        assert 0.9 < row["actor/gate_slope_mean"] < 1
        assert row["actor/num_updates"] == 2
        assert row["rollout/short_mean"] == 0 < row["rollout/correct_mean"] == pytest.approx(row["rollout/reward_mean"])
    imported = {file.name for file in folder.glob("imported-*")}
    assert imported == {"imported-driver", *(f"imported-{role}" for role in ("actor_train", "actor_infer", REWARD))}
    run.own_metrics.add("actor/gate_slope_mean")
