"""`roll data check`: what a file of rows holds, how a run would read it, and what is wrong with it."""

import argparse
from collections.abc import Iterator, Sequence

USAGE = """roll data check FILE [...] [key=value ...] [--for rlvr|sft|dpo] [--tokenizer DIR] [--max_tokens N]

FILE is whatever data_args.file_name takes: files, folders, patterns, addresses, data sets of the hub. Keys are those of
data_args (prompt, messages, ground_truth, tag, template, split ...) and those that name columns of conversations and
pairs (prompt_key, response_key, chosen_key ...)."""


def run(argv: Sequence[str]) -> Iterator[str]:
    """The report, line by line. Raises ConfigError at its end with what is wrong with the rows."""
    options = parser().parse_intermixed_args(list(argv))
    from roll.commands.data_check_report import report

    return report(options)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll data check", usage=USAGE, allow_abbrev=False)
    parser.add_argument("check", choices=["check"], help="what to do")
    parser.add_argument("words", nargs="+", help="files, and key=value")
    parser.add_argument(
        "--for", dest="pipeline", choices=["rlvr", "sft", "dpo"], help="kind of run (reward models: dpo)"
    )
    parser.add_argument(
        "--tokenizer",
        help="a model's directory or hub id: the first row is shown as the model sees it, tokens of texts and pictures "
        "are counted",
    )
    parser.add_argument("--max_tokens", type=int, help="with --tokenizer: count the rows that are longer")
    return parser
