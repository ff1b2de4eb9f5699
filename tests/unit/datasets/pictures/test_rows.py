"""Rows with pictures become tasks: where pictures stand, what is counted, and what is refused."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
import pytest

from roll.configs.sections.data import DataArgs
from roll.configs.tables.sight import VisionModel
from roll.configs.tables.vision import vision_model
from roll.datasets.encoding import TaskSet, load_tasks
from roll.datasets.pictures import decode as decoder
from roll.datasets.pictures.decode import decode
from roll.datasets.pictures.expansion import expand
from roll.datasets.preflight import preflight
from roll.datasets.rows import Domain
from roll.errors import ConfigError
from roll.types.rollout import Task
from tests.helpers.cases import cases
from tests.unit.datasets.pictures.files import bomb, png

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast as Tokenizer

KEY = "actor_train.data_args"
DOMAINS = [Domain("math", ("math",), ())]
TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2-VL's own one, without its words for videos and its system prompt."""
SHOWN = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def tokenizer() -> "Tokenizer":
    from roll.models.tiny import build_tokenizer

    made = build_tokenizer()
    made.add_special_tokens({"additional_special_tokens": TOKENS})  # type: ignore[arg-type]
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="module")
def vision(tokenizer: "Tokenizer") -> VisionModel:
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in zip(names, TOKENS, strict=True)}
    made = vision_model({"model_type": "qwen2_vl", "vision_config": {}, **ids}, {"max_pixels": 16 * 784})
    assert made is not None
    return made


class Loader:
    """Rows of a file beside the pictures a.png (2 x 3 tokens), b.png (2 x 2) and c.png (4 x 4)."""

    def __init__(self, folder: Path, tokenizer: "Tokenizer", vision: VisionModel):
        self.folder, self.tokenizer, self.vision = folder, tokenizer, vision
        for name, height, width in (("a", 56, 84), ("b", 56, 56), ("c", 112, 112)):
            (folder / f"{name}.png").write_bytes(png(height, width, ord(name)))

    def all(self, rows: Sequence[Mapping[str, Any]], longest: int = 500, **args: Any) -> TaskSet:
        path = self.folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.of_file(path, longest, **args)

    def of_file(self, path: Path, longest: int = 500, **args: Any) -> TaskSet:
        settings = DataArgs(file_name=(str(path),), **args)
        return load_tasks(settings, KEY, DOMAINS, self.tokenizer, longest, vision=self.vision)

    def one(self, row: Mapping[str, Any], **args: Any) -> Task:
        (task,) = self.all([row], **args).tasks
        return task

    def refused(self, row: Mapping[str, Any], **args: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            self.all([row], **args)
        return str(caught.value)


@pytest.fixture
def load(tmp_path: Path, tokenizer: "Tokenizer", vision: VisionModel) -> Loader:
    return Loader(tmp_path, tokenizer, vision)


def names(task: Task) -> list[str]:
    return [Path(picture.place).name for picture in task.pictures]


def prompt(*contents: str) -> str:
    roles = ("user", "assistant") * len(contents)
    turns = zip(roles, contents, strict=False)
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


@cases("row, pictures, text, question")
def test_pictures_stand_where_the_row_says(
    row: dict[str, Any], pictures: list[str], text: str, question: str, load: Loader
) -> None:
    task = load.one({**row, "id": "r1", "level": 3})
    assert names(task) == pictures and {picture.form for picture in task.pictures} == {"file"}
    assert task.prompt_text == text and task.question == question
    assert task.prompt_ids.tolist() == load.tokenizer(text, add_special_tokens=False)["input_ids"]
    shown = [part for message in task.messages if isinstance(message["content"], list) for part in message["content"]]
    assert [part for part in shown if part["type"] == "image"] == [{"type": "image"}] * len(pictures)
    assert task.payload["level"] == 3 and not {"images", "image"} & task.payload.keys()
    json.dumps([[dict(message) for message in task.messages], dict(task.payload)])
    shown = [decode(picture, load.vision.sizes) for picture in task.pictures]
    assert len(expand(task.prompt_ids, shown, load.vision).media) == len(pictures)


def test_texts_parts_and_tools_stay_as_they_are_beside_pictures(load: Loader) -> None:
    tasks = load.all(
        [{"prompt": "1", "images": None}, {"prompt": "2", "images": ["a.png"]}, {"prompt": "3", "images": []}]
    )
    assert [len(task.pictures) for task in tasks.tasks] == [0, 1, 0]
    packed = base64.b64encode(png()).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{packed}"}}
    task = load.one({"messages": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]})
    assert task.pictures[0].form == "inline" and task.pictures[0].place == packed
    assert task.payload == {"messages": [{"role": "user", "content": "[picture]?"}]}
    assert task.pictures[0].where.endswith("rows.jsonl:1, message 1, part 1")
    held = [{"image": "a.png", "score": 1}]
    task = load.one({"messages": [USER, {"role": "assistant", "content": "x"}, {"role": "tool", "content": held}]})
    assert task.pictures == () and json.dumps(held) in task.prompt_text
    for prompt_key in (None, "prompt"):
        task = load.one({"prompt": [IMAGE, {"type": "text", "text": "31?"}]}, prompt=prompt_key)
        assert names(task) == ["a.png"] and task.prompt_text == prompt(SHOWN + "31?")
        assert task.payload == {"prompt": [{"role": "user", "content": "[picture]31?"}]}
    call = {"role": "assistant", "content": "x"}
    rows = [USER, {"role": "tool", "content": [IMAGE, {"type": "text", "text": "there"}]}]
    task = load.one({"messages": [rows[0], call, rows[1]]})
    assert names(task) == ["a.png"] and task.question.endswith("tool: [picture]there")
    found = load.all([{"prompt": "?" * 60}, {"prompt": "?", "image": "c.png"}], 25, truncation="left")
    assert (found.num_truncated, found.num_dropped) == (1, 1) and len(found.tasks[0].prompt_ids) == 25
    load.vision = None  # type: ignore[assignment]
    assert load.one({"prompt": [{"type": "text", "text": "31?"}]}).prompt_text == prompt("31?")
    assert "shows a picture, but runs read text only" in load.refused({"prompt": [IMAGE]})


