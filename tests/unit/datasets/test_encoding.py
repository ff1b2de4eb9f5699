"""Rows to tasks: templates, token ids, truncation with counts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.encoding import TaskSet, decoder, load_tasks
from roll.datasets.rows import Domain
from roll.errors import ConfigError
from tests.helpers.cases import cases

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "actor_train.data_args"
DOMAINS = (Domain("math", ("math",)), Domain("chat", ("chat",), required=()))


def load(
    path: Path,
    tokenizer: "Tokenizer",
    rows: list[dict[str, Any]],
    *,
    longest: int = 64,
    template: Any = None,
    by_tag: Any = (),
    **args: Any,
) -> TaskSet:
    path = path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_tasks(
        DataArgs(file_name=(str(path),), **args), KEY, DOMAINS, tokenizer, longest, template, dict(by_tag)
    )


def row(prompt: str, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "ground_truth": "1", "tag": "math", **more}


def test_native_template_gives_the_ids_of_apply_chat_template(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    messages = [{"role": "system", "content": "sort"}, {"role": "user", "content": "31 é"}]
    tasks = load(tmp_path, tiny_tokenizer, [row("3142"), {"messages": messages, "tag": "chat"}]).tasks
    for task, conversation in zip(tasks, ([{"role": "user", "content": "3142"}], messages), strict=True):
        expected: Any = tiny_tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert task.prompt_ids.tolist() == expected and task.prompt_ids.dtype == np.int32
        assert task.prompt_text == tiny_tokenizer.decode(expected)
    assert len(tasks[0].prompt_ids) == 12
    assert [task.domain for task in tasks] == ["math", "chat"]


def test_a_rows_tag_chooses_its_template_before_the_global_one(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    """Rows of both kinds in one batch, in their order, each with the special tokens of its own template."""
    (tmp_path / "t.jinja").write_text("{% for m in messages %}Q: {{ m.content }}{% endfor %}")
    rows = [row("31"), row("42", tag="chat"), row("53"), row("64", tag="chat")]
    by_tag = {"chat": str(tmp_path / "t.jinja")}
    texts = ["31", "Q: 42", "53", "Q: 64"]
    tasks = load(tmp_path, tiny_tokenizer, rows, template="plain", by_tag=by_tag).tasks
    assert [task.prompt_text for task in tasks] == texts
    plain = [tiny_tokenizer(text, add_special_tokens=i % 2 == 0)["input_ids"] for i, text in enumerate(texts)]
    assert [task.prompt_ids.tolist() for task in tasks] == plain
    alone = [load(tmp_path, tiny_tokenizer, [one], template="plain", by_tag=by_tag).tasks[0] for one in rows]
    assert [task.prompt_ids.tolist() for task in alone] == plain


def test_a_template_sees_its_kwargs_and_one_that_reads_none_refuses_them(
    tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    (tmp_path / "t.jinja").write_text("{{ effort }}: {{ messages[0]['content'] }}")
    told: dict[str, Any] = {"template_kwargs": {"effort": "low"}}
    from_file = load(tmp_path, tiny_tokenizer, [row("31")], template=str(tmp_path / "t.jinja"), **told)
    assert from_file.tasks[0].prompt_text == "low: 31"
    tagged = {"math": str(tmp_path / "t.jinja")}
    by_tag = load(tmp_path, tiny_tokenizer, [row("31")], by_tag=tagged, **told)
    assert by_tag.tasks[0].prompt_text == "low: 31"
    native = load(tmp_path, tiny_tokenizer, [row("31")], **told).tasks[0].prompt_text
    assert native == load(tmp_path, tiny_tokenizer, [row("31")]).tasks[0].prompt_text, "it has no such variable"
    with pytest.raises(ConfigError, match="template_kwargs: tokenize is set for every row"):
        load(tmp_path, tiny_tokenizer, [row("31")], template_kwargs={"tokenize": True})
    for name in ("plain", "chatml"):
        with pytest.raises(ConfigError, match=rf"{name} reads no template_kwargs \(effort\)"):
            load(tmp_path, tiny_tokenizer, [row("31")], template=name, **told)


def test_a_template_that_fails_is_named_with_its_row(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    rows = [row("31"), {"messages": [{"role": "user", "content": "a"}], "tag": "chat"}]
    with pytest.raises(ConfigError, match="tag_to_template.chat: plain takes a bare prompt"):
        load(tmp_path, tiny_tokenizer, rows, by_tag={"chat": "plain"})
    (tmp_path / "t.jinja").write_text("{{ raise_exception('no system message') }}{{ messages }}")
    with pytest.raises(ConfigError, match="rows.jsonl:1: .*no system message"):
        load(tmp_path, tiny_tokenizer, [row("31")], template=str(tmp_path / "t.jinja"))


def test_plain_and_file_templates(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    assert load(tmp_path, tiny_tokenizer, [row("31")], template="plain").tasks[0].prompt_text == "31"
    (tmp_path / "t.jinja").write_text("{% for m in messages %}Q: {{ m.content }}\n{% endfor %}A:")
    from_file = load(tmp_path, tiny_tokenizer, [row("31")], template=str(tmp_path / "t.jinja"))
    assert from_file.tasks[0].prompt_text == "Q: 31\nA:"
    with pytest.raises(ConfigError, match="rows.jsonl:1: global_template: plain takes a bare prompt"):
        load(
            tmp_path,
            tiny_tokenizer,
            [{"messages": [{"role": "user", "content": "x"}], "tag": "chat"}],
            template="plain",
        )


@cases("name, text")
def test_templates_of_roll_by_name(tmp_path: Path, tiny_tokenizer: "Tokenizer", name: str, text: str) -> None:
    native = load(tmp_path, tiny_tokenizer, [row("31")]).tasks[0].prompt_text
    got = load(tmp_path, tiny_tokenizer, [row("31")], template=name).tasks[0].prompt_text
    assert got == text.replace("{native}", native)


def test_a_tokenizer_without_chat_template_is_an_error(tmp_path: Path) -> None:
    from roll.models.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match=f"{KEY}.template: native, but the tokenizer .* has no chat template"):
        load(tmp_path, tokenizer, [row("31")])


def test_a_system_prompt_of_the_run_stands_before_rows_that_bring_none(
    tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    own = [{"role": "system", "content": "sort"}, {"role": "user", "content": "31"}]
    rows = [row("31"), {"messages": own, "tag": "chat"}]
    texts = [task.prompt_text for task in load(tmp_path, tiny_tokenizer, rows, system_prompt="think").tasks]
    wanted = [[{"role": "system", "content": "think"}, own[1]], own]
    assert texts == [tiny_tokenizer.apply_chat_template(w, tokenize=False, add_generation_prompt=True) for w in wanted]


LONG = [row("12"), row("1234567"), row("12345")]  # 2, 7 and 5 tokens without a template


@cases("truncation, prompts, truncated, dropped")
def test_prompts_too_long_are_cut_or_dropped_and_counted(
    tmp_path: Path, tiny_tokenizer: "Tokenizer", truncation: str, prompts: list[str], truncated: int, dropped: int
) -> None:
    tasks = load(tmp_path, tiny_tokenizer, LONG, longest=4, template="plain", truncation=truncation)
    assert [task.prompt_text for task in tasks.tasks] == prompts
    assert [len(task.prompt_ids) for task in tasks.tasks] == [len(prompt) for prompt in prompts]
    assert (tasks.num_rows, tasks.num_truncated, tasks.num_dropped) == (3, truncated, dropped)


def test_prompts_too_long_are_an_error_that_counts_them_all(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    with pytest.raises(ConfigError, match=r"2 of 3 prompts .* prompt_length = 4 .*has 7 \(.*rows.jsonl:2\)"):
        load(tmp_path, tiny_tokenizer, LONG, longest=4, template="plain")
    with pytest.raises(ConfigError, match="drop left none of 1 rows"):
        load(tmp_path, tiny_tokenizer, LONG[1:2], longest=4, template="plain", truncation="drop")
    assert len(load(tmp_path, tiny_tokenizer, LONG, longest=7, template="plain").tasks) == 3


def _nested(answer: str) -> dict[str, object]:
    return {"reward_model": {"style": "rule", "ground_truth": answer}}


def test_rows_keep_their_columns_and_ids(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    """Rows of verl have it in reward_model."""
    rows = [{"prompt": "1", "tag": "math", **_nested("5")}]
    (task,) = load(tmp_path, tiny_tokenizer, rows, ground_truth="reward_model.ground_truth").tasks
    assert task.payload == {"prompt": "1", "tag": "math", "ground_truth": "5", **_nested("5")}
    (task,) = load(tmp_path, tiny_tokenizer, [row("1", answer=5, level="hard")], ground_truth="answer").tasks
    assert task.payload == {"prompt": "1", "tag": "math", "ground_truth": 5, "answer": 5, "level": "hard"}
    rows = [row("1", id="a"), row("2"), row("3", id="a"), row("4", id=7)]
    ids = [task.task_id for task in load(tmp_path, tiny_tokenizer, rows).tasks]
    assert ids == ["a", "rows.jsonl:2", "a@rows.jsonl:3", "7"]
    assert ids == [task.task_id for task in load(tmp_path, tiny_tokenizer, rows).tasks]


def test_decoder_gives_what_batch_decode_gives(tiny_tokenizer: "Tokenizer") -> None:
    texts = ["<answer>1234</answer><|im_end|>", "", "é <think>x</think>\n"]
    ids = [np.array(tiny_tokenizer(text)["input_ids"], np.int32) for text in texts]
    assert decoder(tiny_tokenizer)(ids) == ["<answer>1234</answer>", "", "é <think>x</think>\n"]
    assert decoder(tiny_tokenizer, skip_special_tokens=False)(ids) == texts
