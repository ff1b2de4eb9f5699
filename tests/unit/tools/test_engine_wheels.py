"""The engines as they are published for GPUs, read and not imported: does everything exist that we import from them,
give to them, and write into their configurations?"""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.deepspeed import KNOWN_KEYS
from roll.configs.strategies.megatron_config import PASSED_ON
from roll.configs.strategies.table import spec_of
from roll.configs.strategies.tested import rules
from roll.distributed.strategy.deepspeed.rank import scoring_config, training_config
from roll.distributed.strategy.vllm import args as vllm_args
from tests.helpers.unimported.call_check import CallCheck
from tests.helpers.unimported.looked_up import looked_up
from tests.helpers.unimported.signatures import of_record
from tests.helpers.unimported.sources import Sources
from tests.helpers.unimported.values import Scope
from tests.layout.source import REPOSITORY, Module, modules
from tools.make_locks import FOLDER, pins

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 28, 31, 34, 35)]
IMPORT_OF = {"vllm": "vllm", "sglang": "sglang", "megatron-core": "megatron", "deepspeed": "deepspeed"}
LOCK_OF = {"vllm": "cuda-vllm", "sglang": "cuda-sglang", "megatron-core": "cuda-megatron", "deepspeed": "cuda-vllm"}
LEAST_CALLS = {"vllm": 30, "sglang": 30, "megatron-core": 70, "deepspeed": 15}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Releases:
    """The releases with our own modules beside them, each downloaded once."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._read: dict[str, Sources] = {}

    def __getitem__(self, distribution: str) -> Sources:
        if distribution not in self._read:
            own = {module.relative: module.path.read_text(encoding="utf-8") for module in modules("roll")}
            self._read[distribution] = Sources(texts(release(distribution, self._folder / distribution)) | own)
        return self._read[distribution]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return Releases(tmp_path_factory.mktemp("releases"))


@pytest.mark.parametrize("distribution", IMPORT_OF)
def test_everything_that_is_imported_from_an_engine_is_in_its_release(distribution: str, releases: Releases) -> None:
    """Modules and names, by the syntax of both sides."""
    wanted = sorted(set(imported(IMPORT_OF[distribution])))
    assert len(wanted) >= 8
    sources = releases[distribution]
    assert [f"{module}: {name}" for module, name in wanted if not sources.has(module, name)] == []


@pytest.mark.parametrize("distribution", IMPORT_OF)
def test_every_call_gives_what_the_release_takes(distribution: str, releases: Releases) -> None:
    """Of functions, classes and methods of objects whose class is written down: the parameters exist, and those
    without a default are there. It does not see objects that are `Any` to us."""
    package, check = IMPORT_OF[distribution], CallCheck(releases[distribution])
    users = [module.name for module in modules("roll") if mentions(module, package)]
    assert sum(1 for user in users for _ in check.calls(user, package)) >= LEAST_CALLS[distribution]
    assert [fault for user in users for fault in check.faults(user, package)] == []


def test_arguments_of_vllm_are_in_its_release(releases: Releases) -> None:
    """Those that we set, that we refuse, that have a range here, and that shipped configurations give."""
    sources = releases["vllm"]
    (found,) = sources.find("vllm.engine.arg_utils", "AsyncEngineArgs")
    ours = keys_returned(sources, "roll.distributed.strategy.vllm.args", "engine_arguments")
    assert len(ours) >= 15
    ours |= {*rules("vllm", "arguments"), *spec_of("vllm").limit_keys, *vllm_args._SIZES, *given_in_examples("vllm")}
    assert ours | share_of("vllm") <= of_record(sources, found).names


def test_arguments_of_sglang_are_in_its_release(releases: Releases) -> None:
    sources = releases["sglang"]
    ours = keys_returned(sources, "roll.distributed.strategy.sglang.args", "engine_arguments")
    assert len(ours) >= 15
    ours |= {*rules("sglang", "arguments"), *spec_of("sglang").limit_keys, *given_in_examples("sglang")}
    # ServerArgs is put together from the classes of a package when it is imported.
    fields = {
        name
        for module in sources.below("sglang.srt.arg_groups.fields")
        for node in sources.tree(module).body
        if isinstance(node, ast.ClassDef)
        for found in sources.find(module, node.name)
        for name in of_record(sources, found).names
    }
    assert sources.has("sglang.srt.server_args", "ServerArgs")
    assert ours | share_of("sglang") <= fields


def test_sampling_parameters_of_sglang_are_in_its_release(releases: Releases) -> None:
    """They go to it as a dictionary."""
    sources = releases["sglang"]
    (found,) = sources.find("sglang.srt.sampling.sampling_params", "SamplingParams")
    ours = keys_returned(sources, "roll.distributed.strategy.sglang.generate", "to_sglang")
    assert len(ours) >= 10
    assert ours <= of_record(sources, found).names


def test_settings_of_megatron_are_in_its_release(releases: Releases) -> None:
    """Those that follow from a model's config.json and from ours, and those that are passed on as they are."""
    sources = releases["megatron-core"]
    # The record of models with latent attention has the fields of the others, too.
    (found,) = sources.find("megatron.core.transformer.transformer_config", "MLATransformerConfig")
    families = sources.below("roll.models.megatron.families")[1:]
    of_families = [keys_returned(sources, module, "settings") for module in families]
    assert len(families) >= 5
    assert all(of_families)
    ours = frozenset().union(*of_families) | PASSED_ON
    assert ours <= of_record(sources, found).names


