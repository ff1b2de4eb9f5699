"""The launch files: linted by their own tools, their commands and keys are those that roll and Ray have."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from ray.dashboard.modules.job.cli import submit
from ray.scripts.scripts import start

from roll.commands.table import main
from roll.configs.load.yaml_file import read_yaml
from tests.layout.source import REPOSITORY
from tools.make_locks import pins

LAUNCH = REPOSITORY / "examples" / "launch"
DOCKERFILES = sorted(LAUNCH.rglob("*.Dockerfile"))
SCRIPTS = [LAUNCH / "ray_submit.sh", LAUNCH / "slurm.sbatch"]
TWO_NODES = REPOSITORY / "examples" / "qwen2.5-7B-rlvr" / "rlvr_zero3_disjoint.yaml"
JOB, RAY_JOB = LAUNCH / "kubernetes" / "job.yaml", LAUNCH / "kubernetes" / "rayjob.yaml"
SKY = LAUNCH / "skypilot.yaml"
WITH_COMMANDS = [*SCRIPTS, JOB, RAY_JOB, SKY]

KUBERAY_KEYS = {  # of KubeRay's reference of ray.io/v1
    "RayJob": "entrypoint backoffLimit shutdownAfterJobFinishes rayClusterSpec submissionMode ttlSecondsAfterFinished",
    "rayClusterSpec": "rayVersion authOptions headGroupSpec workerGroupSpecs",
    "headGroupSpec": "rayStartParams template",
    "workerGroupSpecs": "groupName replicas minReplicas maxReplicas numOfHosts rayStartParams template",
}
SKY_KEYS = {  # of SkyPilot's reference of its YAML
    "task": "name num_nodes workdir resources volumes file_mounts envs secrets setup run",
    "resources": "accelerators use_spot job_recovery infra cpus memory disk_size image_id",
    "job_recovery": "strategy max_restarts_on_errors recover_on_exit_codes",
}


def linted(tool: str, file: Path) -> str:
    program = Path(sys.executable).parent / tool
    if not program.exists():
        pytest.skip(f"{tool} is not in this environment: the extra dev has it, for x86_64 at least")
    done = subprocess.run([program, file], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_hadolint_finds_nothing_in_a_dockerfile(file: Path) -> None:
    assert linted("hadolint", file) == ""


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_shellcheck_finds_nothing_in_a_script(file: Path) -> None:
    assert linted("shellcheck", file) == ""


@pytest.mark.parametrize("word", ["setup", "run"])
def test_shellcheck_finds_nothing_in_what_skypilot_runs(word: str, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(f"#!/bin/bash\n# shellcheck disable=SC1091\n{read_yaml(SKY)[word]}", encoding="utf-8")
    assert linted("shellcheck", script) == ""


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_an_image_copies_what_is_there_and_runs_as_a_user_without_rights(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    engines = re.findall(r"ENGINE=(\w+)", text) or [""]
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert copied and {"roll", "setup.py", "examples"} <= set(copied)
    for engine in engines:
        missing = [word for word in copied if not (REPOSITORY / word.replace("${ENGINE}", engine)).exists()]
        assert missing == []
    assert "COPY . " not in text, "what lies beside the code, such as .env, stays out"
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["1001"]
    assert "--uid 1001" in text


def commands(file: Path, head: str) -> Iterator[list[str]]:
    """The words behind `head` of each command of the file."""
    if file == JOB:
        words = pods(file)[0]["containers"][0]["args"]
        text = shlex.join(words)
    elif file == RAY_JOB:
        text = read_yaml(file)["spec"]["entrypoint"]
    else:
        text = re.sub(r"\\\n\s*", "", file.read_text(encoding="utf-8"))
    for line in text.splitlines():
        if not line.lstrip().startswith("#") and (found := re.search(rf"\b{head} (.*)", line)):
            yield shlex.split(re.split(r" &|; ", found[1])[0].removesuffix("&"))


def pods(file: Path) -> list[dict[str, Any]]:
    spec = read_yaml(file)["spec"]
    if file == JOB:
        return [spec["template"]["spec"]]
    cluster = spec["rayClusterSpec"]
    return [group["template"]["spec"] for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]]


@pytest.mark.parametrize("file", WITH_COMMANDS, ids=lambda file: file.name)
def test_the_dry_run_of_a_launch_files_command_works(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`$@` and the YAML that is a user's own stand for the recipe of two nodes."""
    [words] = commands(file, "roll run")
    config = words[0].replace("/opt/roll/examples", "examples")
    if config in ("$@", "/shared/runs/my_run.yaml"):
        config = str(TWO_NODES)
    assert main(["run", str(REPOSITORY / config), *words[1:], "--dry_run", "--elsewhere"]) == 0, capsys.readouterr().err
    assert "resume_from_checkpoint=true" in words
    assert words[1].startswith("--max_restarts")


