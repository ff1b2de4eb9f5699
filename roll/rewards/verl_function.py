"""verl's own form of a reward function, as a reward of here."""

import hashlib
import importlib.util
import inspect
import numbers
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from roll.rewards.base import RewardInput, RewardResult
from roll.utils.files import expanded
from roll.utils.imports import resolve


class VerlFunction:
    """Calls `name` of a file, or of a module `package.module`, as verl does: `compute_score(data_source, solution_str,
    ground_truth, extra_info, **kwargs)`. It returns a number, or a mapping with `score`, whose other numbers are
    metrics. A function that has no such parameter is not given it. One with `solution_strs` gets lists of one answer,
    as of verl's manager `batch`.

    `data_source_key`: the column with the name of the data. Answers are given as `response_text`, without special
    tokens. Raises ImportError or FileNotFoundError for what is not there.
    """

    def __init__(
        self,
        path: str,
        name: str = "compute_score",
        kwargs: Mapping[str, Any] | None = None,
        data_source_key: str = "data_source",
    ):
        self._score = _load_function(path, name)
        self._kwargs = dict(kwargs or {})
        self._key = data_source_key
        self._takes = _parameters(self._score)

    def __call__(self, sample: RewardInput) -> RewardResult:
        arguments = {
            "data_source": sample.payload.get(self._key, sample.domain),
            "solution_str": sample.response_text,
            "ground_truth": sample.ground_truth,
            "extra_info": sample.payload.get("extra_info"),
        }
        if is_batch := self._takes is not None and "solution_strs" in self._takes:
            arguments = {_PLURALS.get(key, key): [value] for key, value in arguments.items()}
        named = {key: value for key, value in arguments.items() if self._takes is None or key in self._takes}
        result = self._score(**named, **self._kwargs)
        result = result[0] if is_batch else result
        if not isinstance(result, Mapping):
            return RewardResult(_number(result))
        if "score" not in result:
            raise TypeError(f"the function gave a mapping without score: {sorted(map(str, result))}")
        others = {str(key): value for key, value in result.items() if key != "score"}
        metrics = {key: float(value) for key, value in others.items() if isinstance(value, numbers.Real)}
        return RewardResult(_number(result["score"]), metrics, {k: v for k, v in others.items() if k not in metrics})


_PLURALS = {"data_source": "data_sources", "solution_str": "solution_strs"}
_PLURALS |= {"ground_truth": "ground_truths", "extra_info": "extra_infos"}


def _number(value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise TypeError(f"the function gave a {type(value).__name__}, which is no number")
    return float(value)


def _load_function(path: str, name: str) -> Callable[..., Any]:
    if path.endswith(".py"):
        found = getattr(_module(expanded(path)), name, None)
    else:
        found = resolve(f"{path}:{name}")
    if not callable(found):
        raise ImportError(f"{path} has no function {name}")
    return found


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} with a reward function")
    name = f"roll_reward_{hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()}"
    if name not in sys.modules:
        folders = [str(path.parent)] if path.name == "__init__.py" else None  # for modules beside it
        spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return None
    return frozenset(parameters)
