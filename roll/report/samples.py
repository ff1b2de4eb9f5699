"""Sample rollouts of a report: some steps of the run, their tokens coloured by how engine and trainer differ."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from roll.datasets.pictures.decode import small_copy
from roll.errors import PictureError
from roll.report.conversation import Message, episode_of, message_of_answer, messages_of_prompt, other_extras
from roll.report.run_files import RunFiles
from roll.run.records.replay import Recorded, RecordedPicture, RecordedTokens, read
from roll.types.media import PictureSource
from roll.utils.files import open_regular

GAP_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Differences at which the colours begin, in nats."""
_MOST_COLOURED = 30_000  # tokens of a report: each takes some 100 bytes of it


@dataclass(frozen=True)
class Token:
    """`shade`: "" where the two agree, t1 to t5 where the trainer finds it likelier than the engine did, e1 to e5 where
    it finds it less likely."""

    text: str
    shade: str
    title: str


@dataclass(frozen=True)
class Sample:
    """An attempt, the first of `count` equal ones of its group. `messages`: the answer, or all of an episode. `extra`:
    what else is known of it. `tokens` are empty where they were not recorded, or would make the report too large."""

    record: Recorded
    messages: Sequence[Message]
    extra: Mapping[str, Any]
    tokens: Sequence[Token]
    mean_gap: float | None
    largest_gap: float | None
    count: int = 1


@dataclass(frozen=True)
class Group:
    """Attempts at one prompt. `messages`: the prompt's, none where the episodes begin with it. `prompt`: as the model
    reads it, "" where that is what the messages say."""

    group_id: str | int
    domain: str
    messages: Sequence[Message]
    prompt: str
    pictures: Sequence[RecordedPicture]
    ground_truth: str | None
    samples: Sequence[Sample]


@dataclass(frozen=True)
class StepSamples:
    title: str
    groups: Sequence[Group]


@dataclass
class SampleReader:
    """Takes steps of a run until the report has as many coloured tokens as it can hold."""

    room: int = field(default=_MOST_COLOURED)

    def of_run(self, run: RunFiles, num_steps: int) -> list[StepSamples]:
        """Steps of the training, spread over the run, the newest first; then its last validation. Where tokens were
        recorded in some steps, of these."""
        files = run.record_files("train")
        with_tokens = {step: path for step, path in files.items() if _has_tokens(path)}
        files = with_tokens or files
        titled = [(f"step {step}", files[step]) for step in reversed(spread(list(files), num_steps))]
        if num_steps and (validated := run.record_files("val")):
            titled.append((f"validation after step {max(validated)}", validated[max(validated)]))
        return [StepSamples(title, self.groups(list(_records(path)))) for title, path in titled]

    def groups(self, records: Sequence[Recorded]) -> list[Group]:
        groups = []
        for (group_id, domain), each in groupby(records, key=lambda record: (record.group_id, record.domain)):
            members = list(each)
            first = members[0]
            equal: dict[str, list[Recorded]] = {}
            for record in members:
                equal.setdefault(_outcome(record), []).append(record)
            samples = [replace(self._sample(records[0]), count=len(records)) for records in equal.values()]
            messages, prompt = _prompt_of(first)
            groups.append(Group(group_id, domain, messages, prompt, first.pictures, first.ground_truth, samples))
        return groups

    def _sample(self, record: Recorded) -> Sample:
        tokens, extra = record.tokens, other_extras(record)
        messages = episode_of(record) or [message_of_answer(record.response_text, record.prompt_text)]
        if tokens is None:
            return Sample(record, messages, extra, (), None, None)
        gaps = [abs(gap) for gap in _gaps(tokens) if gap is not None]
        coloured: list[Token] = []
        if len(tokens.texts) <= self.room:
            self.room -= len(tokens.texts)
            coloured = coloured_tokens(tokens)
        mean_gap = sum(gaps) / len(gaps) if gaps else None
        return Sample(record, messages, extra, coloured, mean_gap, max(gaps, default=None))


