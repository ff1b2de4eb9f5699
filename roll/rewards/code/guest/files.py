"""Files of tests: loaded against an answer, or against none at all, which shows what of them tests anything."""

import ast
import builtins
import contextlib
import importlib
import importlib.abc
import importlib.util
import inspect
import linecache
import os
import shutil
import sys
import types

import pytest_stand_in
from absent import Absent, Stub, whatevers
from fixtures import Fault
from names import LIBRARIES, common_names
from units import units_of

sys.modules["pytest"] = pytest_stand_in
TOOLS = {*common_names(), *LIBRARIES, *dir(builtins)}
NO_TEST = "it holds no test"
PASSES_ALL = "an answer that does nothing passes it"
ACCEPTS_ALL = "an answer passes it whatever it returns: nothing asserts what is compared, or catches what is asserted"


_made = None  # paths that the tests of a trial make, while one runs


def _note(event, arguments):
    """Note a path that is about to be made; of all others on this machine nothing is known, and nothing removed."""
    if _made is None or event not in ("open", "os.mkdir") or not isinstance(arguments[0], str | bytes):
        return
    is_made = arguments[2] == -1 if event == "os.mkdir" else arguments[2] & os.O_CREAT
    if is_made and not os.path.lexists(arguments[0]):
        _made.append(os.path.abspath(os.fsdecode(arguments[0])))


sys.addaudithook(_note)


@contextlib.contextmanager
def _undone():
    """Take back what tests leave behind in a trial: variables, the working directory, and files and folders that they
    made. Otherwise the tests of the answer would find them."""
    global _made
    variables, directory, _made = dict(os.environ), os.getcwd(), []
    try:
        yield
    finally:
        made, _made = _made, None
        os.chdir(directory)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
        for path in reversed(made):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


class AcceptsAll(Fault):
    """The file says nothing but that the answer runs."""


class Missing(Absent):
    """The answer does not define what is imported from it."""


class SolutionModule(types.ModuleType):
    """Module that `import solution` gives the tests. `get` returns the value of a name, and raises KeyError if there is
    none; `listed` are the names that a star imports."""

    def __init__(self, get, listed):
        super().__init__("solution")
        vars(self).update(_get=get, __all__=listed)

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        try:
            return self._get(name)
        except KeyError:
            raise Missing(f"the answer defines no {name}") from None


