"""GSM8K for RLVR: prompt, ground_truth, tag.

    python examples/data/prepare_gsm8k.py train.jsonl test.jsonl             # the original, of openai/grade-school-math
    python examples/data/prepare_gsm8k.py train-00000-of-00001.parquet       # of openai/gsm8k on the hub

Both have a `question` and an `answer` that ends in `#### 1,234`. The ground truth is that number without its commas;
the worked solution before it is left out.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preparing import BOXED, BadRow, Row, main, text

FINAL_NUMBER = re.compile(r"####\s*(-?[\d,]*\.?\d+)\s*$")


def convert(values: Mapping[str, Any], out: Path) -> Row:
    """Example: question "2+2?", answer "It is 4.\\n#### 4" -> ground_truth "4"."""
    question, answer = text(values, "question"), text(values, "answer")
    final = FINAL_NUMBER.search(answer)
    if final is None:
        raise BadRow(f"`answer` does not end in `#### <number>`: ...{answer[-40:]!r}")
    return {"prompt": f"{question}\n{BOXED}", "ground_truth": final.group(1).replace(",", ""), "tag": "gsm8k"}


if __name__ == "__main__":
    sys.exit(main(__doc__, "gsm8k", convert))
