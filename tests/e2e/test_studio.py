"""The studio in a real browser: runs as they grow, rollouts that are text, a configuration built, planned and run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from roll.report.titles import number_text
from tests.helpers.runs import START_LIMIT_S
from tests.helpers.tutorial import metrics
from tests.layout.source import REPOSITORY
from tests.unit.studio.test_rollouts import EVIL, record, write
from tests.unit.studio.test_runs import add_step, make_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("nicegui", reason="NiceGUI is not installed: the extra studio")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]
WAIT_MS = 120_000  # for a condition; other tests run beside
EXAMPLE = REPOSITORY / "examples" / "tiny-sort" / "tiny_sort.yaml"  # what the builder opens with


@pytest.fixture
def address(tmp_path: Path, sort_data: Path) -> Iterator[str]:
    """Of a studio over tmp_path/out with its token, of a user who has prepared the demo's model."""
    (tmp_path / "out").mkdir()
    words = [sys.executable, "-m", "roll", "studio", str(tmp_path / "out"), "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", "TINY_SORT_DIR": str(sort_data)}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def page(address: str) -> Iterator["Page"]:
    """The first page; afterwards nothing has been asked of another host, and no script has complained."""
    asked: list[str] = []
    errors: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"a script of a rollout ran: {dialog.message}"))
        page.goto(address)
        yield page
        browser.close()
    own = address.partition("?")[0]
    assert [url for url in asked if not url.startswith((own, "data:", own.replace("http", "ws")))] == []
    assert errors == []


def test_a_run_is_watched_its_rollouts_are_text_and_its_report_opens(tmp_path: Path, page: "Page") -> None:
    page.get_by_text("No run yet").wait_for()
    run = make_run(tmp_path / "out" / "mine", EVIL, steps=2)
    write(run, 1, *(record(prompt_text=EVIL, response_text=EVIL, reward=number / 10) for number in range(9)))
    page.get_by_text("2 of 10").wait_for()
    add_step(run, 3, 0.75)
    page.get_by_text("3 of 10").wait_for()
    page.locator("td a").click()
    page.locator("canvas").first.wait_for()
    page.get_by_text("0.100 → 0.750").wait_for()
    add_step(run, 4, 0.875)
    page.get_by_text("0.100 → 0.875").wait_for()
    page.get_by_text("Rollouts", exact=True).click()
    page.get_by_text("1 of 1").wait_for()
    page.get_by_text("one line per prompt").click()
    page.get_by_text("9 of 9").wait_for()
    page.get_by_label("reward from").fill("0.7")
    page.get_by_text("2 of 9").wait_for()
    page.locator(".ag-row").first.click()
    document = page.frame_locator("iframe")
    document.get_by_text("<script>alert(1)</script>").first.wait_for()
    assert document.locator("script, img").count() == 0
    page.get_by_label("dark or light").click()
    sync_api.expect(document.locator("html")).to_have_css("color-scheme", "dark")
    page.goto(page.url.replace("/rollouts", "").replace("/run/", "/report/"))
    page.get_by_text("a report of roll").wait_for()
    page.get_by_role("link", name="the run").click()
    page.get_by_text("0.100 → 0.875").wait_for()


