"""What a setting names: a built-in name or a path."""

import json
import sys
from pathlib import Path

import pytest

from roll.errors import EnvError
from roll.utils.imports import (
    EXTERNAL_LIB,
    add_folder,
    code_folder,
    import_external,
    is_installed,
    own_folders,
    resolve,
    split,
    traced,
)
from tests.helpers.cases import cases


def test_both_forms_of_a_path_lead_to_the_same_object() -> None:
    found = {resolve(name, {"short": "json:dumps"}) for name in ("short", "json:dumps", "json.dumps")}
    assert found == {json.dumps}
    assert resolve("json.decoder:JSONDecoder.decode") is json.JSONDecoder.decode
    assert split("a.b:c.d") == ("a.b", "c.d")
    assert split("a.b.c") == ("a.b", "c")
    assert is_installed("json") and not is_installed("roll_no_such_package")
    with pytest.raises(EnvError) as caught:
        raise EnvError("set key: a")
    assert traced(caught.value) == "EnvError: set key: a"


@cases("name, part")
def test_a_wrong_name_says_which_part_is_wrong(name: str, part: str) -> None:
    with pytest.raises(ImportError) as error:
        resolve(name, {"short": "json:dumps"})
    assert part in str(error.value)


def test_what_a_module_raises_on_import_is_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "roll_test_broken.py").write_text("x = 1\nraise ValueError('half written')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match=r"ValueError: half written \(roll_test_broken.py, line 2\)") as error:
        resolve("roll_test_broken:reward")
    assert isinstance(error.value.__cause__, ValueError)


def test_own_folders_are_those_of_the_user_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path)
    own = [str(tmp_path / "theirs"), "", "mine", str(tmp_path / "absent")]
    assert own_folders([*own, *(p for p in sys.path if p.startswith(sys.prefix))]) == [
        str(tmp_path / "theirs"),
        str(tmp_path),
        str(tmp_path / "mine"),
    ]
    assert not [folder for folder in own_folders() if "site-packages" in folder or folder.endswith("lib-dynload")]
    assert code_folder() == str(Path(__file__).parents[3])


def test_code_in_an_added_folder_is_found_after_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("roll_test_added", "json"):
        (tmp_path / f"{name}.py").write_text("def dumps(): ...")
    add_folder(tmp_path)
    add_folder(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1
    assert resolve("roll_test_added:dumps") and resolve("json:dumps") is json.dumps
    with pytest.raises(ImportError, match=r"json has no score \(.*json/__init__.py\)"):
        resolve("json:score")


def test_every_module_of_the_environments_list_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("external_module_one", "external_module_two"):
        (tmp_path / f"{name}.py").write_text("KNOWN = []")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv(EXTERNAL_LIB, "external_module_one,external_module_two")
    import_external()
    assert sys.modules["external_module_one"].KNOWN == sys.modules["external_module_two"].KNOWN == []
    monkeypatch.delenv(EXTERNAL_LIB)
    import_external()


def test_a_module_that_cannot_be_imported_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "external_broken_module.py").write_text("import json\njson.nothing\n")
    monkeypatch.setenv(EXTERNAL_LIB, "external_broken_module")
    with pytest.raises(ImportError, match=r"external_broken_module failed with .*broken_module.py, line 2\)"):
        import_external()


def deep(number: int) -> None:
    if not number:
        json.loads("[1,")
    deep(number - 1)


def test_an_error_is_told_with_the_lines_of_ones_own_code_the_first_and_the_last_three() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        deep(6)
    message, *lines = traced(caught.value).splitlines()
    assert message == "JSONDecodeError: Expecting value: line 1 column 4 (char 3)"
    assert [line.rpartition(" in ")[2] for line in lines] == [
        "test_an_error_is_told_with_the_lines_of_ones_own_code_the_first_and_the_last_three: deep(6)",
        *["deep: deep(number - 1)"] * 2,
        'deep: json.loads("[1,")',
    ]
    assert all(line.startswith(f"  {__file__}:") for line in lines)
