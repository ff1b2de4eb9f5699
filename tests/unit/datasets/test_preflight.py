"""What is said of the data before a run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from roll.configs.sections.data import DataArgs
from roll.datasets.preflight import MAX_BYTES_IN_FULL, preflight
from roll.datasets.rows import Domain

KEY = "actor_train.data_args"
DOMAINS = (Domain("math", ("math",)),)
GOOD = {"prompt": "p", "ground_truth": "1", "tag": "math"}


def check(path: Path, rows: list[dict[str, Any]] | None = None, **args: Any) -> list[str]:
    if rows is not None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return preflight(DataArgs(file_name=(str(path),), **args), KEY, DOMAINS)


def test_faults_of_rows_are_counted_and_told_once(tmp_path: Path) -> None:
    assert check(tmp_path / "rows.jsonl", [GOOD] * 3) == []
    path = tmp_path / "rows.jsonl"
    assert check(path, []) == [f"{KEY}.file_name: {path} is empty: it has no rows"]
    path = tmp_path / "rows.jsonl"
    problems = check(path, [GOOD, *[{**GOOD, "tag": "code"}] * 5, {"prompt": "p", "tag": "math"}])
    assert len(problems) == 2
    assert problems[0].startswith(f"{path}:2: no domain has the tag 'code'") and problems[0].endswith("(5 of 7 rows)")
    assert problems[1].startswith(f"{path}:7: column 'ground_truth'")
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**GOOD, "tag": "code"}) + "\n{")
    problems = check(path)
    assert len(problems) == 2 and f"{path}:2: not a JSON object" in problems[1]


def test_template_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    (tmp_path / "bad.jinja").write_text("{% for m in messages %}\n{{ m.content }")
    assert check(path, [GOOD], template="plain") == []
    assert f"{KEY}.template: 'nativ' is not a template. Did you mean native?" in check(path, template="nativ")[0]
    assert f"{KEY}.template: there is no Jinja file my/chat.jinja" in check(path, template="my/chat.jinja")[0]
    assert f"{KEY}.template: {tmp_path}/bad.jinja:2" in check(path, template=str(tmp_path / "bad.jinja"))[0]
    written = "{% for m in messages %}{{ m.content }}</think>{% endfor %}" + "{# " + "long " * 1000 + "#}"
    assert check(path, [GOOD], template=written) == []
    assert f"{KEY}.template: line 2: " in check(path, template="{% for m in messages %}\n{{ m.content }")[0]
    assert f"{KEY}.template: the template does not read messages" in check(path, template="{{ nothing }}")[0]
    assert check(path, [GOOD], template="{% set messages = messages[1:] %}{{ messages[0].content }}") == []


def test_of_a_large_file_only_the_front_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    line = json.dumps({**GOOD, "prompt": "p" * 10_000}) + "\n"
    path.write_text(line * (MAX_BYTES_IN_FULL // len(line) * 4) + "{")
    assert check(path) == []  # the last line, which is no JSON, was not reached


def test_preflight_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, roll.datasets.preflight; "
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'datasets', 'ray', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_reward_that_reads_ground_truth_wants_it_in_some_row(tmp_path: Path) -> None:
    """Of a reward that declares nothing: rows without one may be meant, all without one are not."""
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "p", "answer": "1", "tag": "own"}] * 2
    own = (*DOMAINS, Domain("own", ("own",), (), some_ground_truth=True))

    def problems(rows: list[dict[str, Any]], **args: Any) -> list[str]:
        path.write_text("".join(json.dumps(row) + "\n" for row in [GOOD, *rows]))
        return preflight(DataArgs(file_name=(str(path),), **args), KEY, own)

    assert problems(rows) == [
        f"{KEY}: no row of the domain own has a ground_truth, which rewards.own reads; {path}:2 has the columns "
        f"prompt, answer, tag. Set {KEY}.ground_truth to the column's name, or declare the reward with @requires() if "
        "it does without"
    ]
    assert problems([*rows, {**rows[0], "ground_truth": "1"}]) == []
    assert problems([]) == []
