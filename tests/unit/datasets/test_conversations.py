"""Conversations to rows: which tokens there are, and which are learnt."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.conversations import Columns, load_conversations, look_at_rows
from roll.errors import ConfigError
from roll.types.batch import Rows
from tests.helpers.cases import cases

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "sft_train.data_args"
TWO_TURNS = [
    {"role": "user", "content": "31"},
    {"role": "assistant", "content": "13"},
    {"role": "user", "content": "42"},
    {"role": "assistant", "content": "24"},
]


def columns(**changed: Any) -> Columns:
    return Columns(**{"prompt": "prompt", "query": None, "response": "answer", "system": None} | changed)


def load(path: Path, tokenizer: "Tokenizer", *rows: dict[str, Any], longest: int = 64, **more: Any) -> Rows:
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    template = more.pop("template", None)
    args = DataArgs(file_name=(str(path / "rows.jsonl"),), **more.pop("args", {}))
    return load_conversations(args, KEY, columns(**more), tokenizer, longest, template)


def test_plain_rows_and_entries_of_columns_are_texts_to_their_end(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    row = {"extra_info": {"question": "31", "answer": "13"}}
    inner = load(tmp_path, tiny_tokenizer, row, prompt="extra_info.question", response="extra_info.answer")
    plain = load(tmp_path, tiny_tokenizer, {"prompt": "31", "answer": "13"})
    assert learnt(inner, tiny_tokenizer) == learnt(plain, tiny_tokenizer)
    given = {"prompt": "31", "more": "42", "answer": "13"}
    rows = load(tmp_path, tiny_tokenizer, given, template="plain", query="more")
    assert tiny_tokenizer.decode(rows.input_ids) == f"31\n4213{tiny_tokenizer.eos_token}"
    assert learnt(rows, tiny_tokenizer) == [f"13{tiny_tokenizer.eos_token}"]
    (tmp_path / "lines.jinja").write_text("{% for m in messages %}{{ m.content }};{{ eos_token }}{% endfor %}")
    row = {"prompt": "31", "answer": "<|im_end|> ends a turn"}
    rows = load(tmp_path, tiny_tokenizer, row, args={"template": str(tmp_path / "lines.jinja")})
    assert learnt(rows, tiny_tokenizer) == ["<|im_end|> ends a turn;<|im_end|>"]


def learnt(rows: Rows, tokenizer: "Tokenizer") -> list[str]:
    """The texts that are learnt, row by row."""
    ids, masks = (np.split(values, np.cumsum(rows.lengths)[:-1]) for values in (rows.input_ids, rows.response_mask))
    return [str(tokenizer.decode(row[mask])) for row, mask in zip(ids, masks, strict=True)]


def test_a_row_is_the_prompt_as_it_is_asked_and_the_answer_with_its_end(
    tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    rows = load(tmp_path, tiny_tokenizer, {"prompt": "31", "answer": "13"})
    asked: Any = tiny_tokenizer.apply_chat_template(
        [{"role": "user", "content": "31"}], add_generation_prompt=True, return_dict=False
    )
    assert rows.input_ids.tolist()[: len(asked)] == asked
    assert not rows.response_mask[: len(asked)].any()
    assert learnt(rows, tiny_tokenizer) == [f"13{tiny_tokenizer.eos_token}"]


@pytest.mark.parametrize(("train_on", "count"), [("all", 2), ("last", 1)])
def test_of_a_conversation_all_answers_or_the_last_are_learnt(
    train_on: str, count: int, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    rows = load(tmp_path, tiny_tokenizer, {"messages": TWO_TURNS}, train_on=train_on)
    end = tiny_tokenizer.eos_token
    assert learnt(rows, tiny_tokenizer) == ["".join([f"13{end}", f"24{end}"][-count:])]
    whole = str(tiny_tokenizer.apply_chat_template(TWO_TURNS, tokenize=False))
    assert tiny_tokenizer.decode(rows.input_ids) == whole


def test_rows_too_long_stop_the_run_are_left_out_or_cut(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    short, long = {"prompt": "31", "answer": "13"}, {"prompt": "31", "answer": "1" * 40}
    with pytest.raises(ConfigError, match=f"{KEY}: 1 of 2 rows are longer than sequence_length = 32 tokens"):
        load(tmp_path, tiny_tokenizer, short, long, longest=32)
    assert len(load(tmp_path, tiny_tokenizer, short, long, longest=32, args={"truncation": "drop"})) == 1
    cut = load(tmp_path, tiny_tokenizer, short, long, longest=32, args={"truncation": "right"})
    assert cut.lengths[1] == 32 and cut.response_mask[-1]


@pytest.mark.parametrize("template", ["native", "longCOT_qwen2.5"])
def test_a_turn_that_nothing_has_asked_for_is_refused_where_it_would_be_learnt(
    template: str, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    row = {"messages": TWO_TURNS[1:]}
    with pytest.raises(ConfigError, match=r"rows\.jsonl:1: the conversation begins with the assistant"):
        load(tmp_path, tiny_tokenizer, row, template=template)
    rows = load(tmp_path, tiny_tokenizer, row, template=template, train_on="last", longest=1000)
    assert learnt(rows, tiny_tokenizer) == [f"24{tiny_tokenizer.eos_token}"]


def test_the_first_token_of_a_row_is_not_learnt_for_nothing_predicts_it(
    tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    """Hugging Face's labels are shifted: it has none for that token, and does not count it."""
    end = tiny_tokenizer.eos_token
    nothing_asked = [{"prompt": "", "answer": "13"}, {"prompt": "3", "answer": "1"}]
    rows = load(tmp_path, tiny_tokenizer, *nothing_asked, template="plain")
    assert learnt(rows, tiny_tokenizer) == [f"3{end}", f"1{end}"]
    assert rows.response_mask.tolist() == [False, True, True, False, True, True]
    cut = load(tmp_path, tiny_tokenizer, {"prompt": "31", "answer": "12345"}, longest=3, args={"truncation": "left"})
    assert cut.response_mask.tolist() == [False, True, False]  # 5, the end, a line break of the template's
    both: dict[str, Any] = {"prompt": "31", "answer": "12345"}
    whole, middle = (load(tmp_path, tiny_tokenizer, both, longest=n, args={"truncation": "middle"}) for n in (99, 7))
    ids = whole.input_ids.tolist()
    assert middle.input_ids.tolist() == [*ids[:3], *ids[-4:]]


