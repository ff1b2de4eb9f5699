"""Rows to tasks: rendered, tokenized in batches, cut to the longest prompt; and token ids back to text."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from roll.configs.sections.data import DataArgs, Truncation
from roll.configs.tables.sight import VisionModel
from roll.datasets.loader import Row
from roll.datasets.prompt_template import PromptTemplate
from roll.datasets.rows import Domain, Example, RowReader, tag_of
from roll.datasets.shown import missing_files, named_columns
from roll.datasets.sight import sight
from roll.datasets.sources import Choose, all_rows, data_sources
from roll.datasets.usual_columns import Forgotten
from roll.errors import ConfigError
from roll.types.rollout import Task
from roll.utils.thinking import marking_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


def shortened(items: Sequence[T], most: int, how: Truncation) -> list[T]:
    """Cuts a sequence to `most` items: without its beginning (left), its middle, or its end (any other).

    Example: of abcdefg and 5 middle leaves abefg, as verl cuts.
    """
    begin, end = cut_of(len(items), most, how)
    return [*items[:begin], *items[end:]]


def cut_of(length: int, most: int, how: Truncation) -> tuple[int, int]:
    """The first item that is cut, and the first behind the cut. Example: of 7 items, at most 5, middle: (2, 4)."""
    begin = {"left": 0, "middle": most // 2}.get(how, most)
    return begin, begin + max(0, length - most)


logger = logging.getLogger(__name__)
Decode = Callable[[Sequence[np.ndarray]], list[str]]
ROWS_PER_BATCH = 1024
_MOST_MISSING = 5  # files that one message names


@dataclass(frozen=True)
class TaskSet:
    """The tasks of some files, in file order: `num_rows` = tasks + `num_dropped`; `num_truncated` tasks were cut."""

    tasks: tuple[Task, ...]
    num_rows: int
    num_truncated: int = 0
    num_dropped: int = 0

    @property
    def num_by_domain(self) -> dict[str, int]:
        return dict(Counter(task.domain for task in self.tasks))


def load_tasks(
    args: DataArgs,
    key: str,
    domains: Sequence[Domain],
    tokenizer: PreTrainedTokenizerBase,
    max_prompt_tokens: int,
    template: str | None = None,
    tag_to_template: Mapping[str, str] = MappingProxyType({}),
    choose: Choose = all_rows,
    vision: VisionModel | None = None,
) -> TaskSet:
    """All tasks of `data_args` (at YAML path `key`), of the rows that `choose` gives. `template`, the global one, wins
    over the one in `args`, and the one of a row's tag over both. `vision`: the model, if it sees pictures.

    Raises ConfigError for whatever `preflight` finds, in any row, for pictures whose files are missing, and for prompts
    longer than `max_prompt_tokens` under `truncation: error`.
    """
    sources, problems = data_sources(args, key)
    if problems:
        raise ConfigError(*problems)
    if vision is not None:
        vision = vision.with_limits(args.image_min_pixels, args.image_max_pixels)
        sources = [source.without_pictures(named_columns(args)) for source in sources]
    reader = RowReader(args, key, domains, vision)
    template_key = "global_template" if template is not None else f"{key}.template"
    for_all = PromptTemplate.load(template or args.template, tokenizer, template_key, args.template_kwargs)
    by_tag = {
        tag: PromptTemplate.load(name, tokenizer, f"tag_to_template.{tag}", args.template_kwargs)
        for tag, name in tag_to_template.items()
    }
    encoder = _Encoder(args, key, reader, for_all, by_tag, max_prompt_tokens, vision)
    for batch in _batches(choose(sources), ROWS_PER_BATCH):
        encoder.add(batch)
    result = encoder.result()
    logger.info("%s: %s", key, describe(result))
    return result


def describe(tasks: TaskSet) -> str:
    """One line for the log. Example: "7473 rows, 7470 tasks (math 7470), 2 truncated, 3 dropped"."""
    domains = ", ".join(f"{name} {count}" for name, count in tasks.num_by_domain.items())
    parts = [f"{tasks.num_rows} rows", f"{len(tasks.tasks)} tasks ({domains})"]
    parts += [f"{tasks.num_truncated} truncated"] if tasks.num_truncated else []
    parts += [f"{tasks.num_dropped} dropped"] if tasks.num_dropped else []
    return ", ".join(parts)


class _Encoder:
    """Collects tasks batch by batch. Prompts too long are counted over the whole data before `error` raises."""

    def __init__(
        self,
        args: DataArgs,
        key: str,
        reader: RowReader,
        for_all: PromptTemplate,
        by_tag: Mapping[str, PromptTemplate],
        max_prompt_tokens: int,
        vision: VisionModel | None,
    ):
        self._args = args
        self._key = key
        self._reader = reader
        self._forgotten = Forgotten.of_prompts()
        self._for_all, self._by_tag = for_all, by_tag
        self._tokenizer = for_all.tokenizer
        self._max_tokens = max_prompt_tokens
        self._tasks: list[Task] = []
        self._ids: set[str] = set()
        self._pictures = None if vision is None else sight().prompts(vision, self._tokenizer)
        self._num_rows = 0
        self._num_long = 0
        self._num_dropped = 0
        self._longest = (0, "")  # tokens, row
        self._writes_tools: dict[int, bool] = {}  # by the id() of a template

    def add(self, rows: Sequence[Row]) -> None:
        examples = [self._reader.read(row) for row in rows]
        for row, example in zip(rows, examples, strict=True):
            has_system = example.messages[0]["role"] in ("system", "developer")
            self._forgotten.add(row, self._reader.columns(row), has_system)
        rendered = [(example, self._rendered(example)) for example in examples]
        token_ids = self._token_ids(rendered)
        lengths = self._lengths([example for example, _ in rendered], token_ids)
        for (example, text), ids, length in zip(rendered, token_ids, lengths, strict=True):
            self._num_rows += 1
            if length > self._max_tokens:
                self._num_long += 1
                self._longest = max(self._longest, (length, example.row.where))
                if self._args.truncation in ("error", "drop") or example.pictures:  # no cut goes through a picture
                    self._num_dropped += 1
                    continue
                ids = shortened(ids, self._max_tokens, self._args.truncation)
                text = str(self._tokenizer.decode(ids))
            self._tasks.append(self._task(example, text, ids))

    def _template(self, example: Example) -> PromptTemplate:
        """Return the one of the row's tag, or the one for all."""
        return self._by_tag.get(str(tag_of(example.row, self._args.tag)), self._for_all)

    def _lengths(self, examples: Sequence[Example], token_ids: Sequence[Sequence[int]]) -> list[int]:
        """Tokens of each prompt as the model sees it."""
        lengths = [len(ids) for ids in token_ids]
        if self._pictures is None:
            return lengths
        for example, ids in zip(examples, token_ids, strict=True):
            at = self._template(example).key
            self._pictures.check(ids, len(example.pictures), example.row.where, at)
        if missing := list(islice(missing_files([p for e in examples for p in e.pictures]), _MOST_MISSING)):
            raise ConfigError(*missing)
        return self._pictures.num_tokens([example.pictures for example in examples], lengths, self._max_tokens)

    def _rendered(self, example: Example) -> str:
        """Raises ConfigError for tools and messages of which the template writes nothing; a template is asked once for
        tools."""
        template = self._template(example)
        if self._pictures is not None:
            self._pictures.check_texts((example.messages, example.tools), example.row.where)
        if example.tools and id(template) not in self._writes_tools:
            self._writes_tools[id(template)] = template.writes_tools(example.messages, example.row, example.tools)
        if example.tools and not self._writes_tools[id(template)]:
            raise template.no_tools(example.row, f"{self._key}.tools")
        text = template.render(example)
        if not example.is_text:
            from roll.datasets.answers.template_coverage import check_written

            check_written(example.messages, text, f"{example.row.where}: {template.key}")
        return text

    def _token_ids(self, rendered: Sequence[tuple[Example, str]]) -> list[list[int]]:
        """Two calls at most: with and without special tokens around the text."""
        token_ids: list[list[int]] = [[] for _ in rendered]
        for adds in (False, True):
            places = [i for i, (example, _) in enumerate(rendered) if self._adds(example) is adds]
            if places:
                encoded = self._tokenizer(
                    [rendered[i][1] for i in places],
                    add_special_tokens=adds,
                    return_attention_mask=False,
                    truncation=False,
                    verbose=False,
                )
                for place, ids in zip(places, encoded["input_ids"], strict=True):
                    token_ids[place] = ids
        return token_ids

    def _adds(self, example: Example) -> bool:
        return self._template(example).adds_special_tokens

    def result(self) -> TaskSet:
        for sentence in self._forgotten.warnings(keys=False):
            logger.warning("%s: %s", self._key, sentence)
        truncation = self._args.truncation
        if truncation == "error" and self._num_long:
            tokens, where = self._longest
            raise ConfigError(
                f"{self._key}: {self._num_long} of {self._num_rows} prompts are longer than prompt_length = "
                f"{self._max_tokens} tokens; the longest has {tokens} ({where}). Raise prompt_length, or set "
                f"{self._key}.truncation: left, right, middle or drop"
            )
        if not self._num_rows:
            raise ConfigError(f"{self._key}.file_name: no rows in {', '.join(self._args.file_name)}")
        if not self._tasks:
            raise ConfigError(
                f"{self._key}.truncation: {truncation} left none of {self._num_rows} rows: all prompts are longer than "
                f"prompt_length = {self._max_tokens} tokens. Raise prompt_length"
            )
        return TaskSet(
            tuple(self._tasks),
            self._num_rows,
            num_truncated=self._num_long - self._num_dropped,
            num_dropped=self._num_dropped,
        )

    def _task(self, example: Example, text: str, ids: list[int]) -> Task:
        if not ids:
            raise ConfigError(f"{example.row.where}: the prompt has no tokens")
        return Task(
            task_id=self._task_id(example.row),
            domain=example.domain,
            prompt_ids=np.array(ids, np.int32),
            prompt_text=text,
            payload=self._reader.payload(example.row),
            pictures=example.pictures,
            messages=example.messages,
            question=example.question,
            tools=example.tools,
        )

    def _task_id(self, row: Row) -> str:
        """The id column, or file name and place; an id that occurred before gets its file and place appended."""
        row_id = row.value(self._args.id)
        name = row.short_place if row_id is None else str(row_id)
        longer = (f"{name}@{row.short_place}", f"{name}@{row.where}", f"{row.where}#{len(self._ids)}")
        name = next(each for each in (name, *longer) if each not in self._ids)
        self._ids.add(name)
        return name


def decoder(tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = True) -> Decode:
    """Token ids to texts. `skip_special_tokens` leaves those that mark thinking (`roll.utils.thinking`): they say which
    part of an answer is the answer.

    A fast tokenizer that cleans nothing up afterwards is asked directly, and row by row: its own threads would cost
    more than a group's answers take, where others use the cores."""
    special = special_tokens(tokenizer)
    marking = marking_tokens(special) if skip_special_tokens else frozenset()
    if marking:
        decode = decoder(tokenizer, skip_special_tokens=False)
        others = np.array([number for name, number in special.items() if name not in marking], np.int32)
        return lambda ids: decode([row[~np.isin(row, others)] for row in ids])
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return lambda ids: tokenizer.batch_decode(
            [row.tolist() for row in ids], skip_special_tokens=skip_special_tokens
        )
    return lambda ids: [backend.decode(row.tolist(), skip_special_tokens=skip_special_tokens) for row in ids]


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    return {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
