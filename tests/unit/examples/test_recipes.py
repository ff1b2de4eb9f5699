"""Recipes in the shape of ROLL's load under --dry_run, or are refused for the reason that their first line gives."""

import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from roll.commands.run import main

FOLDER = Path(__file__).parents[2] / "recipes"
SECRETS = ("sk-wandb-secret-0815", "sesame-0815-open")


class Recipe(NamedTuple):
    """`mark`: what stops it, None where it loads. `waits`: only until a feature is there."""

    pipeline: str
    name: str
    mark: str | None
    waits: bool

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.name}"


def recipe(path: Path) -> Recipe:
    first = path.read_text().splitlines()[0]
    kind, _, mark = first.removeprefix("# ").partition(": ")
    marked = first.startswith("# ")
    assert not marked or kind in ("Refused", "Waits for"), f"{path}: {first}"
    return Recipe(path.parent.name, path.stem, mark if marked else None, marked and kind == "Waits for")


RECIPES = [recipe(path) for name in ("rlvr", "agentic", "distill") for path in sorted((FOLDER / name).glob("*.yaml"))]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_the_recipe_loads_or_is_refused_as_its_first_line_says(
    recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(FOLDER / recipe.pipeline)
    code = main(recipe.pipeline, ["--config_path", place, "--config_name", recipe.name, "--dry_run", "--elsewhere"])
    shown = capsys.readouterr()
    assert not [secret for secret in SECRETS if secret in shown.out + shown.err]
    if recipe.mark is not None and not (recipe.waits and code == 0):
        assert code == 2, "it loads now: remove its first line"
        assert recipe.mark in shown.err
        return
    assert code == 0, shown.err
    assert "The plan works." in shown.out
    if recipe.mark is not None:
        warnings.warn(f"tests/recipes/{recipe} loads now: remove its first line", stacklevel=1)


def test_so_many_recipes_load() -> None:
    loading = Counter(recipe.pipeline for recipe in RECIPES if recipe.mark is None)
    assert loading["rlvr"] >= 42 and loading["agentic"] >= 15, loading
