"""Checks of the data before anything starts: no tokenizer, no torch, only the front of big files."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from roll.configs.sections.data import DataArgs
from roll.configs.tables.sight import VisionModel
from roll.datasets.loader import DataFile, DataSource, Row
from roll.datasets.rows import Domain, Example, RowReader
from roll.datasets.shown import missing_files, named_columns
from roll.datasets.sources import MAX_BYTES_IN_FULL, data_sources
from roll.datasets.templates import template_problem, variables_problem
from roll.errors import ConfigError

ROWS_OF_A_BIG_FILE = 1000
MAX_PROBLEMS_PER_FILE = 5


def preflight(
    args: DataArgs,
    key: str,
    domains: Sequence[Domain],
    template: str | None = None,
    reach: bool = True,
    vision: VisionModel | None = None,
    if_shown: Callable[[Collection[str]], Iterable[str]] = lambda _: (),
) -> list[str]:
    """Every problem with `data_args` (at YAML path `key`): one message each, with file, key and remedy.

    Files up to 16 MB are read whole; of a larger one the first 1000 rows, and the rest when the run loads it. What is
    elsewhere is fetched; without `reach` it is left out, and so are files that are not there. `vision`: the model, if
    it sees pictures. `if_shown`: what else is wrong where rows of these domains show some.
    """
    name, at = template or args.template, "global_template" if template else f"{key}.template"
    problems = [template_problem(name, at) or variables_problem(name, args.template_kwargs, at)]
    sources, source_problems = data_sources(args, key, reach)
    if reach:
        problems += source_problems
    else:
        sources = [source for source in sources if isinstance(source, DataFile)]
    if vision is not None:
        sources = [source.without_pictures(named_columns(args)) for source in sources]
    try:
        reader = RowReader(args, key, domains, vision)
    except ConfigError as error:
        return [p for p in problems if p] + list(error.problems)
    lacking = _GroundTruths(key, domains)
    for source in sources:
        problems += row_problems(source, lambda row: lacking.see(reader.read(row), reader.ground_truth(row)), full=True)
    beside = if_shown(lacking.shown) if lacking.shown else ()
    return [p for p in [*problems, *lacking.problems(), *beside] if p]


class _GroundTruths:
    """Domains that have rows but no reference answer in any of them; and domains of which some row shows pictures."""

    def __init__(self, key: str, domains: Sequence[Domain]):
        self._key = key
        self._waiting = {domain.name for domain in domains if domain.some_ground_truth}
        self._first: dict[str, Row] = {}
        self.shown: set[str] = set()

    def see(self, example: Example, ground_truth: object) -> None:
        if ground_truth is not None:
            self._waiting.discard(example.domain)
        self._first.setdefault(example.domain, example.row)
        self.shown |= {example.domain} if example.pictures else set()
        if example.pictures and (missing := next(missing_files(example.pictures), None)):
            raise ConfigError(missing)

    def problems(self) -> list[str]:
        return [
            f"{self._key}: no row of the domain {name} has a ground_truth, which rewards.{name} reads; "
            f"{self._first[name].where} has the columns {', '.join(map(str, self._first[name].values))}. Set "
            f"{self._key}.ground_truth to the column's name, or declare the reward with @requires() if it does without"
            for name in sorted(self._waiting & self._first.keys())
        ]


def row_problems(source: DataSource, see: Callable[[Row], None], full: bool = False) -> list[str]:
    """Problems that `see` raises of the first rows of a file; with `full`, of all rows of one that is not large. Rows
    with the same problem are told once, with the first of them and their number."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    num_rows = 0
    unreadable: list[str] = []
    try:
        limit = None if full and not source.is_large(MAX_BYTES_IN_FULL) else ROWS_OF_A_BIG_FILE
        for row in islice(source.rows(), limit):
            num_rows += 1
            try:
                see(row)
            except ConfigError as error:
                kind = str(error).removeprefix(row.where)
                first.setdefault(kind, str(error))
                counts[kind] += 1
    except ConfigError as error:
        unreadable += error.problems
    if not num_rows and not unreadable:
        return [f"{source.key}: {source.name} is empty: it has no rows"]
    problems = [
        message + (f" ({counts[kind]} of {num_rows} rows)" if counts[kind] > 1 else "")
        for kind, message in first.items()
    ]
    if len(problems) > MAX_PROBLEMS_PER_FILE:
        rest = len(problems) - MAX_PROBLEMS_PER_FILE
        problems[MAX_PROBLEMS_PER_FILE:] = [f"{source.key}: {source.name} has {rest} more problems of this sort"]
    return problems + unreadable
