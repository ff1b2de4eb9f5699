"""The stream of training tasks: shares, order, resuming."""

import json
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.datasets.mixing import TaskMixer, apportion, interleave
from roll.errors import ConfigError
from roll.types.rollout import Task


def tasks(**sizes: int) -> list[Task]:
    return [Task(f"{name}-{i}", name, np.zeros(1, np.int32)) for name, size in sizes.items() for i in range(size)]


def domains(mixer: TaskMixer, count: int) -> Counter[str]:
    return Counter(task.domain for task in mixer.next_tasks(count))


def test_shares_hold_in_every_step_and_remainders_are_carried_on() -> None:
    mixer = TaskMixer(tasks(math=50, code=3, chat=9), 20, 0, {"math": 0.5, "code": 0.35, "chat": 0.15})
    for _ in range(30):
        assert domains(mixer, 20) == {"math": 10, "code": 7, "chat": 3}
    mixer = TaskMixer(tasks(math=50, code=50), 4, 0, {"math": 2 / 3, "code": 1 / 3})
    assert [domains(mixer, 4)["math"] for _ in range(6)] == [3, 2, 3, 3, 2, 3]
    mixer = TaskMixer(tasks(math=30, code=10), 8, 0)
    assert domains(mixer, 8) == {"math": 6, "code": 2}
    assert domains(TaskMixer(tasks(math=3, code=3), 8, 0, {"math": 1.0, "code": 0.0}), 80) == {"math": 80}
    mixer = TaskMixer(tasks(math=3, code=3, logic=3), 6, 0, {"math": 0.6, "code": 0.3})
    drawn = [task.domain for task in mixer.next_tasks(12)]
    assert {name: drawn.count(name) for name in ("math", "code", "logic")} == {"math": 8, "code": 4, "logic": 0}
    assert interleave({"a": 4, "b": 2}) == ["a", "b", "a", "a", "b", "a"]


def test_every_epoch_holds_every_task_once() -> None:
    mixer = TaskMixer(tasks(math=20), 7, seed=3)
    epochs = [[task.task_id for task in mixer.next_tasks(20)] for _ in range(3)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and mixer.epochs == {"math": 3.0}
    assert [t.task_id for t in TaskMixer(tasks(math=20), 7, seed=3).next_tasks(20)] == epochs[0]
    assert [t.task_id for t in TaskMixer(tasks(math=20), 7, seed=4).next_tasks(20)] != epochs[0]
    mixer = TaskMixer(tasks(math=3), 2, 0, shuffle=False)
    assert [task.task_id for task in mixer.next_tasks(5)] == ["math-0", "math-1", "math-2", "math-0", "math-1"]


def test_the_rest_of_an_epoch_is_left_out_where_it_fills_no_step() -> None:
    """10 tasks, 4 in a step: 8 in each epoch, others in each."""
    mixer = TaskMixer(tasks(a=10), block=4, seed=0, drop_last=True)
    epochs = [{task.task_id for task in mixer.next_tasks(8)} for _ in range(4)]
    assert all(len(ids) == 8 for ids in epochs) and len(set.union(*epochs)) == 10
    assert (mixer.num_tasks, mixer.epochs) == (8, {"a": 4.0})
    again = TaskMixer(tasks(a=10), block=4, seed=0)
    assert [task.task_id for task in again.next_tasks(8)] == [
        task.task_id for task in TaskMixer(tasks(a=10), block=4, seed=0, drop_last=True).next_tasks(8)
    ]


@settings(max_examples=60)
@given(
    sizes=st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(1, 9), min_size=1),
    block=st.integers(1, 12),
    seed=st.integers(0, 3),
    requests=st.lists(st.integers(0, 15), max_size=8),
    weighted=st.booleans(),
)
def test_the_stream_does_not_depend_on_interruptions(
    sizes: dict[str, int], block: int, seed: int, requests: list[int], weighted: bool
) -> None:
    shares = {name: (i + 1) / sum(range(1, len(sizes) + 1)) for i, name in enumerate(sizes)} if weighted else None

    def mixer() -> TaskMixer:
        return TaskMixer(tasks(**sizes), block, seed, shares)

    unbroken = [task.task_id for task in mixer().next_tasks(sum(requests))]
    current, stream = mixer(), []
    for count in requests:
        stream += [task.task_id for task in current.next_tasks(count)]
        state = json.loads(json.dumps(current.state_dict()))
        current.next_tasks(3)  # drawn after the checkpoint, so to be drawn again
        current = mixer()
        current.load_state_dict(state)
    assert stream == unbroken


@settings(max_examples=100)
@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=6), count=st.integers(1, 40))
def test_apportioning_always_adds_up_and_never_drifts(weights: list[int], count: int) -> None:
    if not sum(weights):
        return
    shares = {str(i): Fraction(weight, sum(weights)) for i, weight in enumerate(weights)}
    carry = dict.fromkeys(shares, Fraction(0))
    totals: Counter[str] = Counter()
    for step in range(1, 30):
        counts, carry = apportion(shares, count, carry)
        totals.update(counts)
        assert sum(counts.values()) == count and min(counts.values()) >= 0
        for name, share in shares.items():
            assert abs(totals[name] - share * count * step) < 2
            assert share or not totals[name]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"math": 0.5, "cod": 0.5}, "gives cod 0.5, but no row belongs to it; there is code, math"),
        ({"math": 0.0, "code": 0.0}, "must be 0 or more, and one above 0"),
        ({"math": 1.5, "code": -0.5}, "must be 0 or more, and one above 0"),
    ],
)
def test_shares_that_do_not_fit_the_data_are_an_error(shares: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=f"actor_train.data_args.domain_interleave_probs.*{message}"):
        TaskMixer(tasks(math=2, code=2), 4, 0, shares)


def test_on_resume_shares_may_change_and_data_may_not() -> None:
    state = TaskMixer(tasks(math=3), 2, 0).state_dict()
    with pytest.raises(ConfigError, match="the rows of math are not those of the checkpoint"):
        TaskMixer(tasks(math=4), 2, 0).load_state_dict(state)
    first = TaskMixer(tasks(math=9, code=9), 10, 0, {"math": 0.9, "code": 0.1})
    first.next_tasks(50)
    second = TaskMixer(tasks(math=9, code=9), 10, 0, {"math": 0.5, "code": 0.5})
    second.load_state_dict(first.state_dict())
    assert domains(second, 10) == {"math": 5, "code": 5}


def test_other_values_in_rows_of_the_same_name_are_an_error() -> None:
    """Rows without ids are named by file and line."""

    def mixer(text: str) -> TaskMixer:
        return TaskMixer([Task("train.jsonl:1", "math", np.zeros(1, np.int32), payload={"prompt": text})], 1, 0)

    state = mixer("1 + 1").state_dict()
    mixer("1 + 1").load_state_dict(state)
    with pytest.raises(ConfigError, match="the rows of math are not those of the checkpoint"):
        mixer("1 + 2").load_state_dict(state)
