"""YAML files, references in them, and keys that others overrule."""

from pathlib import Path
from typing import Any

import pytest

from roll.configs.load.known_keys import FSDP2_KEYS
from roll.configs.load.loader import load_tree, references, yaml_at
from roll.configs.load.overrides import crosses_reference, lookup
from roll.configs.load.overruled_keys import Overruled, overruled
from roll.configs.load.yaml_file import read_yaml
from roll.configs.tables.roles import Role
from roll.errors import ConfigError
from roll.pipeline.rlvr.rlvr_config import RLVRConfig


def test_references_are_followed_and_may_name_neighbours_and_parts() -> None:
    assert set(references({"a": "${b.c} ${d}", "e": ["${f[0]}", {"g": "${.h}"}]})) == {"b", "d", "f"}
    tree = {"a": {"b": "${c}"}}
    assert crosses_reference(tree, "a.b.x") and not crosses_reference(tree, "a.b")
    assert lookup({"a": "${b}", "b": {"c": 3}}, "a.c", "x") == 3
    with pytest.raises(ConfigError, match=r"x: \$\{b.d\} leads nowhere."):
        lookup({"b": {"c": 3}}, "b.d", "x")


@pytest.mark.parametrize("text", ["a: ${a}", "a: ${b}\nb: x ${a}", "a: {b: '${a}'}", "a: {b: '${..a.c}', c: '${a.b}'}"])
def test_references_without_an_end_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match="Recursive interpolation|parent node|refers to itself"):
        load_tree(tmp_path, "run", (), RLVRConfig)


ROLES: dict[str, Role] = dict(RLVRConfig.role_table)


def read(**tree: Any) -> Overruled:
    return overruled(tree, ROLES)


def engine(size: int, **config: int) -> dict[str, Any]:
    return {"num_gpus_per_worker": size, "strategy_args": {"strategy_name": "vllm", "strategy_config": config}}


@pytest.mark.parametrize(
    ("section", "size"),
    [
        (engine(1, tensor_parallel_size=2), 2),
        (engine(8, tensor_parallel_size=2, pipeline_parallel_size=2), 4),
        ({"num_gpus_per_worker": 4, "strategy_args": {"strategy_name": "deepspeed_train"}}, 1),
    ],
)
def test_num_gpus_per_worker_is_what_the_sizes_say_with_a_warning(section: dict[str, Any], size: int) -> None:
    found = read(actor_infer=section)
    assert found.changed["actor_infer"]["num_gpus_per_worker"] == size and not found.problems
    (text,) = found.warnings
    assert f"actor_infer.num_gpus_per_worker: {section['num_gpus_per_worker']} is overruled: it is {size}" in text


@pytest.mark.parametrize("section", [engine(2), engine(2, tensor_parallel_size=2)])
def test_num_gpus_per_worker_that_contradicts_nothing_stays(section: dict[str, Any]) -> None:
    found = read(actor_infer=section)
    assert not found.changed and not found.warnings


def test_device_ids_overrule_num_nodes() -> None:
    roles = {"actor_train": {"device_mapping": "list(range(0, 16))"}}
    found = read(num_nodes=1, **roles)
    assert found.changed["num_nodes"] == 2 and "num_nodes: 1 is overruled" in found.warnings[0]
    assert "num_nodes is not set" in read(**roles).warnings[0]
    assert read(num_nodes=3, **roles).warnings == []
    far = {"device_mapping": "list(range(8, 16))"}
    assert read(num_nodes=1, student_train={"device_mapping": "list(range(0, 16))"}).changed["num_nodes"] == 2
    assert read(num_nodes=1, actor_train={"device_mapping": [0]}, teacher={"large": far}).changed["num_nodes"] == 2


def test_a_node_that_nothing_is_on_is_not_planned_in_silence() -> None:
    lonely = {"num_gpus_per_node": 2, "actor_infer": {"device_mapping": [5]}}
    for given in ({}, {"num_nodes": 1}):
        (problem,) = read(**lonely, **given).problems
        assert "no role is on node 0..1" in problem.text and "num_nodes: 3" in problem.text
    assert read(**lonely, num_nodes=3).problems == []
    one_node = read(num_gpus_per_node=2, actor_train={"device_mapping": [0]}, actor_infer={"device_mapping": [1]})
    assert one_node == Overruled()