def test_keys_of_deepspeed_are_in_its_release(releases: Releases) -> None:
    """Those that we let pass, and those that are in what shipped fragments become."""
    sources = releases["deepspeed"]
    zero, precision = "deepspeed.runtime.zero", "deepspeed.runtime.precision_config"
    models = {
        "zero_optimization": (f"{zero}.config", "DeepSpeedZeroConfig"),
        "zero_optimization.offload_param": (f"{zero}.offload_config", "DeepSpeedZeroOffloadParamConfig"),
        "zero_optimization.offload_optimizer": (f"{zero}.offload_config", "DeepSpeedZeroOffloadOptimizerConfig"),
        "bf16": (precision, "DeepSpeedBF16Config"),
        "fp16": (precision, "DeepSpeedFP16Config"),
    }
    asked = looked_up(sources, sources.below("deepspeed"), ("param_dict", "_param_dict", "ds_config", "config"))
    theirs = {"": asked, "data_types": looked_up(sources, ["deepspeed.runtime.config"], ("data_types_params",))}
    for section, (module, name) in models.items():
        (found,) = sources.find(module, name)
        theirs[section] = of_record(sources, found).names
    written = {section: {*keys} for section, keys in KNOWN_KEYS.items()}
    for section, key in written_to_deepspeed():
        written.setdefault(section, set()).add(key)
    assert {section: missing for section, keys in written.items() if (missing := sorted(keys - theirs[section]))} == {}


def written_to_deepspeed() -> Iterator[tuple[str, str]]:
    """(section, key) of the configurations of roles that train and score, with every shipped fragment."""
    plan = TrainPlan("actor_train", 64, 4, 2, 8, 1, 10, 0, 3)
    fragments = sorted((REPOSITORY / "examples" / "config").glob("deepspeed_*.yaml"))
    assert len(fragments) >= 4
    for path in fragments:
        (fragment,) = yaml.safe_load(path.read_text(encoding="utf-8")).values()
        for dtype in ("bf16", "fp32"):
            strategy = {"strategy_name": "deepspeed_train", "strategy_config": fragment}
            role = WorkerConfig.model_validate({"model_args": {"dtype": dtype}, "strategy_args": strategy})
            yield from sections(training_config(role, plan).json)
            yield from sections(scoring_config(role).json)


def sections(tree: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        yield at, key
        if isinstance(value, Mapping):
            yield from sections(value, ".".join(filter(None, (at, key))))


def keys_returned(sources: Sources, module: str, function: str) -> frozenset[str]:
    """Keys of the dictionary that a function of ours returns, as far as they are written down."""
    call = ast.parse(f"{function}()", mode="eval").body
    return CallCheck(sources).keys(call, Scope(module))[0]


def share_of(strategy: str) -> frozenset[str]:
    """The argument that says how much of a GPU an engine takes."""
    share = spec_of(strategy).share
    assert share is not None
    return frozenset({share.name})


def given_in_examples(strategy: str) -> Iterator[str]:
    def given(tree: Any) -> Iterator[str]:
        if isinstance(tree, Mapping):
            if tree.get("strategy_name") == strategy and isinstance(tree.get("strategy_config"), Mapping):
                yield from tree["strategy_config"]
            for value in tree.values():
                yield from given(value)

    for path in sorted((REPOSITORY / "examples").rglob("*.yaml")):
        yield from given(yaml.safe_load(path.read_text(encoding="utf-8")))


def mentions(module: Module, package: str) -> bool:
    return package in module.path.read_text(encoding="utf-8")


def imported(package: str) -> Iterator[tuple[str, str]]:
    """(module, name) of what roll takes from a package; the name is empty where a module itself is imported."""
    for module in modules("roll"):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                yield from ((each.name, "") for each in node.names if each.name.split(".")[0] == package)
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == package:
                yield from ((node.module, each.name) for each in node.names)


def release(distribution: str, folder: Path) -> Path:
    """The file of the version in the lock for GPUs: a wheel, or the sources where there is no other."""
    wanted = f"{distribution}=={pins(FOLDER / f'{LOCK_OF[distribution]}.txt')[distribution]}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), wanted]
    if distribution == "deepspeed":
        command += ["--no-build-isolation", "--no-binary=:all:"]
    else:
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command += ["--only-binary=:all:", "--python-version", "3.11", *platforms]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{wanted} cannot be downloaded here: {done.stderr[-300:]}")
    (file,) = folder.iterdir()
    return file


def texts(file: Path) -> dict[str, str]:
    """Its Python files by their paths from the folder that is imported from."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".py")]
            return {name: wheel.read(name).decode("utf-8", "replace") for name in names}
    with tarfile.open(file) as sources:
        found = {}
        for member in sources.getmembers():
            if member.name.endswith(".py") and (stream := sources.extractfile(member)) is not None:
                found[member.name.partition("/")[2]] = stream.read().decode("utf-8", "replace")
        return found
