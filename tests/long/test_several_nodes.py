"""Several nodes train as one: the Slurm script, with stand-ins for Slurm, and what it starts, on two nodes.

A node is a network namespace with a name, an address and a host table of its own, joined to the other by a pair of
virtual Ethernet devices; its ranks are on the CPU (gloo). Making one needs iproute2, util-linux and root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from labkit.paths import ROOT, SOURCE_CODE

SLURM_SCRIPT = SOURCE_CODE / "examples" / "several_nodes.sbatch"
ALTERED, IN_TURN = (ROOT / "tests" / "support" / file for file in ("altered.py", "in_turn.py"))
SMALL = ROOT / "tests" / "support" / "small_training.py"  # what the scripts stand on, without all that they import
DIGITS = "--device cpu --limit 64 --batch-size 16 --test-batch-size 40 --workers 0"
TEXT = "--device cpu --width 16 --depth 2 --heads 2 --length 12 --batch-size 8 --pool 2 --steps 4 --warm-up 1"
SECONDS = 30  # after which no process is left of a job that lost a node
PATIENCE_S = 300  # for a machine that is busy
ABORTED = "terminate called without an active exception"  # of PyTorch's threads as a process ends, now and then

# The Slurm script

STAND_INS = {
    "scontrol": '[ "$*" = "show hostnames node[1-2]" ] && printf "node1\\nnode2\\n"',
    "srun": 'printf "%s\\0" "$@" > "$SRUN_WAS_ASKED"',
}


def submitted(folder: Path, *words: object, **environment: str) -> subprocess.CompletedProcess:
    """The Slurm script as a job of two nodes would run it, from the checkout's top folder, with stand-ins."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name, does in STAND_INS.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (bin_folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "70042", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "16"}
    job |= {"PATH": f"{bin_folder}:{os.environ['PATH']}", "SRUN_WAS_ASKED": str(folder / "srun")}
    command = ["bash", str(SLURM_SCRIPT), *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | job | environment, capture_output=True, text=True)


def asked_of_srun(folder: Path, *words: object, **environment: str) -> list[str]:
    done = submitted(folder, *words, **environment)
    assert done.returncode == 0, done.stderr
    return (folder / "srun").read_text().split("\0")[:-1]


def test_srun_starts_one_torchrun_a_node_and_all_meet_at_the_first(tmp_path):
    subprocess.run(["bash", "-n", SLURM_SCRIPT], check=True)
    words = asked_of_srun(tmp_path, "source_code/main_ddp.py", "--record", "two words.json")
    at = words.index("torchrun")
    assert words[:at] == ["--kill-on-bad-exit=1", "--ntasks-per-node=1", "--cpus-per-task=16"]
    flags = dict(zip(words[at + 1 : -8 : 2], words[at + 2 : -8 : 2], strict=True))
    assert flags == {
        "--nnodes": "2",
        "--nproc-per-node": "gpu",
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": "node1:30042",
        "--rdzv-id": "70042",
        "--rdzv-conf": "read_timeout=300",
    }
    ranks = ["--no-python", "setpriv", "--pdeathsig", "KILL", "python3", "source_code/main_ddp.py"]
    assert words[-8:] == [*ranks, "--record", "two words.json"]


def test_two_jobs_on_a_node_have_ports_of_their_own(tmp_path):
    ends = [asked_of_srun(tmp_path, SLURM_SCRIPT, SLURM_JOB_ID=job) for job in ("70042", "70043")]
    assert {words[words.index("--rdzv-endpoint") + 1] for words in ends} == {"node1:30042", "node1:30043"}


@pytest.mark.parametrize("words", [[], ["source_code/main_gone.py"]])
def test_a_script_that_is_not_there_is_said_before_anything_starts(tmp_path, words):
    done = submitted(tmp_path, *words)
    assert done.returncode == 2 and "usage: sbatch" in done.stderr and not (tmp_path / "srun").exists()


# What it starts, on two nodes

HOSTS = "127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n"
BECOME = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


