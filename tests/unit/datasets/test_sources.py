"""What file_name may name beside single files: folders, patterns, files elsewhere, data sets of the hub."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import pytest

from roll.configs.sections.data import DataArgs
from roll.datasets import remote
from roll.datasets import sources as hub_set
from roll.datasets.preflight import preflight
from roll.datasets.rows import Domain
from roll.datasets.sources import data_sources, lacking_packages, load_hub_set
from roll.errors import ConfigError

KEY = "actor_train.data_args"
MATH = Domain("math", ("math",))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """What was fetched for one test is not there for the next."""
    yield
    remote._copy.cache_clear()
    load_hub_set.cache_clear()


def args(*names: str, **keys: Any) -> DataArgs:
    return DataArgs(file_name=names, **keys)


def lines(*numbers: int) -> str:
    return "".join(json.dumps({"prompt": f"{n} + 0", "ground_truth": str(n)}) + "\n" for n in numbers)


def write(path: Path, *numbers: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines(*numbers), encoding="utf-8")
    return path


def answers(given: DataArgs) -> list[str]:
    sources, problems = data_sources(given, KEY)
    assert problems == []
    return [row.values["ground_truth"] for source in sources for row in source.rows()]


def problem(given: DataArgs, reach: bool = True) -> str:
    sources, problems = data_sources(given, KEY, reach)
    assert sources == []
    (only,) = problems
    return only


def test_folders_patterns_and_addresses_stand_for_files(tmp_path: Path) -> None:
    for name, number in (("b.jsonl", 2), ("a.jsonl", 1), ("_left.jsonl", 8), (".hid.jsonl", 9), ("deeper/c.jsonl", 3)):
        write(tmp_path / name, number)
    (tmp_path / "README.md").write_text("no data")
    assert answers(args(str(tmp_path))) == ["1", "2"]
    for name, number in (("x/part-2.jsonl", 2), ("part-1.jsonl", 1), ("part-3.json", 3), ("other.jsonl", 4)):
        write(tmp_path / name, number)
    (tmp_path / "part-9.jsonl").mkdir()
    assert answers(args(f"{tmp_path}/part-*.jsonl")) == ["1"]
    assert answers(args(f"{tmp_path}/**/part-*")) == ["1", "3", "2"]
    assert problem(args(f"{tmp_path}/none-*.jsonl")) == f"{KEY}.file_name: no file matches {tmp_path}/none-*.jsonl"
    path = write(tmp_path / "a.jsonl", 1)
    assert answers(args(f"file://{path}")) == ["1"]
    assert problem(args(f"file://{tmp_path}/no.jsonl"), reach=False).endswith(f"there is no file {tmp_path}/no.jsonl")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """A folder in fsspec's memory, of this test alone."""
    files = fsspec.filesystem("memory")
    place = f"/{tmp_path.name}-{id(tmp_path)}"
    for name, number in (("b.jsonl", 2), ("a.jsonl", 1), ("deeper/c.jsonl", 3), ("notes.txt", 4)):
        files.pipe(f"{place}/{name}", lines(number).encode())
    yield f"memory:/{place}"
    files.rm(place, recursive=True)


def test_files_elsewhere_are_read_and_checked_like_others(store: str) -> None:
    assert answers(args(f"{store}/a.jsonl")) == ["1"]
    assert answers(args(store)) == ["1", "2"]
    assert answers(args(f"{store}/**/*.jsonl")) == ["1", "2", "3"]
    assert answers(args(f"{store}/notes.txt", dataset_type="jsonl")) == ["4"]
    assert f"there is no file {store}/none.jsonl" in problem(args(f"{store}/none.jsonl"))
    (source,), _ = data_sources(args(f"{store}/a.jsonl"), KEY)
    assert [row.where for row in source.rows()] == [f"{store}/a.jsonl:1"]
    assert preflight(args(f"{store}/a.jsonl"), KEY, [MATH]) == []
    (wrong,) = preflight(args(f"{store}/a.jsonl", prompt="question"), KEY, [MATH])
    assert wrong.startswith(f"{store}/a.jsonl:1: column 'question' (the prompt) is missing")


def test_unknown_protocols_are_told_and_nothing_is_asked_without_reach() -> None:
    assert data_sources(args("memory://no/where.jsonl"), KEY, reach=False) == ([], [])
    assert "Protocol not known: nowhere" in problem(args("nowhere://a.jsonl"), reach=False)
    assert list(lacking_packages(args("nowhere://a.jsonl"), KEY)) == []


