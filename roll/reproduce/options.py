"""Options of `roll reproduce`."""

import argparse
from pathlib import Path

USAGE = """roll reproduce [NAME] [--seeds N] [--steps N] [--model MODEL] [--out DIR] [--record] [key=value ...]

Lists the recipes, or runs one: gets its model, makes its rows, trains with seeds 1 to N, compares the curves with the
band of the recipe, and writes a page. The exit code is 0 inside the band and 1 outside. docs/results.md."""


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll reproduce", usage=USAGE, allow_abbrev=False)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a recipe, or a folder with one; default: list all")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs, one after the other; default: 1")
    parser.add_argument("--steps", type=int, metavar="N", help="of each run; default: as the recipe has it")
    parser.add_argument("--model", help="a folder, a GGUF file or a hub id, in the place of the recipe's model")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: output/reproduce/NAME")
    parser.add_argument("--record", action="store_true", help="make these runs the band of the recipe, in its folder")
    return parser