USER = {"role": "user", "content": "?"}
IMAGE = {"type": "image", "image": "a.png"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "<image>", "images": ["a.png", "b.png"]}, "have 1 <image>, but the column 'images' or 'image' holds 2"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}], "images": []}, "1 picture parts that name no"),
    ({"messages": [{"role": "user", "content": [IMAGE]}], "images": ["b.png"]}, "have 0 picture parts that name no"),
    ({"messages": [{"role": "system", "content": [IMAGE]}, USER]}, "a turn of the role system shows a picture"),
    ({"messages": [{"role": "system", "content": "<image>"}, USER], "image": "a.png"}, "message 1 (system) has"),
    ({"messages": [{"role": "tool", "content": "x"}], "image": "a.png"}, "no user message to show them in"),
    ({"prompt": "?", "image": "none.png"}, "there is no file"),
    ({"prompt": "<|image_pad|>?"}, "the text holds <|image_pad|>"),
    ({"prompt": "?", "images": [17]}, "a picture is a path, an address, base64 or bytes, and not int (17)"),
    ({"prompt": "?", "videos": ["a.mp4"]}, "column 'videos' holds a video, but runs read text"),
    ({"prompt": "?", "image_1": ["a.png"]}, f"or name the column of pictures as {KEY}.image_key"),
    ({"messages": [{**USER, "images": ["a.png"]}]}, "message 1 (user) has 'images' beside its content, which"),
    ({"prompt": "?", "images": ["a.png"], "image": "b.png"}, f"Name it in {KEY}.image_key"),
    ({"messages": [{"role": "user", "content": [{"image": "a.png", "text": "?"}]}]}, "a picture and holds 'text' too"),
    ({"messages": [{"role": "user", "content": [IMAGE, {"text": "<image>?"}]}]}, "the texts have 1 <image>, but parts"),
    ({"messages": [{"role": "user", "content": [{**IMAGE, "max_pixels": 784}]}]}, "message 1, part 1: max_pixels: 784"),
    ({"messages": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]}, "'messages' shows a video"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "complaint"), REFUSED, ids=[complaint[:30] for _, complaint in REFUSED])
def test_a_row_that_cannot_be_shown_is_refused_with_its_place(
    row: dict[str, Any], complaint: str, load: Loader
) -> None:
    message = load.refused(row)
    assert f"{load.folder}/rows.jsonl:1" in message and complaint in message


def test_the_column_and_the_limits_are_those_of_the_settings(load: Loader) -> None:
    row = {"prompt": "<image>?", "extra": {"images": ["a.png"], "level": 3}, "image": "b.png"}
    task = load.one(row, image_key="extra.images")
    assert names(task) == ["a.png"] and task.payload == {"prompt": "<image>?", "extra": {"level": 3}}
    rows = [{"prompt": "?", "extra": {"images": None}}, row, {"prompt": "?", "extra": None}]
    assert [names(task) for task in load.all(rows, image_key="extra.images").tasks] == [[], ["a.png"], []]
    assert "column 'extra.images'" in load.refused({"prompt": "?", "extra": {}}, image_key="extra.images")
    message = load.refused({"prompt": "?", "image": "a.png"}, image_max_pixels=783)
    assert "image_max_pixels: 783" in message and "28 x 28 = 784 pixels" in message
    assert load.one({"prompt": "?", "image": "a.png"}, image_max_pixels=784)
    base = base_length(load) - 1
    row = {"prompt": "?", "image": "c.png"}
    assert "1 of 1 prompts are longer" in load.refused(row, longest=base + 4)
    assert load.one(row, longest=base + 4, image_max_pixels=4 * 784)
    assert "1 of 1 prompts are longer" in load.refused(
        row, longest=base + 4, image_max_pixels=16777216, image_min_pixels=3136
    )


