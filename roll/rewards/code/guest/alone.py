"""Answer and tests in one process, for a service that runs one program: see `together` of remote.py, which makes the
module `task`. Its word is printed at the end, if all tests have passed."""

import importlib.util
import json
import sys
import types

from files import File, SolutionModule, TextLoader, is_dunder
from names import common_names
from task import ANSWER, FILE, WORD  # pyright: ignore[reportMissingImports]


def main():
    names = common_names()
    answer, loader = types.ModuleType("solution"), TextLoader("solution.py", ANSWER)
    vars(answer).update(names)  # the answer may use them without importing them
    answer.__spec__ = importlib.util.spec_from_loader("solution", loader)
    loader.exec_module(answer)
    file = File(0, **json.loads(FILE))
    values = {name: value for name, value in vars(answer).items() if not is_dunder(name)}
    defined = {name: value for name, value in values.items() if names.get(name, file) is not value}
    known = {name: value for name, value in defined.items() if name in file.takes or name == file.function}
    module = file.load(SolutionModule(defined.__getitem__), known)

    def candidate():
        return defined[file.function] if file.function in defined else getattr(defined["Solution"](), file.function)

    check = file.check_of(module, candidate if file.function else None)
    if check is not None:
        check()
    elif file.collects:
        run_pytest(
            file,
            module,
            lambda value: type(value) is SolutionModule or any(value is other for other in defined.values()),
        )
    elif not file.asserts:
        raise AssertionError("it ran no test")
    sys.stdout.write(f"{WORD}\n")


def run_pytest(file, module, is_foreign):
    from runner import Run

    outcomes = []
    why = Run(file, module, is_foreign)(
        lambda number: None, lambda: None, lambda *outcome: outcomes.append(outcome), lambda: False
    )
    failed = [why for passed, why in outcomes if not passed]
    if failed or not outcomes:
        raise AssertionError(failed[0] if failed else f"it ran no test {why}")


main()
