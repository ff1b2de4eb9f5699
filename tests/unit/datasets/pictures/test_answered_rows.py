"""Rows with answers that show pictures, as SFT, DPO and distillation read them: expanded ids, what is learnt of them,
and pictures without pixels."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from roll.configs.sections.data import DataArgs
from roll.configs.tables.sight import VisionModel
from roll.configs.tables.vision import vision_model
from roll.datasets.conversations import Columns, load_conversations, look_at_rows
from roll.datasets.preferences import PairColumns, load_pairs
from roll.errors import ConfigError
from roll.types.batch import PairRows, Rows
from tests.helpers.cases import cases
from tests.unit.datasets.pictures.files import png

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "sft_train.data_args"
NAMES = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
SHOWN = "<|vision_start|><|image_pad|><|vision_end|>"
USER, ASSISTANT = "<|im_start|>user\n", "<|im_start|>assistant\n"
TWO_TURNS = [
    {"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "31?"}]},
    {"role": "assistant", "content": "13"},
    {"role": "user", "content": [{"type": "text", "text": "and "}, {"type": "image", "image": "b.png"}]},
    {"role": "assistant", "content": "24"},
]


@pytest.fixture(scope="module")
def tokenizer() -> "Tokenizer":
    from tiny_vision import build_vision_tokenizer

    return build_vision_tokenizer()


class Data:
    """Rows of a file beside the pictures a.png (2 x 3 tokens), b.png (2 x 2) and c.png (4 x 4)."""

    def __init__(self, folder: Path, tokenizer: "Tokenizer"):
        from tiny_vision import ENDS, IMAGE, STARTS, VIDEO

        marks = zip(NAMES, (STARTS, ENDS, IMAGE, VIDEO), strict=True)
        tokens = {name: tokenizer.convert_tokens_to_ids(mark) for name, mark in marks}
        vision = vision_model({"model_type": "qwen2_vl", "vision_config": {}, **tokens}, {"max_pixels": 16 * 784})
        assert vision is not None
        self.folder, self.tokenizer, self.vision = folder, tokenizer, vision
        for name, height, width in (("a", 56, 84), ("b", 56, 56), ("c", 112, 112)):
            (folder / f"{name}.png").write_bytes(png(height, width, ord(name)))

    def args(self, *rows: Mapping[str, Any], **args: Any) -> DataArgs:
        path = self.folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return DataArgs(file_name=(str(path),), **args)

    def talks(self, *rows: Mapping[str, Any], longest: int = 500, query: str | None = None, **args: Any) -> Rows:
        vision: VisionModel | None = args.pop("vision", self.vision)
        columns = Columns("prompt", query, "answer", None, sees=vision is not None)
        return load_conversations(self.args(*rows, **args), KEY, columns, self.tokenizer, longest, vision=vision)

    def pairs(self, *rows: Mapping[str, Any], longest: int = 500, **args: Any) -> PairRows:
        columns = PairColumns("prompt", None, "chosen", "rejected", None, sees=True)
        return load_pairs(self.args(*rows, **args), KEY, columns, self.tokenizer, longest, vision=self.vision)

    def text(self, rows: Rows, row: int = 0, learnt: bool = False) -> str:
        """The text of a row, or of what is learnt of it, with one placeholder for each picture."""
        start = int(rows.lengths[:row].sum())
        of_row = slice(start, start + int(rows.lengths[row]))
        ids, mask = rows.input_ids[of_row], rows.response_mask[of_row].copy()
        stays = np.ones(len(ids), bool)
        for shown in rows.media[row] if rows.media else ():
            stays[shown.start + 1 : shown.end] = False
        return str(self.tokenizer.decode(ids[mask & stays] if learnt else ids[stays]))


@pytest.fixture
def data(tmp_path: Path, tokenizer: "Tokenizer") -> Data:
    return Data(tmp_path, tokenizer)


def test_a_row_holds_one_id_for_each_token_of_its_pictures_and_no_pixels(data: Data) -> None:
    rows = data.talks({"prompt": "<image>What?", "images": ["a.png"], "answer": "31"})
    assert rows.media is not None and [len(media) for media in rows.media] == [1]
    shown = rows.media[0][0]
    ids = rows.input_ids.tolist()
    assert ids.count(data.vision.image_token) == shown.length == 6
    assert set(ids[shown.start : shown.end]) == {data.vision.image_token}
    assert (shown.picture.height, shown.picture.width, shown.picture.pixels) == (56, 84, None)
    assert data.text(rows) == f"{USER}{SHOWN}What?<|im_end|>\n{ASSISTANT}31<|im_end|>\n"
    assert data.text(rows, learnt=True) == "31<|im_end|>"


def test_pictures_of_several_turns_stand_in_them_and_are_never_learnt(data: Data) -> None:
    rows = data.talks({"messages": TWO_TURNS}, {"prompt": "31", "answer": "13"})
    assert rows.media is not None and rows.media[1] == ()
    assert [shown.length for shown in rows.media[0]] == [6, 4]
    names = [Path(shown.picture.source.place).name for shown in rows.media[0] if shown.picture.source]
    assert names == ["a.png", "b.png"]
    whole = (
        f"{USER}{SHOWN}31?<|im_end|>\n{ASSISTANT}13<|im_end|>\n{USER}and {SHOWN}<|im_end|>\n{ASSISTANT}24<|im_end|>\n"
    )
    assert data.text(rows) == whole and data.text(rows, learnt=True) == "13<|im_end|>24<|im_end|>"
    masked = rows.input_ids[rows.response_mask]
    assert data.vision.image_token not in masked


ROW = {"prompt": "<image>?", "images": ["a.png"], "answer": "1"}


@cases("row, complaint")
def test_what_cannot_be_shown_is_refused_with_its_row(row: dict[str, Any], complaint: str, data: Data) -> None:
    with pytest.raises(ConfigError) as caught:
        data.talks(row)
    assert f"{data.folder}/rows.jsonl:1" in str(caught.value) and complaint in str(caught.value)


def test_a_model_that_does_not_see_refuses_pictures(data: Data) -> None:
    with pytest.raises(ConfigError, match="column 'images' holds a picture, but the run's model does not see"):
        data.talks(ROW, vision=None)


def test_lengths_and_the_front_of_files_are_those_of_a_run(data: Data) -> None:
    args = data.args(ROW, ROW | {"images": ["none.png"]})
    columns = Columns("prompt", None, "answer", None, sees=True)
    (problem,) = look_at_rows(args, KEY, columns)
    assert "rows.jsonl:2, column images[0]: there is no file" in problem
    length = int(data.talks(ROW).lengths[0])
    assert data.talks(ROW, longest=length)
    with pytest.raises(ConfigError, match=f"1 of 1 rows are longer .* the longest has {length}"):
        data.talks(ROW, longest=length - 1)
    with pytest.raises(ConfigError, match="no rows to learn from"):
        data.talks(ROW, longest=length - 1, truncation="drop")


def test_no_cut_goes_through_a_picture_or_takes_one_from_its_answer(data: Data, caplog: Any) -> None:
    text = {"prompt": "3", "answer": "13"}
    turns = data.talks({"messages": TWO_TURNS})
    assert turns.media is not None
    (first, second), length = turns.media[0], int(turns.lengths[0])
    with caplog.at_level("INFO"):
        for how, longest, count in (
            ("right", first.end + 12, 1),  # behind the first answer, before b.png
            ("right", second.start, 1),
            ("right", second.start + 1, 0),
            ("right", length - 1, 2),
            ("left", length - first.start, 2),  # before a.png
            ("left", length - first.start - 1, 0),
            ("middle", length - 2, 2),
        ):
            caplog.clear()
            rows = data.talks({"messages": TWO_TURNS}, text, longest=longest, truncation=how)
            media = [len(each) for each in rows.media or ()]
            dropped = "1 rows are left out, since a cut would go through their pictures" in caplog.text
            assert dropped is (count == 0), (how, longest)
            if count:
                assert media[:1] == [count], (how, longest)
            for row in range(len(rows)):
                start = int(rows.lengths[:row].sum())
                for shown in rows.media[row] if rows.media else ():
                    ids = rows.input_ids[start + shown.start : start + shown.end]
                    assert set(ids.tolist()) == {data.vision.image_token}


PAIR = {"prompt": "<image>?", "images": ["a.png"], "chosen": "13", "rejected": "2"}


def test_pairs_show_the_pictures_of_their_prompt_whole_or_go(data: Data) -> None:
    pairs = data.pairs(PAIR, {"prompt": "31", "chosen": "13", "rejected": "2"})
    assert pairs.media is not None and [len(media) for media in pairs.media] == [1, 1, 0, 0]
    assert pairs.media[0] == pairs.media[1] and pairs.media[0][0].length == 6
    assert [data.text(pairs, row, learnt=True) for row in (0, 1)] == ["13<|im_end|>", "2<|im_end|>"]
    chosen, rejected = TWO_TURNS, [*TWO_TURNS[:3], {"role": "assistant", "content": "5"}]
    pairs = data.pairs({"chosen": chosen, "rejected": rejected})
    assert pairs.media is not None and [len(media) for media in pairs.media] == [2, 2]
    other = [{**TWO_TURNS[0], "content": [{"type": "image", "image": "c.png"}]}, *TWO_TURNS[1:]]
    with pytest.raises(ConfigError, match="show different pictures"):
        data.pairs({"chosen": other, "rejected": rejected})
    length = int(data.pairs(PAIR).lengths.max())
    more = {"prompt": "31", "chosen": "13", "rejected": "2"}
    for how, count in (("left", 1), ("right", 2)):
        pairs = data.pairs(PAIR, more, longest=length - (8 if how == "left" else 1), truncation=how)
        assert len(pairs) == 2 * count
