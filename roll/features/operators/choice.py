"""The rows of a run as its operators leave them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.configs.problems import Problem
from roll.configs.sections.data import DataArgs, OperatorConfig
from roll.configs.sections.model import ModelArgs
from roll.configs.sections.operators import OPERATORS, operator_of
from roll.datasets.chosen_rows import Places, ReadTexts, Texts
from roll.datasets.loader import DataFile, DataSource, Row
from roll.datasets.preflight import MAX_BYTES_IN_FULL
from roll.datasets.sources import Choose, all_rows, data_sources
from roll.errors import ConfigError, describe
from roll.features.operators.row import Chosen, Context, OperatorRow, apply, as_json, from_json, run_chain
from roll.utils.files import expanded, write_whole
from roll.utils.text import show

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What operators chose, kept by content: files, settings and code say under which name, so that nothing stale is ever
# read.

logger = logging.getLogger(__name__)

_NO_PART = {
    "operators_cache", "file_name", "shuffle", "domain_interleave_probs", "template", "truncation", "system_prompt",
}  # fmt: skip
"""Keys of data_args that operators never see."""
_TOKENIZER_ENDINGS = (".json", ".txt", ".model", ".tiktoken")
_CHUNK_BYTES = 1 << 20


class CachedChoices:
    """A folder with one file for each content. Files are written whole or not at all, so that processes may share it;
    one that cannot be read, or that something has changed, is as good as none."""

    def __init__(self, folder: str):
        self._folder = expanded(folder) if folder else None

    def read(self, name: str) -> Chosen | None:
        if self._folder is None:
            return None
        path = self._folder / f"{name}.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["digest"] != _digest_of(stored["chosen"]):
                raise ValueError("its digest does not match")
            return from_json(stored["chosen"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            logger.warning("%s is computed again, since it cannot be read: %s", path, describe(error))
            return None

    def write(self, name: str, chosen: Chosen) -> None:
        """Write a choice to disk; if the disk refuses, the failure is logged and the run goes on."""
        if self._folder is None:
            return
        value = as_json(chosen)
        text = json.dumps({"digest": _digest_of(value), "chosen": value})
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / f"{name}.json", text)
        except OSError as error:
            logger.warning("the choice of the operators could not be saved in %s: %s", self._folder, error)


def _digest_of(value: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def name_of(
    args: DataArgs,
    sources: Sequence[DataSource],
    evaluation: Mapping[str, tuple[DataArgs, Sequence[DataSource]]],
    kind: str,
    tokenizer: ModelArgs,
) -> str:
    """The name of what `args.operators` choose among these rows. `kind`: how the run reads a row. A tokenizer counts
    where tokens are; that of a directory by its files, that of a hub id by its name."""
    digest = hashlib.blake2b(digest_size=20)

    def add(*parts: object) -> None:
        digest.update(json.dumps([str(part) for part in parts]).encode())

    add(kind, *_code(args.operators))
    add(args.model_dump_json(exclude=_NO_PART))
    add(*map(_content, sources))
    compares = any((row := operator_of(entry.name)) is not None and row.compares for entry in args.operators)
    for key, (other, read_sources) in evaluation.items() if compares else ():
        add(key, other.model_dump_json(exclude=_NO_PART), *map(_content, read_sources))
    for entry in args.operators:
        known = operator_of(entry.name)
        add(*([known.args.model_validate(entry.args).model_dump_json()] if known else []), *_files_of(entry))
    if any(entry.args.get("unit") == "tokens" for entry in args.operators):
        place = tokenizer.tokenizer_path or tokenizer.model_name_or_path or ""
        there = sorted(Path(place).iterdir()) if place and Path(place).is_dir() else []
        files = [path for path in there if path.suffix in _TOKENIZER_ENDINGS and path.is_file()]
        add("tokenizer", *((f"{path.name} {_content_of_file(path)}" for path in files) if files else (place,)))
    return digest.hexdigest()


def _content(source: DataSource) -> str:
    """Digest of a source: of a file's bytes, or of the rows of anything else. Raises ConfigError if they cannot be
    read."""
    if isinstance(source, DataFile):
        return f"{source.path.name} {source.format} {_content_of_file(source.path)}"
    digest = hashlib.blake2b(digest_size=20)
    for row in source.rows():
        digest.update(repr((row.place, sorted(row.values.items()))).encode(errors="surrogatepass"))
    return f"{source.name} {digest.hexdigest()}"


def _content_of_file(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=20)
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:  # whoever reads it next says so
        return "not there"
    return digest.hexdigest()


def _files_of(entry: OperatorConfig) -> Iterable[str]:
    """The files that its arguments name: their names, which say what is read of a folder, and contents."""
    row = operator_of(entry.name)
    for argument in row.files if row is not None else ():
        place = expanded(str(entry.args.get(argument) or ""))
        for path in sorted(place.glob("*")) if place.is_dir() else [place]:
            yield f"{path.name} {_content_of_file(path)}"


def _code(entries: Sequence[OperatorConfig]) -> Iterable[str]:
    """Digests of the code behind the operators: of this package, of the code that reads rows, and of the modules of
    user-defined functions (but not of their imports)."""
    home = Path(__file__).parent
    for folder in (home, home.parents[1] / "datasets"):
        yield from map(_content_of_file, sorted(folder.glob("*.py")))
    named = [entry.name for entry in entries if entry.name not in OPERATORS]
    for name in [*named, *(str(entry.args["scorer"]) for entry in entries if entry.args.get("scorer"))]:
        try:
            spec = find_spec(name.partition(":")[0])
        except Exception:  # of a package of the user's; whoever runs the function says so
            spec = None
        yield name if spec is None or spec.origin is None else _content_of_file(Path(spec.origin))


def row_choice(places: Places, key: str, read: ReadTexts, tokenizer: PreTrainedTokenizerBase) -> Choose:
    """Return the choice of the operators of the data_args at this path; every row without any."""
    return OperatorChoice(places, key, read, tokenizer) if places.data_args[key].operators else all_rows


@dataclass(frozen=True)
class OperatorChoice:
    places: Places
    key: str
    read: ReadTexts
    tokenizer: PreTrainedTokenizerBase | None  # for operators that count tokens

    def __call__(self, sources: Sequence[DataSource]) -> Iterator[Row]:
        """Raises ConfigError for rows and operators that do not work, and where nothing is left."""
        rows = self._rows(sources)
        yield from (row.row for row in apply(self._chosen(rows, sources), rows))

    def run(self, sources: Sequence[DataSource]) -> Chosen:
        """Run the chain without reading or writing saved choices."""
        return run_chain(self._rows(sources), self._args.operators, self.key, self._context)

    def _rows(self, sources: Sequence[DataSource]) -> list[OperatorRow]:
        return [OperatorRow(row, self._id, self._texts) for row in all_rows(sources)]

    @property
    def _args(self) -> DataArgs:
        return self.places.data_args[self.key]

    def _id(self, row: Row) -> str:
        """Id of a row in the recorded rollouts."""
        row_id = row.values.get(self._args.id)
        return row.short_place if row_id is None else str(row_id)

    def _texts(self, row: Row) -> Texts:
        return self.read(row, self._args, self.key)

    def _chosen(self, rows: Sequence[OperatorRow], sources: Sequence[DataSource]) -> Chosen:
        cache, name = CachedChoices(self._args.operators_cache), _name(self.places, self.key, sources)
        chosen, how = cache.read(name), f"as kept in {self._args.operators_cache}"
        if chosen is None:
            chosen, how = run_chain(rows, self._args.operators, self.key, self._context), "run now"
            cache.write(name, chosen)
        logger.info("%s.operators, %s:", self.key, how)
        for line in chosen.lines():
            logger.info("  %s", line)
        return chosen

    def _context(self, at: str, op: str) -> Context:
        return Context(at, op, self._count_tokens, self._evaluation)

    def _count_tokens(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        assert self.tokenizer is not None
        ids = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return [len(each) for each in ids["input_ids"]]

    def _evaluation(self) -> dict[str, list[Texts]]:
        return {
            at: [self.read(row, args, at) for row in all_rows(_sources(args, at))]
            for at, args in self.places.evaluation.items()
        }


def dry_report(places: Places) -> Iterator[str | Problem]:
    """Yield the lines about operators in a plan: the chain, and what each operator removes, as saved by an earlier run,
    or computed here if that is quick; a Problem if it stops a run. The reader is made only then."""
    for key, args in places.data_args.items():
        if not args.operators:
            continue
        chain = ", ".join(
            entry.name + (f" ({', '.join(f'{k} {show(v)}' for k, v in entry.args.items())})" if entry.args else "")
            for entry in args.operators
        )
        yield f"{key}.operators: {chain}"
        for line in _result_lines(places, key):
            yield line if isinstance(line, Problem) else f"  {line}"


def _result_lines(places: Places, key: str) -> Iterator[str | Problem]:
    args = places.data_args[key]
    files = [_local_files(other, at) for at, other in [(key, args), *places.evaluation.items()]]
    if any(of_place is None for of_place in files):
        yield "a real run reports what each drops, before Ray starts: not all rows are in files on this machine."
        return
    sources = files[0] or []
    try:
        chosen = CachedChoices(args.operators_cache).read(_name(places, key, sources))
        if chosen is None and not all(map(_is_quick, args.operators)):
            yield (
                "a real run reports what each drops, before Ray starts: user code, models and tokens are used only "
                "then."
            )
        elif chosen is None and sum(path.stat().st_size for path in _paths(files)) > MAX_BYTES_IN_FULL:
            yield "a real run reports what each drops, before Ray starts: the files are large."
        else:
            assert places.reader is not None
            yield from (chosen or OperatorChoice(places, key, places.reader(), None).run(sources)).lines()
    except ConfigError as error:
        yield from (Problem(text) for text in error.problems)


def _local_files(args: DataArgs, key: str) -> list[DataFile] | None:
    """None where rows are elsewhere, or are not there."""
    sources, problems = data_sources(args, key, reach=False)
    files = [source for source in sources if isinstance(source, DataFile)]
    return None if problems or len(files) < max(len(sources), len(args.file_name)) else files


def _paths(files: Sequence[Sequence[DataFile] | None]) -> Iterator[Path]:
    yield from (source.path for sources in files for source in sources or ())


def _is_quick(entry: OperatorConfig) -> bool:
    """Neither the user's code, nor a model, nor a tokenizer is asked."""
    return entry.name in OPERATORS and entry.args.get("unit") != "tokens" and not entry.args.get("scorer")


def _name(places: Places, key: str, sources: Sequence[DataSource]) -> str:
    evaluation = {at: (args, _sources(args, at)) for at, args in places.evaluation.items()}
    return name_of(places.data_args[key], sources, evaluation, places.kind, places.tokenizer)


def _sources(args: DataArgs, key: str) -> list[DataSource]:
    sources, problems = data_sources(args, key)
    if problems:
        raise ConfigError(*problems)
    return sources
