"""Every YAML in examples/ has a plan that works."""

import re
from pathlib import Path

import pytest
import yaml

from roll.commands.run import main
from roll.configs.strategies.deepspeed import DeepSpeedFacts, deepspeed_problems
from tests.helpers.cases import cases

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MODELS = EXAMPLES.parent / "tests" / "unit" / "configs" / "memory" / "models"
FRAGMENTS = sorted((EXAMPLES / "config").glob("deepspeed_*.yaml"))
RECIPES = sorted(
    path
    for path in EXAMPLES.glob("*/*.yaml")
    if path.parent.name != "config" and "rewards" in yaml.safe_load(path.read_text(encoding="utf-8"))
)
KINDS = ("sft", "dpo", "rm", "distill")
OF_ROWS = {path: kind for kind in KINDS for path in sorted(EXAMPLES.glob(f"*/*_{kind}.yaml"))}


def test_there_are_recipes_and_fragments_to_check() -> None:
    assert sorted(set(OF_ROWS.values())) == ["distill", "dpo", "rm", "sft"]
    assert len(RECIPES) >= 9
    assert [path.stem for path in FRAGMENTS] == [
        "deepspeed_zero",
        "deepspeed_zero2",
        "deepspeed_zero3",
        "deepspeed_zero3_cpuoffload",
    ]


@pytest.mark.parametrize("path", RECIPES + list(OF_ROWS), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_shipped_recipe_has_a_plan_that_works(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config_path", str(path.parent), "--config_name", path.stem, "--dry_run", "--elsewhere"]
    assert main(OF_ROWS.get(path, "rlvr"), arguments) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "The plan works." in shown
    doing_nothing = [line for line in shown.splitlines() if "do nothing" in line or "does nothing" in line]
    assert doing_nothing == []


LARGE = [path for path in RECIPES if "B-rlvr" in path.parent.name]


@pytest.mark.parametrize("path", LARGE, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_of_a_large_model_packs_its_rows(path: Path) -> None:
    """By arithmetic, not measured: two rows of a 30B mixture take as long as a pack of 16k tokens."""
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    scorers = ("deepspeed_infer", "fsdp2_infer", "megatron_infer")
    packing = [
        tree[role].get("use_sequence_packing")
        for role in ("actor_train", "reference")
        if role == "actor_train" or tree.get(role, {}).get("strategy_args", {}).get("strategy_name") in scorers
    ]
    assert packing and all(packing)


@cases("recipe, model, most")
def test_a_recipe_trains_on_gpus_of_80_gb_with_what_the_page_on_trainers_says(
    recipe: str,
    model: str,
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text((MODELS / f"{model}.json").read_text())
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setenv("MODEL", str(tmp_path))
    folder, _, name = recipe.partition("/")
    given = [
        "--config_path",
        str(EXAMPLES / folder),
        "--config_name",
        name,
        "--dry_run",
        "--all",
        "--elsewhere",
        "gpu_memory_gb=80",
        "host_memory_gb=1000",
    ]
    assert main("rlvr", given) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "does not fit" not in shown
    assert re.search(rf"training (of| ) *actor_train,? +~{most} ", shown), shown
    page = (EXAMPLES.parent / "docs" / "trainers.md").read_text(encoding="utf-8")
    assert re.search(rf"\| `{recipe}.yaml` \| \d+ \| ~{most} GB \|", page)


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_fragment_holds_one_mapping_under_its_own_name_and_serves_every_dtype(path: Path, dtype: str) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert list(content) == [path.stem]
    assert list(deepspeed_problems("actor_train", content[path.stem], DeepSpeedFacts(dtype, 4, 2, 2, 1.0))) == []
