"""Messages in the shapes that data sets have them in: the same text, in every kind of run, or a refusal by row."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.conversations import Columns, load_conversations
from roll.datasets.encoding import load_tasks
from roll.datasets.messages import clean_messages
from roll.datasets.preferences import PairColumns, load_pairs
from roll.datasets.rows import Domain
from roll.envs.base import Conversation
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.unit.datasets.templates import CALLS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "actor_train.data_args"
ARGUMENTS = {"city": "Rome", "days": [1, None]}
ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Is it warm?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}],
    },
    {"role": "tool", "content": "31"},
]
"""As templates take it."""


def changed(place: int, **message: Any) -> list[Any]:
    return [*ASKED[:place], ASKED[place] | message, *ASKED[place + 1 :]]


def called(arguments: Any, **more: Any) -> list[Any]:
    return changed(
        2, tool_calls=[{"type": "function", "function": {"name": "weather", "arguments": arguments}, **more}]
    )


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


LEGACY = [
    *ASKED[:2],
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}},
    {"role": "function", "content": "31", "name": None},
]
SHAREGPT = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Is it warm?"},
    {"from": "function_call", "value": json.dumps({"name": "weather", "arguments": ARGUMENTS})},
    {"from": "observation", "value": "31"},
]
SHAPES: Mapping[str, Any] = {
    "content as parts": changed(1, content=[part("Is it"), part(" warm?")]),
    "parts without types": changed(1, content=[{"text": "Is it"}, " warm?"]),
    "parts of the responses form": changed(1, content=[{"type": "input_text", "text": "Is it warm?"}]),
    "parts of a struct": changed(1, content=[part("Is it warm?", image_url=None, image=None)]),
    "null beside calls": changed(2, content=None),
    "no content beside calls": [{key: m[key] for key in m if key != "content" or m["content"]} for m in ASKED],
    "null and empty calls": [{"tool_calls": [] if m["role"] == "user" else None, **m} for m in ASKED],
    "null keys": [{"name": None, "tool_call_id": None, "reasoning_content": None, **m} for m in ASKED],
    "null arguments": called(ARGUMENTS | {"zip": None, "unit": None}, id=None),
    "arguments as a text": called(json.dumps(ARGUMENTS)),
    "a bare call": changed(2, tool_calls=[{"name": "weather", "arguments": ARGUMENTS}]),
    "one call": changed(2, tool_calls={"name": "weather", "parameters": ARGUMENTS}),
    "calls as a text": changed(2, tool_calls=json.dumps([{"name": "weather", "arguments": ARGUMENTS}])),
    "function_call of old": LEGACY,
    "ShareGPT": SHAREGPT,
    "roles by other names": [m | {"role": {"user": "Human"}.get(m["role"], m["role"])} for m in ASKED],
    "a text of JSON": json.dumps(changed(2, content=None)),
}


@pytest.fixture
def template(tmp_path: Path) -> str:
    (tmp_path / "calls.jinja").write_text(CALLS)
    return str(tmp_path / "calls.jinja")


def written(path: Path, row: Mapping[str, Any], **args: Any) -> DataArgs:
    (path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return DataArgs(file_name=(str(path / "rows.jsonl"),), **args)


def answered(asked: Any, text: str) -> Any:
    """The same conversation with an answer, in the same form."""
    if isinstance(asked, str):
        return json.dumps(answered(json.loads(asked), text))
    spoken = {"from": "gpt", "value": text} if "from" in asked[0] else {"role": "assistant", "content": text}
    return [*asked, spoken]


def text_of_rlvr(path: Path, tokenizer: "Tokenizer", template: str, asked: Any) -> str:
    args = written(path, {"messages": asked}, template=template)
    (task,) = load_tasks(args, KEY, [Domain("math", ("math",), ())], tokenizer, 500).tasks
    return task.prompt_text


def text_of_sft(path: Path, tokenizer: "Tokenizer", template: str, asked: Any) -> str:
    args = written(path, {"messages": answered(asked, "yes")}, template=template)
    rows = load_conversations(args, KEY, Columns("a", None, "b", None, train_on="last"), tokenizer, 500)
    return str(tokenizer.decode(rows.input_ids[~np.array(rows.response_mask)].tolist()))


def text_of_distillation(path: Path, tokenizer: "Tokenizer", template: str, asked: Any) -> str:
    args = written(path, {"messages": answered(asked, "yes")}, template=template)
    rows = load_conversations(args, KEY, Columns("question", None, "answer", None, train_on="last"), tokenizer, 500)
    return str(tokenizer.decode(rows.input_ids[~np.array(rows.response_mask)].tolist()))


def text_of_dpo(path: Path, tokenizer: "Tokenizer", template: str, asked: Any) -> str:
    asked = json.loads(asked) if isinstance(asked, str) else asked
    args = written(path, {"chosen": answered(asked, "yes"), "rejected": answered(asked, "no")}, template=template)
    rows = load_pairs(args, KEY, PairColumns("prompt", None, "chosen", "rejected", None), tokenizer, 500)
    chosen = rows.input_ids[: rows.lengths[0]]
    return str(tokenizer.decode(chosen.tolist())).removesuffix("yes<|im_end|>")


def text_of_agents(path: Path, tokenizer: "Tokenizer", template: str, asked: Any) -> str:
    encoder = ChatEncoder(tokenizer, template, reads_tool_calls=True)
    found = json.loads(asked) if isinstance(asked, str) else asked
    return encoder.show(encoder.conversation(Conversation(found)))


RUNS: Sequence[Callable[..., str]] = (
    text_of_rlvr, text_of_sft, text_of_distillation, text_of_dpo, text_of_agents,
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_the_same_text_in_every_kind_of_run(
    shape: str, tmp_path: Path, tiny_tokenizer: "Tokenizer", template: str
) -> None:
    wanted = (
        'system:Be brief.;user:Is it warm?;assistant:<weather {"city": "Rome", "days": [1, null]}>'
        "<|im_end|>tool:31;assistant:"
    )
    for text_of in RUNS:
        found = text_of(tmp_path, tiny_tokenizer, template, SHAPES[shape])
        assert found.rstrip(";") == wanted.rstrip(";"), text_of.__name__


@pytest.mark.parametrize("shape", [name for name in SHAPES if isinstance(SHAPES[name], list)])
def test_parquet_with_structs_of_other_rows_fills_nothing_in(
    shape: str, tmp_path: Path, tiny_tokenizer: "Tokenizer", template: str
) -> None:
    """A second row has other fields in every struct: this one gets them, as nulls."""
    other = {"role": "user", "content": "x", "weight": 1, "tool_calls": [{"index": 2, "function": {"name": "f"}}]}
    asked = list(SHAPES[shape])
    try:
        table = pyarrow.Table.from_pylist([{"messages": asked}, {"messages": [other]}])
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        pytest.skip("no struct of Arrow holds this shape: one field is of two types")
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    (first, _) = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert clean_messages(first["messages"]) == clean_messages(asked)


def test_messages_keep_what_their_author_wrote() -> None:
    """As the package datasets gives sequences."""
    columns = {"role": ["user", "assistant"], "content": ["a", "b"], "name": [None, None]}
    assert clean_messages(columns) == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text, struct = (clean_messages(called(value))[2] for value in ('{"a": null}', {"a": None}))
    assert [m["tool_calls"][0]["function"]["arguments"] for m in (text, struct)] == [{"a": None}, {}]
    results = [{"x": 1, "y": None}, [1, 2], ["a", "b"], 3, [part("a"), part("b")]]
    found = [clean_messages([{"role": "tool", "content": result}])[0]["content"] for result in results]
    assert found == ['{"x": 1}', "[1, 2]", '["a", "b"]', "3", "ab"]
    content = [{"type": "thinking", "thinking": [part("hm")]}, part("yes")]
    (found,) = clean_messages([{"role": "assistant", "content": content}])
    assert found == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "asistant", "content": "a"}], r"message 1 \(asistant\): no chat template supports.* mean assistant"),
        ([{"role": "user", "content": None}], r"the content of message 1 \(user\) is null, not a text"),
        ([{"role": "user", "content": 3}], r"the content of message 1 \(user\) is 3, not a text"),
        (["hi"], "must be a list of messages, each with role and content"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], r"part 1 of its content \('text'\) holds no"),
        ([{"role": "user", "content": [{"type": "tool_use"}]}], "Write calls as tool_calls"),
        (called("city=Rome"), r"message 3 \(assistant\): arguments of a tool call are not JSON"),
        (called("[1]"), "arguments of a tool call must be a mapping of names to values, not list"),
        (changed(2, tool_calls=[{"function": {"arguments": {}}}]), "a tool call has no name"),
        ([{"from": "function_call", "value": "f(x)"}], "tool_calls must be a list of calls"),
    ],
)
def test_what_is_no_message_is_refused_by_its_place(messages: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        clean_messages(messages)
