"""What `roll doctor` says of a machine: each judgement by figures of machines that are well and of others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from roll.commands.table import main
from roll.doctor import machine, packages
from roll.doctor import packages as gpus
from roll.doctor.machine import Finding, Section, findings, lines, summary
from roll.doctor.packages import TorchBuild
from roll.platforms.table import NPU

REPOSITORY = Path(__file__).resolve().parents[3]
GIB = 1 << 30
CPU, CUDA_13, CUDA_12 = TorchBuild("2.13.0+cpu", ""), TorchBuild("2.13.0", "13.0"), TorchBuild("2.13.0", "12.8")
H100 = "0, NVIDIA H100 80GB HBM3, 81559, {used}, {driver}"


def levels(found: Iterable[Finding]) -> list[str]:
    return [finding.level for finding in found]


def told(found: Iterable[Finding]) -> str:
    return "\n".join(line for finding in found for line in lines(finding))


def test_every_finding_is_shown_and_the_exit_code_is_that_of_the_worst(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "roll.doctor.machine.limit_findings", lambda: [machine.limit_finding("files", 1024, "ulimit -n")]
    )
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = main(["doctor"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "This machine"
    assert f"  ok       Python {'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}" in shown
    at = shown.index("  hint     files: 1024 is little for a run")
    assert shown[at + 1] == "           ulimit -n"
    assert (shown[-1].endswith(", 0 problems")) == (code == 0)
    monkeypatch.setattr("roll.doctor.machine.limit_findings", lambda: [machine.limit_finding("files", 256, "")])
    assert main(["doctor"]) == 1
    assert "  problem  files: 256" in capsys.readouterr().out


def test_the_look_at_the_machine_imports_nothing_heavy() -> None:
    """Which is what keeps it under two seconds."""
    heavy = ("torch", "ray", "numpy", "pydantic", "transformers", "hydra", "omegaconf")
    begin = "import sys; from roll.commands.table import main; main(['doctor'])"
    code = f"{begin}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_look_that_fails_is_a_finding_and_the_others_go_on() -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("ok", "before")
        raise OSError("a disk went away")

    found = list(findings(Section("All", {"disks": broken, "memory": lambda: [Finding("hint", "after")]})))
    assert levels(found) == ["ok", "problem", "hint"]
    assert found[1].what.startswith("disks: this check failed with OSError: a disk went away (test_machine.py, line ")
    assert summary(found) == "1 ok, 1 hint, 1 problem"


@pytest.mark.parametrize(
    ("total", "free", "level"),
    [(64 << 20, 64 << 20, "problem"), (GIB, GIB, "hint"), (64 * GIB, 60 * GIB, "ok"), (64 * GIB, GIB // 8, "problem")],
)
def test_little_shared_memory_is_told_with_what_makes_it_larger(total: int, free: int, level: str) -> None:
    """64 MiB is what docker gives."""
    found = machine.shm_size(total, free)
    assert found.level == level
    if level != "ok":
        assert "--shm-size" in found.fix
        assert ("Remove files of ended runs" in found.fix) == (total == 64 * GIB)


def test_limits_are_judged_and_infinity_is_enough() -> None:
    import resource

    soft = (resource.RLIM_INFINITY, 8192, 4096, 1023)
    assert [machine.limit_finding("files", each, "").level for each in soft] == ["ok", "ok", "hint", "problem"]


def test_the_environment_is_read() -> None:
    found = list(machine.environment_findings({"OMP_NUM_THREADS": "32", "PYTHONDONTWRITEBYTECODE": "1"}))
    assert [(finding.level, finding.where) for finding in found] == [
        ("hint", "OMP_NUM_THREADS"),
        ("hint", "PYTHONDONTWRITEBYTECODE"),
    ]
    assert levels(machine.environment_findings({})) == ["ok"]
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,expandable_segments:True"}
    assert "roles that share GPUs start without it" in told(machine.environment_findings(expandable))
    assert "HF_HUB_OFFLINE is set" in told(machine.environment_findings({"HF_HUB_OFFLINE": "1"}))
    engines = {"NVIDIA_TF32_OVERRIDE": "1", "VLLM_USE_MODELSCOPE": "1", "VLLM_HOST_IP": "10.0.0.1"}
    found = list(machine.environment_findings(engines))
    assert [finding.where for finding in found[1:]] == ["NVIDIA_TF32_OVERRIDE", "VLLM_USE_MODELSCOPE"]
    assert "roles that it changes do not start: the engine would look for its model" in found[2].what


def test_memory_is_judged() -> None:
    assert "a container of 8 GiB" in told(machine.memory_findings(64 * GIB, 30 * GIB, 8 * GIB, 4))
    assert levels(machine.memory_findings(64 * GIB, GIB, 64 * GIB, 4)) == ["hint"]


def test_an_address_of_ray_is_tried() -> None:
    assert levels(machine.ray_findings(None)) == levels(machine.ray_findings("auto")) == ["ok"]
    assert "is not of the form host:port" in told(machine.ray_findings("ray://head"))
    assert "no Ray cluster answers there" in told(machine.ray_findings("127.0.0.1:1"))


def test_no_nvidia_smi_is_a_fact_and_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert levels(gpus.gpu_findings())[0] == "ok"
    assert levels(gpus.without_gpus(CPU)) == ["ok"]
    assert levels(gpus.without_gpus(CUDA_13)) == ["ok", "hint"]


@pytest.mark.parametrize(
    ("used", "driver", "build", "said"),
    [
        (0, "580.65.06", CUDA_13, ""),
        (0, "570.124.06", CUDA_13, "the driver 570.124.06 is too old for CUDA 13.0"),
        (0, "570.124.06", CUDA_12, ""),
        (0, "580.65.06", CPU, "torch 2.13.0+cpu is built without CUDA: GPUs stay unused"),
        (70_000, "580.65.06", CUDA_13, "GPU 0: 68.4 of 80 GiB are already in use"),
    ],
)
def test_gpus_are_held_against_torch(used: int, driver: str, build: TorchBuild, said: str) -> None:
    found = list(gpus.driver_facts(gpus.parsed(H100.format(used=used, driver=driver)), build, None))
    assert found[0] == Finding("ok", f"1 GPU: NVIDIA H100 80GB HBM3 of 80 GiB; driver {driver}")
    assert levels(found[1:]) == ["problem"] * bool(said)
    assert said in told(found)


def test_gpus_that_differ_or_are_hidden_are_told() -> None:
    text = (
        H100.format(used=1, driver="580.1") + "\n1, NVIDIA L4, 23034, 1, 580.1\n2, NVIDIA GB10, [N/A], [N/A], 580.1\n"
    )
    found = list(gpus.driver_facts(gpus.parsed(text), None, "0"))
    assert levels(found) == ["ok", "hint", "hint"]
    assert "GPUs differ" in told(found) and "CUDA_VISIBLE_DEVICES is '0'" in told(found)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "ends with 18: Failed to init"),
        ("exit 0", "lists no GPU"),
        ("echo '0, NVIDIA L4, 23034, 4, 590.1'", "1 GPU: NVIDIA L4 of 22 GiB; driver 590.1"),
    ],
)
def test_the_tool_itself_is_asked(script: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert said in told(gpus.gpu_findings())


def test_what_the_distribution_asks_for_is_held_against_what_is_there() -> None:
    asked = [
        Requirement(text)
        for text in (
            "ray>=2.60,<3",
            "numpy>=2.2,<3",
            "pyyaml>=6",
            'vllm==0.32.0; extra == "vllm"',
            'peft>1; extra == "x"',
        )
    ]
    found = list(packages.metadata_findings(asked, {"numpy": "1.26.4", "ray": "2.60.1", "vllm": "0.31.0"}))
    assert [(finding.level, finding.what.split(",")[0]) for finding in found] == [
        ("problem", "numpy is 1.26.4"),
        ("problem", "pyyaml is not installed"),
        ("hint", "vllm is 0.31.0"),
    ]
    assert found[1].fix == "pip install 'pyyaml>=6'"


def test_torch_says_what_it_is_built_for_without_being_imported() -> None:
    code = "import json, sys; from roll.doctor.packages import torch_build as b; t = b()\n"
    code += "print(json.dumps([t.version, t.cuda, 'torch' in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    torch = pytest.importorskip("torch")
    assert json.loads(done.stdout) == [torch.__version__, torch.version.cuda or "", False]
    assert re.search(packages._CUDA, "hip: Optional[str] = None\ncuda: Optional[str] = '13.0'\n")[1] == "13.0"  # type: ignore[index]


@pytest.mark.parametrize(
    ("visible", "installed", "expected"),
    [
        (None, True, [("ok", "8 NPUs of the platform npu"), ("hint", "roll has never run on NPUs of npu")]),
        ("2,5", False, [("hint", "ASCEND_RT_VISIBLE_DEVICES is '2,5': a run sees only these"),
                        ("problem", "torch_npu is not installed: NPUs stay unused")]),
    ],
)  # fmt: skip
def test_devices_of_another_platform_are_told_as_theirs(
    visible: str | None, installed: bool, expected: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "machine_platform", lambda: NPU)
    monkeypatch.setattr(gpus, "is_installed", lambda name: installed)
    monkeypatch.setattr(type(NPU), "num_devices", lambda self: 8)
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    assert [(finding.level, finding.what) for finding in gpus.gpu_findings()][-2:] == expected
