"""Pairs of answers, the better one first: rows with `chosen` and `rejected` become token ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roll.configs.base import LARGEST
from roll.configs.sections.data import DataArgs, Truncation
from roll.configs.tables.sight import VisionModel
from roll.datasets.answers.turns import Encoded, Message, Turns
from roll.datasets.chosen_rows import Texts
from roll.datasets.conversations import (
    check_media,
    ends_with_answer,
    not_there,
    opened,
    placed,
    predicted,
    prompt_in,
    rows_of_encoded,
    says_nothing,
    with_system,
)
from roll.datasets.loader import Row
from roll.datasets.messages import messages_in, messages_of_text, transcript
from roll.datasets.pictures.expansion import cut_media
from roll.datasets.pictures.lengths import measured
from roll.datasets.pictures.placing import RowPictures
from roll.datasets.rows import shown
from roll.datasets.shown import named_columns, num_pictures
from roll.datasets.sources import Choose, all_rows
from roll.datasets.tool_calls import Tool, plain, tools_in
from roll.datasets.usual_columns import Forgotten
from roll.errors import ConfigError
from roll.types.batch import PairRows
from roll.types.media import PictureSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_REMEDY = "Set another template, or give pairs that differ in their last response only"


@dataclass(frozen=True)
class Pair:
    """Two conversations that end with the assistant, and the tools that were offered. They share their first
    `num_context_messages` messages, which show the `pictures`."""

    chosen: Sequence[Message]
    rejected: Sequence[Message]
    margin: float = 0.0
    tools: Sequence[Tool] = ()
    pictures: tuple[PictureSource, ...] = ()

    @property
    def num_context_messages(self) -> int:
        """Number of leading messages that both conversations share. The last message is never among them, since it is
        compared."""
        both = zip(self.chosen[:-1], self.rejected[:-1], strict=False)
        differing = [place for place, (a, b) in enumerate(both) if a != b]
        return differing[0] if differing else min(len(self.chosen), len(self.rejected)) - 1


@dataclass(frozen=True)
class PairColumns:
    """Columns of a pair's texts. `sees`: the model sees pictures; else rows that show any are refused."""

    prompt: str
    query: str | None
    chosen: str
    rejected: str
    system: str | None
    margin: str | None = None
    tools: str | None = None
    sees: bool = False

    def read(self, row: Row, args: DataArgs, key: str) -> Pair:
        """The row's pair. Raises ConfigError that names the row and the key."""
        found = check_media(row, args, key, self.sees)
        chosen, pictures = self._conversation(row, self.chosen, "chosen_key", args.system_prompt, found)
        rejected, others = self._conversation(row, self.rejected, "rejected_key", args.system_prompt, found)
        pair = Pair(
            chosen,
            rejected,
            0.0 if self.margin is None else _number(row, self.margin, "margin_key"),
            () if self.tools is None else tools_in(row, self.tools),
            pictures,
        )
        count = num_pictures(chosen[: pair.num_context_messages])
        first, second = ([(p.form, p.place) for p in each] for each in (pictures, others))
        if first != second or count != len(pictures):
            raise ConfigError(
                f"{row.where}: columns {self.chosen!r} and {self.rejected!r} show different pictures; both must answer "
                "the same prompt, and the responses may not show pictures"
            )
        starts = [messages[pair.num_context_messages]["role"] for messages in (pair.chosen, pair.rejected)]
        if pair.num_context_messages == 0 or starts != ["assistant", "assistant"]:
            raise ConfigError(
                f"{row.where}: columns {self.chosen!r} and {self.rejected!r} differ in message "
                f"{pair.num_context_messages + 1}, of "
                f"{' and '.join(map(repr, starts))}: they must answer the same prompt"
            )
        if says_nothing(chosen[-1]):
            raise ConfigError(
                f"{row.where}: column {self.chosen!r} is an empty response, so the model would learn to end at once. "
                "Correct the row, or leave it out"
            )
        return pair

    def texts(self, row: Row, args: DataArgs, key: str) -> Texts:
        """Both answers, and what they answer."""
        pair = self.read(row, args, key)
        count = pair.num_context_messages
        return Texts(shown(pair.chosen[:count]), (shown(pair.chosen[count:]), shown(pair.rejected[count:])))

    def _conversation(
        self, row: Row, column: str, key: str, text: str | None, pictures: RowPictures | None
    ) -> tuple[list[Message], tuple[PictureSource, ...]]:
        """An answer alone, as a text or as messages, is that to the row's prompt; and the pictures that it shows."""
        value = messages_of_text(plain(row.value(column)))
        if isinstance(value, str):
            prompt = row.value(self.prompt)
            is_whole = prompt is None or (
                isinstance(prompt, str) and bool(transcript(prompt)) and value.startswith(prompt)
            )
            answer = (transcript(value) if is_whole else None) or [{"role": "assistant", "content": value}]
        elif isinstance(value, Mapping | list):
            answer = messages_in(value, row, column, key, self.sees)
        else:
            raise ConfigError(not_there(row, column, key, value, "a text or messages"))
        answer = [{name: inner for name, inner in said.items() if name != "weight"} for said in answer]
        if answer[0]["role"] == "assistant":
            answer = prompt_in(row, self.prompt, self.query, self.sees) + answer
        whole, shown = placed(pictures, row, answer)
        return ends_with_answer(with_system(whole, row, self.system, text), row, column), shown

    def reads(self, row: Row, args: DataArgs) -> list[str | None]:
        """The columns that a run reads of the row."""
        texts = [self.prompt, self.query, self.chosen, self.rejected, self.system, self.tools, self.margin]
        return [*texts, *(named_columns(args) if self.sees else ())]


