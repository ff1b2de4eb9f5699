"""Limits of a job, in the whole numbers that the kernel takes."""

import pytest

from roll.rewards.code.local import cpu_s
from roll.utils.sandbox.job import Job, Limits, view


@pytest.mark.parametrize(("given", "whole"), [(0.2, 1), (1.0, 1), (1.1, 2), (4.5, 5), (5.0, 5)])
def test_seconds_of_the_cpu_are_rounded_up(given: float, whole: int) -> None:
    """Rounded down, a program that may compute for 4.5 seconds would be ended after 4."""
    limits = Limits(cpu_s=given, wall_s=60, memory_mb=256, disk_mb=1)
    assert Job(("/usr/bin/true",), view(), limits).resources["cpu"] == (whole, whole + 1)
    assert cpu_s(limits) == whole
