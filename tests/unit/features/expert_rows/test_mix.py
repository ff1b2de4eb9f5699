"""The expert's rows of a run: which of them each step has, on whatever ranks, and from a checkpoint on."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.algorithms.policy_loss import ExpertLoss, MixedLoss, PolicyLoss
from roll.configs.plan.batch_plan import BatchPlan, build_plan
from roll.datasets.mixing import RowSource
from roll.distributed.executor import roles
from roll.distributed.executor.jobs import TrainJob
from roll.errors import ConfigError
from roll.features.expert_rows.mix import Mix
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.run.policy_tokenizer import policy_tokenizer
from roll.types.batch import Rows, RowSet
from tests.helpers.configs import config

JOB = TrainJob(PolicyLoss(), 1.0, 2)


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shards that hold their rows themselves."""
    monkeypatch.setattr(roles.ray, "put", lambda rows: rows)
    yield


def numbered(first: int, count: int) -> Rows:
    """Rows whose tokens are their number, the longer the higher it is."""
    masks = [[False] + [True] * (1 + number % 5) for number in range(count)]
    return Rows.of([[first + number] * len(mask) for number, mask in enumerate(masks)], masks)


def made(**changes: Any) -> tuple[RLVRConfig, BatchPlan]:
    """64 samples in an update on two ranks; 9 and 7 rows of two sources."""
    rows = {name: {"share": share, "data_args": {"file_name": "x.jsonl"}} for name, share in (("a", 9), ("b", 7))}
    for keys in rows.values():
        keys["share"] /= 80  # type: ignore[operator]
    given = config({"mix": {"rows": rows, **changes}})
    return given, build_plan(given)


def mix(num_ranks: int = 2, **changes: Any) -> Mix:
    given, plan = made(**changes)
    train = replace(plan.trains["actor_train"], dp_size=num_ranks, accumulation=64 // num_ranks // 16)
    plan = replace(plan, trains={"actor_train": train})
    sources = {"a": RowSource(numbered(100, 20), 1, True, "a"), "b": RowSource(numbered(200, 20), 1, False, "b")}
    return Mix(given, plan, sources)


def updates_of(rows: RowSet, num_updates: int) -> list[list[int]]:
    """The numbers of the rows of each update that have something to learn, on all ranks together."""
    found: list[list[int]] = [[] for _ in range(num_updates)]
    for shard in rows.shards:
        held: Any = shard.handle
        firsts, learnt = np.cumsum(held.lengths) - held.lengths, held.response_lengths > 0
        for update, part in enumerate(np.split(np.arange(len(held)), num_updates)):
            found[update] += held.input_ids[firsts[part]][learnt[part]].tolist()
    return [sorted(numbers) for numbers in found]


def drawn(given: Mix, steps: range) -> list[list[list[int]]]:
    found = [given.add_expert_rows(JOB, step) for step in steps]
    return [updates_of(mixed.rows, 2) for mixed in found if mixed is not None and mixed.rows is not None]


def test_every_update_has_its_part_of_each_source_in_the_order_of_the_data() -> None:
    mixed = mix().add_expert_rows(JOB, 0)
    assert mixed is not None and mixed.rows is not None and len(mixed.rows.lengths) == 32
    first, second = updates_of(mixed.rows, 2)
    assert [number for number in first if number >= 200] == list(range(200, 207))
    assert [number for number in second if number >= 200] == list(range(207, 214))
    assert len(first) == len(second) == 16 and len({*first, *second}) == 32
    assert isinstance(mixed.job.loss, MixedLoss)
    assert (mixed.job.loss.policy, mixed.job.loss.expert, mixed.job.loss.weight) == (JOB.loss, ExpertLoss(), 0.1)
    assert mixed.metrics["actor/expert_rows"] == 32 and mixed.metrics["actor/expert_weight"] == 0.1
    tokens = sum(1 + number % 100 % 5 for number in [*first, *second])
    assert mixed.metrics["actor/expert_tokens"] == tokens
    assert mixed.metrics["actor/expert_epochs/a"] == 0.9 and mixed.metrics["actor/expert_epochs/b"] == 0.7


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_rows_do_not_depend_on_ranks(num_ranks: int) -> None:
    mixed = mix(num_ranks).add_expert_rows(JOB, 0)
    assert mixed is not None and mixed.rows is not None and len(mixed.rows.shards) == num_ranks
    assert drawn(mix(num_ranks), range(5)) == drawn(mix(2), range(5))


def test_ranks_without_rows_and_rows_without_weight_learn_nothing() -> None:
    given, plan = made(rows={"a": {"share": 0.05, "data_args": {"file_name": "x.jsonl"}}})
    mixed = Mix(given, plan, {"a": RowSource(numbered(100, 20), 1, True, "a")}).add_expert_rows(JOB, 0)
    assert mixed is not None and mixed.rows is not None  # 3 rows of an update on 2 ranks
    assert [len(update) for update in updates_of(mixed.rows, 2)] == [3, 3]
    assert [len(shard.rows) for shard in mixed.rows.shards] == [4, 4]
    assert mixed.metrics["actor/expert_rows"] == 6
    given = mix(weight=0.5, decay_steps=2)
    assert [given.add_expert_rows(JOB, step) is None for step in range(4)] == [False, False, True, True]
    assert given.state()["b"]["drawn"] == 2 * 2 * 7
    plain, plan = config({}), build_plan(config({}))
    assert Mix(plain, plan, {}).add_expert_rows(JOB, 0) is None


def test_a_checkpoint_brings_every_source_back_to_its_place(tmp_path: Path) -> None:
    whole, part, again = mix(), mix(), mix()
    expected = drawn(whole, range(6))
    assert drawn(part, range(4)) == expected[:4]
    again.load_state(json.loads(json.dumps(part.state())), tmp_path)
    assert drawn(again, range(4, 6)) == expected[4:]
    other = mix()
    other.sources["a"]._contents = "other"  # type: ignore[index]
    with pytest.raises(ConfigError, match="the rows are not those of the checkpoint"):
        other.load_state(part.state(), tmp_path)


def test_a_source_that_the_checkpoint_does_not_know_begins(tmp_path: Path) -> None:
    part, again = mix(), mix()
    drawn(part, range(2))
    again.load_state({"a": part.state()["a"]}, tmp_path)
    assert [number for number in drawn(again, range(1))[0][0] if number >= 200] == list(range(200, 207))


def test_rows_are_read_as_fine_tuning_reads_them(tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = [{"question": "ab", "answer": "ba"}, {"messages": [{"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"}]}]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"share": 0.2, "data_args": {"file_name": str(tmp_path / "x.jsonl"), "template": "plain"}}
    names = {"prompt_key": "question", "response_key": "answer"}
    model = {"actor_train.model_args.model_name_or_path": str(tiny_model_dir)}
    given = config({**model, "mix": {"rows": {"a": keys | names}}})
    tokenizer = policy_tokenizer("actor_train", given.actor_train.model_args)
    read = Mix(given, build_plan(given))
    read.prepare(given, build_plan(given))
    (source,) = read.sources.values()
    assert len(source.rows) == 2
    ids = source.rows.input_ids[: source.rows.lengths[0]][source.rows.response_mask[: source.rows.lengths[0]]]
    assert "ba" in tokenizer.decode(ids.tolist())
