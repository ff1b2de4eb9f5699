"""The words of `roll studio`."""

from __future__ import annotations

import argparse

USAGE = """roll studio [FOLDER ...] [--host 127.0.0.1] [--port 8570] [--token_file FILE]

Serves the runs below the folders (default: output), finished and running, their rollouts, and a builder of
configurations that starts runs below the first folder. The printed address contains a token, since whoever opens it can
start code as you. Each start makes a new one, unless --token_file or ROLL_STUDIO_TOKEN has one. docs/studio.md."""


DEFAULT_FOLDER = "output"


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll studio", usage=USAGE, allow_abbrev=False)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="with runs below it")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine alone")
    parser.add_argument("--port", type=int, default=8570, help="0: a free one")
    parser.add_argument("--token_file", metavar="FILE", help="has the token; only you may read it")
    parser.add_argument("--token", help=argparse.SUPPRESS)
    return parser