class Nodes:
    """Two nodes, node1 and node2, each a network namespace."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.folder, self.hosts = folder, folder / "hosts"
        self.hosts.write_text(HOSTS)
        self.spaces = {f"node{at}": f"lab-{os.getpid()}-{at}" for at in (1, 2)}
        for space in self.spaces.values():
            stack.enter_context(namespace(space))
        one, two = self.spaces.values()
        ip("link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", two)
        for at, space in enumerate((one, two), 1):
            ip("-n", space, "address", "add", f"10.77.0.{at}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", space, "link", "set", device, "up")

    def start(self, node: str, words: list[str]) -> subprocess.Popen:
        """Run a command on a node, which has its own host name; what it says goes into the file of that name."""
        inside = ["ip", "netns", "exec", self.spaces[node], "unshare", "--uts", "--mount", "sh", "-c", BECOME, "sh"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
        with self.said(node).open("w") as said:
            command = [*inside, node, str(self.hosts), *words]
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT)

    def said(self, node: str) -> Path:
        return self.folder / node

    def processes(self) -> list[int]:
        return [process for space in self.spaces.values() for process in inside(space)]

    def wait_until_empty(self) -> None:
        """A process that ends may be seen for a moment longer; none stays."""
        start = time.monotonic()
        while self.processes() and time.monotonic() - start < SECONDS:
            time.sleep(0.1)
        assert self.processes() == []


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def inside(space: str) -> list[int]:
    return [int(process) for process in ip("netns", "pids", space).split()]


@contextmanager
def namespace(space: str) -> Iterator[None]:
    """A network namespace; whatever still runs in it is killed at the end."""
    ip("netns", "add", space)
    try:
        yield
    finally:
        for process in inside(space):
            os.kill(process, signal.SIGKILL)
        ip("netns", "delete", space)


@contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    if gone := [program for program in ("ip", "unshare", "setpriv", "hostname") if not shutil.which(program)]:
        without_nodes(f"{' and '.join(gone)} cannot be found (Debian: iproute2, util-linux, hostname)")
    with ExitStack() as stack:
        try:
            made = Nodes(stack, folder)
        except OSError as error:
            without_nodes(f"no network namespaces here: {error}")
        yield made


@pytest.fixture
def nodes(tmp_path) -> Iterator[Nodes]:
    with two_nodes(tmp_path) as made:
        yield made


def without_nodes(why: str) -> None:
    (pytest.fail if os.environ.get("LAB_REQUIRE_NETNS") == "1" else pytest.skip)(why)


def launched(nodes: Nodes, *words: object) -> dict[str, subprocess.Popen]:
    """What the Slurm script has srun start, on each node; one rank a node."""
    asked = asked_of_srun(nodes.folder, *words, RANKS_A_NODE="1")
    command = asked[asked.index("torchrun") :]
    return {node: nodes.start(node, command) for node in nodes.spaces}


def end_well(nodes: Nodes, *words: object) -> None:
    """Launch it and wait until all have ended; once more where the work was done and PyTorch's clean-up aborted."""
    for last in (False, True):
        jobs, deadline = launched(nodes, *words), time.monotonic() + PATIENCE_S
        while any(job.poll() is None for job in jobs.values()) and time.monotonic() < deadline:
            if any(job.poll() for job in jobs.values()):
                break  # torchrun on the other node would wait five minutes for this one
            time.sleep(0.1)
        if all(job.poll() == 0 for job in jobs.values()):
            break
        for job in jobs.values():
            job.kill()
        nodes.wait_until_empty()
        said = "\n".join(f"{node}: {nodes.said(node).read_text()[-3000:]}" for node in jobs)
        assert ABORTED in said and not last, said
    nodes.wait_until_empty()


def alone(*words: object) -> None:
    """The same on one rank."""
    words = [sys.executable, *map(str, words)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """What two nodes made of the digits and of the text, one after the other, and one process; and what was said."""
    folder = tmp_path_factory.mktemp("trained")
    digits = [SOURCE_CODE / "main_ddp.py", *DIGITS.split(), "--amp-dtype", "float32", "--epochs", 2, "--checkpoint"]
    text = [SOURCE_CODE / "main_fsdp.py", *TEXT.split(), "--param-dtype", "float32", "--lr", 0.02, "--record"]

    def both(name: str) -> list[object]:
        return [ALTERED, "no-dropout", IN_TURN, *digits, folder / f"{name}.pt", "then", *text, folder / f"{name}.json"]

    with two_nodes(folder) as nodes:
        end_well(nodes, *both("two"))
    alone(*both("one"))
    return folder


def test_two_nodes_come_to_the_weights_of_one_process(trained):
    one, two = (
        torch.cat([own.flatten() for own in torch.load(trained / file)["model"].values()])
        for file in ("one.pt", "two.pt")
    )
    assert torch.allclose(one, two, rtol=1e-4, atol=1e-5)
    assert "2 ranks by gloo" in (trained / "node1").read_text() and "Train" not in (trained / "node2").read_text()


def test_a_transformer_shared_out_among_two_nodes_learns_as_one_process_does(trained):
    one, two = (json.loads((trained / file).read_text()) for file in ("one.json", "two.json"))
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-4) and two["losses"][-1] < two["losses"][0]
    assert (one["ranks"], two["ranks"]) == (1, 2)


@pytest.mark.parametrize("victim", ["node1", "node2"])
def test_a_torchrun_that_is_killed_ends_the_job_on_the_other_node_too(nodes, victim):
    jobs = launched(nodes, SMALL, *DIGITS.split(), "--epochs", 100_000, "--log-interval", 1)
    deadline = time.monotonic() + PATIENCE_S
    while "Train Epoch: 2 " not in nodes.said("node1").read_text():
        assert time.monotonic() < deadline and not any(job.poll() for job in jobs.values())
        time.sleep(0.1)
    jobs[victim].kill()
    start = time.monotonic()
    (other,) = (job for node, job in jobs.items() if node != victim)
    assert other.wait(PATIENCE_S) != 0
    nodes.wait_until_empty()
    assert time.monotonic() - start < SECONDS
