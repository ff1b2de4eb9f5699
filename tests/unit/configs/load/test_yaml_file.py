"""Reading one YAML: the dialect, and one kind of error with file and place."""

from pathlib import Path

import pytest

from roll.configs.load.loader import yaml_at
from roll.configs.load.yaml_file import read_yaml
from roll.errors import ConfigError


def refused(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    (message,) = error.value.problems
    assert str(path) in message
    return message


def test_numbers_are_read_as_hydra_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1e-6\nb: &b {c: 1_000}\nd: {<<: *b}\ne: {1: x}\n")
    assert read_yaml(path) == {"a": 1e-6, "b": {"c": 1000}, "d": {"c": 1000}, "e": {1: "x"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold a mapping of keys to values, not null."),
        ("- a", "must hold a mapping of keys to values, not ['a']."),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: found duplicate key a, while constructing a mapping."),
        ("a:\n\tb: 1", "line 2, column 1: found character '\\t' that cannot start any token"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("a: [1, 2", "line 1, column 9: expected ',' or ']'"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'."),
        ("1: a", "line 1, column 1: a key must be text, and '1' reads as int; put quotes around it."),
        ("a: {on: 1}", "a key must be text, and 'on' reads as bool; put quotes around it."),
        ("? [a]\n: 1", "a key must be text."),
        ("a: !!binary aGk=", "line 1, column 4: tag:yaml.org,2002:binary is not a type of a configuration."),
        ("a: !!python/object/apply:pathlib.Path [b]", "is not a type of a configuration."),
        ("a: !!int x", "line 1, column 4: 'x': invalid literal for int()"),
        ("a: " + "9" * 5000, "Exceeds the limit (4300 digits)"),
        ('a: "\\ud800"', "holds half of a surrogate pair, which UTF-8 cannot encode."),
        ('a: "b\\0c"', "'b\\x00c' holds a NUL character."),
        (b"a: \xff", "is not valid YAML: byte 3 is not UTF-8 (invalid start byte)."),
        (b"a: b\0c", "special characters are not allowed"),
        ("a: 1".encode("utf-16"), "byte 0 is not UTF-8"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_place(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert message in refused(tmp_path / "run.yaml", content)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    endless = tmp_path / "run.yaml"
    endless.symlink_to("/dev/zero")
    for path, message in (
        (endless, "is a device, a pipe or a socket, not a file."),
        (tmp_path, f"{tmp_path} is a directory, not a file."),
        (tmp_path / "none.yaml", "does not exist."),
    ):
        with pytest.raises(ConfigError, match=message):
            read_yaml(path)


def test_a_name_that_is_there_but_no_yaml_is_told_from_one_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "noext").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "mine.yaml", tmp_path / "folder" / "other.yaml"):
        path.touch()
    for name, message in (
        ("noext", f"{tmp_path}/noext is a file whose name does not end in .yaml or .yml. Rename it. .* has mine"),
        ("folder", f"{tmp_path}/folder is a directory, not a YAML. Name a YAML first. {tmp_path}/folder has other"),
        ("none", f"{tmp_path}/none.yaml does not exist. Name a YAML first. {tmp_path} has mine"),
    ):
        with pytest.raises(ConfigError, match=message):
            yaml_at(str(tmp_path / name))
