"""The words of the command `roll`, whatever they do."""

import subprocess
import sys
from pathlib import Path

import pytest

from roll.commands.table import SUBCOMMANDS, main
from roll.utils.version import VERSION

REPOSITORY = Path(__file__).resolve().parents[3]


def test_who_reads_may_stop_reading() -> None:
    """As `roll schema rlvr | head -1` does, which writes more than a pipe holds."""
    command = [sys.executable, "-m", "roll", "schema", "rlvr"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == b"{\n"
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (1, b"")
    process.stderr.close()


@pytest.mark.parametrize("words", [["--help"], ["explain", "grpo"], ["schema", "rlvr"]])
def test_what_a_full_disk_does_not_take_is_one_line_and_no_traceback(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "roll", *words]
        done = subprocess.run(command, cwd=REPOSITORY, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"roll {words[0]} failed:\n  - standard output cannot be written: No space left on device\n"


def test_what_is_missing_or_misspelt_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runn"]) == 2
    assert capsys.readouterr().err.startswith("roll has no command runn. Did you mean run?\n")
    with pytest.raises(SystemExit):
        main(["check-env"])
    assert "required: env\n" in capsys.readouterr().err
    assert main(["report", "output/none", "-h"]) == 0
    assert capsys.readouterr().out.startswith("usage: roll report RUN")


@pytest.mark.parametrize("word", ["--version", "version"])
def test_the_version_can_be_asked_for(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"roll {VERSION}\n"


@pytest.mark.parametrize("words", [["--max-new-tokens", "5"], ["--max_new_tokens=5"], ["--max-new-tokens=5"]])
def test_options_may_have_dashes_or_underscores(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr("roll.commands.chat.run", lambda argv: given.append(list(argv)) or 0)
    assert main(["chat", "model", *words]) == 0
    assert given[0][1].startswith("--max_new_tokens")


def test_the_help_of_no_subcommand_imports_what_is_heavy() -> None:
    """All of them in one interpreter; what a command itself imports takes seconds of CPU for some."""
    code = """
import sys
from contextlib import suppress
from roll.commands.table import SUBCOMMANDS, main
for name in SUBCOMMANDS:
    print(name)
    with suppress(SystemExit):
        main([name, "--help"])
main(["explain", "no_such_algorithm"])
heavy = ("torch", "ray", "numpy", "transformers", "hydra", "matplotlib", "jinja2", "nicegui", "vllm")
print(*[name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == ""
    assert [name for name in SUBCOMMANDS if name not in lines] == []
    assert sum(line.startswith("usage: ") for line in lines) >= len(SUBCOMMANDS) - 3
