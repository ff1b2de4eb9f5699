"""MATH (Hendrycks et al.) for RLVR: prompt, ground_truth, tag, level, type.

    python examples/data/prepare_math.py MATH/train MATH/test              # the original folders, a file for a problem
    python examples/data/prepare_math.py train-00000-of-00001.parquet      # sets of the hub; MATH-500 has an `answer`

A row has a `problem`, and an `answer` or a `solution` with its answer in the last \\boxed{}.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from preparing import BOXED, BadRow, Row, main, published_rows, text

from roll.utils.answers.final_answer import last_boxed


def read(source: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A file of rows, or a folder with a JSON object in each file."""
    if not source.is_dir():
        yield from published_rows(source)
        return
    for path in sorted(source.rglob("*.json"), key=lambda path: (path.parent, len(path.name), path.name)):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise BadRow(f"{path}: not JSON ({error})") from error
        if not isinstance(found, dict):
            raise BadRow(f"{path}: not an object")
        yield str(path), {"id": str(path.relative_to(source)), **found}


def convert(values: Mapping[str, Any], out: Path) -> Row:
    """Example: solution "so it is $\\boxed{\\frac12}$." -> ground_truth "\\frac12"."""
    answer = values.get("answer") or last_boxed(text(values, "solution"))
    if not answer:
        raise BadRow("`solution` has no \\boxed{} that is closed")
    named = {key: values[key] for key in ("id", "unique_id", "level", "type", "subject") if values.get(key) is not None}
    return {"prompt": f"{text(values, 'problem')}\n{BOXED}", "ground_truth": str(answer), "tag": "math", **named}


if __name__ == "__main__":
    sys.exit(main(__doc__, "math", convert, read))
