"""UltraFeedback's pairs for DPO and reward models: chosen, rejected, margin, id.

    python examples/data/prepare_ultrafeedback.py train_prefs-00000-of-00001.parquet
                                                                     # of HuggingFaceH4/ultrafeedback_binarized

`chosen` and `rejected` are whole conversations; the margin is the difference of their scores, where there are some.
Pairs with the same conversation twice are left out.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preparing import BadRow, Row, main


def convert(values: Mapping[str, Any], out: Path) -> Row | None:
    chosen, rejected = (_messages(values[column], column) for column in ("chosen", "rejected"))
    if chosen == rejected:
        return None
    row: Row = {"chosen": chosen, "rejected": rejected}
    better, worse = values.get("score_chosen"), values.get("score_rejected")
    if isinstance(better, int | float) and isinstance(worse, int | float):
        row["margin"] = float(better) - float(worse)
    return row | ({"id": str(values["prompt_id"])} if values.get("prompt_id") else {})


def _messages(value: Any, column: str) -> list[dict[str, str]]:
    messages = [{"role": message["role"], "content": message["content"]} for message in value]
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise BadRow(f"`{column}` is no conversation that ends with the assistant")
    return messages


if __name__ == "__main__":
    sys.exit(main(__doc__, "ultrafeedback", convert))
