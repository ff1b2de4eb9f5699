"""The words of `roll import`."""

from __future__ import annotations

import argparse

SYSTEMS = ("verl", "trinity", "roll")
USAGE = """roll import FILE --out my.yaml [key=value ...]

FILE is a YAML of verl, Trinity-RFT or ROLL, or a shell script with verl's command. bash runs the script in the sandbox,
without programs and network. Without FILE, all keys are key=value arguments. The YAML is written to --out, the report
beside it (my.report.md). Exit code: 0; 2 nothing could be imported; 3 the YAML is not the run that its author meant
(settings were lost)."""


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll import", usage=USAGE, allow_abbrev=False)
    parser.add_argument("--out", help="path of the YAML to write; default: <name of the file>.roll.yaml in this folder")
    parser.add_argument(
        "--from", dest="system", choices=SYSTEMS, help="system of the keys; default: recognised by the keys"
    )
    parser.add_argument(
        "--version", metavar="TAG", help="release of verl, such as v0.4.1; default: the newest that fits"
    )
    parser.add_argument(
        "--training", type=int, metavar="N", help="which training of a script that has several; default: the longest"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs of a machine, for a script that counts them; default: 8"
    )
    parser.add_argument("--lossy", action="store_true", help="exit code 0 even if settings were lost")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    return parser
