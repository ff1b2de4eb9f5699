"""What a run is told of its memory: the plan's section, refusals, warnings."""

import shutil
from pathlib import Path

import pytest

from roll.commands.run import main
from roll.run.start import memory_report
from tests.unit.configs.memory.test_figures import EXAMPLES, MODELS

RECIPES = {
    "qwen2.5-7B-rlvr/rlvr_zero3": "qwen2.5-7b",
    "qwen2.5-7B-rlvr/rlvr_megatron_disjoint": "qwen2.5-7b",
    "qwen3-30B-A3B-rlvr/rlvr_megatron": "qwen3-30b-a3b",
    "qwen2.5-0.5B-gsm8k/rlvr_1gpu": "qwen2.5-7b",
}
THIRTY = "qwen3-30B-A3B-rlvr/rlvr_megatron"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine of this test has."""
    monkeypatch.setattr(memory_report, "smallest_gpu_bytes", lambda: None)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for file in MODELS.glob("*.json"):
        (tmp_path / file.stem).mkdir()
        shutil.copy(file, tmp_path / file.stem / "config.json")
    return tmp_path


def run(recipe: str, model: object, *overrides: str) -> int:
    """The exit code of a dry run of a shipped recipe."""
    folder, _, name = recipe.partition("/")
    arguments = ["--config_path", str(EXAMPLES / folder), "--config_name", name, "--dry_run", "--all", "--elsewhere"]
    return main("rlvr", [*arguments, f"pretrain={model}", *overrides])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_shipped_recipe_names_its_largest_moments(
    recipe: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(recipe, models / RECIPES[recipe], "gpu_memory_gb=141") == 0
    shown = capsys.readouterr().out
    assert "Memory where devices are GPUs, in GB (1e9 bytes)" in shown
    assert "  the peak on GPU" in shown and "  the peak on the host of " in shown
    assert "key-value cache for" in shown
    assert "not counted" not in shown


def test_without_a_config_json_one_line_says_that_it_takes_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(THIRTY, "no-such-owner/no-such-model") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Memory")]
    assert line == "Memory: not known (no config.json of no-such-owner/no-such-model on this machine)."


def test_a_plan_that_cannot_fit_is_refused_with_parts_and_keys(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(THIRTY, models / "qwen3-30b-a3b", "gpu_memory_gb=40", "host_memory_gb=200") == 2
    refused = capsys.readouterr().err
    assert (
        "gpu_memory_gb: 40 GB: training of actor_train needs at least 47 GB on GPUs 0..15 (weights 8.0, gradients "
        "16.0, optimizer 23), and about 9.9 GB beside that. docs/memory.md lists"
    ) in refused
    assert "host_memory_gb: 200 GB: all roles running needs at least" in refused


def test_an_engine_whose_weights_fill_its_share_is_refused(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(THIRTY, models / "qwen3-30b-a3b", "gpu_memory_gb=24") == 2
    assert (
        "actor_infer: its weights are 15.3 GB on each of its GPUs, and gpu_memory_utilization 0.6 of 24 GB is 14.4 GB: "
        "no room for a key-value cache."
    ) in capsys.readouterr().err


def test_a_cache_that_holds_no_sequence_is_a_warning(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apart = "qwen2.5-7B-rlvr/rlvr_zero3_disjoint"
    small = "actor_infer.strategy_args.strategy_config.gpu_memory_utilization=0.25"
    assert run(apart, models / "qwen2.5-7b", "gpu_memory_gb=40", small) == 0
    shown = capsys.readouterr().out
    assert "Warning: actor_infer: its key-value cache holds about " in shown
    assert "fewer than the 5120 of one sequence. Use a larger gpu_memory_utilization" in shown


def test_an_estimate_that_does_not_fit_is_a_warning(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(THIRTY, models / "qwen3-30b-a3b", "gpu_memory_gb=50") == 0
    shown = capsys.readouterr().out
    assert (
        "Warning: GPU memory may not suffice: training of actor_train takes about 57 GB of 50 on GPUs 0..15, 47 of "
        "them certain: weights 8.0"
    ) in shown
    assert run(THIRTY, models / "qwen3-30b-a3b", "gpu_memory_gb=80") == 0
    assert "may not suffice" not in capsys.readouterr().out


def test_the_gpus_of_this_machine_count_where_nothing_is_given(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They need not be those of the run: a dry run goes on."""
    monkeypatch.setattr(memory_report, "smallest_gpu_bytes", lambda: 24e9)
    assert run(THIRTY, models / "qwen3-30b-a3b") == 0
    assert (
        "Not checked here: gpu_memory_gb is not given and this machine's GPUs have 24 GB: training of "
        "actor_train needs at least 47 GB"
    ) in capsys.readouterr().out
    assert run(THIRTY, models / "qwen3-30b-a3b", "gpu_memory_gb=80") == 0
    assert "Not checked here: gpu_memory_gb" not in capsys.readouterr().out


def test_roles_on_cpus_are_counted_with_all_that_they_hold(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """7.6 B parameters under fsdp2: fp32 weights, gradients and two moments of Adam; half of the weights in each of
    two ranks of the engine."""
    roles = ("actor_train", "actor_infer")
    on_cpu = [f"{role}.{key}" for role in roles for key in ("device_mapping=null", "world_size=1")]
    assert run("qwen2.5-7B-rlvr/rlvr_fsdp2", models / "qwen2.5-7b", *on_cpu, "~reference", "use_kl_loss=false") == 0
    shown = capsys.readouterr().out
    assert (
        "the peak on the host of roles on CPUs: training of actor_train, ~149 GB: actor_train: 1 x weights 30" in shown
    )
    assert "actor_train: 1 x gradients 30, actor_train: 1 x optimizer 61, actor_infer: 1 x weights 7.6" in shown
    assert "of the GPU" not in shown
