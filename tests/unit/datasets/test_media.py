"""Rows with pictures, videos or sound: refused by row wherever they stand, in every kind of run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.conversations import Columns
from roll.datasets.loader import Row
from roll.datasets.preferences import PairColumns
from roll.datasets.rows import Domain, RowReader
from roll.errors import ConfigError
from tests.helpers.cases import cases

KEY = "actor_train.data_args"
HELD = [
    {"images": [{"bytes": b"\x89PNG....", "path": None}]},
    {"images": ["a.png"]},
    {"image": {"bytes": None, "path": "a.jpg"}},
    {"image": "coco/train2017/000000033471.jpg"},
    {"image": "data:image/png;base64,AAAA"},
    {"image": "iVBORw0KGgo" * 40},
    {"image_1": {"bytes": b"\xff\xd8\xff", "path": None}},
    {"figure": {"bytes": b"\x89PNG....", "path": "1.png"}},
    {"videos": ["a.mp4"]},
    {"audio": {"array": [0.0], "sampling_rate": 16000}},
    {"multi_modal_data": {"image": ["17"]}},
]


def readers() -> Sequence[tuple[str, Any]]:
    return (
        ("rlvr", RowReader(DataArgs(), KEY, [Domain("math", ("math",), ())]).read),
        ("sft", lambda row: Columns("prompt", None, "answer", None).read(row, DataArgs(), KEY)),
        ("dpo", lambda row: PairColumns("prompt", None, "chosen", "rejected", None).read(row, DataArgs(), KEY)),
    )


def row_with(kind: str, values: Mapping[str, Any], asked: Any = None) -> Any:
    answers = {"rlvr": {}, "sft": {"answer": "yes"}, "dpo": {"chosen": "yes", "rejected": "no"}}[kind]
    row: dict[str, Any] = {"prompt": "31?"} | answers | values
    if asked is not None:
        more = [{"role": "assistant", "content": "yes"}]
        whole = {"messages": asked} if kind == "rlvr" else {"messages": [*asked, *more]}
        row = {"chosen": [*asked, *more], "rejected": [*asked, *more]} if kind == "dpo" else whole
    return Row("rows.jsonl", 7, row)


@pytest.mark.parametrize("values", HELD, ids=lambda values: json.dumps(values, default=str)[:40])
def test_a_row_with_pictures_in_a_column_is_refused_in_every_kind_of_run(values: Mapping[str, Any]) -> None:
    for kind, read in readers():
        with pytest.raises(
            ConfigError,
            match=r"rows.jsonl:7: column '\w+' holds .*, but (runs read text only|the run's model does not see)",
        ):
            read(row_with(kind, values))


@cases("shown")
def test_a_message_that_shows_pictures_is_refused_in_every_kind_of_run(shown: Mapping[str, Any]) -> None:
    for kind, read in readers():
        with pytest.raises(ConfigError, match=r"rows.jsonl:7: column '\w+' shows (a picture|a video|sound) in a mess"):
            read(row_with(kind, {}, [{"role": "user", "content": [shown, {"type": "text", "text": "What is it?"}]}]))


@cases("values")
def test_a_row_that_only_speaks_of_pictures_is_read(values: Mapping[str, Any]) -> None:
    for kind, read in readers():
        assert read(row_with(kind, values))
