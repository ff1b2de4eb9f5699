"""The tutorials of docs/tutorials, without their runs: each is short and leads to the next, what it starts could start,
and the metrics that it reads are ones that roll records."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import roll
from roll.models import tiny_sort
from tests.helpers.pages import DOCS, metric_entries, unlisted
from tests.helpers.tutorials import PAGES, page_blocks, program

SAMPLE = {"step": 1, "reward": 0.0, "ground_truth": "1234", "response_text": "1234", "turns": []}
PLANNED = [name for name in PAGES if name != "112_to_a_cluster"]  # which starts nothing
OWN_METRICS = {"rollout/right_mean"}  # of the reward of 102


def text_of(name: str) -> str:
    return (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")


def prose(name: str) -> str:
    return re.sub(r"^```.*?^```$", "", text_of(name), flags=re.DOTALL | re.MULTILINE)


def title(name: str) -> str:
    return text_of(name).splitlines()[0].removeprefix("# ")


class Numbers(dict[str, float]):
    """Metrics of a step, whatever they are called. `names`: those that were read."""

    def __init__(self, names: set[str]):
        super().__init__()
        self.names = names

    def __missing__(self, name: str) -> float:
        self.names.add(name)
        return 0.5

    def get(self, name: str, default: Any = None) -> float:
        return self[name]


@dataclass
class Rows:
    """The metrics of a run of two steps."""

    names: set[str]

    def __getitem__(self, place: int) -> Numbers:
        return Numbers(self.names)

    def __len__(self) -> int:
        return 2

    def column(self, name: str) -> list[float]:
        self.names.add(name)
        return [0.25, 0.5]


@dataclass
class Samples:
    def at(self, step: int, kind: str = "train") -> list[dict[str, Any]]:
        return [SAMPLE]


@dataclass
class Pretended:
    """A run that was planned only."""

    folder: Path
    names: set[str]
    name: str = "pretended"
    exit_code: int = 0
    rollouts: Samples = field(default_factory=Samples)

    @property
    def metrics(self) -> Rows:
        return Rows(self.names)

    @property
    def model(self) -> Path:
        return self.folder / "trained"

    @property
    def checkpoints(self) -> list[Path]:
        return [self.folder / "step_000005"]

    def __iter__(self) -> Any:
        return iter([Step(number, Numbers(self.names)) for number in (1, 2)])

    def finish(self) -> Pretended:
        return self

    def save(self) -> Path:
        return self.folder / "step_000001"

    def stop(self) -> None:
        pass


@dataclass
class Step:
    number: int
    metrics: Numbers
    samples: tuple[dict[str, Any], ...] = (SAMPLE,)


@dataclass
class Planned:
    """What a page wants to start. `kinds`: how often each function was called."""

    plans: list[roll.Plan] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_tiny_model_dir: Callable[..., Path]) -> Planned:
    """In a folder in which the model is random and the data are small; a call plans instead of running."""
    found = Planned()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def prepare(out: str, settings: tiny_sort.Settings | None = None, report: Any = None) -> None:
        train, test = tiny_sort.make_data(settings or tiny_sort.Settings(prompts_per_length=200, num_test=20))
        Path(out).mkdir()
        (Path(out) / "model").symlink_to(make_tiny_model_dir(hidden_size=32))
        tiny_sort.write_jsonl(Path(out) / "train.jsonl", train)
        tiny_sort.write_jsonl(Path(out) / "test.jsonl", test)

    def pretend(kind: str, *arguments: Any, **given: Any) -> Pretended:
        found.kinds[kind] += 1
        given |= dict(zip(("model", "data", "reward") if kind != "start" else ("config",), arguments, strict=False))
        if kind == "sft":
            given["pipeline"] = "sft"
        found.plans.append(roll.plan(**given))
        return Pretended(tmp_path, found.names)

    def measure(**given: Any) -> Numbers:
        given.pop("checkpoint", None)
        found.kinds["eval"] += 1
        found.plans.append(roll.plan(mode="bench", eval_data=given.pop("data"), **given))
        return Numbers(found.names)

    monkeypatch.setattr(tiny_sort, "prepare", prepare)
    for kind in ("train", "start", "sft"):
        monkeypatch.setattr(roll, kind, lambda *a, kind=kind, **given: pretend(kind, *a, **given), raising=False)
    monkeypatch.setattr(roll, "eval", measure, raising=False)
    monkeypatch.setattr(roll, "open", lambda path: Pretended(tmp_path, found.names), raising=False)
    shutil.copytree(make_tiny_model_dir(hidden_size=32), tmp_path / "trained")
    (tmp_path / "trained" / "adapter").mkdir()
    return found


def test_twelve_tutorials_are_listed_and_lead_to_each_other() -> None:
    assert [name.split("_")[0] for name in PAGES] == [str(number) for number in range(101, 113)]
    assert [title(name).split(":")[0] for name in PAGES] == [name.split("_")[0] for name in PAGES]
    for name, following in pairwise(PAGES):
        assert f"[{title(following)}]({following}.md)" in text_of(name)
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    links = re.findall(r"\[([^]]+)\]\(tutorials/(\w+)\.md\)", index)
    assert [(text, name) for text, name in links] == [(title(name), name) for name in PAGES]


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_is_short_and_ends_with_what_to_try_next(name: str) -> None:
    words = prose(name).split()
    assert 150 <= len(words) <= 600
    last = text_of(name).split("\n## ")[-1]
    assert last.startswith("What to try next\n") and last.count("\n- ") >= 3
    assert {block.language for block in page_blocks(name)} <= {"python", "bash", "text"}


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_imports_what_it_uses_and_is_python(name: str) -> None:
    ast.parse(program(name))
    assert max(len(line) for block in page_blocks(name) for line in block.text.splitlines()) <= 120


@pytest.mark.parametrize("name", PAGES)
def test_the_notebook_of_a_tutorial_has_a_cell_for_each_block_of_code(name: str, tmp_path: Path) -> None:
    pytest.importorskip("jupytext", reason="jupytext writes the notebooks: make test-environment installs it")
    from tools.notebooks import PAGES as FOLDER
    from tools.notebooks import notebook

    cells = [cell.source for cell in notebook(FOLDER / f"{name}.md", tmp_path).cells if cell.cell_type == "code"]
    marks = {"python": "", "bash": "%%bash\n"}
    codes = [block for block in page_blocks(name) if block.language in marks]
    firsts = [f"%%writefile {block.title}\n" if block.title else marks[block.language] for block in codes]
    assert cells == [first + block.text.rstrip("\n") for first, block in zip(firsts, codes, strict=True)]


def test_make_notebooks_writes_one_for_each_tutorial(tmp_path: Path) -> None:
    pytest.importorskip("jupytext", reason="jupytext writes the notebooks: make test-environment installs it")
    from tools.notebooks import main

    main(tmp_path / "notebooks")
    made = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "notebooks").iterdir()}
    assert sorted(made) == [*PAGES]
    texts = ["".join(cell["source"]) for each in made.values() for cell in each["cells"]]
    links = re.findall(r"\]\(([^)#\s]+)", "\n".join(texts))
    dead = [link for link in links if "://" not in link and not (tmp_path / "notebooks" / link).exists()]
    assert len(links) > 20 and dead == []
    assert {each["metadata"]["kernelspec"]["name"] for each in made.values()} == {"python3"}
    assert all(cell["outputs"] == [] for each in made.values() for cell in each["cells"] if "outputs" in cell)


@pytest.mark.parametrize("name", PLANNED)
def test_what_a_tutorial_starts_could_start_and_the_metrics_that_it_reads_are_recorded(
    name: str, planned: Planned, tmp_path: Path
) -> None:
    (tmp_path / "page.py").write_text(program(name, with_commands=False), encoding="utf-8")
    if name == "111_lora_and_packing":
        pytest.importorskip("peft", reason="LoRA needs peft")
    runpy.run_path("page.py", run_name="__main__")
    assert planned.plans and [plan.problems for plan in planned.plans if plan.problems] == []
    assert unlisted(planned.names - OWN_METRICS, metric_entries()) == []
