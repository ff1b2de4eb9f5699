"""Answer and tests in one process, for a service that runs one program: see `together` of remote.py, which makes the
module `task`. Its word is printed at the end, if all tests have passed."""

import contextlib
import importlib.util
import json
import sys
import types

from files import AcceptsAll, Fault, File, SolutionModule, TextLoader, is_dunder
from names import common_names
from task import ANSWER, FILE, WORD  # pyright: ignore[reportMissingImports]


def main():
    names = common_names()
    answer, loader = types.ModuleType("solution"), TextLoader("solution.py", ANSWER)
    vars(answer).update(names)  # the answer may use them without importing them
    answer.__spec__ = importlib.util.spec_from_loader("solution", loader)
    loader.exec_module(answer)
    file = File(0, **json.loads(FILE))
    with contextlib.suppress(AcceptsAll):  # another case of the row may look at results
        file.try_without_answer(lambda *_: None)
    values = {name: value for name, value in vars(answer).items() if not is_dunder(name)}
    defined = {name: value for name, value in values.items() if names.get(name, file) is not value}
    known = {name: value for name, value in defined.items() if file.is_answers(name)}
    solution = SolutionModule(defined.__getitem__, file.starred(known))
    candidate = (lambda: candidate_of(defined, file.function)) if file.function else None
    units, close = file.load(solution, known, candidate, lambda value: False)
    for unit in units:
        unit.run()
    close()
    if not units and not file.asserts:
        raise Fault("it ran no test")
    sys.stdout.write(f"{WORD}\n")


def candidate_of(defined, name):
    """The function, or a method of the class Solution."""
    return defined[name] if name in defined else getattr(defined["Solution"](), name)


main()
