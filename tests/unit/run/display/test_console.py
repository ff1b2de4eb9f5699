import io
import logging

from rich.console import Console

from roll.rl.pipeline import VIEW
from roll.run.display.console import (
    PlainDisplay,
    header,
    make_display,
    plain_line,
    row,
    terminal_handler,
)
from tests.helpers.clock import Clock

METRICS = {
    "rollout/reward_mean": 0.5312,
    "val/reward_mean": 0.25,
    "rollout/response_length_mean": 12.34,
    "actor/entropy_mean": 1.5,
    "actor/clip_fraction": 0.021,
    "actor/grad_norm": 0.987,
    "actor/learning_rate": 1e-5,
    "time/rollout_s": 0.6,
    "time/rollout/reward_s": 0.2,
    "time/train_actor_s": 0.3,
    "time/other_s": 0.1,
    "time/step_s": 1.0,
}


def test_plain_display_logs_one_line_per_step(caplog):
    caplog.set_level(logging.INFO)
    with make_display(None, VIEW.columns) as display:
        display.start(0, 100)
        display.step(3, METRICS)
        display.summary(["done"])
    assert [record.getMessage() for record in caplog.records] == [
        "step 3/100  reward 0.531  val 0.250  length 12.3  entropy 1.500  clip 0.021  grad 0.987  lr 1.0e-05  "
        "time 1.00 s: rollout 0.60 s 60%, train_actor 0.30 s 30%, other 0.10 s 10%",
        "done",
    ]


def test_from_the_second_step_on_a_line_says_how_long_the_rest_will_take(caplog):
    caplog.set_level(logging.INFO)
    clock = Clock()
    display = PlainDisplay(VIEW.columns, clock)
    display.start(0, 100)
    for step, seconds in ((0, 50.0), (1, 30.0), (2, 2.0), (4, 6.0), (100, 1.0)):
        clock.now += seconds
        display.step(step, {})
    assert [record.getMessage() for record in caplog.records] == [
        "step 0/100",
        "step 1/100",
        "step 2/100  left 3 m 16 s",  # 98 steps of 2 s
        "step 4/100  left 4 m 16 s",  # 96 steps of 8/3 s
        "step 100/100",
    ]


def test_terminal_display_prints_header_rows_progress_split_and_summary():
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, width=100, color_system=None)
    with make_display(terminal, VIEW.columns) as display:
        display.start(0, 30)
        for step in range(1, 26):
            display.phase("rollout")
            display.step(step, METRICS)
        display.summary(["reward first 0.1 last 0.9"])
    text = output.getvalue()
    assert text.count(header(VIEW.columns)) == 2, "again after twenty rows"
    assert text.count(row(25, METRICS, VIEW.columns)) == 1
    assert "rollout 0.60 s 60% · train_actor 0.30 s 30% · other 0.10 s 10%" in text
    assert "25/30" in text
    assert "reward first 0.1 last 0.9" in text.split("summary")[-1]


def test_bars_begin_where_the_run_does():
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, width=100, color_system=None)
    with make_display(terminal, VIEW.columns) as display:
        display.start(12, 30)
    assert "12/30" in output.getvalue()
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, width=100, color_system=None)
    with make_display(terminal, VIEW.columns, 30):
        pass
    assert "0/30" in output.getvalue() and "elapsed 0:00:0" in output.getvalue()
    assert plain_line(30, 0, METRICS, VIEW.columns).startswith("step 30  ")


def test_terminal_display_gives_the_cursor_back_when_the_run_fails():
    output = io.StringIO()
    terminal = Console(file=output, force_terminal=True, width=100, color_system=None, _environ={"TERM": "xterm"})
    try:
        with make_display(terminal, VIEW.columns):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert output.getvalue().rfind("\x1b[?25h") > output.getvalue().rfind("\x1b[?25l")


def test_terminal_handler_leaves_out_the_lines_that_the_table_shows():
    output = io.StringIO()
    handler = terminal_handler(Console(file=output, force_terminal=True, width=100, color_system=None))
    for name in ("roll.run.display.console", "roll.run.loop"):
        record = logging.LogRecord(name, logging.INFO, "f", 1, f"[bold]from {name}", (), None)
        if handler.filter(record):
            handler.emit(record)
    assert "[bold]from roll.run.loop" in output.getvalue(), "and takes no text for markup"
    assert "from roll.run.display.console" not in output.getvalue()