def test_runs_are_compared_and_attempts_are_gone_through_by_key(tmp_path: Path, page: "Page") -> None:
    for name, steps in (("one", 30), ("two", 40)):
        records: list[dict[str, object]] = []
        run = make_run(tmp_path / "out" / name, "same", steps=steps)
        for number in range(4):
            records.append(record(group_id=number // 2, reward=number / 4, response_text=f"answer {number}"))
        write(run, 1, *records)
    page.get_by_text("40 of 10").wait_for()
    assert page.get_by_role("button", name="Compare").is_disabled()
    page.get_by_label("group by").click()
    page.get_by_role("option", name="state", exact=True).click()
    page.get_by_text("state finished: mean of 2").wait_for()
    page.get_by_placeholder("search").fill("nothing")
    page.get_by_text("state finished: mean of 2").wait_for(state="hidden")
    page.get_by_placeholder("search").fill("Same")
    page.get_by_text("state finished: mean of 2").wait_for()
    page.get_by_placeholder("search").fill("")
    page.get_by_role("button", name="rename").first.click()
    page.locator(".q-popup-edit input").fill("ne")
    page.wait_for_timeout(5000)  # the ages in the list change meanwhile
    page.keyboard.type("w")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="new", exact=True).wait_for()
    page.get_by_role("button", name="rename").first.click()
    page.locator(".q-popup-edit input").fill("")
    page.keyboard.press("Enter")
    for box in page.get_by_role("checkbox").all()[1:]:
        box.click()
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("same (one)").wait_for()
    page.get_by_text("same (two)").wait_for()
    page.locator("canvas").first.wait_for()
    page.get_by_text("time", exact=True).click()
    page.get_by_text("log axis").click()
    for shown in ("visible", "hidden"):
        page.get_by_role("button", name="pin").first.click()
        page.get_by_text("Pinned", exact=True).wait_for(state=shown)
    page.get_by_role("tab", name="Results").click()
    page.get_by_text("4 at step 40").wait_for()
    page.set_viewport_size({"width": 420, "height": 900})
    page.get_by_role("tab", name="Curves").click()
    page.locator("canvas").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 420, "nothing sticks out at the side"
    page.get_by_role("button", name="dark or light").click()
    page.locator("body.body--dark").wait_for()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_role("link", name="same (one)").click()
    page.locator("body.body--dark").wait_for()  # the browser keeps it
    page.get_by_role("link", name="Rollouts").click()
    page.get_by_text("2 of 2").wait_for()
    page.get_by_text("one line per prompt").click()
    page.get_by_text("4 of 4").wait_for()
    page.get_by_role("gridcell", name="answer 0").click()
    document = page.frame_locator("iframe")
    document.get_by_text("answer 0").wait_for()
    for key, answer in (("n", 1), ("N", 2), ("p", 1), ("N", 2), ("P", 0)):
        page.keyboard.press(key)
        document.get_by_text(f"answer {answer}").wait_for()
    page.get_by_text("2 at this prompt, mean 0.125:").wait_for()
    page.locator(".q-select", has_text="alone").click()
    page.get_by_role("option", name="with the step before").click()
    page.get_by_text("no earlier step has this prompt").wait_for()
    page.locator(".q-select", has_text="with the step before").click()
    page.get_by_role("option", name="worst and best").click()
    page.get_by_text("no earlier step has this prompt").wait_for(state="hidden")
    for answer in ("answer 0", "answer 1"):
        document.locator("pre", has_text=answer).wait_for()


def test_a_wrong_key_is_marked_in_form_and_text_until_it_is_right(page: "Page") -> None:
    page.get_by_role("link", name="New run").click()
    page.get_by_text("The plan works.", exact=True).wait_for()
    run = page.get_by_role("button", name="Run", exact=True)
    page.get_by_label("max_steps").fill("-3")
    page.get_by_text("It cannot start").wait_for()
    page.get_by_role("button", name="line 12").wait_for()
    field = page.locator(".fields").get_by_text("max_steps: -3 must be greater than or equal to 1.")
    field.wait_for()
    page.locator(".cm-line.wrong-line", has_text="max_steps: -3").wait_for()
    assert run.is_disabled()
    page.get_by_label("max_steps").fill("7")
    page.get_by_text("7 steps, seed 42").wait_for()
    page.get_by_text("The plan works.", exact=True).wait_for()
    assert field.count() == 0 or not field.is_visible()
    assert page.locator(".wrong-line").count() == 0 and run.is_enabled()
    page.get_by_label("algorithm", exact=True).click()
    page.keyboard.type("gsp")
    page.get_by_role("option", name="gspo").click()
    page.get_by_text("gspo sets adv_estimator grpo").wait_for()
    page.get_by_label("actor_infer.strategy_args.strategy_name").fill("mine.engines:SPEC")
    page.keyboard.press("Enter")
    page.get_by_text("It cannot start").wait_for()
    engine = next(number for number, line in enumerate(EXAMPLE.read_text().splitlines(), 1) if "hf_infer" in line)
    page.get_by_role("button", name=f"line {engine}").click()  # the editor draws the lines that it shows alone
    page.locator(".cm-line.wrong-line", has_text="mine.engines:SPEC").wait_for()
    page.get_by_label("actor_infer.strategy_args.strategy_name").fill("hf_infer")
    page.get_by_role("option", name="hf_infer").click()
    page.get_by_text("The plan works.", exact=True).wait_for()
    assert run.is_enabled()


def test_a_configuration_is_planned_run_and_stopped(tmp_path: Path, page: "Page") -> None:
    page.get_by_role("link", name="New run").click()
    page.get_by_label("max_steps").fill("7")
    page.get_by_text("7 steps, seed 42").wait_for()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_label("name", exact=True).fill("first")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("exit code").first.wait_for(timeout=START_LIMIT_S * 1000)
    written = (tmp_path / "out" / "first" / "first.yaml").read_text()
    assert "max_steps: 7\n" in written and f"output_dir: {tmp_path}/out/first\n" in written


def test_the_builder_fits_a_phone_and_takes_configurations_of_others(page: "Page") -> None:
    page.set_viewport_size({"width": 420, "height": 900})
    page.get_by_role("link", name="New run").click()
    page.get_by_text("The plan works.", exact=True).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 420, "nothing sticks out at the side"
    assert not page.locator(".cm-editor").is_visible()
    page.get_by_role("button", name="YAML and plan").click()
    page.locator(".cm-editor").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_role("button", name="Import").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a file").click()
    chooser.value.set_files(REPOSITORY / "tests" / "importers" / "verl_dapo.sh")
    page.get_by_text("# verl_dapo.sh as a YAML of roll").wait_for()
    page.get_by_role("button", name="Close").click()
    page.get_by_label("pretrain", exact=True).wait_for()


def test_a_model_is_trained_from_the_browser_alone(tmp_path: Path, page: "Page") -> None:
    """A configuration from an example, its plan, the run as it goes on, its answers, its report."""
    page.get_by_role("link", name="New run").click()
    page.get_by_text("The plan works.", exact=True).wait_for()
    for key, value in {"max_steps": 24, "eval_steps": 12, "save_steps": 24}.items():
        page.get_by_label(key, exact=True).fill(str(value))
    page.get_by_text("24 steps, seed 42").wait_for()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_label("name", exact=True).fill("learnt")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("status").filter(has_text="running").wait_for(timeout=START_LIMIT_S * 1000)
    page.locator("canvas").first.wait_for(timeout=START_LIMIT_S * 1000)
    page.get_by_role("status").filter(has_text="finished").wait_for(timeout=START_LIMIT_S * 1000)
    rows = metrics(tmp_path / "out" / "learnt" / "logs" / "metrics.jsonl")
    first, last = rows[0]["val/reward_mean"], rows[24]["val/reward_mean"]
    page.get_by_text(f"{number_text(first)} → {number_text(last)}").wait_for()
    assert last > first + 0.3, "it learns: .03 at first, .7 after these steps"
    page.get_by_text("Rollouts", exact=True).click()
    page.locator(".ag-row").first.click()
    page.frame_locator("iframe").get_by_text("<answer>").first.wait_for()
    page.goto(page.url.replace("/rollouts", "").replace("/run/", "/report/"))
    page.get_by_text("a report of roll").wait_for()
