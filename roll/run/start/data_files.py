"""Checks of `data_args` without reading a row: contradictions, warnings, what this machine lacks."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from roll.configs.problems import Problem
from roll.configs.sections.data import DataArgs
from roll.datasets.loader import ENDINGS, DataFile, DataSource
from roll.datasets.sources import (
    DEFAULT_SPLIT,
    NotHere,
    data_sources,
    has_ending,
    lacking_packages,
    names_data_set,
    task_of,
)
from roll.datasets.templates import template_problem
from roll.errors import ConfigError

_VALIDATED = ("validation.", "eval_sets.")
_ROWS_LOOKED_AT = 8


def data_args_problems(places: Mapping[str, DataArgs]) -> Iterator[Problem]:
    """Yield contradictions that exist on any machine. `places`: the data_args that are read, by their YAML path."""
    for at, args in places.items():
        if not args.file_name:
            yield Problem(
                f"{at}.file_name is missing: name files ({', '.join(ENDINGS)}), folders or a data set of the Hugging "
                "Face hub.",
                (f"{at}.file_name",),
            )
        elif len(args.dataset_type) not in (0, 1, len(args.file_name)):
            yield Problem(
                f"{at}.dataset_type has {len(args.dataset_type)} entries for {len(args.file_name)} of {at}.file_name. "
                "Give one for all, one each, or none.",
                (f"{at}.dataset_type", f"{at}.file_name"),
            )
        if args.generator and not any(map(task_of, args.file_name)):
            yield Problem(
                f"{at}.generator does nothing: no name in {at}.file_name is a task of reasoning-gym, such as "
                "reasoning_gym:chain_sum. Name one, or leave generator out.",
                (f"{at}.generator",),
            )
        least, most = args.image_min_pixels, args.image_max_pixels
        if least is not None and most is not None and least > most:
            yield Problem(
                f"{at}.image_min_pixels: {least} is more than {at}.image_max_pixels: {most}. No picture has both; "
                "lower the first one, or raise the second.",
                (f"{at}.image_min_pixels", f"{at}.image_max_pixels"),
            )
        sets = [name for name in args.file_name if names_data_set(name)]
        if sets and at.startswith(_VALIDATED) and args.split is None:
            yield Problem(
                f"{at}.split is missing: which split of {sets[0]} is validated? {DEFAULT_SPLIT} is what is trained on "
                "by default.",
                (f"{at}.split", f"{at}.file_name"),
            )


def data_args_warnings(places: Mapping[str, DataArgs]) -> Iterator[str]:
    for at, args in places.items():
        names = [key for key in ("split", "subset") if args.value(key) is not None]
        if names and args.file_name and all(has_ending(name) for name in args.file_name):
            yield (
                f"{at}.{', '.join(names)} {'does' if len(names) == 1 else 'do'} nothing here: file_name names files, "
                "and only data sets have splits."
            )
        for name, count in _repeated(args, at).items():
            yield f"{at}.file_name stands for {name} {count} times, so its rows are there {count} times."


def _repeated(args: DataArgs, at: str) -> Mapping[str, int]:
    """Files that several entries stand for, as a folder and a file in it do."""
    sources, _ = data_sources(args, at, reach=False)
    counts = Counter(str(source.path.resolve()) if isinstance(source, DataFile) else source.name for source in sources)
    return {name: count for name, count in counts.items() if count > 1}


def missing_data_files(places: Mapping[str, DataArgs], sees: bool = False) -> Iterator[Problem]:
    """Files and folders that are not there, packages that are not, names whose files are all empty, and files whose
    first rows show what the model does not see. Of rows no more is read, nor is anything looked for elsewhere. `sees`:
    the model sees pictures."""
    for at, args in places.items():
        keys = (f"{at}.file_name",)
        sources, problems = data_sources(args, at, reach=False)
        if sources and not problems and all(map(_is_empty, sources)):
            problems = [f"{at}.file_name: {source.name} is empty: it has no rows" for source in sources]
        yield from (Problem(f"{text}.", keys, "place" if isinstance(text, NotHere) else "run") for text in problems)
        yield from (Problem(f"{text}.", keys, "machine") for text in lacking_packages(args, at))
        if not args.operators:  # which may leave such rows out
            shown = filter(None, (_first_medium(source, args, at, sees) for source in sources))
            yield from (Problem(f"{text}.", (f"{at}.file_name",)) for text in shown)


def has_files(places: Mapping[str, DataArgs]) -> bool:
    """True if some of the data are files of this machine."""
    sources = (source for at, args in places.items() for source in data_sources(args, at, reach=False)[0])
    return any(isinstance(source, DataFile) for source in sources)


def made_rows(places: Mapping[str, DataArgs]) -> Iterator[str]:
    """Yield for a plan how many rows there are of each task that makes them, and the file that holds them."""
    for at, args in places.items():
        if not any(map(task_of, args.file_name)):
            continue
        from roll.datasets.generated import CACHE

        for source in data_sources(args, at, reach=False)[0]:
            if isinstance(source, DataFile) and source.path.parent == Path(CACHE).expanduser():
                yield f"{len(source.path.read_bytes().splitlines())} in {source.path} ({at})"


def _first_medium(source: DataSource, args: DataArgs, at: str, sees: bool) -> str | None:
    """Return the problem of the first rows of a file that show media, or what a model that sees is not shown."""
    if not _is_read_by_row(source):
        return None
    from roll.datasets.media import shown_in
    from roll.datasets.sight import sight

    pictures = sight().row_pictures(args, at) if sees else None
    try:
        for row in islice(source.rows(), _ROWS_LOOKED_AT):
            what = shown_in(row) if pictures is None else pictures.problem(row)
            if what is not None:
                return what
    except ConfigError:
        pass  # a run says what is wrong with it
    return None


def _is_read_by_row(source: DataSource) -> bool:
    return isinstance(source, DataFile) and source.path.is_file() and source.path.suffix != ".json"


def _is_empty(source: DataSource) -> bool:
    return isinstance(source, DataFile) and source.path.is_file() and not source.path.stat().st_size


def missing_rows(places: Mapping[str, DataArgs], global_template: str | None, sees: bool = False) -> Iterator[Problem]:
    """Yield what is missing here for runs on rows: files and templates. `sees`: the model sees pictures."""
    yield from missing_data_files(places, sees)
    yield from unknown_templates(
        {f"{at}.template": args.template for at, args in places.items()}
        if global_template is None
        else {"global_template": global_template}
    )


def unknown_templates(names: Mapping[str, str]) -> Iterator[Problem]:
    """`names`: the chat templates in use, by their YAML path."""
    for key, name in names.items():
        if (wrong := template_problem(name, key)) is not None:
            yield Problem(f"{wrong}.", (key,), "place")