@pytest.mark.parametrize("template", ["plain", "chatml", "empty"])
def test_a_template_of_texts_says_that_it_writes_no_pictures(template: str, load: Loader) -> None:
    message = load.refused({"prompt": "?", "image": "a.png"}, template=template)
    assert "rows.jsonl:1" in message and f"{KEY}.template" in message
    assert "writes no pictures, and the row shows some. Use native" in message


def test_a_blind_model_and_missing_files_are_told_as_a_run_tells_them(load: Loader) -> None:
    with pytest.raises(ConfigError) as caught:
        load.all([{"prompt": "?", "image": f"x{number}.png"} for number in range(9)])
    assert (
        len(caught.value.problems) == 5 and "rows.jsonl:5, column image: there is no file" in caught.value.problems[4]
    )
    load.all([{"prompt": "?", "image": "a.png"}])
    args = DataArgs(file_name=(str(load.folder / "rows.jsonl"),))
    assert preflight(args, KEY, DOMAINS, vision=load.vision) == []
    (problem,) = preflight(args, KEY, DOMAINS)
    assert "does not see pictures" in problem
    load.vision = None  # type: ignore[assignment]
    assert "but the run's model does not see pictures" in load.refused({"prompt": "?", "images": ["a.png"]})


def test_a_template_that_writes_no_placeholder_is_refused(load: Loader, tmp_path: Path) -> None:
    """One that writes the list as Python would write it."""
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    message = load.refused({"prompt": "?", "image": "a.png"}, template=str(tmp_path / "chat.jinja"))
    assert "the prompt has 0 placeholders <|image_pad|> or <|video_pad|> for 1 pictures" in message


@pytest.mark.parametrize("kind", ["structs", "struct", "binaries", "binary"])
def test_rows_of_parquet_come_without_their_pictures(kind: str, load: Loader, tmp_path: Path) -> None:
    struct = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    element = struct if "struct" in kind else pyarrow.binary()
    contents = [png(56, 56, seed) for seed in range(5)]
    held: list[Any] = [{"bytes": each, "path": None} for each in contents] if "struct" in kind else contents
    values = (
        pyarrow.array([[each] for each in held], pyarrow.list_(element))
        if kind.endswith("s")
        else pyarrow.array(held, element)
    )
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": list("abcde"), "images": values}), path, row_group_size=2)
    tasks = load.of_file(path).tasks
    for place, task in enumerate(tasks):
        (source,) = task.pictures
        assert (source.form, source.place) == ("parquet", f"{path}#{place}/images/0")
        assert task.payload == {"prompt": "abcde"[place]}
        assert (
            decode(source, load.vision.sizes).digest
            == decode(
                source.__class__("inline", base64.b64encode(contents[place]).decode(), ""), load.vision.sizes
            ).digest
        )


def base_length(load: Loader) -> int:
    """Tokens of the prompt "?" with one placeholder."""
    return len(load.one({"prompt": "?", "image": "a.png"}).prompt_ids)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pictures whose headers are read."""
    read, paths = decoder.header_size, []
    monkeypatch.setattr(decoder, "header_size", lambda source: paths.append(Path(source.place).name) or read(source))
    return paths


def test_prompts_are_as_long_as_the_model_sees_them(load: Loader, opened: list[str]) -> None:
    """a.png has 6 tokens, b.png 4 and c.png 16."""
    base = base_length(load) - 1
    rows = [{"prompt": "?", "image": f"{name}.png"} for name in "abc"] + [{"prompt": "?"}]
    assert [names(task) for task in load.all(rows, base + 16).tasks] == [["a.png"], ["b.png"], ["c.png"], []]
    message = ""
    with pytest.raises(ConfigError) as caught:
        load.all(rows, base + 5)
    message = str(caught.value)
    assert "2 of 4 prompts are longer than prompt_length" in message and f"the longest has {base + 16}" in message
    for truncation in ("drop", "left", "right", "middle"):
        found = load.all(rows, base + 5, truncation=truncation)
        assert [names(task) for task in found.tasks] == [["b.png"], []]
        assert (found.num_dropped, found.num_truncated, found.num_rows) == (2, 0, 4)


def test_a_picture_that_is_broken_or_elsewhere_is_left_to_its_task(load: Loader) -> None:
    (load.folder / "d.png").write_bytes(bomb(11_000))
    rows = [{"prompt": "?", "image": "d.png"}, {"prompt": "?", "image": "memory://none.png"}]
    assert len(load.all(rows, base_length(load)).tasks) == 2