@pytest.mark.parametrize(
    ("head", "command"), [("ray start", start), ("ray job submit", submit)], ids=["start", "job submit"]
)
def test_options_of_ray_are_those_that_it_has(head: str, command: click.Command) -> None:
    known = {option for parameter in command.params for option in parameter.opts}
    used = {
        word.split("=")[0]
        for file in [*SCRIPTS, SKY]
        for words in commands(file, head)
        for word in (words[: words.index("--")] if "--" in words else words)
        if word.startswith("-")
    }
    assert len(used) >= 2
    assert used <= known


def test_launch_files_name_what_is_there_and_leave_time_to_save() -> None:
    called = {
        REPOSITORY / path
        for file in [*SCRIPTS, SKY]
        for path in re.findall(r"(?<![\w/])(examples/[\w./-]+|requirements/[\w.-]+)", file.read_text(encoding="utf-8"))
    }
    assert LAUNCH / "wait_for_nodes.py" in called
    assert [path for path in sorted(called) if not path.exists()] == []
    recipe = read_yaml(TWO_NODES)
    assert (recipe["num_nodes"], recipe["num_gpus_per_node"]) == (2, 8)
    gpus = [pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods(RAY_JOB)]
    assert gpus == [8, 8]
    sky = read_yaml(SKY)
    assert (sky["num_nodes"], sky["resources"]["accelerators"].split(":")[1]) == (2, "8")
    assert all(TWO_NODES.name in file.read_text(encoding="utf-8") for file in (RAY_JOB, SKY))
    sky = read_yaml(SKY)
    resources = sky["resources"]
    for name, section in {"task": sky, "resources": resources, "job_recovery": resources["job_recovery"]}.items():
        assert [key for key in section if key not in SKY_KEYS[name].split()] == []
    assert sky["secrets"] == {"RAY_AUTH_TOKEN": None}
    script = SCRIPTS[1].read_text(encoding="utf-8")
    [before_end] = re.findall(r"^#SBATCH --signal=B:TERM@(\d+)$", script, re.MULTILINE)
    [timeout] = re.findall(r"interrupt_timeout=(\d+)", script)
    assert int(timeout) + 20 <= int(before_end)
    assert re.search(r"^#SBATCH --requeue$", script, re.MULTILINE)


@pytest.mark.parametrize("file", [JOB, RAY_JOB], ids=lambda file: file.name)
def test_pods_run_as_the_images_user_with_shared_memory_and_time_to_save(file: Path) -> None:
    for pod in pods(file):
        assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1001, "fsGroup": 1001}
        [container] = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["shm"] == "/dev/shm"
        assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
        assert pod["terminationGracePeriodSeconds"] == 60
    timeouts = [
        int(word.split("=")[1]) for words in commands(file, "roll run") for word in words if "interrupt" in word
    ]
    assert all(seconds <= 50 for seconds in timeouts)


def test_keys_of_the_rayjob_are_kuberays_and_its_ray_is_the_locks() -> None:
    job = read_yaml(RAY_JOB)
    cluster = job["spec"]["rayClusterSpec"]
    sections = {"RayJob": [job["spec"]], "rayClusterSpec": [cluster], "headGroupSpec": [cluster["headGroupSpec"]]}
    sections["workerGroupSpecs"] = cluster["workerGroupSpecs"]
    for name, found in sections.items():
        assert [key for section in found for key in section if key not in KUBERAY_KEYS[name].split()] == []
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert cluster["rayVersion"] == pins(REPOSITORY / "requirements" / "cuda-vllm.txt")["ray"]
