"""`roll report` over runs written by hand: what the page holds, and that nothing of it is more than text."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from roll.commands.table import main
from roll.rl.pipeline import VIEW
from roll.rl.records.recorder import RolloutRecord, RolloutRecorder
from roll.rl.records.token_records import TokenLogProbs
from roll.run.records.run_record import RUN_FILE, RunRecord
from roll.run.tracking.local import write_metrics
from roll.types.texts import Turn
from tests.helpers.configs import config
from tests.unit.rl.rollouts.test_filtered_step import group

EVIL = '</pre><script>alert("x")</script><img src=x onerror=alert(1)>\u202e\x1b[2J'
VISIBLE_EVIL = EVIL.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "div", "nav", "a", "span", "table", "tr", "td",
    "th", "figure", "figcaption", "img", "p", "details", "summary", "pre", "i",
}  # fmt: skip


class Page(HTMLParser):
    """The tags, attributes and texts of a page, as a browser finds them."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def images(self) -> list[str]:
        """The SVGs."""
        found = [value for name, value in self.attributes if name == "src"]
        return [base64.b64decode(uri.removeprefix("data:image/svg+xml;base64,")).decode() for uri in found]


def record(reward: float | None = 1.0, **changes: Any) -> RolloutRecord:
    given = {"prompt_text": "2 + 2", "response_text": "four", "group_id": 0, "domain": "math", "finish_reason": "stop"}
    return RolloutRecord(reward=reward, **{**given, **changes})


def write_run(directory: Path, name: str = "sums", steps: int = 3, changes: dict[str, Any] | None = None) -> Path:
    """Metrics of some steps, a record of each, and how the run ended."""
    given = config({"system_envs": {"HF_TOKEN": "hf_0123456789abc"}, **(changes or {})})
    story = RunRecord(directory / "logs", VIEW)
    story.begin(given.model_copy(update={"exp_name": name}), 0)
    story.end(0)
    rows = [
        (step, {"rollout/reward_mean": step / 10, "time/rollout_s": 1.0, "time/train_actor_s": 3.0, "time/step_s": 4.0})
        for step in range(1, steps + 1)
    ]
    write_metrics(directory / "logs" / "metrics.jsonl", rows)
    recorder = RolloutRecorder(directory / "rollouts")
    for step, _ in rows:
        recorder.record(step, [record(response_text=f"answer of step {step}")])
        recorder.measure(step, [group(0, 1.0, 0.0), group(1, 0.0, 1.0, failed=1)])
    return directory


def report(tmp_path: Path, *words: str) -> Page:
    out = tmp_path / "report.html"
    assert main(["report", *words, "--out", str(out)]) == 0
    return Page(out)


def test_what_models_and_users_wrote_is_text_and_nothing_else(tmp_path: Path) -> None:
    """In every place where a text of theirs comes in. A browser would run nothing in any case: the page forbids it."""
    run = write_run(tmp_path / "run", name=EVIL, changes={"pretrain": EVIL})
    tokens = TokenLogProbs((EVIL, "b"), (-0.5, None), (-1.0, -1.0))
    turns = (Turn(EVIL, EVIL, EVIL, 0.5),)
    RolloutRecorder(run / "rollouts").record(
        3,
        [
            record(prompt_text=EVIL, response_text=EVIL, ground_truth=EVIL, extra={EVIL: EVIL}, domain=EVIL),
            record(group_id=1, tokens=tokens, finish_reason=EVIL),
            record(group_id=2, turns=turns),
        ],
    )
    spread = json.loads((run / "rollouts" / "step_000002.distributions.json").read_text())
    spread["failures"] = [{"cause": EVIL, "count": 2}]
    (run / "rollouts" / "step_000002.distributions.json").write_text(json.dumps(spread))
    with (run / "logs" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, f"rollout/{EVIL}": 1.0, f"{EVIL}/x": 2.0, f"time/{EVIL}_s": 1.0}) + "\n")
    (run / "logs" / "driver.log").write_text(f"2026-01-01 10:00:00,000 W [driver 1] roll: {EVIL}\n")
    story = json.loads((run / "logs" / RUN_FILE).read_text())
    story["starts"][0] |= {"cause": EVIL, "started": EVIL}
    (run / "logs" / RUN_FILE).write_text(json.dumps(story))

    page = report(tmp_path, str(run), str(run))
    assert page.tags <= ALLOWED
    assert {name for name, _ in page.attributes if name.startswith("on")} == set()
    assert {name for name, _ in page.attributes} <= {
        "lang", "charset", "http-equiv", "content", "name", "class", "style", "id", "href", "src", "alt", "loading",
        "title", "open",
    }  # fmt: skip
    assert page.text.count(VISIBLE_EVIL) > 15
    assert EVIL not in page.text
    assert page.images and all("<script" not in image and "onerror=alert" not in _tags(image) for image in page.images)
    assert ("content", "default-src 'none'; img-src data:; style-src 'unsafe-inline'") in page.attributes