def _prompt_of(record: Recorded) -> tuple[list[Message], str]:
    """The prompt's messages, and its text where they do not say all of it."""
    prompt = record.prompt_text.strip()
    if record.turns and prompt in record.turns[0].observation:
        return [], ""
    messages = messages_of_prompt(prompt)
    return messages, "" if [message.text for message in messages] == [prompt] else record.prompt_text


def _outcome(record: Recorded) -> str:
    """All that a reader sees of an attempt, apart from log-probs and times."""
    hidden = dict.fromkeys(("tokens", "extra", "prompt_text", "pictures"), True)
    shown = record.model_dump_json(exclude=hidden | {"turns": {"__all__": {"metrics": {"time_s"}}}})
    extra = {name: value for name, value in record.extra.items() if not name.endswith("_s") and name != "output"}
    return shown + json.dumps(extra, sort_keys=True)


def coloured_tokens(tokens: RecordedTokens) -> list[Token]:
    """Example: engine -0.5 and trainer -1.0: the trainer finds it less likely by 0.5, shade e4."""
    rows = zip(tokens.texts, tokens.engine, tokens.trainer, _gaps(tokens), strict=True)
    return [
        Token(text, _shade(gap), f"engine {_number(engine)}, trainer {_number(trainer)}")
        for text, engine, trainer, gap in rows
    ]


def spread(steps: Sequence[int], count: int) -> list[int]:
    """Chooses up to `count` of the steps, the first and the last among them. Example: 1 to 9, 3 -> 1, 5, 9; 1 -> 9."""
    if count <= 1 or len(steps) <= count:
        return list(steps[len(steps) - count :] if count < len(steps) else steps)
    return [steps[round(number * (len(steps) - 1) / (count - 1))] for number in range(count)]


def _gaps(tokens: RecordedTokens) -> list[float | None]:
    """Return the trainer's log-prob minus the engine's for each token; None if one of them is minus infinity."""
    pairs = zip(tokens.engine, tokens.trainer, strict=True)
    return [None if engine is None or trainer is None else trainer - engine for engine, trainer in pairs]


def _shade(gap: float | None) -> str:
    size = math.inf if gap is None else abs(gap)
    level = sum(size >= least for least in GAP_STEPS)
    return f"{'t' if gap is not None and gap > 0 else 'e'}{level}" if level else ""


def _number(value: float | None) -> str:
    return "-inf" if value is None else f"{value:.4g}"


def _has_tokens(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return b'"tokens": {' in file.readline()
    except OSError:
        return False


def _records(path: Path) -> list[Recorded]:
    """None of a file that a killed run left unfinished."""
    try:
        return list(read(path))
    except (OSError, ValueError):
        return []


# Small copies of the pictures that a recorded prompt showed, inside a page.

_THUMBNAIL_PIXELS = 192 * 192
_ON_THIS_MACHINE = ("file", "parquet")  # what is elsewhere is not fetched for a page


@dataclass(frozen=True)
class Thumbnail:
    """`image` is a data address; None: `caption` says what it was, and why it is not shown."""

    caption: str
    image: str | None


def thumbnail(picture: RecordedPicture) -> Thumbnail:
    """A small copy of a recorded picture."""
    if picture.form not in _ON_THIS_MACHINE:
        return Thumbnail(f"{picture.where}: not kept with the rollout", None)
    return _small(picture.form, picture.place, picture.where)


@lru_cache(maxsize=512)
def _small(form: str, place: str, where: str) -> Thumbnail:
    source = PictureSource("file" if form == "file" else "parquet", place, where)
    try:
        small = small_copy(source, _THUMBNAIL_PIXELS)
    except PictureError as error:
        return Thumbnail(str(error), None)
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(small).save(stream, "WEBP", quality=80)
    return Thumbnail(place, "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode("ascii"))
