"""The preparation scripts of examples/data turn small files of the published shapes into rows that roll reads, and
refuse what is of another shape."""

import base64
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from roll.commands.data_check_report import ReadOptions, kind_of
from roll.configs.sections.data import DataArgs
from roll.datasets.loader import DataFile
from roll.errors import ConfigError
from roll.rewards.code.cases import read_cases
from roll.rewards.ifeval.reward import row_problem

SCRIPTS = Path(__file__).resolve().parents[3] / "examples" / "data"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ASK = [{"role": "user", "content": "2+2?"}]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """As the ending says."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(name: str, source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / f"prepare_{name}.py"), str(source), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True)


def prepared(name: str, source: Path, refused: str | None = None) -> list[dict[str, Any]]:
    """The rows, each of which a run of their kind can read, or refuses so."""
    out = source.parent / "out"
    done = run(name, source, out)
    assert done.returncode == 0, done.stderr
    target = out / f"{source.stem}.jsonl"
    rows = list(DataFile(target, "json", "x").rows())
    assert f"{target}: {len(rows)} rows" in done.stdout
    tags = sorted({str(row.values["tag"]) for row in rows if "tag" in row.values})
    kind = kind_of("rlvr" if tags else "dpo", ReadOptions(DataArgs()), tags, None)
    for row in rows:
        with nullcontext() if refused is None else pytest.raises(ConfigError, match=refused):
            kind.read(row)
    return [dict(row.values) for row in rows]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_gsm8k_keeps_the_final_number_without_commas(ending: str, tmp_path: Path) -> None:
    answers = ["Half of it.\n#### 72", "<<3*4=12>>#### -1,234,567", "Cents.\n#### 0.5 ", "So #### 3 is not it\n#### 18"]
    rows = [{"question": " How many? ", "answer": answer} for answer in answers]
    found = prepared("gsm8k", write(tmp_path / f"train.{ending}", rows))
    assert [row["ground_truth"] for row in found] == ["72", "-1234567", "0.5", "18"]
    assert {row["tag"] for row in found} == {"gsm8k"}
    assert found[0]["prompt"].startswith("How many?\n") and "Half of it" not in found[0]["prompt"]


def test_math_takes_the_last_box_of_a_solution_or_the_answer(tmp_path: Path) -> None:
    rows = [
        {"problem": "p", "solution": "$\\boxed{1}$, no, $\\boxed{\\frac{1}{2}}$", "level": "Level 5"},
        {"problem": "q", "solution": "s", "answer": "\\pi", "subject": "Geometry", "unique_id": "test/1.json"},
    ]
    found = prepared("math", write(tmp_path / "test.jsonl", rows))
    assert [row["ground_truth"] for row in found] == ["\\frac{1}{2}", "\\pi"]
    assert (found[0]["level"], found[1]["unique_id"]) == ("Level 5", "test/1.json")


def test_math_reads_the_original_folders(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "algebra"
    folder.mkdir(parents=True)
    for number in (10, 2):
        problem = {"problem": f"p{number}", "level": "Level 1", "type": "Algebra", "solution": "\\boxed{3}"}
        (folder / f"{number}.json").write_text(json.dumps(problem, indent=2))
    found = prepared("math", tmp_path / "train")
    assert [row["id"] for row in found] == ["algebra/2.json", "algebra/10.json"]


def test_dapo_has_each_prompt_once(tmp_path: Path) -> None:
    def row(prompt: str, truth: str, index: str) -> dict[str, Any]:
        return {
            "data_source": "math_dapo",
            "prompt": [{"content": prompt, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": truth, "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": index},
        }

    rows = [row("a", "34", "x"), row("a", "34", "x"), row("b", "5", "y")]
    found = prepared("dapo", write(tmp_path / "dapo.parquet", rows))
    assert [(row["id"], row["ground_truth"]) for row in found] == [("x", "34"), ("y", "5")]
    assert found[0]["messages"] == [{"role": "user", "content": "a"}]


def test_geometry3k_writes_pictures_beside_its_rows(tmp_path: Path) -> None:
    picture = {"bytes": PIXEL, "path": None}
    rows = [{"images": [picture], "problem": "<image>Find x.", "answer": "3"}]
    (found,) = prepared("geometry3k", write(tmp_path / "train.parquet", rows), "shows a picture in a message")
    first, *texts = found["messages"][0]["content"]
    assert first["type"] == "image" and (tmp_path / "out" / first["image"]).read_bytes() == PIXEL
    assert texts[0] == {"type": "text", "text": "Find x."} and found["ground_truth"] == "3"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_ifeval_has_the_arguments_that_are_there(ending: str, tmp_path: Path) -> None:
    """Parquet has every argument of all instructions in each of kwargs."""
    kwargs: list[dict[str, Any]] = [{"num_highlights": 3}, {}]
    if ending == "parquet":
        kwargs = [{"num_highlights": 3, "relation": None}, {"num_highlights": None, "relation": None}]
    row = {
        "key": 1000,
        "prompt": "Write.",
        "instruction_id_list": ["detectable_format:number_highlighted_sections", "punctuation:no_comma"],
        "kwargs": kwargs,
    }
    (found,) = prepared("ifeval", write(tmp_path / f"input.{ending}", [row]))
    assert found["kwargs"] == [{"num_highlights": 3}, {}] and found["id"] == "1000"
    assert row_problem(found) is None


def test_contests_become_cases_and_problems_without_any_are_left_out(tmp_path: Path) -> None:
    def tests(*pairs: tuple[str, str]) -> dict[str, list[str]]:
        return {"input": [given for given, _ in pairs], "output": [wanted for _, wanted in pairs]}

    rows = [
        {
            "name": "1575_A. Sums",
            "description": "Add.",
            "public_tests": tests(("1 2\n", "3\n")),
            "private_tests": tests(("2 2\n", "4\n")),
            "generated_tests": tests(*(("0 0\n", "0\n"),) * 40),
        },
        {"name": "none", "description": "d", "public_tests": tests(), "private_tests": None, "generated_tests": None},
    ]
    (found,) = prepared("code_contests", write(tmp_path / "train.parquet", rows))
    cases = read_cases(found)
    assert cases.kind == "stdin" and len(cases.stdin) == 30
    assert [case.expected for case in cases.stdin[:3]] == ["3\n", "4\n", "0\n"]
    assert found["prompt"].startswith("Add.\n\n") and found["id"] == "1575_A. Sums"


def test_ultrafeedback_has_pairs_with_the_margin_of_their_scores(tmp_path: Path) -> None:
    def talk(answer: str) -> list[dict[str, str]]:
        return [*ASK, {"role": "assistant", "content": answer}]

    rows = [
        {"prompt": "2+2?", "prompt_id": "a", "chosen": talk("4"), "rejected": talk("5"), "messages": talk("4")}
        | {"score_chosen": 8.5, "score_rejected": 6.0},
        {"prompt": "2+2?", "prompt_id": "b", "chosen": talk("4"), "rejected": talk("4"), "messages": talk("4")}
        | {"score_chosen": 8.0, "score_rejected": 8.0},
    ]
    (found,) = prepared("ultrafeedback", write(tmp_path / "train_prefs.parquet", rows))
    assert (found["id"], found["margin"], found["rejected"][-1]["content"]) == ("a", 2.5, "5")


BAD: list[tuple[str, Any, str]] = [
    ("gsm8k", {"question": "q", "answer": "no number"}, "does not end in"),
    ("gsm8k", {"question": "q"}, "needs the text `answer`; it has question"),
    ("math", {"problem": "p", "solution": "no box"}, "has no \\boxed{} that is closed"),
    ("dapo", {"prompt": [{"role": "user", "content": "a"}]}, "not a row of this data set (KeyError('reward_model'))"),
    ("geometry3k", {"images": [{"bytes": "x"}], "problem": "p", "answer": "1"}, "`images` hold no bytes"),
    ("ifeval", {"prompt": "p", "instruction_id_list": ["x:y"], "kwargs": [{}]}, "is no instruction of IFEval"),
    ("code_contests", {"description": "d", "tests": []}, "needs `public_tests`"),
    ("ultrafeedback", {"chosen": ASK, "rejected": ASK}, "is no conversation that ends with the assistant"),
]


@pytest.mark.parametrize(("name", "row", "complaint"), BAD, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(BAD)])
def test_a_row_of_another_shape_is_named_and_nothing_is_written(
    name: str, row: Any, complaint: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "train.jsonl", [row])
    done = run(name, source, tmp_path / "out")
    assert done.returncode == 2 and complaint in done.stderr, done.stderr
    assert f"{source}:1: " in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("contents, complaint", [("", "no rows"), ("not json", "not a JSON object on one line")])
def test_a_file_of_no_rows_is_refused(contents: str, complaint: str, tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    source.write_text(contents + "\n")
    done = run("gsm8k", source, tmp_path / "out")
    assert done.returncode == 2 and complaint in done.stderr and str(source) in done.stderr


def test_a_source_is_never_written_over(tmp_path: Path) -> None:
    source = write(tmp_path / "train.jsonl", [{"question": "q", "answer": "#### 1"}])
    before = source.read_text()
    assert run("gsm8k", source, tmp_path).returncode == 2 and source.read_text() == before


def test_sources_of_one_name_are_refused_before_one_replaces_the_other(tmp_path: Path) -> None:
    """As the hub has a set with a folder for each subject: train-00000-of-00001.parquet in every one."""
    sources = [tmp_path / subject / "train.jsonl" for subject in ("algebra", "geometry")]
    for source in sources:
        source.parent.mkdir()
        write(source, [{"problem": "2?", "solution": "\\boxed{2}"}])
    command = [sys.executable, str(SCRIPTS / "prepare_math.py"), *map(str, sources), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and all(str(source) in done.stderr for source in sources), done.stderr
    assert not (tmp_path / "out").exists()


def test_every_script_is_tested_with_rows_that_are_not_its_own() -> None:
    scripts = {path.stem for path in SCRIPTS.glob("prepare_*.py")}
    assert scripts == {f"prepare_{name}" for name, _, _ in BAD}
