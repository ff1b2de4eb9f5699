"""Rows with a better and a worse answer: which tokens there are, and which are compared."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets.conversations import look_at_rows
from roll.datasets.preferences import PairColumns, load_pairs
from roll.errors import ConfigError
from roll.types.batch import PairRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "actor_train.data_args"
TEXTS = {"prompt": "31", "chosen": "13", "rejected": "331"}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def columns(**changed: Any) -> PairColumns:
    names = {"prompt": "prompt", "query": None, "chosen": "chosen", "rejected": "rejected", "system": None}
    return PairColumns(**names | changed)


def written(path: Path, *rows: dict[str, Any], **args: Any) -> DataArgs:
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataArgs(file_name=(str(path / "rows.jsonl"),), **args)


def load(path: Path, tokenizer: "Tokenizer", *rows: dict[str, Any], longest: int = 64, **more: Any) -> PairRows:
    template, args = more.pop("template", None), written(path, *rows, **more.pop("args", {}))
    return load_pairs(args, KEY, columns(**more), tokenizer, longest, template)


def rendered(rows: PairRows, tokenizer: "Tokenizer") -> list[tuple[str, str]]:
    """Of each row the text, and the part of it that is compared."""
    ids, masks = (np.split(values, np.cumsum(rows.lengths)[:-1]) for values in (rows.input_ids, rows.response_mask))
    return [
        (str(tokenizer.decode(row)), str(tokenizer.decode(row[mask]))) for row, mask in zip(ids, masks, strict=True)
    ]


def test_a_pair_is_two_rows_that_share_the_prompt(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    end = tiny_tokenizer.eos_token
    asked = str(tiny_tokenizer.apply_chat_template([user("31")], add_generation_prompt=True, tokenize=False))
    first, second = rendered(load(tmp_path, tiny_tokenizer, TEXTS), tiny_tokenizer)
    assert first[1] == f"13{end}" and second[1] == f"331{end}"
    assert first[0].startswith(asked + first[1]) and second[0].startswith(asked + second[1])
    begun, end = [user("31"), answer("13"), user("42")], tiny_tokenizer.eos_token
    row = {"chosen": [*begun, answer("24")], "rejected": [*begun, answer("42"), user("5"), answer("6")]}
    compared = [part for _, part in rendered(load(tmp_path, tiny_tokenizer, row), tiny_tokenizer)]
    assert compared == [f"24{end}", f"42{end}6{end}"]
    end = tiny_tokenizer.eos_token
    rows = load(tmp_path, tiny_tokenizer, TEXTS | {"more": "7"}, template="plain", query="more")
    assert [whole for whole, _ in rendered(rows, tiny_tokenizer)] == [f"31\n713{end}", f"31\n7331{end}"]
    # Nothing predicts it; a mean over an answer's tokens would be over one too many.
    unasked = {"prompt": "", "chosen": "13", "rejected": "31"}
    end = tiny_tokenizer.eos_token
    rows = load(tmp_path, tiny_tokenizer, unasked, unasked | {"rejected": ""}, template="plain")
    assert rendered(rows, tiny_tokenizer) == [(f"13{end}", f"3{end}"), (f"31{end}", f"1{end}")]


def test_a_template_that_rewrites_earlier_turns_compares_last_answers_alone(
    tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    (tmp_path / "last.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'user' %}Q{{ m.content }}{% elif loop.last %}A{{ m.content }}"
        "<|im_end|>{% endif %}{% endfor %}"
    )
    begun, template = [user("31"), answer("13"), user("42")], str(tmp_path / "last.jinja")
    row = {"chosen": [*begun, answer("24")], "rejected": [*begun, answer("42")]}
    assert len(load(tmp_path, tiny_tokenizer, row, template=template)) == 2
    row = {"chosen": [*begun, answer("24")], "rejected": [user("31"), answer("31"), user("42"), answer("24")]}
    with pytest.raises(ConfigError, match=r"in one row\. Set another template, or give pairs that differ in their"):
        load(tmp_path, tiny_tokenizer, row, template=template)


def test_pairs_whose_rows_are_the_same_are_left_out_whatever_makes_them_so(
    tmp_path: Path, tiny_tokenizer: "Tokenizer"
) -> None:
    not_shown = {"prompt": "31", "chosen": answer("13") | {"id": "a"}, "rejected": answer("13") | {"id": "b"}}
    differs_late = {"prompt": "31", "chosen": "1" * 40 + "2", "rejected": "1" * 40 + "3"}
    cut: dict[str, Any] = {"longest": 30, "args": {"truncation": "right"}}
    assert len(load(tmp_path, tiny_tokenizer, TEXTS, not_shown)) == 2
    assert len(load(tmp_path, tiny_tokenizer, TEXTS, differs_late, **cut)) == 2
    with pytest.raises(ConfigError, match=r"no pairs to learn from in .* \(2 rows, 1 too long, 2 with equal responses"):
        load(tmp_path, tiny_tokenizer, not_shown, differs_late, **cut)


def test_pairs_too_long_stop_the_run_are_left_out_or_cut(tmp_path: Path, tiny_tokenizer: "Tokenizer") -> None:
    long = {"prompt": "1" * 30, "chosen": "13", "rejected": "3" * 12}
    longest = int(load(tmp_path, tiny_tokenizer, long).lengths.max())
    with pytest.raises(ConfigError, match=f"{KEY}: 1 of 2 pairs have a row longer than sequence_length = 40 tokens"):
        load(tmp_path, tiny_tokenizer, TEXTS, long, longest=40)
    assert len(load(tmp_path, tiny_tokenizer, TEXTS, long, longest=40, args={"truncation": "drop"})) == 2

    whole = rendered(load(tmp_path, tiny_tokenizer, long), tiny_tokenizer)
    left = load(tmp_path, tiny_tokenizer, long, longest=40, args={"truncation": "left"})
    assert left.lengths.max() == 40
    assert [part for _, part in rendered(left, tiny_tokenizer)] == [part for _, part in whole]
    cut = longest - 40
    assert (
        left.input_ids[: left.lengths[0]].tolist()
        == load(tmp_path, tiny_tokenizer, long).input_ids[cut : cut + left.lengths[0]].tolist()
    ), "as much is gone of the shorter row, so that both have the same prompt"

    middle = load(tmp_path, tiny_tokenizer, long, longest=40, args={"truncation": "middle"})
    assert middle.lengths.tolist() == left.lengths.tolist()
    assert [part for _, part in rendered(middle, tiny_tokenizer)] == [part for _, part in whole]
    assert middle.input_ids[:5].tolist() == load(tmp_path, tiny_tokenizer, long).input_ids[:5].tolist(), "it stays"

    right = load(tmp_path, tiny_tokenizer, TEXTS, long, longest=longest - 3, args={"truncation": "right"})
    assert rendered(right, tiny_tokenizer)[3][1] in whole[1][1] and len(right) == 4
    nothing_left = {"prompt": "1" * 60, "chosen": "13", "rejected": "3"}
    for how in ("left", "right"):
        kept = load(tmp_path, tiny_tokenizer, TEXTS, nothing_left, longest=30, args={"truncation": how})
        assert len(kept) == (2 if how == "right" else 4)
    answers_alone = {"prompt": "1", "chosen": "1" * 60, "rejected": "3"}
    assert len(load(tmp_path, tiny_tokenizer, TEXTS, answers_alone, longest=30, args={"truncation": "left"})) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "1", "chosen": "2"}, "column 'rejected' is missing; the row has prompt, chosen. Set rejected_key"),
        ({"chosen": "2", "rejected": "3"}, "column 'prompt' is missing; the row has chosen, rejected. Set prompt_key"),
        ({"prompt": "1", "chosen": 2, "rejected": "3"}, "column 'chosen' holds int, not a text or messages"),
        ({"prompt": "1", "chosen": [], "rejected": "3"}, r"column 'chosen' \(chosen_key\) must be a list of messages"),
        (
            {"chosen": [user("1"), answer("2")], "rejected": [user("9"), answer("3")]},
            "differ in message 1, of 'user' and 'user': they must answer the same prompt",
        ),
        ({"chosen": [user("1"), user("2")], "rejected": [user("1"), answer("3")]}, "ends with a message of 'user'"),
        (TEXTS | {"lead": "x"}, r"column 'lead' holds str, not a number of at most 1e\+09"),
        (TEXTS | {"lead": float("nan")}, "column 'lead' holds float, not a number"),
        (TEXTS | {"lead": 1e39}, "column 'lead' holds float, not a number"),  # float32 has no such number
        (TEXTS | {"lead": 10**400}, "column 'lead' holds int, not a number"),
    ],
)
def test_what_is_no_pair_is_named_before_anything_is_loaded(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    margin = "lead" if "lead" in row else None
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(*look_at_rows(written(tmp_path, row), KEY, columns(margin=margin)))
