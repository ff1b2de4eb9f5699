"""What `data_args` name that is not on this machine: all that a dry run says about the data."""

from collections.abc import Iterator, Mapping

from roll.configs.data import DataArgs
from roll.configs.problems import Problem
from roll.datasets.templates import template_problem
from roll.utils.paths import look_at


def missing_data_files(places: Mapping[str, DataArgs]) -> Iterator[Problem]:
    """`places`: the data_args that are read, by their YAML path."""
    for at, args in places.items():
        for name in args.file_name:
            if not (look := look_at(name)).exists:
                why = f"there is no file {look.path}" if look.kind == "absent" else look.why
                yield Problem(f"{at}.file_name: {why}.", (f"{at}.file_name",))


def unknown_templates(names: Mapping[str, str]) -> Iterator[Problem]:
    """`names`: the chat templates in use, by their YAML path."""
    for key, name in names.items():
        if (wrong := template_problem(name, key)) is not None:
            yield Problem(f"{wrong}.", (key,))
