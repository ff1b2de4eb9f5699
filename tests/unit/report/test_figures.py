"""Figures that a report puts into tables."""

from roll.report.figures import prefix_table

BROKEN = {"agentic/prefix_broken_fraction": 0.5, "agentic/broken_answer_edited_fraction": 0.5}


def test_shares_of_broken_prefixes_are_of_the_steps_that_played_programs() -> None:
    measured = {"val/reward_mean": 0.1}  # before the first step
    rows = [(0, measured), (1, BROKEN), (2, {"agentic/prefix_broken_fraction": 0.0})]
    assert prefix_table(rows) == [("the program changed a response", "25.0%")]
    assert prefix_table([(0, measured)]) == prefix_table([]) == []
