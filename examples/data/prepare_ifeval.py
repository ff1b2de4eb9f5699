"""IFEval for RLVR's `ifeval`: prompt, instruction_id_list, kwargs, tag, id.

python examples/data/prepare_ifeval.py input_data.jsonl                 # of google-research or google/IFEval
python examples/data/prepare_ifeval.py train-00000-of-00001.parquet     # the same as parquet: kwargs are padded
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preparing import BadRow, Row, main, text

from roll.rewards.ifeval.reward import row_problem


def convert(values: Mapping[str, Any], out: Path) -> Row:
    """Arguments that are null are left out: parquet has all of them in every row."""
    row = {
        "prompt": text(values, "prompt"),
        "instruction_id_list": list(values["instruction_id_list"]),
        "kwargs": [{k: v for k, v in (args or {}).items() if v is not None} for args in values["kwargs"]],
        "tag": "ifeval",
        **({"id": str(values["key"])} if values.get("key") is not None else {}),
    }
    if problem := row_problem(row):
        raise BadRow(problem)
    return row


if __name__ == "__main__":
    sys.exit(main(__doc__, "ifeval", convert))
