"""The suite for GPUs, rehearsed on a CPU: the same checks, where only device, backend and figures of memory differ."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from roll.utils.imports import resolve
from tests.gpu.__main__ import main
from tests.gpu.check import Check, judge
from tests.gpu.checks import handover, memory
from tests.gpu.place import Place
from tests.gpu.report import Report
from tests.gpu.table import CHECKS
from tests.helpers import engines
from tests.parity.strategies.reference import BentLoss


def rehearse(out: Path, *arguments: str) -> dict[str, str]:
    """Every check by name, and what became of it. Nothing may have failed."""
    status = main(["--device", "cpu", "--out", str(out), *arguments])
    report = Report.read(out / "report.json")
    assert status == 0, [f"{outcome.name}: {outcome.reason}" for outcome in report.failures]
    return {outcome.name: outcome.state for outcome in report.outcomes}


@pytest.mark.slow
def test_quick_checks_pass_on_a_cpu(tmp_path: Path) -> None:
    names = ("train-zero3", "train-megatron-distributed", "train-megatron-tp2", "score-hf")
    found = rehearse(tmp_path / "out", "--gpus", "1", "--only", *names)
    assert found == dict.fromkeys(names, "passed") | {"train-megatron-tp2": "skipped"}
    assert "| passed in " in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_check_can_be_called_with_its_arguments(check: Check) -> None:
    function: Any = resolve(check.function)
    inspect.signature(function).bind(None, **check.arguments)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_every_check_that_a_cpu_can_run_passes(tmp_path: Path) -> None:
    found = rehearse(tmp_path / "out", "--gpus", "4")
    assert [name for name, state in found.items() if state == "skipped"] == ["train-megatron-te"]


@pytest.mark.slow
def test_a_handover_of_the_weights_of_before_is_noticed(tmp_path: Path) -> None:
    check = next(check for check in CHECKS if check.name == "ipc-fsdp2")
    place = Place("cpu", ("0",), tmp_path)
    figures = handover.hands_over(place, **check.arguments, publish=handover.publish_weights_of_before)
    wrong = judge(check, figures, "cpu")
    assert [each.split(" ")[0] for each in wrong] == ["gap_to_moved", "log_prob_gap_max"]


@pytest.mark.slow
def test_an_engine_that_keeps_its_old_weights_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm", reason="vllm is not installed")
    check = next(check for check in CHECKS if check.name == "engine-vllm-fp8")

    async def send_nothing(*args: Any) -> None: ...

    monkeypatch.setattr(engines.EngineHarness, "send", send_nothing)
    figures = memory.engine_quantised(Place("cpu", ("0",), tmp_path), **check.arguments)
    assert "gap_to_moved" in {each.split(" ")[0] for each in judge(check, figures, "cpu")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken", "wrong"),
    [
        ("lora-experts", {"training": {"learning_rate": 2e-3}}, "weight_difference"),
        ("router-replay", {"loss": BentLoss(0.5)}, "gradient_difference"),
    ],
)
def test_other_updates_of_mixtures_are_noticed(name: str, broken: dict[str, Any], wrong: str, tmp_path: Path) -> None:
    check = next(check for check in CHECKS if check.name == name)
    arguments = {**check.arguments, "settings": {**check.arguments["settings"], **broken}}
    function: Any = resolve(check.function)
    found = judge(check, function(Place("cpu", ("0",), tmp_path), **arguments), "cpu")
    assert wrong in {each.split(" ")[0] for each in found}
