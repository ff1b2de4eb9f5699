"""Rows in the shapes of public data sets: read, or refused with the keys to set."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.conversations import Columns, load_conversations
from roll.datasets.encoding import load_tasks
from roll.datasets.loader import Row
from roll.datasets.preferences import PairColumns, load_pairs
from roll.datasets.rows import Domain, RowReader
from roll.errors import ConfigError
from tests.helpers.cases import cases

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "sft_train.data_args"
USER, ANSWER = {"role": "user", "content": "31?"}, {"role": "assistant", "content": "13"}


def conversation(row: Mapping[str, Any], **names: Any) -> list[dict[str, Any]]:
    keys = {"prompt": "instruction", "query": None, "response": "output", "system": None} | names
    return Columns(**keys).read(Row("rows.jsonl", 7, row), DataArgs(), KEY).messages


@cases("row, names")
def test_a_shape_of_the_hub_is_the_same_conversation(row: Mapping[str, Any], names: Mapping[str, str]) -> None:
    assert conversation(row, **names) == [USER, ANSWER]


@pytest.mark.parametrize("flag", ["train", "loss"])
def test_a_flag_not_to_learn_an_answer_is_its_weight(flag: str) -> None:
    """Axolotl's and ms-swift's flags were passed over, and what they rule out was learnt."""
    talk = [{"from": "human", "value": "31?"}, {"from": "gpt", "value": "1", flag: False}]
    talk += [{"from": "human", "value": "31?"}, {"from": "gpt", "value": "13", flag: True}]
    assert [said.get("weight") for said in conversation({"conversations": talk})] == [None, 0, None, 1]


@cases("row, said")
def test_an_answer_of_a_pair_that_says_nothing_is_refused(row: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pair(row)


def test_columns_that_say_nothing_are_told_as_what_they_are() -> None:
    with pytest.raises(
        ConfigError, match="column 'output' is empty. Correct the row, leave it out, or set response_key"
    ):
        conversation({"instruction": "31?", "output": None})
    with pytest.raises(ConfigError, match=r"Set chosen_key to the column's name$"):
        pair({"conversations": [USER, ANSWER]})


def test_of_a_prompt_in_messages_nothing_is_learnt(tmp_path: "Path", tiny_tokenizer: "Tokenizer") -> None:
    """As TRL learns the completion alone."""
    row = {"prompt": [USER, {"role": "assistant", "content": "42"}, USER], "completion": [ANSWER]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    args = DataArgs(file_name=(str(tmp_path / "rows.jsonl"),))
    rows = load_conversations(args, KEY, Columns("prompt", None, "completion", None), tiny_tokenizer, 64)
    learnt = tiny_tokenizer.decode(rows.input_ids[np.array(rows.response_mask)])
    assert learnt == f"13{tiny_tokenizer.eos_token}"


@cases("row, said")
def test_columns_of_prompts_are_told_with_their_keys(row: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said.replace("KEY", KEY))):
        prompt_of(row)


def prompt_of(row: Mapping[str, Any]) -> Any:
    return RowReader(DataArgs(), KEY, [Domain("math", ("math",))]).read(Row("rows.jsonl", 7, row))


@cases("row, warned")
def test_a_part_of_the_prompt_that_nothing_reads_is_told_in_every_run(
    tmp_path: "Path", tiny_tokenizer: "Tokenizer", caplog: pytest.LogCaptureFixture, row: dict[str, Any], warned: str
) -> None:
    row = {"prompt": "31?", "completion": "13", "chosen": "13", "rejected": "331", "ground_truth": "13", **row}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    args = DataArgs(file_name=(str(tmp_path / "rows.jsonl"),))
    columns, pairs = (Columns("prompt", None, "completion", None), PairColumns("prompt", None, *PAIR, None))
    with caplog.at_level("WARNING"):
        load_conversations(args, KEY, columns, tiny_tokenizer, 64)
        load_pairs(args, KEY, pairs, tiny_tokenizer, 64)
        load_tasks(args, KEY, [Domain("math", ("math",))], tiny_tokenizer, 64)
    said = [record.getMessage() for record in caplog.records if "that nothing reads" in record.getMessage()]
    assert len(said) == (3 if warned else 0)
    assert all(warned.partition(" Set ")[0] in each for each in said) and (not warned or warned in said[0])


@pytest.mark.parametrize("weight", [0.5, "none", -1])
def test_a_weight_that_is_neither_0_nor_1_is_refused(weight: Any) -> None:
    """It was passed over, and the message learnt in full."""
    with pytest.raises(ConfigError, match=r"message 2 \(assistant\) has a weight of .*; it is 1, or 0"):
        conversation({"messages": [USER, {**ANSWER, "weight": weight}]})


PAIR = ("chosen", "rejected")


def pair(row: Mapping[str, Any], **names: Any) -> tuple[Any, Any]:
    keys = {"prompt": "prompt", "query": None, "chosen": "chosen", "rejected": "rejected", "system": None} | names
    found = PairColumns(**keys).read(Row("rows.jsonl", 7, row), DataArgs(), KEY)
    return found.chosen, found.rejected


WORSE = {"role": "assistant", "content": "331"}
TALK = "\n\nHuman: Hello\n\nAssistant: Yes?\n\nHuman: 31?\n\nAssistant: "


@cases("row")
def test_pairs_of_the_hub_are_two_conversations(row: Mapping[str, Any]) -> None:
    asked = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}, USER]
    assert pair(row) == ([*asked, ANSWER], [*asked, WORSE])


@pytest.mark.parametrize("whole", [False, True])
def test_a_prompt_may_be_a_transcript_that_asks(whole: bool) -> None:
    """full-hh-rlhf has the dialogue so far in its prompt, and the answer alone, or all of it once more, in chosen."""
    asked, so_far = f"{TALK.rstrip()}", TALK if whole else " "
    chosen, rejected = pair({"prompt": asked, "chosen": f"{so_far}13", "rejected": f"{so_far}331"})
    said = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}, USER]
    assert [m["content"].strip() for m in chosen] == [m["content"] for m in [*said, ANSWER]]
    assert [m["content"].strip() for m in rejected] == [m["content"] for m in [*said, WORSE]]
    assert list(prompt({"prompt": asked, "ground_truth": "13"})[0]) == said


def prompt(row: Mapping[str, Any], **args: Any) -> tuple[Any, Any]:
    reader, found = RowReader(DataArgs(**args), KEY, [Domain("math", ("math",))]), Row("rows.jsonl", 7, row)
    return reader.read(found).messages, reader.payload(found)["ground_truth"]


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"reward_model": {"ground_truth": {"target": "13"}}}, "reward_model.ground_truth.target"),
        ({"extra": {"answer.short": "13"}}, "extra.answer.short"),
        ({"a.b": {"c": "13"}, "a": {"b": {}}}, "a.b.c"),
    ],
)
def test_a_ground_truth_may_stand_at_any_depth(row: Mapping[str, Any], column: str) -> None:
    assert prompt({"prompt": "31?", **row}, ground_truth=column) == ((USER,), "13")


@cases("row")
def test_prompts_of_rlvr_may_be_messages(row: Mapping[str, Any]) -> None:
    assert prompt({"ground_truth": "13", **row}) == ((USER,), "13")


def test_an_input_that_nothing_reads_is_told(
    tmp_path: "Path", tiny_tokenizer: "Tokenizer", caplog: pytest.LogCaptureFixture
) -> None:
    """Alpaca has more of the prompt there."""
    (tmp_path / "rows.jsonl").write_text('{"instruction": "Sort", "input": "31", "output": "13"}\n')
    args = DataArgs(file_name=(str(tmp_path / "rows.jsonl"),))
    for query, said in ((None, True), ("input", False)):
        caplog.clear()
        with caplog.at_level("WARNING"):
            load_conversations(args, KEY, Columns("instruction", query, "output", None), tiny_tokenizer, 64)
        assert ("1 rows have a column 'input' that nothing reads. Set query_key: input" in caplog.text) is said


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_row_without_a_system_prompt_has_none(nothing: Any) -> None:
    """OpenHermes, OpenOrca, parquet."""
    row = {"instruction": "31?", "output": "13", "system": nothing}
    assert conversation(row, system="system") == [USER, ANSWER]
    with pytest.raises(ConfigError, match="column 'system' is missing"):
        conversation({"instruction": "31?", "output": "13"}, system="system")


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_answer_is_refused_by_row_unless_it_is_not_learnt(empty: str) -> None:
    for row, place in (
        ({"messages": [USER, {"role": "assistant", "content": empty}]}, 2),
        ({"messages": [USER, {"role": "assistant", "content": empty}, USER, ANSWER]}, 2),
        ({"instruction": "31?", "output": empty}, 2),
    ):
        with pytest.raises(ConfigError, match=rf"rows.jsonl:7: message {place} \(assistant\) is empty.*weight of 0"):
            conversation(row)
    unlearnt = {"role": "assistant", "content": empty, "weight": 0}
    call = {"role": "assistant", "content": empty, "tool_calls": [{"name": "f", "arguments": {}}]}
    for messages in ([USER, unlearnt, USER, ANSWER], [USER, call, {"role": "tool", "content": "1"}, ANSWER]):
        assert len(conversation({"messages": messages})) == 4
    thought = {"role": "assistant", "content": empty, "reasoning_content": "hm"}
    assert len(conversation({"messages": [USER, thought]})) == 2
