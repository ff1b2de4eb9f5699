"""What the key `platform` means to a plan, before anything starts."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.commands.run import main
from roll.configs.checks import platforms
from roll.configs.checks.platforms import platform_machine_problems, platform_problems
from roll.configs.load.chosen_values import Machine
from roll.configs.plan.batch_plan import build_plan
from roll.distributed.strategy.vllm.args import problems
from roll.importers.command import imported_from
from roll.importers.convert import read
from roll.platforms.table import NPU
from roll.run.start import machine as machine_module
from roll.run.start import memory_report
from roll.run.start.load import platform_choice
from roll.run.start.machine import machine_of
from roll.run.start.preflight import choices, machine_report, role_strategy_problems
from tests.helpers.cases import cases
from tests.helpers.configs import config

REPOSITORY = Path(__file__).parents[3]
EXAMPLES, GUIDE = REPOSITORY / "examples", REPOSITORY / "tests" / "importers" / "guide_verl_ascend.yaml"
KERNEL = "actor_train.model_args.fused_kernel_options.impl_backend"
TRAINER, ENGINE = "actor_train.strategy_args", "actor_infer.strategy_args"


def said(platform: str, changes: dict[str, Any]) -> list[str]:
    made = config({"platform": platform, **changes})
    found = [problem for choice in choices(made) for problem in (*platform_problems(choice), *problems(choice))]
    return [problem.text for problem in found if f"(platform: {platform})" in problem.text]


@cases("changes, text")
def test_what_ascend_does_not_have_is_refused_with_its_key(changes: dict[str, Any], text: str) -> None:
    (problem,) = said("npu", changes)
    assert problem.startswith(text) and problem.endswith("(platform: npu).")
    assert said("auto", changes) == []


def test_refusals_of_a_platform_are_problems_of_a_plan() -> None:
    made = config({"platform": "npu", KERNEL: "cut_cross_entropy"})
    assert [p.text for p in role_strategy_problems(made) if "(platform: npu)" in p.text] != []
    assert said("rocm", {TRAINER: {"strategy_name": "megatron_train"}, ENGINE: {"strategy_name": "sglang"}}) == []
    assert len(said("rocm", {KERNEL: "cut_cross_entropy"})) == len(said("cpu", {KERNEL: "cut_cross_entropy"})) == 1
    assert said("cuda", {KERNEL: "cut_cross_entropy"}) == []
    shared = {"actor_train.use_prefix_sharing": "on"}
    assert len(said("rocm", shared)) == 1 and said("cpu", shared) == said("cuda", shared) == []


def test_packages_of_ascend_are_looked_for_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    made = config({"platform": "npu", ENGINE: {"strategy_name": "vllm"}})
    texts = [problem.text for problem in machine_report(made).problems if problem.of == "machine"]
    assert [text for text in texts if "the package torch_npu, which is not installed" in text] == [texts[0]]
    assert any("vllm needs the package vllm_ascend, which is not installed" in text for text in texts)
    monkeypatch.setattr(platforms, "is_installed", lambda name: True)
    assert not [*platform_machine_problems("npu")] and not [*platform_machine_problems("cuda")]


# What is chosen for what the YAML leaves out.


def test_devices_of_another_platform_are_none_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "this_machine", lambda: Machine(8, 80e9, frozenset({"vllm"})))
    seen = {name: machine_of(config({"platform": name})).num_gpus for name in ("auto", "cuda", "rocm", "npu", "cpu")}
    assert seen == {"auto": 8, "cuda": 8, "rocm": 0, "npu": 0, "cpu": 0}


def test_memory_of_the_machines_gpus_is_not_that_of_npus(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[float | None] = []

    def facts(made: Any, plan: Any, gpu_bytes: float | None) -> tuple[dict[str, Any], list[str]]:
        sizes.append(gpu_bytes)
        return {}, []

    monkeypatch.setattr(memory_report, "smallest_gpu_bytes", lambda: 80e9)
    monkeypatch.setattr(memory_report, "gather_facts", facts)
    for changes in ({}, {"platform": "npu"}, {"platform": "npu", "gpu_memory_gb": 64}):
        made = config(changes)
        memory_report.memory_report(made, build_plan(made))
    assert sizes == [80e9, None, 64e9]


@pytest.mark.parametrize(
    ("machine", "chosen"),
    [
        (Machine(8, None, platform="npu"), ["npu"]),
        (Machine(8, None, platform="rocm"), ["rocm"]),
        (Machine(8, 80e9), []),
        (Machine(0, None, platform="npu"), []),
    ],
)
def test_a_machine_of_another_platform_than_nvidias_is_said_in_the_plan(machine: Machine, chosen: list[str]) -> None:
    assert [choice.value for choice in platform_choice(config({}), machine)] == chosen
    assert platform_choice(config({"platform": "cpu"}), machine) == []


def test_npus_are_counted_by_their_files_and_shown_by_their_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "machine_platform", lambda: NPU)
    monkeypatch.setattr(type(NPU), "num_devices", lambda self: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    machine_module._machine.cache_clear()
    assert (machine_module.this_machine().num_gpus, machine_module.this_machine().platform) == (8, "npu")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "2,5")
    assert machine_module.this_machine().num_gpus == 2
    machine_module._machine.cache_clear()


def test_a_recipe_is_planned_for_ascend_on_a_machine_without(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config_path", str(EXAMPLES / "qwen2.5-vl-rlvr"), "--config_name", "qwen2_5_vl_7b"]
    words += ["--dry_run", "--elsewhere", "platform=npu"]
    assert main("rlvr", words) == 0
    shown = capsys.readouterr()
    assert "platform: npu: roll has never run on it" in shown.out + shown.err
    assert main("rlvr", [*words, "actor_train.use_torch_compile=true"]) == 2
    assert "actor_train.use_torch_compile: true: torch.compile has no compiler for Ascend" in capsys.readouterr().err


def test_the_run_of_verls_guide_for_ascend_is_planned_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Qwen2.5-VL-32B on geometry3k, 8 NPUs."""
    guide = imported_from(read(GUIDE, ["backend_config.trainer.device=npu"]), "verl")
    assert guide.tree["platform"] == "npu" and guide.is_as_meant
    (tmp_path / "guide.yaml").write_text(yaml.safe_dump(guide.tree))
    words = ["--config_path", str(tmp_path), "--config_name", "guide", "--dry_run", "--elsewhere"]
    assert main("rlvr", words) == 0, capsys.readouterr().err
