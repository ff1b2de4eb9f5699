"""Every check of the suite for GPUs can fail: broken copies of roll (`faults.py`), rehearsed on a CPU."""

from pathlib import Path

import pytest

from tests.gpu.check import Check
from tests.gpu.faults import FAULTS, Fault, broken_check
from tests.gpu.machine import machine
from tests.gpu.runner import Runner
from tests.gpu.table import CHECKS


def _cases() -> list[tuple[Fault, list[Check]]]:
    return [(fault, [check for check in CHECKS if check.name in fault.found]) for fault in FAULTS]


def test_every_kind_of_check_has_a_fault_that_it_finds() -> None:
    checks = {check.name: check for check in CHECKS}
    findings = [(name, finding) for fault in FAULTS for name, finding in fault.found.items()]
    assert {checks[name].function for name, _ in findings} == {check.function for check in CHECKS}
    assert all(finding.says for _, finding in findings)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("fault", "checks"), _cases(), ids=[fault.name for fault in FAULTS])
def test_a_broken_copy_is_found(fault: Fault, checks: list[Check], tmp_path: Path) -> None:
    slots = [str(slot) for slot in range(max(check.gpus for check in checks))]
    here = machine("cpu", slots, {package for check in checks for package in check.packages})
    runner = Runner(here, slots, tmp_path, print)
    wrong = []
    for outcome in runner.run([broken_check(fault, check) for check in checks]):
        print(outcome)
        missed = [part for part in fault.found[outcome.name].says if part not in outcome.reason]
        if outcome.state in ("passed", "skipped", "crashed") or missed:
            wrong.append(f"{outcome.name} {outcome.state}: {outcome.reason or dict(outcome.figures)}")
    assert not wrong
