"""Make a model that can almost sort digits, and the data to teach it the rest. No download; half a minute on one core.

The task: "3142" -> "<answer>1234</answer>". roll/models/tiny_sort.py says what is written under --out.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small only loses time to a second thread

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from roll.models.tiny import ARCHITECTURES
from roll.models.tiny_sort import Settings, prepare

DEFAULT_OUT = Path("output/tiny-sort")  # where tiny_sort.yaml looks, unless TINY_SORT_DIR says otherwise


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Path, Settings]:
    parser = argparse.ArgumentParser(description="Prepare the tiny sorting task: data, tokenizer, warmed-up model.")
    defaults = Settings()
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to fill")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--digits", type=int, default=4, help="length of every prompt")
    parser.add_argument("--min_digits", type=int, help="shortest prompt, instead of --digits")
    parser.add_argument("--max_digits", type=int, help="longest prompt, instead of --digits")
    parser.add_argument("--arch", choices=ARCHITECTURES, default=defaults.arch)
    parser.add_argument(
        "--kv_heads", type=int, choices=(1, 2), default=defaults.num_kv_heads, help="2: for tensor parallel"
    )
    parser.add_argument("--steps", type=int, default=defaults.steps, help="warm-up steps")
    given = parser.parse_args(arguments)
    min_digits = given.digits if given.min_digits is None else given.min_digits
    max_digits = max(given.digits, min_digits) if given.max_digits is None else given.max_digits
    if not 2 <= min_digits <= max_digits:
        parser.error(f"needs 2 <= min_digits <= max_digits, got {min_digits} and {max_digits}")
    return given.out, Settings(
        min_digits=min_digits,
        max_digits=max_digits,
        arch=given.arch,
        num_kv_heads=given.kv_heads,
        seed=given.seed,
        steps=given.steps,
    )


def report(line: str) -> None:
    print(f"   {line}", flush=True)


def main() -> None:
    out, settings = parse_arguments()
    started = time.perf_counter()
    if prepare(out, settings, report):
        report(f"written to {out} in {time.perf_counter() - started:.0f} s")
    else:
        report(f"{out} is already prepared with these settings")


if __name__ == "__main__":
    main()