@pytest.mark.parametrize("path", FSDP2_KEYS)
def test_keys_of_newer_recipes_for_fsdp2_are_taken_out_and_the_nearest_thing_is_named(path: str) -> None:
    outer, _, key = path.rpartition(".")
    config = {outer: {key: 8}} if outer else {key: 8}
    section = {"strategy_args": {"strategy_name": "fsdp2_train", "strategy_config": {"fsdp_size": 4, **config}}}
    found = read(actor_train=section)
    left = found.changed["actor_train"]["strategy_args"]["strategy_config"]
    assert left == {"fsdp_size": 4, **({outer: {}} if outer else {})}
    assert f"actor_train.strategy_args.strategy_config.{path} does nothing here: " in found.warnings[0]


@pytest.mark.parametrize("given", ["linear_qkv,linear_fc2", ["linear_qkv", "linear_fc2"]])
def test_adapters_on_layers_of_transformer_engine_go_on_those_of_the_files(given: object) -> None:
    found = read(actor_train={"model_args": {"lora_target": given}})
    assert found.changed["actor_train"]["model_args"]["lora_target"] == ["q_proj", "k_proj", "v_proj", "down_proj"]
    assert "linear_qkv: q_proj, k_proj, v_proj; linear_fc2: down_proj get adapters" in found.warnings[0]


def test_an_empty_fragment_is_an_empty_mapping(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [empty@_here_]\nmax_steps: 3\n")
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert load_tree(tmp_path, "mine", (), RLVRConfig).settings["max_steps"] == 3


def refused(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    (message,) = error.value.problems
    assert str(path) in message
    return message


def test_numbers_are_read_as_hydra_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1e-6\nb: &b {c: 1_000}\nd: {<<: *b}\ne: {1: x}\n")
    assert read_yaml(path) == {"a": 1e-6, "b": {"c": 1000}, "d": {"c": 1000}, "e": {1: "x"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold a mapping of keys to values, not null."),
        ("- a", "must hold a mapping of keys to values, not ['a']."),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: found duplicate key a, while constructing a mapping."),
        ("a:\n\tb: 1", "line 2, column 1: found character '\\t' that cannot start any token"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("a: [1, 2", "line 1, column 9: expected ',' or ']'"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'."),
        ("? [a]\n: 1", "found unhashable key"),
        ("a: !!python/object/apply:os.system [b]", "could not determine a constructor for the tag"),
        ("a: 1\non: true", "line 2, column 1: a key must be text, and 'on' reads as bool; put quotes around it."),
        ("<<: {5: 7}", "line 1, column 6: a key must be text, and '5' reads as int; put quotes around it."),
        ("null: 7", "a key must be text, and 'null' reads as null"),
        ("a: !!int x", "invalid literal for int()"),
        (b"a: \xff", "is not valid YAML: byte 3 is not UTF-8 (invalid start byte)."),
        (b"a: b\0c", "special characters are not allowed"),
        ("a: 1".encode("utf-16"), "byte 0 is not UTF-8"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_place(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert message in refused(tmp_path / "run.yaml", content)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    endless = tmp_path / "run.yaml"
    endless.symlink_to("/dev/zero")
    for path, message in (
        (endless, "is a device, a pipe or a socket, not a file."),
        (tmp_path, f"{tmp_path} is a directory, not a file."),
        (tmp_path / "none.yaml", "does not exist."),
    ):
        with pytest.raises(ConfigError, match=message):
            read_yaml(path)


def test_a_name_that_is_there_but_no_yaml_is_told_from_one_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "noext").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "mine.yaml", tmp_path / "folder" / "other.yaml"):
        path.touch()
    for name, message in (
        ("noext", f"{tmp_path}/noext is a file, not a YAML. Name a YAML first. .* has mine"),
        ("folder", f"{tmp_path}/folder is a directory, not a YAML. Name a YAML first. {tmp_path}/folder has other"),
        ("none", f"{tmp_path}/none.yaml does not exist. Name a YAML first. {tmp_path} has mine"),
    ):
        with pytest.raises(ConfigError, match=message):
            yaml_at(str(tmp_path / name))
