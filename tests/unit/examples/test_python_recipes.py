"""The recipes in one file: each is complete and short, and what it starts would start here."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import roll
from tests.layout.source import REPOSITORY

RECIPES = sorted((REPOSITORY / "examples/recipes").glob("*.py"))


class _PlannedOnly(Exception):
    pass


def test_there_are_five_recipes_of_less_than_80_lines() -> None:
    names = [path.stem for path in RECIPES]
    assert names == ["agent_loop", "async", "own_estimator", "rl_loop", "sft_loop"]
    assert all(len(path.read_text().splitlines()) < 80 for path in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_starts_what_can_be_planned(
    recipe: Path,
    make_tiny_model_dir: Callable[..., Path],
    sort_task: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[roll.Plan] = []

    def start(config: Any = None, **arguments: Any) -> None:
        plans.append(roll.plan(config, **arguments))
        raise _PlannedOnly

    model = tmp_path / "model"
    model.symlink_to(make_tiny_model_dir(hidden_size=32))
    for name in ("train", "test"):
        row = {"prompt": "3142", "ground_truth": "1234", "tag": "sort"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("TINY_SORT_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(roll, "start", start, raising=False)
    monkeypatch.setattr(subprocess, "run", lambda words, check: None)
    monkeypatch.setattr(sys, "argv", [str(recipe)])
    with pytest.raises(_PlannedOnly):
        runpy.run_path(str(recipe), run_name="__main__")
    (plan,) = plans
    assert plan.problems == ()
    assert plan.warnings == ()