def _tags(svg: str) -> str:
    return " ".join(re.findall(r"<[^>]*>", svg))


def test_the_page_needs_nothing_from_elsewhere_and_shows_no_secret(tmp_path: Path) -> None:
    page = report(tmp_path, str(write_run(tmp_path / "run")))
    places = [value for name, value in page.attributes if name in ("src", "href")]
    assert len(places) > 8 and all(place.startswith(("data:", "#")) for place in places)
    text = (tmp_path / "report.html").read_text()
    assert "hf_0123456789abc" not in text and "system_envs.HF_TOKEN" in text and "***" in text


def test_several_runs_are_drawn_together_and_their_configurations_compared(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", name="slow", changes={"actor_train.training_args.learning_rate": 1e-6})
    second = write_run(tmp_path / "b", name="fast", changes={"actor_train.training_args.learning_rate": 1e-5})
    page = report(tmp_path, str(first), str(second))
    rewards = next(image for image in page.images if ">slow<" in image)
    assert ">fast<" in rewards
    differing = page.text.split("What differs")[1].split("all ")[0]
    assert "actor_train.training_args.learning_rate" in differing and "1e-06" in differing and "1e-05" in differing
    assert "actor_train.training_args.per_device_train_batch_size" not in differing


def test_times_distributions_and_causes_are_there(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "logs" / "driver.log").write_text(
        "2026-01-01 10:00:00,000 I [driver 1] roll.a: step 1\n"
        "2026-01-01 10:00:01,000 W [driver 1] roll.a: engine 0 is slow\n"
        "2026-01-01 10:00:02,000 W [driver 1] roll.a: engine 1 is slow\n"
        "2026-01-01 10:00:03,000 E [driver 1] roll.b: RewardError: the causes:\n"
        "  256 x KeyError: 'nope'\n"
        "2026-01-01 10:00:04,000 I [driver 1] roll.b: text\n"
        "  of no warning\n"
    )
    page = report(tmp_path, str(run))
    text = re.sub(r"\s+", " ", page.text)
    assert "train the policy 9.00 s 75.0% rollout 3.00 s 25.0%" in text
    assert "3 train 1 to 3 crash first for " in text
    assert "W roll.a: engine 1 is slow (2 times)" in text and "engine 0 is slow" not in text
    assert "E roll.b: RewardError: the causes: 256 x KeyError: 'nope'" in text and "of no warning" not in text
    assert {value for name, value in page.attributes if name == "alt"} >= {
        "Rewards of 1 (share)", "Response lengths in step 3"
    }  # fmt: skip


def test_the_title_and_the_head_say_what_the_run_is_of(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", changes={"pretrain": "Qwen/Qwen3-8B", "adv_estimator": "rloo"})
    page = report(tmp_path, str(run))
    date = json.loads((run / "logs" / RUN_FILE).read_text())["starts"][0]["started"][:10]
    assert f"sums: Qwen/Qwen3-8B, rloo, {date}" in page.text and "0.100 → 0.300" in page.text
    for fact in ("model", "algorithm", "data", "learning rate", "machine", "roll"):
        assert f"\n{fact}\n" in page.text, fact
    two = report(tmp_path, str(run), str(write_run(tmp_path / "b", name="b"))).text
    assert "sums and 1 more: Qwen/Qwen3-8B, rloo" in two


def test_an_evaluation_is_shown_as_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, changes={"mode": "bench", "pretrain": "/models/qwen/model"})
    row = {"val/reward_mean": 0.914, "val/pass_at_8": 0.97, "time/step_s": 4.0}
    write_metrics(run / "logs" / "metrics.jsonl", [(25, row)])
    page = report(tmp_path, str(run))
    assert "sums: evaluation of qwen/model" in page.text and "the policy of step 25" in page.text
    text = re.sub(r"\s+", " ", page.text)
    assert "0.914 Validation reward" in text and "0.970 Validation pass@8" in text
    assert "Where the time went" not in text and "→" not in text


def test_failures_of_a_healthy_run_are_none_and_those_of_another_are_listed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for path in (run / "rollouts").glob("*.distributions.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"failures": []}))
    assert "None: no start ended early" in report(tmp_path, str(run)).text
    story = json.loads((run / "logs" / RUN_FILE).read_text())
    story["starts"][0] |= {"exit_code": 1, "cause": "out of memory"}
    (run / "logs" / RUN_FILE).write_text(json.dumps(story))
    text = report(tmp_path, str(run)).text
    assert "None: no start" not in text and "out of memory" in text


def test_flat_curves_are_among_all_metrics_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rows = [
        (step, {"rollout/reward_mean": 0.0, "actor/clip_fraction": 0.0, "actor/grad_norm": step}) for step in (1, 2)
    ]
    write_metrics(run / "logs" / "metrics.jsonl", rows)
    page = report(tmp_path, str(run))
    drawn = [value for name, value in page.attributes if name == "alt"]
    assert drawn.count("Clipped tokens (share)") == 1 and drawn.count("Gradient norm") == 2
    assert drawn.count("Reward") == 2, "that it does not learn is shown"


def test_files_of_steps_that_the_run_has_not_and_unfinished_ones_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=3)
    for stem in ("step_000007.jsonl", "step_000007.distributions.json"):
        of_step_3 = (run / "rollouts" / stem.replace("7", "3")).read_text()
        (run / "rollouts" / stem).write_text(of_step_3.replace('"step": 3', '"step": 7'))
    (run / "rollouts" / "step_000002.distributions.json").write_text('{"step": 2')
    (run / "rollouts" / "step_000002.jsonl").write_text('{"step": 2')
    page = report(tmp_path, str(run))
    assert "step 3: 1 groups" in page.text and "step 2: 0 groups" in page.text and "step 7" not in page.text
    assert "2 train 1 to 3 crash" in re.sub(r"\s+", " ", page.text)  # step 2 is not read


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 9, "time/rollout_s": null, "rollout/reward_mean": NaN}',
        b'{"step": 9, "rollout/reward_mean": ' + b"9" * 400 + b"}",
    ],
)
def test_a_line_of_metrics_that_is_damaged_or_has_no_number_leaves_the_others(tmp_path: Path, line: bytes) -> None:
    run = write_run(tmp_path / "run")
    with (run / "logs" / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert "train the policy\n9.00 s\n75.0%" in re.sub(r"\n\s*", "\n", report(tmp_path, str(run)).text)


def test_rollouts_are_those_of_the_place_that_the_run_was_told(tmp_path: Path) -> None:
    """Not those that another run left below the same output_dir; in a folder that was moved they are below it."""
    run = write_run(tmp_path / "run")
    RolloutRecorder(tmp_path / "told").record(3, [record(response_text="told")])
    path = run / "logs" / RUN_FILE
    story = json.loads(path.read_text())
    (tmp_path / "before" / "rollouts").mkdir(parents=True)
    for output_dir, dump_dir, shown in (("run", "told", True), ("before", "before/rollouts", False)):
        places = {"output_dir": str(tmp_path / output_dir), "rollout_dump_dir": str(tmp_path / dump_dir)}
        path.write_text(json.dumps(story | {"config": story["config"] | places}))
        text = report(tmp_path, str(run)).text
        assert ("told" in text.split("Sample rollouts")[1].split("Configuration")[0]) == shown
        assert ("answer of step 3" in text) != shown


def test_a_run_of_which_only_metrics_are_there_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_metrics(tmp_path / "run" / "metrics.jsonl", [(1, {"train/nll_mean": 2.0})])
    page = report(tmp_path, str(tmp_path / "run"))
    assert "not known: no run.json" in page.text
    assert ("alt", "Loss per token (nats)") in page.attributes


def test_an_output_directory_or_its_logs_are_the_same_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert "answer of step 3" in report(tmp_path, str(run)).text
    assert "answer of step 3" in report(tmp_path, str(run / "logs")).text


def test_the_folder_of_stages_stands_for_its_stages_in_order(tmp_path: Path) -> None:
    for number, name in ((10, "rl"), (2, "answers"), (1, "format")):
        write_run(tmp_path / "staged" / f"{number}-{name}", name=f"it_{name}")
    (tmp_path / "staged" / "11-not-begun").mkdir()
    shown = report(tmp_path, str(tmp_path / "staged")).text
    places = [shown.index(f"it_{name}") for name in ("format", "answers", "rl")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "words, said",
    [
        (["nowhere"], "nowhere is no directory, so there is neither run.json nor metrics.jsonl"),
        (["empty"], "empty has neither run.json nor metrics.jsonl, there or in logs: name the output_dir of a run"),
        (["."], ". holds runs. Name one of them: broken, run."),
        (["broken"], "broken/logs/run.json cannot be read"),
    ],
)
def test_what_is_no_run_or_no_place_is_said(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "logs").mkdir(parents=True)
    (tmp_path / "broken" / "logs" / RUN_FILE).write_text("[]")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *words]) == 2
    assert said in capsys.readouterr().err
