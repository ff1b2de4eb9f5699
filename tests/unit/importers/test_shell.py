"""Scripts are read, never run."""

from pathlib import Path

import pytest

from roll.commands import main as roll
from roll.errors import ConfigError
from roll.importers.shell import find_command, is_open
from roll.importers.shell_numbers import whole_number


def overrides(text: str) -> tuple[str, ...]:
    return find_command(text).overrides


@pytest.mark.parametrize(
    "script, found",
    [
        ("n=4\npython -m x a.b=$n a.c=${n}0", ("a.b=4", "a.c=40")),
        ("python -m x \\\n  a.b=1 \\\n  a.c='x y' # said\n", ("a.b=1", "a.c=x y")),
        ("export D=/d; python x.py a.b=\"['$D/1', '$D/2']\" 2>&1 | tee log=1", ("a.b=['/d/1', '/d/2']",)),
        ('A=(a.b=1 \n a.c=$((2 * (3 + 1))))\nA+=(a.d=5)\npython x "${A[@]}" $@', ("a.b=1", "a.c=8", "a.d=5")),
        ("a=${X:-7}\nb=${Y:-$a}\npython x a.b=$a a.c=${b}", ("a.b=7", "a.c=7")),
        ("python x a.b=$(cat file) a.c=`id` a.d=$1", ("a.b=$(cat file)", "a.c=`id`", "a.d=$1")),
        ("python x +a.b=1 ++a.c=2 ~a.d=3 ~a.e", ("+a.b=1", "++a.c=2", "~a.d=3", "~a.e")),
        ("if [ $x = 1 ]; then\n  n=5\nfi\nfor i in 1 2; do python x a.b=$n$i; done", ("a.b=${n}${i}",)),
        ("n=1\nif true; then\n n=2\nfi\npython x a.b=$n", ("a.b=1",)),
        ('N=256\npython x a.b=$[N*3] "a.c=$[2 * (1 + 1)]" a.d=$[n]', ("a.b=768", "a.c=4", "a.d=$[n]")),
        ("python x a.b=$((NODES * 8)) a.c=$((n + 1))", ("a.b=$((NODES * 8))", "a.c=$((n + 1))")),
        ("cat <<-'END' >x.sh\npython y a.b=1 a.c=2\n\tEND\npython x a.b=3", ("a.b=3",)),
        ("cat <<A <<B\ny a.b=1\nA\ny a.b=2\nB\npython x a.b=3 <<< word", ("a.b=3",)),
        ("python x a.b=$HOME/x a.c=$unset", ("a.b=${oc.env:HOME}/x", "a.c=")),
        ('m=a.b\npython x "a.c=say \\"hi\\"" a.d=\\$5', ('a.c=say "hi"', "a.d=$5")),
        ("python x a.b=1 && python y a.b=2 a.c=3", ("a.b=2", "a.c=3")),
    ],
)
def test_words_are_those_of_a_shell(script: str, found: tuple[str, ...]) -> None:
    assert overrides(script) == found


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    script = f"touch {target}\nx=$(touch {target})\npython x a.b=$(touch {target}) a.c=$((__import__('os')))"
    assert len(overrides(script)) == 2
    assert not target.exists()


def test_what_stands_in_an_if_is_not_followed_and_said() -> None:
    notes = find_command("if true; then\n export n=5\nfi\npython x a.b=1").notes
    assert notes == ("n=5 stands in an if or a loop and is not followed.",)


def test_every_other_command_is_said() -> None:
    notes = find_command("python -m x a.b=1\npython -m y a.b=2 a.c=3\n").notes
    assert notes == ("Not imported, another command: python -m x ...",)


def test_words_of_a_launcher_are_known() -> None:
    command = find_command("torchrun --nnodes=2 --nproc_per_node 4 -m x a.b=1 --config-name=big")
    assert command.flag("nnodes") == "2" and command.flag("nproc-per-node") == "4"
    assert command.flag("config-name") == "big" and command.flag("other") is None


def test_a_script_without_a_command_is_refused() -> None:
    with pytest.raises(ConfigError, match="no command with key=value words"):
        overrides("echo hello\n")


@pytest.mark.parametrize(
    "text, value",
    [("1024 * 4", 4096), ("7 / 2", 3), ("$n + ${n}", 6), ("-n % 2", 1), ("2 ** 99", None), ("f(1)", None), ("", None)],
)
def test_arithmetic_is_that_of_whole_numbers(text: str, value: int | None) -> None:
    assert whole_number(text, {"n": "3"}) == value


def test_what_a_script_leaves_open_is_told_from_variables_of_the_environment() -> None:
    assert is_open("$1") and is_open("/x/$(date)") and not is_open("${oc.env:HOME}/x") and not is_open("x$y")


@pytest.mark.parametrize("word", ["x" * 900_000, '"' + "x" * 900_000 + '"', "$X" * 400_000, '"' + "$X" * 400_000 + '"'])
def test_a_word_of_a_megabyte_takes_no_time_for_each_pair_of_its_characters(word: str) -> None:
    """Each took half a minute."""
    (found,) = overrides(f"X=y\npython -m x a.b={word}")
    assert found == "a.b=" + word.strip('"').replace("$X", "y")


def test_a_word_that_is_too_long_for_the_name_of_a_file_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert roll(["import", "x" * 5_000]) == 2
    assert "xxx" in capsys.readouterr().err
