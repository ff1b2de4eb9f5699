"""Fixtures for every test. Heavy imports stay inside the fixtures, so that a fast test stays fast."""

import gc
import importlib
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tests.helpers.processes import RankPool

# Before the first import of torch, ray or transformers, and inherited by every process a test starts.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray writes a token file into the home directory
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - by its own 15 any other process would starve a test

REPOSITORY = Path(__file__).resolve().parents[1]

# Imports and collecting make millions of objects that stay. The garbage collector looks at none of them again: each of
# its rounds took seconds after them.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test has logged may hold what no file can, and travels between the processes of the tests as UTF-8."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("numprocesses", None):  # others collect
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Examples are the same in every run, and a machine that stalls fails none."""
    from hypothesis import HealthCheck, settings

    settings.register_profile("roll", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("roll")
    from tests.helpers.durations import Recorder
    from tests.helpers.suite import Selection, Watchdog

    is_worker = hasattr(config, "workerinput")
    config.pluginmanager.register(Selection(config.getoption("--shard")))
    if config.getoption("--record-durations"):
        if config.getoption("--shard"):  # the division comes from the figures that would change meanwhile
            raise pytest.UsageError("--record-durations moves files between shards: leave --shard out, or record later")
        if not is_worker:
            config.pluginmanager.register(Recorder())
    if not is_worker:
        config.pluginmanager.register(Watchdog(config, float(config.getoption("--whole-limit") or 0)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", type=int, default=1000, help="faults of tests/e2e/test_faults_seeded.py")
    parser.addoption("--proof", action="store_true", help="what tests/parity measures goes to reports/")
    parser.addoption("--record-durations", action="store_true", help="what this run takes goes to tests/durations.json")
    parser.addoption("--shard", help="1/3, 2/3 or 3/3: only the files of this part of the slow tests")
    parser.addoption("--whole-limit", type=float, default=0, help="seconds for all tests together; 0: no limit")
    parser.addoption("--fault-seed", type=int, default=0, help="they are drawn with this seed")


@pytest.fixture(autouse=True)
def keep_logging() -> Iterator[None]:
    """A handler that one test leaves would write into what the next one captures, a level would keep lines from it."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {logger: logger.level for logger in all_loggers()}
    yield
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
    for logger, level in levels.items():
        if logger.level != level:
            logger.setLevel(level)


@pytest.fixture(autouse=True)
def keep_path() -> Iterator[None]:
    """A folder that one test has put on the path would be searched for the next one, and for its programs."""
    before = list(sys.path)
    yield
    sys.path[:] = [entry for entry in sys.path if entry in before or "site-packages" in entry]  # Ray adds its own


def all_loggers() -> list[logging.Logger]:
    root = logging.getLogger()
    return [root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))]


@pytest.fixture(scope="session")
def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    from roll.models.tiny import build_tokenizer

    return build_tokenizer()


@pytest.fixture(scope="session")
def make_tiny_model_dir(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: "PreTrainedTokenizerFast"
) -> Callable[..., Path]:
    """make_tiny_model_dir(arch="qwen3", tie_word_embeddings=True, seed=1, ...) -> a model directory; made once."""
    made: dict[tuple[object, ...], Path] = {}

    def make(**options: object) -> Path:
        from roll.models.tiny import build_model, save_pretrained

        key = tuple(sorted(options.items()))
        if key not in made:
            shape = {"hidden_size": 128, "num_heads": 4, "num_kv_heads": 2} | options
            model = build_model(tiny_tokenizer, **shape)  # type: ignore[arg-type]
            made[key] = save_pretrained(tmp_path_factory.mktemp("model"), model, tiny_tokenizer)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_model_dir(make_tiny_model_dir: Callable[..., Path]) -> Path:
    """Random Qwen2 with a head of its own: 128 wide, 2 layers, 4 heads and 2 key-value heads of 32, vocabulary 296."""
    return make_tiny_model_dir(tie_word_embeddings=False)


@pytest.fixture(scope="session")
def tiny_tied_model_dir(make_tiny_model_dir: Callable[..., Path]) -> Path:
    """The same, with the embedding as its head: the head's weight is in no file and under no second name."""
    return make_tiny_model_dir(tie_word_embeddings=True)


@pytest.fixture(scope="session")
def sort_task() -> ModuleType:
    """The demo's task, roll/models/tiny_sort.py; torch is imported with it."""
    return importlib.import_module("roll.models.tiny_sort")


@pytest.fixture(scope="module")
def rank_pool() -> Iterator[Callable[[int], "RankPool"]]:
    """rank_pool(world_size) -> a pool of that size, for the tests of a module. Pools of one and two ranks stay, others
    are alone: the threads of gloo are busy even when their rank has nothing to do, those of Megatron's ranks a sixth of
    a core each. Forks take .3 s: what has imported the engines for them lives as long as the test process."""
    from tests.helpers.processes import RankPool

    pools: dict[int, RankPool] = {}

    def get(world_size: int) -> RankPool:
        for size in pools.keys() - {world_size}:
            if max(size, world_size) > 2:
                pools.pop(size).close()
        return pools.setdefault(world_size, RankPool(world_size))

    yield get
    for pool in pools.values():
        pool.close()
