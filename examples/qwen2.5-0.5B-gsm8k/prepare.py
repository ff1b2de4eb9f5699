"""Turn the original GSM8K files into rows for RLVR: prompt, ground_truth, tag.

    python examples/qwen2.5-0.5B-gsm8k/prepare.py train.jsonl test.jsonl --out data/gsm8k

A line of the original has a `question` and an `answer` that ends in `#### 1,234`. The ground truth is that number
without its commas; the worked solution before it is left out. Each file keeps its name. Standard library only.
"""

import argparse
import json
import re
import sys
from pathlib import Path

FINAL_NUMBER = re.compile(r"####\s*(-?[\d,]*\.?\d+)\s*$")
INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."


class BadLine(ValueError):
    """A line that is not GSM8K; the text says which and why."""


def convert_line(line: str, where: str) -> dict[str, str]:
    """One row. Example: question "2+2?", answer "It is 4.\\n#### 4" -> ground_truth "4"."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadLine(f"{where}: not JSON ({error})") from error
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("question", "answer")):
        raise BadLine(f"{where}: needs the texts `question` and `answer`")
    final = FINAL_NUMBER.search(record["answer"])
    if final is None:
        raise BadLine(f"{where}: `answer` does not end in `#### <number>`: ...{record['answer'][-40:]!r}")
    return {
        "prompt": f"{record['question'].strip()}\n{INSTRUCTION}",
        "ground_truth": final.group(1).replace(",", ""),
        "tag": "gsm8k",
    }


def convert_file(source: Path, target: Path) -> int:
    """Number of rows written. Nothing is written when a line is bad."""
    lines = source.read_text(encoding="utf-8").splitlines()
    rows = [convert_line(line, f"{source}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise BadLine(f"{source}: no rows")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Prepare GSM8K for RLVR.")
    parser.add_argument("files", nargs="+", type=Path, help="original JSONL files, usually train.jsonl and test.jsonl")
    parser.add_argument("--out", type=Path, default=Path("data/gsm8k"), help="folder for the converted files")
    given = parser.parse_args()
    for source in given.files:
        target = given.out / source.name
        if target.resolve() == source.resolve():
            parser.error(f"{source} would be overwritten; choose another --out")
        try:
            print(f"{target}: {convert_file(source, target)} rows")
        except (BadLine, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
