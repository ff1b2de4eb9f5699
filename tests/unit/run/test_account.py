"""What a run asks its workers, and what it writes of their answers."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.distributed.executor.usage import RoleUsage, Work, WorkerUsage
from roll.run.accounting import MEMORY_FILE, TRACE_FILE, Accounting
from roll.utils.spans import Interval, wall_offset
from roll.utils.worker_usage import TraceOptions, Usage
from tests.helpers.configs import config
from tests.helpers.trace_format import problems_of


class Clusters:
    """Answers every question alike: a trainer on another machine, whose clock is 1000 s ahead, and an engine here."""

    def __init__(self) -> None:
        self.asked: list[TraceOptions] = []
        self.num_heard = 0

    def ask_usage(self, look: TraceOptions) -> Callable[[], list[RoleUsage]]:
        self.asked.append(look)
        return lambda: self.answers(look)

    def answers(self, look: TraceOptions) -> list[RoleUsage]:
        self.num_heard += 1
        now = float(10 * len(self.asked))
        trained = (Interval("actor_train", "rank 0", "train", 1000 + now - 4, 1000 + now - 2),) if look.trace else ()
        sampled = (Interval("actor_infer", "rank 0", "sampling", now - 8, now - 4),) if look.trace else ()
        trainer = Usage({"train": 2.0, "idle": 8.0}, {}, trained, wall_offset() - 1000, host_bytes=70)
        engine = Usage({"sampling": 4.0, "idle": 6.0}, {"sampled_tokens": 50.0}, sampled, wall_offset() + 0.01)
        work = {"train": Work(8, 80, 400.0, 40)}
        return [
            RoleUsage("actor_train", "train", [WorkerUsage(0, (0,), trainer)], work),
            RoleUsage("actor_infer", "generate", [WorkerUsage(0, (1,), engine)]),
        ]


def account(directory: Path, **keys: Any) -> tuple[Accounting, Any]:
    made, clusters = Accounting(config({"profiler_output_dir": str(directory), **keys})), Clusters()
    watched: Any = clusters
    made.watch(watched)
    return made, clusters


def test_workers_answer_while_something_else_goes_on(tmp_path: Path) -> None:
    made, clusters = account(tmp_path)
    made.start()
    made.request_usage()
    assert (len(clusters.asked), clusters.num_heard) == (2, 1)
    made.metrics(1)
    assert (len(clusters.asked), clusters.num_heard) == (2, 2)
    made.metrics(2)  # of a step that did not ask
    assert (len(clusters.asked), clusters.num_heard) == (3, 3)
    made.end()
    assert len(clusters.asked) == 3


def test_without_workers_there_is_no_account_and_peaks_may_be_given(tmp_path: Path) -> None:
    made = Accounting(config({"profiler_output_dir": str(tmp_path)}))
    made.start()
    assert made.metrics(1) == {}
    made, _ = account(tmp_path, gpu_peak_tflops=1e-6)
    made.start()
    assert not [name for name in made.metrics(1) if "mfu" in name], "the shape of org/model is not known"


def test_the_trace_has_the_events_of_all_on_one_clock(tmp_path: Path) -> None:
    made, _ = account(tmp_path / "sub", profiler_timeline=True)
    made.start()
    made.phase("rollout", 12.0, 16.0)
    made.phase("rollout/reward", 14.0, 16.0)
    made.metrics(1)
    made.close()
    trace = json.loads((tmp_path / "sub" / TRACE_FILE).read_text())
    assert problems_of(trace) == []
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    spans = [(names[e["pid"]], e["name"], round(e["ts"], -3), e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    assert sorted(spans) == [  # from the first event, at 2 s
        ("actor_infer", "sampling", 0.0, 4e6),
        ("actor_infer", "sampling", 10e6, 4e6),
        ("actor_train", "train", 4e6, 2e6),
        ("actor_train", "train", 14e6, 2e6),
        ("driver", "reward", 12e6, 2e6),
        ("driver", "rollout", 10e6, 4e6),
    ]


def test_the_memory_of_workers_that_know_it_is_written_by_step(tmp_path: Path) -> None:
    made, clusters = account(tmp_path, profiler_memory=True)
    made.start()
    made.metrics(1)
    made.metrics(2)
    assert clusters.asked == [TraceOptions(snapshots=str(tmp_path))] * 3
    rows = [json.loads(line) for line in (tmp_path / MEMORY_FILE).read_text().splitlines()]
    assert rows == [
        {"step": step, "role": "actor_train", "rank": 0, "host_bytes": 70, "device_bytes": None} for step in (1, 2)
    ]


def test_what_bounds_the_steps_is_told_when_it_is_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made, _ = account(tmp_path)
    row = {"time/rollout_s": 6.0, "time/train_actor_s": 4.0, "goodput/bubble_fraction": 0.5}
    for step in range(1, 7):
        made.observe(step, row)
    assert [record.getMessage() for record in caplog.records] == [
        "step 3: the trainer waits 60% of the time: use more rollout devices, or rollouts that run further ahead "
        "(docs/rollouts.md)"
    ]
