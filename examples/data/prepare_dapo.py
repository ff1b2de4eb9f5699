"""DAPO-Math-17k for RLVR: messages, ground_truth, tag, id.

    python examples/data/prepare_dapo.py dapo-math-17k.parquet                     # of BytedTsinghua-SIA/DAPO-Math-17k

The file has every prompt about a hundred times; each is written once. Prompts ask for a last line `Answer: ...`, which
they keep; `math_rule` reads the last number, and answers of this set are whole numbers.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preparing import BadRow, Row, main


class Once:
    """Converts the first row of each prompt."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, values: Mapping[str, Any], out: Path) -> Row | None:
        row = convert(values)
        key = "\0".join(message["content"] for message in row["messages"])
        if key in self._seen:
            return None
        self._seen.add(key)
        return row


def convert(values: Mapping[str, Any]) -> Row:
    messages = [{"role": message["role"], "content": message["content"]} for message in values["prompt"]]
    if not messages or not all(isinstance(message["content"], str) for message in messages):
        raise BadRow("`prompt` is a list of messages")
    truth = str(values["reward_model"]["ground_truth"])
    index = (values.get("extra_info") or {}).get("index")
    named = {} if index is None else {"id": str(index)}
    return {"messages": messages, "ground_truth": truth, "tag": "dapo", **named}


if __name__ == "__main__":
    sys.exit(main(__doc__, "dapo", Once()))
