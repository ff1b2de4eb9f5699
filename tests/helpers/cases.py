"""Examples of a parametrised test, read from the YAML file beside it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

Test = TypeVar("Test", bound=Callable[..., None])


def cases(names: str) -> Callable[[Test], Test]:
    """Parametrise a test with the rows that test_x.yaml lists under the test's name; a value of `...` is Python's.

    Example: @cases("text, answer") above def test_a_sum(...) in test_x.py, and in test_x.yaml
        test_a_sum:
        - [1 + 1, 2]
    """

    def mark(test: Test) -> Test:
        rows = read(Path(test.__code__.co_filename).with_suffix(".yaml"))[test.__name__]
        return pytest.mark.parametrize(names, rows)(test)

    return mark


@cache
def read(path: Path) -> Any:
    return with_ellipsis(yaml.load(path.read_text(), yaml.CSafeLoader))


def with_ellipsis(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: ... if inner == "..." else with_ellipsis(inner) for key, inner in value.items()}
    return [with_ellipsis(inner) for inner in value] if isinstance(value, list) else value
