"""In a container: what it was not given is told from its own marks, and only there; in one sentence with the flag."""

from __future__ import annotations

import subprocess
import sys

import pytest

from labkit import doctor, source
from labkit.errors import LabError, NotHere
from labkit.source import container, counting, recorded, running

MARKS = {one.name: one.mark for one in container.ENGINES}


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """Make the root of a container of this engine's, on a host with or without a driver, and let labkit look there."""

    def make(name: str | None, driver: bool = True) -> None:
        for path in [*([MARKS[name]] if name else []), *([container.DRIVER] if driver else [])]:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        monkeypatch.setattr(container, "ROOT", tmp_path)

    return make


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("Docker", "docker run --gpus all"),
        ("Podman", "podman run --device nvidia.com/gpu=all"),
        ("Apptainer", "apptainer exec --nv"),
    ],
)
def test_a_gpu_that_was_not_handed_in_is_said_with_the_flag(inside, name, flag):
    inside(name)
    assert container.not_given(None, None).endswith(f"start it with {flag}.")
    assert container.not_given("NVIDIA H200", "580.1") is None
    assert container.not_given(None, "580.1") is None, "a driver that is too old is no missing flag"


def test_nothing_is_said_where_the_host_has_no_driver_or_there_is_no_container(inside):
    inside("Docker", driver=False)
    assert container.not_given(None, None) is None
    assert [*container.rows(None, None, False)] == [
        ("container", "Docker's", "if its host has a GPU: docker run --gpus all")
    ]


def test_outside_of_a_container_nothing_is_said(inside):
    inside(None)
    assert container.not_given(None, None) is None and not [*container.rows(None, None, False)]
    assert container.hint("killed by signal: Bus error") == ""


def test_a_notebook_says_why_it_is_recorded_unless_that_was_asked_for(inside, monkeypatch):
    inside("Docker")
    monkeypatch.setattr(
        source.door, "this_machine", lambda: source.Machine(None, None, 8, None, "2025.3.1", False, False)
    )
    monkeypatch.setattr(source.door, "_instead", [])
    monkeypatch.delenv("LAB_MODE", raising=False)
    plain = source.Recorded(recorded.folder()).greeting
    assert source.current().greeting.startswith(plain + " ") and source.current().greeting.endswith("--gpus all.")
    monkeypatch.setenv("LAB_MODE", "recorded")
    assert source.current().greeting == plain


@pytest.mark.parametrize(
    ("name", "counters", "said"),
    [
        ("Docker", False, "docker run --user root --cap-add=SYS_ADMIN, or the host's driver"),
        ("Apptainer", False, "GPU counters: the host's driver allows"),
        ("Docker", True, ""),
    ],
)
def test_the_morning_check_has_a_line_on_counters(inside, name, counters, said):
    inside(name)
    ((what, found, so),) = container.rows("NVIDIA H200", "580.1", counters)
    assert (what, found) == ("container", f"{name}'s") and (said in so if said else so == "")


@pytest.mark.parametrize(("name", "said"), [("Docker", "--ipc=host"), ("Podman", "--ipc=host"), ("Apptainer", None)])
def test_the_morning_check_says_whose_live_runs_wait_for_whom(inside, name, said):
    inside(name)
    assert [so.split()[-1] for _, _, so in doctor.turn_taking("NVIDIA H200")] == ([said] if said else [])
    assert not [*doctor.turn_taking(None)], "without a GPU nothing waits"


def test_the_morning_check_asks_for_the_container(inside, monkeypatch):
    inside("Podman")
    nothing = source.Machine(None, None, 2, None, None, False, False)
    monkeypatch.setattr(doctor.source, "this_machine", lambda: nothing)
    monkeypatch.setattr(doctor, "profiler", lambda: ("a profile", "none", ""))
    monkeypatch.setattr(doctor, "digits", lambda: ("digits", "none", ""))
    assert "container" in [what for what, _, _ in doctor.rows()]


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "--ipc=host"),
        ("RuntimeError: unable to write to file </torch_31_2_0>: No space left on device (28)", "--ipc=host"),
        ("Error while creating shared memory segment /dev/shm/nccl-8tnmjh (size 9637888)", "--ipc=host"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "--ulimit memlock=-1"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "--user root --cap-add=SYS_ADMIN"),
        ("In a container, add --ipc=host. killed by signal: Bus error", ""),
        ("OutOfResources: out of resource: shared memory, Required: 262144, Hardware limit: 232448", ""),
        ("CUDA out of memory", ""),
    ],
)
def test_too_little_memory_is_said_with_the_flag_and_a_kernels_own_shared_memory_is_another_matter(inside, said, flag):
    inside("Docker")
    hint = container.hint(said)
    assert (flag in hint and "docker run" in hint) if flag else hint == ""


def test_a_script_that_dies_of_it_says_so(inside, monkeypatch, tmp_path):
    inside("Docker")
    script = "import sys; sys.exit('unable to write to file </torch_3_1>: No space left on device (28)')"
    monkeypatch.setattr(running, "_script", lambda command: ["-c", script])
    with pytest.raises(LabError, match=r"No space left on device \(28\) \(This container .* docker run --ipc=host\)"):
        running.run_once("main_opt1.py", tmp_path / "record.json")


def test_a_count_that_is_refused_says_so(inside, monkeypatch, tmp_path):
    inside("Podman")
    monkeypatch.setattr(counting, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(counting.machine, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(counting, "_run", lambda words, log, show: (1, "==ERROR== ERR_NVGPUCTRPERM"))
    with pytest.raises(NotHere, match="podman run --user root --cap-add=SYS_ADMIN"):
        counting.run(["ncu", "python3", "main_opt1.py"], tmp_path / "log.csv")


def test_ranks_that_die_of_it_say_so(inside, monkeypatch):
    inside("Docker")
    words = "Call to ibv_reg_mr failed with error Cannot allocate memory"
    real = subprocess.Popen
    stand_in = [sys.executable, "-c", f"import sys; sys.exit({words!r})"]
    monkeypatch.setattr(running.subprocess, "Popen", lambda command, **more: real(stand_in, **more))
    with pytest.raises(LabError, match="docker run --ulimit memlock=-1"):
        running.run_ranks("torchrun --standalone --nproc-per-node 2 main_ddp.py")