def test_messages_that_nobody_answers_are_left_out(
    tmp_path: Path, tiny_tokenizer: "Tokenizer", caplog: pytest.LogCaptureFixture
) -> None:
    """As ShareGPT's conversations end."""
    with caplog.at_level("INFO"):
        rows = load(tmp_path, tiny_tokenizer, {"messages": TWO_TURNS[:3]}, {"messages": TWO_TURNS[:2]})
    assert rows.input_ids.tolist()[: len(rows.input_ids) // 2] * 2 == rows.input_ids.tolist()
    assert "1 rows end with messages without a response: those messages are left out" in caplog.text


@cases("row, message")
def test_a_row_that_cannot_be_read_is_named(
    row: dict[str, Any], message: str, tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, tiny_tokenizer, row)
    args = DataArgs(file_name=(str(tmp_path / "rows.jsonl"),))
    (said,) = look_at_rows(args, KEY, columns())
    assert said.startswith(f"{tmp_path}/rows.jsonl:1: ") and message in said


def test_a_template_that_rewrites_earlier_turns_makes_a_row_of_each_answer_and_says_so(
    tmp_path: Path, tiny_tokenizer: "Tokenizer", caplog: pytest.LogCaptureFixture
) -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}Q{{ m.content }}{% elif loop.last %}A{{ m.content }}<|im_end|>"
        "{% endif %}{% endfor %}"
    )
    (tmp_path / "last.jinja").write_text(source)
    args = {"template": str(tmp_path / "last.jinja")}
    with caplog.at_level("INFO"):
        rows = load(tmp_path, tiny_tokenizer, {"messages": TWO_TURNS}, args=args)
    assert learnt(rows, tiny_tokenizer) == ["A13<|im_end|>", "A24<|im_end|>"]
    assert tiny_tokenizer.decode(rows.input_ids) == "Q31A13<|im_end|>Q31Q42A24<|im_end|>"
    assert f"{KEY}: 1 conversations are 2 rows of 17 tokens, 1.7 times those of the conversations" in caplog.text
    last = load(tmp_path, tiny_tokenizer, {"messages": TWO_TURNS}, args=args, train_on="last")
    assert learnt(last, tiny_tokenizer) == ["A24<|im_end|>"]
