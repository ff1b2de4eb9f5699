"""With --proof, what the tests marked `proof` measured goes to its page."""

import pytest

from tests.parity import proof

CASES = pytest.StashKey[list[str]]()
FILES = pytest.StashKey[set[str]]()  # of tests/parity, those that were collected whole


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before any is deselected."""
    config.stash[CASES] = [proof.short(item.nodeid) for item in items if item.get_closest_marker("proof")]
    whole = not any("::" in argument for argument in config.args)
    config.stash[FILES] = {item.nodeid.partition("::")[0] for item in items} if whole else set()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--proof") and exitstatus == pytest.ExitCode.OK:
        page = proof.PAGE.read_text(encoding="utf-8")
        cases = session.config.stash[CASES]
        new = {test: row for test, row in proof.measured().items() if test in cases}
        proof.PAGE.write_text(proof.write(page, proof.merged(proof.read(page), cases, new)), encoding="utf-8")