class _Quiet(SimpleHTTPRequestHandler):
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """(the address of a server on loopback, the paths that were requested); it serves a.jsonl."""
    pytest.importorskip("aiohttp", reason="fsspec reads https:// with aiohttp")
    write(tmp_path / "served" / "a.jsonl", 1, 2)
    asked: list[str] = []
    handler = type("Handler", (_Quiet,), {"requests": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: handler(*a, directory=str(tmp_path / "served")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_of_a_web_server_is_fetched_once_or_refused(web: tuple[str, list[str]]) -> None:
    address, asked = web
    given = args(f"{address}/a.jsonl?signature=abcdefgh12345")
    assert preflight(given, KEY, [MATH]) == []
    assert answers(given) == ["1", "2"]
    assert asked == ["/a.jsonl?signature=abcdefgh12345"]
    (source,), _ = data_sources(given, KEY)
    assert source.name == f"{address}/a.jsonl?signature=***"
    (wrong,) = preflight(args(f"{web[0]}/none.jsonl"), KEY, [MATH])
    assert wrong.startswith(f"{KEY}.file_name: {web[0]}/none.jsonl cannot be read: ClientResponseError: 404")


class FakeHub(ModuleType):
    """The package `datasets`, with one data set."""

    def __init__(self) -> None:
        super().__init__("datasets")
        self.calls: list[tuple[str, str | None, str]] = []

    def load_dataset(self, name: str, subset: str | None, split: str) -> list[dict[str, str]]:
        self.calls.append((name, subset, split))
        if name != "someone/sums":
            raise ConnectionError(f"Couldn't reach {name!r} on the Hub (OfflineModeIsEnabled)")
        if split not in ("train", "test"):
            raise ValueError(f'Unknown split "{split}". Should be one of [train, test].')
        return [{"prompt": "1 + 1", "ground_truth": {"train": "2", "test": "3"}[split] + (subset or "")}]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    found = FakeHub()
    monkeypatch.setitem(sys.modules, "datasets", found)
    monkeypatch.setattr(hub_set, "is_installed", lambda name: name == "datasets")
    return found


def test_a_data_set_of_the_hub_is_read_by_split_or_says_why_not(hub: FakeHub) -> None:
    assert answers(args("someone/sums")) == ["2"]
    assert answers(args("someone/sums", split="test", subset="x")) == ["3x"]
    assert answers(args("someone/sums", split="test", subset="x")) == ["3x"]
    assert hub.calls == [("someone/sums", None, "train"), ("someone/sums", "x", "test")]
    (source,), _ = data_sources(args("someone/sums", subset="x"), KEY)
    assert [row.where for row in source.rows()] == ["someone/sums:x:train:0"]
    (wrong,) = preflight(args("someone/else"), KEY, [MATH])
    assert wrong.startswith(f"{KEY}.file_name: someone/else (split train) cannot be loaded as a data set of the")
    assert "OfflineModeIsEnabled" in wrong and "hf download someone/else --repo-type dataset" in wrong
    (wrong,) = preflight(args("someone/sums", split="tset"), KEY, [MATH])
    assert "Should be one of [train, test]" in wrong
    del hub
    assert f"{KEY}.dataset_type: json says how a file is read" in problem(args("someone/sums", dataset_type="json"))


def test_a_missing_package_is_told_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_set, "is_installed", lambda name: False)
    (text,) = lacking_packages(args("someone/sums"), KEY)
    assert text.startswith(
        f"{KEY}.file_name: someone/sums is not a file on this machine: reading it as a data set of the Hugging"
    )
    assert text.endswith("Install it: pip install 'datasets>=4,<6'")
    with pytest.raises(ConfigError, match="needs the package datasets"):
        load_hub_set("someone/sums", None, "train")


def test_a_folder_with_splits_is_read_like_a_data_set_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real package, which takes the cache, the split and the folder's layout from there."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "sums" / "train.jsonl", 1, 2, 3)
    write(tmp_path / "sums" / "test.jsonl", 9)
    assert answers(args(str(tmp_path / "sums"), split="test")) == ["9"]
    assert answers(args(str(tmp_path / "sums"), split="train[1:]")) == ["2", "3"]


def test_a_data_set_in_the_cache_is_read_where_the_hub_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real package: the cache is made from a folder, and lies where that of a hub id does."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    cache = tmp_path / "cache"
    write(tmp_path / "sums" / "train.jsonl", 1, 2)
    write(tmp_path / "sums" / "test.jsonl", 9)
    datasets.load_dataset(str(tmp_path / "sums"), cache_dir=str(cache))
    (cache / "sums").rename(cache / "someone___sums")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert answers(args("someone/sums", split="test")) == ["9"]
    assert answers(args("someone/sums")) == ["1", "2"]
    (wrong,) = preflight(args("someone/others"), KEY, [MATH])
    assert "someone/others (split train) cannot be loaded" in wrong
