"""The rank pool that other tests stand on: its answers are right, it never hangs or leaves processes behind."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers.processes import RankError, RankPool


@pytest.fixture
def pool() -> Iterator[RankPool]:
    """A fresh one: after some calls it replaces its processes."""
    with RankPool(2) as pool:
        yield pool


def reduced_sum(base: int) -> int:
    total = torch.tensor(base + torch.distributed.get_rank())
    torch.distributed.all_reduce(total)
    return int(total)


def rank_and_value(value: torch.Tensor) -> tuple[str, torch.Tensor]:
    return os.environ["RANK"], value * 2


def fail_on_rank_one() -> None:
    if torch.distributed.get_rank() == 1:
        raise ValueError("the root cause")
    torch.distributed.barrier()


def die_on_rank_one() -> None:
    if torch.distributed.get_rank() == 1:
        os._exit(7)
    torch.distributed.barrier()


def process_id() -> int:
    return os.getpid()


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().split(")")[1].split()[0] != "Z"


def test_ranks_share_a_group_answer_in_their_order_and_stay_between_calls(pool: RankPool) -> None:
    assert pool.run(reduced_sum, 10) == [21, 21]
    results = pool.run_each(rank_and_value, [(torch.tensor(1.5),), (torch.tensor(4.0),)])
    assert [(rank, value.item()) for rank, value in results] == [("0", 3.0), ("1", 8.0)]
    assert pool.run(process_id) == pool.run(process_id)


def test_exception_names_its_rank_and_kills_the_one_that_waits_for_it(pool: RankPool) -> None:
    before = pool.run(process_id)
    with pytest.raises(RankError, match=r"(?s)rank 1: .*ValueError: the root cause"):
        pool.run(fail_on_rank_one)
    assert not any(is_running(pid) for pid in before)
    assert pool.run(reduced_sum, 0) == [1, 1]  # fresh ranks take over


def test_a_rank_that_dies_or_is_silent_is_reported(pool: RankPool) -> None:
    with pytest.raises(RankError, match="rank 1: died, exit code 7"):
        pool.run(die_on_rank_one)
    os.kill(pool.run(process_id)[1], signal.SIGKILL)
    pool.processes[1].join()
    with pytest.raises(RankError, match="rank 1: died, exit code -9"):
        pool.run(process_id)
    pool.run(process_id)
    with pytest.raises(RankError, match=r"rank 0: no answer in 0\.3 s"):
        pool.run(time.sleep, 60, timeout_s=0.3)
