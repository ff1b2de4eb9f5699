"""Rollouts as the studio asks for them, and shows them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from roll.studio.live_run import LiveRun
from roll.studio.pages import rollout_data
from roll.studio.rollout_index import FIRST_STEP, STEP_BEFORE, WORST_AND_BEST, Query, RolloutIndex, RolloutIndexes
from roll.studio.run_list import RunList, key_of
from tests.unit.studio.test_runs import make_run

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\u202e{{ 7 * 7 }}"
SHOWN_EVIL = "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;\\u202e{{ 7 * 7 }}"


def record(**changes: object) -> dict[str, object]:
    given = {"step": 1, "domain": "math", "group_id": 7, "prompt_text": "2 + 2", "response_text": "four", "reward": 1.0}
    return given | {"finish_reason": "stop", "response_tokens": 3} | changes


def write(run: Path, step: int, *records: dict[str, object], kind: str = "") -> Path:
    path = run / "rollouts" / f"step_{step:06d}{kind}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(each | {"step": step}) + "\n" for each in records))
    return path


def index_of(run: Path) -> RolloutIndex:
    live, index = LiveRun(run), RolloutIndex()
    live.update()
    index.update(live.files)
    return index


@pytest.fixture
def index(tmp_path: Path) -> RolloutIndex:
    run = make_run(tmp_path / "run", steps=3)
    write(run, 1, record(prompt_text="a", advantage=0.5), record(prompt_text="b", reward=0.25, domain="code"))
    write(
        run,
        2,
        record(prompt_text="c", reward=None, extra={"failure": "Timeout"}),
        record(prompt_text="d", reward=0, advantage=0),
    )
    write(run, 2, record(prompt_text="e", finish_reason="length", response_text="Äpfel"), kind=".val")
    return index_of(run)


@pytest.mark.parametrize(
    "query, prompts",
    [
        (Query(), "abcde"),
        (Query(domain="code"), "b"),
        (Query(kind="val"), "e"),
        (Query(finish="length"), "e"),
        (Query(advantage="above 0"), "a"),
        (Query(advantage="0"), "d"),
        (Query(advantage="x' OR 1"), "abcde"),
        (Query(least_reward=0.25), "abe"),
        (Query(most_reward=0.25), "bd"),
        (Query(least_reward=0.1, most_reward=0.9), "b"),
        (Query(first_step=2), "cde"),
        (Query(last_step=1), "ab"),
        (Query(failed=True), "c"),
        (Query(text="äPFEL"), "e"),
        (Query(text="timeout"), "c"),
        (Query(text="%"), ""),
        (Query(text="' OR 1=1 --"), ""),
        (Query(domain="math", first_step=2, text="four"), "cd"),
    ],
)
def test_a_query_finds_the_rows_that_fit(index: RolloutIndex, query: Query, prompts: str) -> None:
    found = index.rows(query, 0, 100, "prompt", descending=False)
    assert "".join(row["prompt"] for row in found.rows) == prompts
    assert found.count == len(prompts) == index.count(query)


def test_a_page_of_a_query_is_a_part_of_its_order(index: RolloutIndex) -> None:
    found = index.rows(Query(), 1, 3, "prompt", descending=True)
    assert [row["prompt"] for row in found.rows] == ["d", "c"] and found.count == 5


def test_the_whole_of_a_row_is_read_where_it_lies(index: RolloutIndex) -> None:
    for row in index.rows(Query(), 0, 5).rows:
        found = index.record(row["id"])
        assert found is not None and (found.prompt_text, found.step) == (row["prompt"], row["step"])
    assert index.record(10_000) is None


def test_files_that_are_written_again_or_removed_or_new_are_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=4)
    first, second = write(run, 1, record(prompt_text="old")), write(run, 2, record(prompt_text="gone"))
    index, live = RolloutIndex(), LiveRun(run)
    live.update()
    index.update(live.files)
    old = index.rows(Query(), 0, 9).rows
    write(run, 1, record(prompt_text="new"), record(prompt_text="new too"))
    os.utime(first, ns=(1, 1))
    second.unlink()
    write(run, 3, record(prompt_text="next"))
    index.update(live.files)
    assert sorted(row["prompt"] for row in index.rows(Query(), 0, 9).rows) == ["new", "new too", "next"]
    assert index.version == 2 and old and index.record(max(row["id"] for row in old)) is not None
    index.update(live.files)
    assert index.version == 2


def test_the_next_attempt_and_the_next_prompt_follow_the_order_of_the_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    groups = list(zip("aabbc", "12345", strict=True))
    write(run, 1, *(record(group_id=group, prompt_text=text, reward=int(text)) for group, text in groups))
    index = index_of(run)
    rows = {row["prompt"]: row["id"] for row in index.rows(Query(), 0, 9).rows}
    names = {number: name for name, number in rows.items()}

    def moved(name: str, by: int, other_group: bool, order: str = "reward", **query: Any) -> str:
        return names[index.neighbour(Query(**query), rows[name], by, order, False, other_group)]

    assert moved("1", 1, False) == "2" and moved("3", -1, False) == "2"
    assert moved("1", 1, True) == "3" and moved("4", -1, True) == "1"
    assert moved("5", 1, False) == "5" and moved("1", -1, True) == "1"
    assert moved("1", 1, False, least_reward=4) == "4", "the chosen row is not among those of the query"
    assert names[index.neighbour(Query(), rows["2"], 1, "reward", True, False)] == "1"
    with pytest.raises(ValueError, match="no column"):
        index.neighbour(Query(), 1, 1, "text", False, False)


def test_the_attempts_at_a_prompt_come_together(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    write(run, 1, record(group_id=1, reward=0.5, advantage=0.25), record(group_id=2), record(group_id=1, reward=None))
    write(run, 2, record(group_id=1), record(group_id=1, domain="code"))
    index = index_of(run)
    first = index.rows(Query(last_step=1), 0, 1, "id", descending=False).rows[0]["id"]
    assert [earned for _, *earned in index.siblings(first)] == [[0.5, 0.25], [None, None]]
    assert index.siblings(10_000) == []


def test_a_group_is_a_line_and_a_prompt_is_followed_over_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    for step in (1, 2):
        rewards = (0.0, 0.5 * step)
        write(run, step, *(record(group_id=step, reward=each) for each in rewards), record(group_id=9, prompt_text="x"))
    index, groups = index_of(run), Query(groups=True)
    found = index.rows(groups, 0, 9, "spread")
    rows = [(row["step"], row["group_id"], row["samples"], row["reward"], row["spread"]) for row in found.rows]
    assert rows[:2] == [(2, "2", 2, 0.5, 1.0), (1, "1", 2, 0.25, 0.5)]
    assert found.count == index.count(groups) == 4
    assert [row["samples"] for row in index.rows(Query(groups=True, least_reward=0.5), 0, 9).rows] == [1, 1, 1, 1]
    last, first = (row["id"] for row in found.rows[:2])
    assert [(row[0], *row[1:]) for row in index.same_prompt(last)] == [
        (first, 1, "train", 0.25),
        (last, 2, "train", 0.5),
    ]
    second = index.siblings(first)[1][0]
    assert index.neighbour(groups, second, -1, "spread", True, False) == last, "from a sample to the next group"
    at_last = index.siblings(last)[1][0]
    assert index.pair(at_last, WORST_AND_BEST) == (last, at_last)
    assert index.pair(at_last, STEP_BEFORE) == index.pair(at_last, FIRST_STEP) == (second, at_last)
    assert index.pair(second, STEP_BEFORE) is None


def served(run: Path) -> tuple[TestClient, str]:
    app = FastAPI()
    rollout_data.add(app, RolloutIndexes(RunList([run.parent])))
    return TestClient(app), f"/data/{key_of(run)}"


def test_rows_are_served_as_they_are_asked_for(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, 1, *(record(prompt_text=str(number), reward=number / 10) for number in range(9)))
    browser, address = served(run)
    query = rollout_data.query_values(
        {"least_reward": 0.5, "text": "", "failed": False, "domain": "math", "first_step": None}
    )
    assert query == {"least_reward": "0.5", "domain": "math"}
    answer = browser.get(f"{address}/rollouts", params={**query, "start": 1, "end": 3, "order": "reward"}).json()
    assert [row["reward"] for row in answer["rows"]] == [0.7, 0.6] and answer["count"] == 4
    assert len(browser.get(f"{address}/rollouts?end=100000").json()["rows"]) == 9
    assert browser.get(f"{address}/rollouts?order=text").status_code == 404
    assert browser.get("/data/0123/rollouts").status_code == 404


def test_the_output_of_a_program_is_served_from_its_folder_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "agents" / "tag" / "train").mkdir(parents=True)
    (run / "agents" / "tag" / "train" / "1.log").write_text("I began")
    (tmp_path / "secret").write_text("mine")
    places = ("agents/tag/train/1.log", "agents/../../secret", str(tmp_path / "secret"), "agents/gone.log")
    write(run, 1, *(record(extra={"output": place}) for place in places), record())
    browser, address = served(run)
    browser.get(f"{address}/rollouts")
    answers = [browser.get(f"{address}/output/{number}") for number in range(1, 6)]
    assert [answer.status_code for answer in answers] == [200, 404, 404, 404, 404] and answers[0].text == "I began"


def test_what_others_wrote_is_text_in_a_document_without_scripts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    tokens = {"texts": [EVIL, "b"], "engine": [-0.5, -1.0], "trainer": [-1.0, -1.0]}
    turn = {"observation": EVIL, "response": EVIL, "action": EVIL, "reward": 0.0, "metrics": {}}
    changes = {"prompt_text": EVIL, "ground_truth": EVIL, "domain": EVIL, "finish_reason": EVIL, "extra": {EVIL: EVIL}}
    write(run, 1, record(**changes, tokens=tokens), record(**changes, turns=[turn]))
    browser, address = served(run)
    for row in browser.get(f"{address}/rollouts").json()["rows"]:
        answer = browser.get(f"{address}/rollout/{row['id']}")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; img-src data:;")
        assert "<script" not in answer.text and "<img" not in answer.text
        assert answer.text.count(SHOWN_EVIL) >= 6
    assert browser.get(f"{address}/rollout/1?beside=2").text.count(SHOWN_EVIL) >= 3
    assert 'class="e4"' in browser.get(f"{address}/rollout/1").text
    assert "turn 1: action" in browser.get(f"{address}/rollout/2").text