def load_pairs(
    args: DataArgs,
    key: str,
    columns: PairColumns,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    template: str | None = None,
    choose: Choose = all_rows,
    vision: VisionModel | None = None,
) -> PairRows:
    """All pairs of `data_args` (at YAML path `key`) that `choose` gives, but for those whose rows are the same, or
    become so where they are cut, or of which one has nothing to compare (a row's first token never counts). `vision`:
    as `load_conversations` has it. Raises ConfigError for a row that cannot be read or rendered, and for rows longer
    than `max_tokens` under `truncation: error`."""
    text, vision, sources = opened(args, key, tokenizer, template, vision)
    turns = Turns(text, "all", _REMEDY, vision)
    used: list[tuple[Sequence[Encoded], float]] = []
    num_pairs = num_ties = num_long = longest = 0
    forgotten = Forgotten()
    read = ((row, columns.read(row, args, key)) for row in choose(sources))
    for row, pair, pictures in measured(read, vision and vision.sizes):
        num_pairs += 1
        forgotten.add(row, columns.reads(row, args), pair.chosen[0]["role"] in ("system", "developer"))
        answers = (pair.chosen, pair.rejected)
        both: Sequence[Encoded] = [
            turns.encode(answer, row, pair.num_context_messages, pair.tools, pictures) for answer in answers
        ]
        if both[0] != both[1] and (length := max(len(one.ids) for one in both)) > max_tokens:
            num_long, longest = num_long + 1, max(longest, length)
            both = _cut(both, max_tokens, args.truncation)
        both = [one._replace(learnt=predicted(one.learnt)) for one in both]
        if both and both[0] == both[1]:  # as messages they may differ, in what the template does not show
            num_ties += 1
        elif both and all(any(one.learnt) for one in both):
            used.append((both, pair.margin))
    if args.truncation == "error" and num_long:
        raise ConfigError(
            f"{key}: {num_long} of {num_pairs} pairs have a row longer than sequence_length = {max_tokens} tokens; the "
            f"longest has {longest}. Raise sequence_length, or set {key}.truncation: left, right, middle or drop"
        )
    counts = f"{num_long} too long, {num_ties} with equal responses"
    if not used:
        names = ", ".join(args.file_name)
        raise ConfigError(f"{key}.file_name: no pairs to learn from in {names} ({num_pairs} rows, {counts})")
    for sentence in forgotten.warnings():
        logger.warning("%s: %s", key, sentence)
    logger.info("%s: %d pairs, %s, %d used", key, num_pairs, counts, len(used))
    return _pair_rows(used)


def _cut(both: Sequence[Encoded], max_tokens: int, how: Truncation) -> Sequence[Encoded]:
    """The rows of a pair within their length; none where that leaves nothing to compare. `left` and `middle` take as
    much of the prompt of both, so that they still answer the same one, and leave the pair out where it is too short. A
    pair whose pictures would be cut is left out."""
    excess = max(len(one.ids) for one in both) - max_tokens
    shared = min([*one.learnt, True].index(True) for one in both)
    if how == "right":
        return _without(both, max_tokens, max(len(one.ids) for one in both))
    if how not in ("left", "middle") or excess >= shared:
        return ()
    begin = (shared - excess) // 2 if how == "middle" else 0
    return _without(both, begin, begin + excess)


def _without(both: Sequence[Encoded], begin: int, end: int) -> Sequence[Encoded]:
    """Both rows without these tokens; none where they are tokens of a picture."""
    left = []
    for ids, mask, media in both:
        shown = cut_media(media, begin, end, len(ids))
        if shown is None:
            return ()
        left.append(Encoded(ids[:begin] + ids[end:], mask[:begin] + mask[end:], shown))
    return left


def _pair_rows(pairs: Sequence[tuple[Sequence[Encoded], float]]) -> PairRows:
    rows = [row for both, _ in pairs for row in both]
    margins = np.repeat(np.array([margin for _, margin in pairs], np.float32), 2)
    return PairRows(**vars(rows_of_encoded(rows)), margins=margins)


def _number(row: Row, column: str, key: str) -> float:
    value = row.value(column)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:  # NaN is not
        return float(value)
    raise ConfigError(not_there(row, column, key, value, f"a number of at most {LARGEST:g}"))
