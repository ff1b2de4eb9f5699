"""Contests with cases of input and output for RLVR's `code_sandbox`: prompt, case_type, test_cases, tag, id.

    python examples/data/prepare_code_contests.py train-00000-of-00039.parquet            # of deepmind/code_contests

A row has a `description`, and `public_tests`, `private_tests` and `generated_tests`, each with the lists `input` and
`output`. The first 30 cases are taken, public ones first; problems without cases are left out.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from preparing import BadRow, Row, main, text

MOST_CASES = 30
TASK = (
    "Write a Python program that reads from standard input and writes to standard output. Put it into one ```python "
    "code block."
)


def convert(values: Mapping[str, Any], out: Path) -> Row | None:
    cases = list(islice(_cases(values), MOST_CASES))
    if not cases:
        return None
    named = {"id": str(values["name"])} if values.get("name") else {}
    prompt = f"{text(values, 'description')}\n\n{TASK}"
    return {"prompt": prompt, "case_type": "stdin", "test_cases": cases, "tag": "code_contests", **named}


def _cases(values: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    if "public_tests" not in values:
        raise BadRow(f"needs `public_tests`; it has {', '.join(values)}")
    for column in ("public_tests", "private_tests", "generated_tests"):
        found = values.get(column) or {}
        given, wanted = found.get("input") or [], found.get("output") or []
        if len(given) != len(wanted):
            raise BadRow(f"`{column}` has {len(given)} inputs and {len(wanted)} outputs")
        yield from ({"stdin": a, "expected_stdout": b} for a, b in zip(given, wanted, strict=True))


if __name__ == "__main__":
    sys.exit(main(__doc__, "code_contests", convert))