class File:
    """Test file: facts from `Suite` of suites.py about its text, and the function that the row names."""

    def __init__(self, index, text, takes, libraries, local_names, called, asserts, function):
        self.index, self.text, self.name = index, text, f"case_{index}"
        self.asserts, self.function, self.called, self.local_names = asserts, function, set(called), set(local_names)
        self.takes = {name for name in takes if not is_dunder(name) and self.is_answers(name)}
        self.libraries = {name: LIBRARIES[name] for name in libraries}
        tree = ast.parse(text)
        self._imports = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)}
        self._own_names = set(_own_names(tree))

    def is_tool(self, name):
        return name in TOOLS and name not in self.local_names

    def is_answers(self, name):
        return not self.is_tool(name)

    def starred(self, names):
        """Names of the answer that `from solution import *` binds: none that the file itself defines or imports."""
        return [name for name in names if not name.startswith("_") and name not in self._own_names]

    def load(self, solution, names, candidate, is_answers, built_in=()):
        """The units of the file, and what to call after the last one. `names`: those that it finds without importing
        them; `built_in`: what is another one there than Python's."""
        loader = TextLoader(f"{self.name}.py", self.text)
        module = types.ModuleType(self.name)
        provided = {**{name: value for name, value in COMMON.items() if self.is_tool(name)}, **names}
        vars(module).update(provided, __builtins__=self._builtins(built_in))
        module.__spec__ = importlib.util.spec_from_loader(module.__name__, loader)
        sys.modules["solution"], sys.modules[module.__name__] = solution, module
        vars(module).update({name: self._library(library) for name, library in self.libraries.items()})
        loader.exec_module(module)
        return units_of(module, is_answers, provided, candidate, self.called)

    def _builtins(self, built_in):
        """Python's own, but for names that are the answer's: one that it does not define is not there."""
        every = {**vars(builtins), **dict(built_in)}
        return {name: value for name, value in every.items() if name not in self.local_names}

    def _library(self, name):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise Fault(f"it uses {name}: {error}") from error

    def try_without_answer(self, say, check=None):
        """Names of the units that pass without an answer, or with any: they test nothing of it. Raises Fault where
        nothing tests it, or where the outcome is the same whatever the answer is, AcceptsAll where only its name is
        needed, and what `check` raises of arguments. Nothing of an answer is in here."""
        with _undone():
            empty = self._untouched(say)
        accepting, counted = set(), None
        for whatever in whatevers(check):
            with _undone():
                accepting, counted = self._passing(whatever, empty, accepting, counted, say)
            if not accepting:
                return empty
        if accepting == counted:
            raise AcceptsAll(ACCEPTS_ALL)
        return empty | accepting

    def _load_with(self, value):
        """Load with this value for every name of the answer."""
        names = self.takes | ({self.function} if self.function else set())
        solution = SolutionModule(lambda name: value, self.starred(sorted(names)))
        candidate = (lambda: value) if self.function else None
        return self.load(solution, dict.fromkeys(names, value), candidate, lambda one: type(one) is type(value))

    def _untouched(self, say):
        """Names of the units that pass without an answer."""
        touched = []
        try:
            units, close = self._load_with(Stub(touched))
        except Fault:
            raise
        except BaseException as error:
            if not touched or self.is_own_import(error):
                raise Fault(f"it fails whatever the answer is: {self.text_of(error)}") from error
            return set()
        if not units:
            self._check_needs_names()
            return set()
        empty = set()
        for unit in units:
            say("trying", self.index)
            touched.clear()
            try:
                unit.run()
                empty.add(unit.name)
            except pytest_stand_in.Skipped:
                empty.add(unit.name)
            except Fault:
                raise
            except BaseException as error:
                if not touched:
                    raise Fault(f"{unit.name} fails whatever the answer is: {self.text_of(error)}") from error
        close()
        if len(empty) == len(units):
            raise Fault(PASSES_ALL)
        return empty

    def _passing(self, whatever, empty, among, counted, say):
        """Names of the units, of those `among` them, that pass with this answer, and of all that count, which is None
        before the first answer. A file without units is one."""
        say("trying", self.index)
        try:
            units, close = self._load_with(whatever)
        except Fault:
            raise
        except whatever._kind.refusals:
            return set(), {self.name}
        except BaseException:
            return among, counted
        if not units:
            return {self.name}, {self.name}
        if counted is None:
            among = counted = {unit.name for unit in units} - empty
        passed = set()
        for unit in units:
            if unit.name not in among:
                continue
            say("trying", self.index)
            try:
                unit.run()
            except Fault:
                raise
            except whatever._kind.refusals:
                continue
            except BaseException:
                pass
            passed.add(unit.name)
        close()
        return passed, counted

    def _check_needs_names(self):
        """Checks a file without test functions: it must fail if nothing is defined."""
        if not self.asserts:
            raise Fault(NO_TEST)
        try:
            self.load(SolutionModule({}.__getitem__, []), {}, None, lambda value: False)
        except BaseException:
            return
        raise Fault(PASSES_ALL)

    def is_own_import(self, error):
        """Whether a line of the file imports a module that is not there, or one of its names."""
        if not isinstance(error, ImportError) or hasattr(error, "is_of_answer"):
            return False
        frames = [frame for frame in _frames(error) if frame.filename == f"{self.name}.py"]
        return bool(frames) and frames[-1].lineno in self._imports

    def text_of(self, error):
        lines = [
            frame.code_context[0].strip()
            for frame in _frames(error)
            if frame.filename.startswith("case_") and frame.code_context
        ]
        where = f" in: {lines[-1][:200]}" if lines else ""
        try:
            said = str(error)[:200]
        except BaseException:  # it holds an object of the answer, which does not want to be shown
            said = ""
        return f"{type(error).__name__}: {said}{where}"


COMMON = common_names()


class TextLoader(importlib.abc.SourceLoader):
    def __init__(self, path, text):
        self._path, self._text = path, text
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)

    def get_filename(self, fullname):
        return self._path

    def get_data(self, path):
        return self._text.encode()


def _own_names(tree):
    """Functions, classes and imports of a file, but for those from the answer."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "solution"):
            yield from (alias.asname or alias.name for alias in node.names)


def is_dunder(name):
    return name.startswith("__") and name.endswith("__")


def _frames(error):
    return inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
