"""With --proof, what the tests measured goes to reports/models.md."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.parity.families import page


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--proof") and exitstatus == pytest.ExitCode.OK:
        from tests.parity.families.test_numbers import ALONE

        with TemporaryDirectory() as folder:
            page.update(ALONE, Path(folder))
