"""The tutorials of docs/tutorials as a reader follows them: every block, in a folder of its own; one of them as a
notebook, in a kernel."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import roll
from tests.helpers.runs import REPOSITORY, START_LIMIT_S
from tests.helpers.tutorials import PAGES, check_texts, page_blocks, run_page


def column(folder: Path, name: str, metric: str) -> list[float]:
    return roll.open(folder / "output" / name).metrics.column(metric)


def rises(values: list[float], by: float) -> bool:
    return values[-1] > values[0] + by


def first_run(folder: Path) -> None:
    """Greedy accuracy was .04 and .90 where the page was written."""
    assert len(column(folder, "first_run", "rollout/reward_mean")) == 20
    assert rises(column(folder, "first_run", "val/reward_mean"), 0.4)


def own_reward(folder: Path) -> None:
    assert rises(column(folder, "all_or_nothing", "rollout/reward_mean"), 0.1)
    assert rises(column(folder, "digits_in_place", "rollout/right_mean"), 0.1)


def own_data(folder: Path) -> None:
    assert rises(column(folder, "own_data", "val/reward_mean"), 0.1)


def reading(folder: Path) -> None:
    assert rises(column(folder, "to_read", "val/reward_mean"), 0.1)
    assert (folder / "report.html").stat().st_size > 10_000


def evaluating(folder: Path) -> None:
    assert rises(column(folder, "measured", "rollout/reward_mean"), 0.1)


def fine_tuning(folder: Path) -> None:
    losses = column(folder, "tuned", "train/nll_mean")
    assert losses[-1] < losses[0] / 2
    assert column(folder, "rl_alone", "rollout/reward_mean") == [0.0, 0.0, 0.0]
    assert rises(column(folder, "tuned_and_reinforced", "rollout/reward_mean"), 0.1)


def by_hand(folder: Path) -> None:
    assert max(column(folder, "by_hand", "val/reward_mean")) > 0.5


def algorithms(folder: Path) -> None:
    assert rises(column(folder, "with_grpo", "val/reward_mean"), 0.1)
    assert rises(column(folder, "with_max_rl", "val/reward_mean"), 0.1)


def agent(folder: Path) -> None:
    assert rises(column(folder, "sort_twice", "env/SortTwice/success_mean"), 0.1)


def own_program(folder: Path) -> None:
    assert rises(column(folder, "program", "rollout/reward_mean"), 0.05)


def lora_and_packing(folder: Path) -> None:
    """The gradient of the first step differs by rounding in fp32."""
    full, packed = (roll.open(folder / "output" / name).metrics[0] for name in ("full", "packed"))
    assert full["rollout/reward_mean"] == packed["rollout/reward_mean"]
    assert packed["actor/grad_norm"] == pytest.approx(full["actor/grad_norm"], rel=1e-3)


CLAIMS: dict[str, Callable[[Path], None]] = {
    "101_first_run": first_run,
    "102_your_own_reward": own_reward,
    "103_your_own_data": own_data,
    "104_reading_a_run": reading,
    "105_evaluating": evaluating,
    "106_fine_tuning_first": fine_tuning,
    "107_the_loop": by_hand,
    "108_algorithms": algorithms,
    "109_an_agent": agent,
    "110_a_program": own_program,
    "111_lora_and_packing": lora_and_packing,
    "112_to_a_cluster": lambda folder: None,  # starts nothing; its text blocks are compared
}


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a user who has the environment of the tests active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mine = {"HOME": str(tmp_path), "PATH": path}
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as temporary:  # short: Ray's sockets go below
        packages = os.environ.get("PYTHONPATH", "")
        yield os.environ | mine | {"TMPDIR": temporary, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{packages}"}


def test_every_tutorial_has_a_test_of_what_it_claims() -> None:
    assert [*CLAIMS] == [*PAGES]


@pytest.mark.timeout(6 * START_LIMIT_S)
@pytest.mark.gate("112_to_a_cluster")
@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_a_tutorial_does_what_the_page_says(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, environment: dict[str, str]
) -> None:
    if name != "101_first_run" and any('prepare("tiny-sort"' in block.text for block in page_blocks(name)):
        # Made before, since it takes half a minute; 101 shows what it prints.
        shutil.copytree(request.getfixturevalue("sort_data"), tmp_path / "tiny-sort")
    check_texts(name, run_page(name, tmp_path, sys.executable, environment))
    CLAIMS[name](tmp_path)


@pytest.mark.timeout(3 * START_LIMIT_S)
@pytest.mark.gate("112_to_a_cluster")
@pytest.mark.parametrize("name", ["101_first_run", "112_to_a_cluster"])
def test_a_tutorial_runs_as_a_notebook(
    name: str, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a kernel, whose event loop runs meanwhile, as `make notebooks` writes it."""
    pytest.importorskip("jupytext", reason="jupytext writes the notebooks: make test-environment installs it")
    nbclient = pytest.importorskip("nbclient", reason="nbclient runs notebooks: make test-environment installs it")
    pytest.importorskip("ipykernel", reason="ipykernel is the kernel: make test-environment installs it")
    from tools.notebooks import PAGES as SOURCES
    from tools.notebooks import notebook

    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    made = notebook(SOURCES / f"{name}.md", tmp_path)
    client = nbclient.NotebookClient(made, timeout=2 * START_LIMIT_S, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    codes = [number for number, block in enumerate(page_blocks(name)) if block.language != "text"]
    cells = [cell for cell in made.cells if cell.cell_type == "code"]
    texts = ["".join(each.get("text", "") for each in cell.outputs) for cell in cells]
    check_texts(name, {code: text.splitlines() for code, text in zip(codes, texts, strict=True)})
    CLAIMS[name](tmp_path)
