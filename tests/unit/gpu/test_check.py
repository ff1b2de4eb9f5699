"""Which checks can run on which machine, and how figures are judged. No CUDA needed: machines are made up."""

import math
from collections.abc import Callable, Iterable, Sequence

import pytest

from tests.gpu.check import Check, Limit, Machine, judge, largest, num_devices, smallest, why_skipped
from tests.gpu.table import CHECKS

ENGINES = ("deepspeed", "megatron", "vllm", "sglang", "transformer_engine", "peft", "ray")
NAMES = [check.name for check in CHECKS]


def skipped(num_gpus: int, packages: Sequence[str] = ENGINES) -> dict[str, str]:
    machine = Machine("cuda", num_gpus, frozenset(packages))
    return {check.name: reason for check in CHECKS if (reason := why_skipped(check, machine)) is not None}


def test_names_are_unique_and_every_check_has_bounds():
    assert len(set(NAMES)) == len(NAMES)
    assert all(check.limits for check in CHECKS)
    assert not [check.name for check in CHECKS if all(limit.cuda_only for limit in check.limits.values())]


def test_a_machine_runs_the_checks_that_its_gpus_and_packages_allow():
    assert skipped(0).keys() == set(NAMES)
    assert skipped(0)["train-zero3"] == "needs 1 GPUs, there are 0"
    found = skipped(1)
    assert found["train-megatron-tp2"] == "needs 2 GPUs, there is 1"
    assert found.keys() == {check.name for check in CHECKS if check.gpus > 1}
    assert not [name for name in found if name.startswith(("memory-", "score-", "train-zero", "learns-"))]
    assert set(skipped(2)) == {"broadcast-death", "engine-death", "run-vllm-tp2-apart", "run-sglang-tp2-apart"}
    assert skipped(8) == {}
    found = skipped(8, ["deepspeed", "megatron", "vllm", "peft", "ray"])
    assert found["run-sglang-tp2-apart"] == "sglang not installed"
    assert found["train-megatron-te"] == "transformer_engine not installed"
    assert all("sglang" in name or name == "train-megatron-te" for name in found)
    rehearsal = Machine("cpu", 8, frozenset(ENGINES))
    assert [c.name for c in CHECKS if why_skipped(c, rehearsal) is not None] == ["train-megatron-te"]


@pytest.mark.parametrize(("num_gpus", "taken"), [(1, 1), (2, 2), (8, 2)])
def test_a_check_takes_more_gpus_where_they_are(num_gpus: int, taken: int):
    check = next(check for check in CHECKS if check.name == "train-zero3")
    assert num_devices(check, Machine("cuda", num_gpus, frozenset())) == taken


def test_figures_beyond_their_bounds_missing_or_not_numbers_are_told_with_the_reason():
    limits = {
        "gap": Limit("bf16", most=0.1),
        "moved": Limit("it learns", least=0.5),
        "memory": Limit("of the device", most=1, cuda_only=True),
    }
    check = Check("c", "p", "c", "f", limits)
    assert judge(check, {"gap": 0.1, "moved": 0.5, "memory": 0.0}, "cuda") == []
    assert judge(check, {"gap": 0.11, "moved": 0.4, "memory": 2.0}, "cuda") == [
        "gap is 0.11, must be at most 0.1 (bf16)",
        "moved is 0.4, must be at least 0.5 (it learns)",
        "memory is 2, must be at most 1 (of the device)",
    ]
    assert judge(check, {"gap": math.nan}, "cpu") == [
        "gap is nan, must be at most 0.1 (bf16)",
        "moved was not measured",
    ]
    assert judge(check, {"gap": 0.0, "moved": math.inf}, "cpu") == ["moved is inf, must be at least 0.5 (it learns)"]


@pytest.mark.parametrize("join", [largest, smallest])
def test_a_figure_that_is_no_number_is_not_lost_among_others(join: Callable[[Iterable[float]], float]):
    assert all(math.isnan(join(values)) for values in ([math.nan, 1.0], [1.0, math.nan], [1.0, math.nan, 2.0]))
    assert (largest([1, 3, 2]), smallest([2, 1, 3])) == (3, 1)
    with pytest.raises(ValueError):
        join([])
