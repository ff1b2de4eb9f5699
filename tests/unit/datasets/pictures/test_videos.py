"""Videos of rows become some of their frames: which, where they stand, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from roll.datasets.pictures.decode import all_decoded, decode, frame_times, measure
from roll.datasets.pictures.videos import FrameChoice
from roll.errors import ConfigError, PictureError
from roll.rewards.judge.api import _data_url
from roll.types.media import PictureSource, Shown, media_fields, media_of
from tests.helpers.cases import cases
from tests.unit.datasets.pictures.files import QWEN, SAME, encoded, pixels, png
from tests.unit.datasets.pictures.test_rows import SHOWN, Loader, load, names, prompt, tokenizer, vision

__all__ = ["load", "tokenizer", "vision"]  # fixtures


def animation(path: Path, colours: list[int], milliseconds: list[int] | int) -> Path:
    """One frame of each grey."""
    first, *others = (Image.fromarray(np.full((56, 84, 3), colour, np.uint8)) for colour in colours)
    kind = path.suffix[1:].upper()
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    path.write_bytes(
        encoded(first, kind, save_all=True, append_images=others, duration=milliseconds, loop=0, **options)
    )
    return path


def folder(path: Path, count: int) -> Path:
    path.mkdir()
    for number in range(count):
        (path / f"{number}.png").write_bytes(png(56, 56, number))
    (path / "notes.txt").write_text("25 fps")
    return path


@cases("starts, seconds, fps, most, frames")
def test_frames_are_there_at_their_times(
    starts: list[float], seconds: float, fps: float, most: int, frames: list[int]
) -> None:
    assert FrameChoice(fps, most).of_times(starts, seconds) == frames


def test_too_many_frames_are_left_out_evenly() -> None:
    assert FrameChoice(2.0, 4).of_frames(range(10)) == [0, 3, 6, 9]
    assert FrameChoice(2.0, 10).of_frames(range(10)) == list(range(10))


@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_frames_of_an_animation_are_the_ones_that_were_drawn(ending: str, tmp_path: Path) -> None:
    path = animation(tmp_path / f"a.{ending}", [0, 80, 160, 240], [100, 200, 300, 400])
    source = PictureSource("file", str(path), "here")
    starts, seconds = frame_times(source)
    assert starts == pytest.approx([0.0, 0.1, 0.3, 0.6]) and seconds == pytest.approx(1.0)
    digests = set()
    for number, colour in enumerate([0, 80, 160, 240]):
        frame = PictureSource("file", str(path), "here", number)
        picture = decode(frame, SAME)
        assert abs(picture.array.astype(int) - colour).max() <= 1
        measured = measure(frame, QWEN)
        digests |= {picture.digest, measured.digest}
        kept = media_of(json.loads(json.dumps(media_fields((Shown(picture, 2, 6),)))))
        ((shown,),) = all_decoded([kept])  # as a buffer gives it back
        assert np.array_equal(shown.picture.array, picture.array) and shown.picture.source == frame
        assert _data_url(frame).startswith("data:image/png;base64,")
    assert len(digests) == 8


def test_videos_stand_where_the_row_says(load: Loader) -> None:
    """As a folder, a GIF and a list; named in the text, by parts, and by nothing."""
    folder(load.folder / "clip", 3)
    animation(load.folder / "b.gif", [0, 90, 180], 500)
    listed = [["a.png", "b.png"]]
    three, two = SHOWN * 3, SHOWN * 2
    task = load.one({"prompt": "First <video>then <image>?", "videos": ["clip"], "images": ["a.png"]})
    assert names(task) == ["0.png", "1.png", "2.png", "a.png"] and task.prompt_text == prompt(
        f"First {three}then {SHOWN}?"
    )
    task = load.one({"prompt": "What happens?", "video": "b.gif"})
    assert [source.frame for source in task.pictures] == [0, 1, 2]
    assert task.prompt_text == prompt(f"{three}What happens?")
    task = load.one({"prompt": "<image>Like this?", "images": ["c.png"], "videos": listed})
    assert names(task) == ["a.png", "b.png", "c.png"] and task.prompt_text == prompt(f"{two}{SHOWN}Like this?")
    parts = [{"type": "text", "text": "1"}, {"type": "video", "video": "b.gif", "fps": 1.0}, {"type": "video"}]
    task = load.one({"messages": [{"role": "user", "content": parts}], "videos": listed})
    assert [(Path(p.place).name, p.frame) for p in task.pictures] == [
        ("b.gif", 0), ("b.gif", 2), ("a.png", None), ("b.png", None),
    ]  # fmt: skip
    assert task.prompt_text == prompt(f"1{two}{two}") and task.question == "1" + "[picture]" * 4
    assert not {"videos", "video"} & task.payload.keys()
    told = load.one({"prompt": "?", "videos": json.dumps(listed)})  # as files of CSV have to
    assert names(told) == ["a.png", "b.png"]


def test_videos_of_parquet_files_are_read(load: Loader) -> None:
    folder(load.folder / "clip", 2)
    rows = [{"prompt": "<video>?", "videos": ["clip"]}, {"prompt": "31?", "videos": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), load.folder / "rows.parquet")
    shown, text = load.of_file(load.folder / "rows.parquet").tasks
    assert names(shown) == ["0.png", "1.png"] and text.pictures == ()
    lists = [{"prompt": "?", "video": [["a.png", "b.png"]]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lists), load.folder / "lists.parquet")
    assert names(load.of_file(load.folder / "lists.parquet").tasks[0]) == ["a.png", "b.png"]


def test_keys_say_where_videos_are_and_how_many_frames_are_shown(load: Loader) -> None:
    clips = load.folder / "clips"
    clips.mkdir()
    folder(clips / "one", 12)
    row = {"prompt": "?", "clip": [{"type": "video", "video": "one"}]}
    task = load.one(row, video_key="clip", video_folder=str(clips), video_max_frames=4)
    assert names(task) == ["0.png", "4.png", "7.png", "11.png"]
    assert names(load.one({"prompt": "?", "videos": [str(clips / "one")]}))[2] == "2.png"  # not 10.png
    assert "column 'clip' (actor_train.data_args.video_key) is missing" in load.refused(
        {"prompt": "?"}, video_key="clip"
    )


@pytest.mark.parametrize(
    ("videos", "complaint"),
    [
        (["a.mp4"], "a.mp4' is no folder, GIF or WebP, and files of other formats are not read. Write its frames to a"),
        (["https://host/a.gif"], "'https://host/a.gif' is no video on this machine"),
        (["a.png"], "a.png' is a picture, and no video; the frames of one video stand in a list of their own"),
        (["none"], "there is no file or folder '"),
        (["none.gif"], "there is no file or folder"),
        (["empty"], "holds no pictures"),
        (["broken.gif"], "column videos[0]: "),
        ([[]], "the texts have 1 <video>, but the column"),
        ([7], "a video is a path, or a list of pictures, and not int"),
        ([{"type": "video", "video": "b.gif", "nframes": 4}], "nframes: 4 is not read of a video; only fps and max_f"),
        ([{"type": "video", "video": "b.gif", "fps": 0}], "fps: 0 is no number above 0"),
        ([{"video": "b.gif", "fps": float("inf")}], "fps: inf is no number above 0"),
        ([{"video": "b.gif", "fps": float("nan")}], "fps: nan is no number above 0"),
        ([{"video": "b.gif", "max_frames": float("nan")}], "max_frames: nan is no number above 0"),
        ([{"bytes": "R0lGOD"}], "column videos[0]: bytes holds a file's contents or a picture"),
        (
            [{"image": "a.png"}, {"image": "a.png"}],
            "The frames of one video stand in a list of their own, inside the l",
        ),
        ([{"video": "b.gif", "path": "b.gif"}], "name one video, under the key"),
        ([[17]], "a picture is a path, an address, base64 or bytes"),
        (["b.gif", "b.gif"], "the texts have 1 <video>, but the column 'videos' or 'video' holds 2 videos"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value)[:30],
)
def test_what_is_no_video_is_refused_with_its_place(videos: Any, complaint: str, load: Loader) -> None:
    (load.folder / "empty").mkdir()
    (load.folder / "a.mp4").write_bytes(b"film")
    animation(load.folder / "b.gif", [0, 90, 180], 500)
    (load.folder / "broken.gif").write_bytes(png()[:200])
    message = load.refused({"prompt": "<video>?", "videos": videos})
    assert f"{load.folder}/rows.jsonl:1" in message and complaint in message


def test_roles_and_other_media_are_refused_as_ever(load: Loader) -> None:
    animation(load.folder / "b.gif", [0, 90], 500)
    said = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "<video>"}]
    assert "message 2 (assistant) has <video> in its text" in load.refused(
        {"messages": [*said, {"role": "user", "content": "2"}], "videos": ["b.gif"]}
    )
    part = {"type": "video", "video": "b.gif", "text": "?"}
    assert "shows a video and holds 'text' too" in load.refused({"messages": [{"role": "user", "content": [part]}]})
    with pytest.raises(ConfigError, match="the columns 'videos' and 'video' hold videos, but only one is read"):
        load.all([{"prompt": "?", "videos": ["b.gif"], "video": "b.gif"}])
    load.vision = None  # type: ignore[assignment]
    assert "column 'videos' holds a video" in load.refused({"prompt": "?", "videos": ["b.gif"]})


def test_words_beside_parts_are_refused(load: Loader) -> None:
    """With a column of videos, and without one."""
    folder(load.folder / "clip", 2)
    image, text = {"type": "image", "image": "a.png"}, {"type": "text", "text": "Then <video>"}
    clip = {"type": "video", "video": "clip"}
    for parts, more in (([image, text], {"videos": ["clip"]}), ([image, text], {}), ([clip, text], {})):
        message = load.refused({"messages": [{"role": "user", "content": parts}], **more})
        assert "the texts have 1 <video>, but parts of the messages show pictures or videos" in message
        assert "Write a part of the type video in the word's place" in message
    named = [{"role": "user", "content": [image, {"type": "text", "text": "?"}]}]
    message = load.refused({"messages": named, "videos": ["clip"]})
    assert "0 video parts that name no video, but the column 'videos' or 'video' holds 1 videos" in message
    assert message.count("Write one such part per video of the column, or leave the column out") == 1


def test_a_frame_that_is_gone_is_reported(tmp_path: Path, load: Loader) -> None:
    folder(load.folder / "clip", 2)
    task = load.one({"prompt": "?", "videos": ["clip"]})
    shutil.rmtree(load.folder / "clip")
    with pytest.raises(PictureError, match=r"column videos\[0\], 0.png: .*it cannot be read"):
        decode(task.pictures[0], QWEN)


def test_pixels_of_a_frame_need_the_file_alone(tmp_path: Path) -> None:
    frames = [Image.fromarray(pixels(56, 84, seed)) for seed in (1, 2)]
    path = tmp_path / "a.webp"
    path.write_bytes(encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True))
    for number, frame in enumerate(frames):
        found = decode(PictureSource("file", str(path), "here", number), SAME)
        assert np.array_equal(found.array, np.asarray(frame))
    with pytest.raises(PictureError, match="^here: .*a.webp"):
        decode(PictureSource("file", str(path), "here", 2), SAME)
