"""Training on several ranks is the training on one: same weights, every digit once; a rank that fails ends the job.

Ranks are processes on the CPU (gloo). Where it is their end that counts, torchrun starts them, as a reader does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import forked
from labkit import course
from labkit.paths import ROOT, SOURCE_CODE
from labkit.training import distributed, text

SCRIPTS = [script for script in course.SEVERAL_GPUS if script.startswith("main_ddp")]
ALTERED = ROOT / "tests" / "support" / "altered.py"
COMMON = ["--device", "cpu", "--limit", "128", "--batch-size", "32", "--test-batch-size", "40", "--workers", "0"]
COMMON += ["--amp-dtype", "float32", "--log-interval", "1"]
SECONDS = 10  # after which a job with a dead rank has ended; on a busy machine, as long as it took to start


def torchrun(ranks: int, *words: object) -> list[str]:
    """The command for so many ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, *map(str, words)]


def ran(ranks: int, *words: object) -> str:
    """What so many ranks said that came to their end."""
    ended = forked.ranks(ranks, words)
    assert not any(one.returncode for one in ended), ended[0].stderr[-2000:] + ended[-1].stderr[-2000:]
    return "".join(one.stdout for one in ended)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def trained(ranks: int, script: str, folder: Path, epochs: int = 2, *more: str) -> SimpleNamespace:
    """A training without dropout: what it said, its record, and the state that it kept."""
    record, kept = folder / f"{ranks}.json", folder / f"{ranks}.pt"
    words = ["no-dropout", SOURCE_CODE / script, *COMMON, "--epochs", epochs, "--record", record, "--checkpoint", kept]
    said = ran(ranks, ALTERED, *words, *more)
    return SimpleNamespace(said=said, record=json.loads(record.read_text()), state=torch.load(kept))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two epochs of a script on so many ranks, once for all tests."""
    return cache(lambda script, ranks: trained(ranks, script, tmp_path_factory.mktemp("whole")))


def weights(state: dict) -> torch.Tensor:
    return torch.cat([own.flatten() for own in state["model"].values()])


@pytest.mark.parametrize("script", SCRIPTS)
def test_two_ranks_come_to_the_weights_of_one(whole, script):
    one, two = whole(script, 1), whole(script, 2)
    assert one.state["epoch"] == two.state["epoch"] == 2
    assert torch.allclose(weights(one.state), weights(two.state), rtol=1e-4, atol=1e-5)
    losses = [[epoch["test_loss"] for epoch in run.record["epochs"]] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][1] < losses[0][0]
    counted = [re.findall(r"Accuracy: (\d+)/21 ", run.said) for run in (one, two)]
    assert counted[0] == counted[1] and len(counted[0]) == 2, "of the 21 test digits each is counted once"


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_record_holds_what_each_rank_measured(whole, script):
    record = whole(script, 2).record
    extras = record["extras"]
    assert (record["script"], record["status"], record["arguments"]["batch_size"]) == (script, "complete", 32)
    assert (extras["ranks"], extras["backend"]) == (2, "gloo")
    first, second = extras["of_each_rank"]
    assert first["training_s"] == [epoch["training_s"] for epoch in record["epochs"]] != second["training_s"]
    assert len(second["training_s"]) == len(second["test_s"]) == 2 and min(second["training_s"]) > 0


def test_only_rank_0_speaks(whole):
    said = whole("main_ddp.py", 2).said
    assert said.count("Test set:") == 2 and said.count("2 ranks by gloo\n16 samples of each batch a rank\n") == 1


def test_a_training_that_is_resumed_ends_as_an_unbroken_one(whole, tmp_path):
    trained(1, "main_ddp.py", tmp_path, 1)
    resumed = trained(1, "main_ddp.py", tmp_path, 2, "--resume")
    unbroken = whole("main_ddp.py", 1)
    assert torch.equal(weights(resumed.state), weights(unbroken.state))
    assert [epoch["epoch"] for epoch in resumed.record["epochs"]] == [2]
    assert resumed.record["test_loss"] == unbroken.record["test_loss"]


DIES = ["dying-once", SOURCE_CODE / "main_ddp.py", *COMMON, "--epochs", "3", "--resume", "--checkpoint"]


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory):
    """The weights of three unbroken epochs on two ranks."""
    return weights(trained(2, "main_ddp.py", tmp_path_factory.mktemp("unbroken"), 3).state)


def test_a_killed_rank_is_restarted_and_ends_with_the_weights_of_an_unbroken_run(three_epochs, tmp_path):
    """Of the same number of ranks: bit by bit. The first start finds no file."""
    kept = tmp_path / "kept.pt"
    launcher = torchrun(2, ALTERED, *DIES, kept)
    launcher[3:3] = ["--max-restarts", "1"]
    done = subprocess.run(launcher, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("epoch 1 was kept by 2 rank(s); going on from there") == 1
    assert torch.equal(weights(torch.load(kept)), three_epochs)


def test_fewer_ranks_go_on_where_two_stopped(three_epochs, tmp_path):
    """The sums of gradients are of other parts then, so equal but for rounding."""
    kept = tmp_path / "kept.pt"
    died = forked.ranks(2, [ALTERED, *DIES, kept], environment() | {"TORCHELASTIC_RESTART_COUNT": "0"})
    assert all(one.returncode for one in died) and torch.load(kept)["epoch"] == 1
    said = ran(1, ALTERED, "no-dropout", *DIES[1:], kept)
    held = torch.load(kept)
    assert "epoch 1 was kept by 2 rank(s)" in said and (held["epoch"], held["ranks"]) == (3, 1)
    assert torch.allclose(weights(held), three_epochs, rtol=1e-4, atol=1e-5)


def test_a_rank_that_fails_ends_the_job_with_its_own_error():
    command = torchrun(2, ALTERED, "failing", SOURCE_CODE / "main_ddp.py", *COMMON)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and "rank 1 was planted to fail" in done.stderr and "Test set" not in done.stdout


def test_a_killed_rank_ends_the_job_within_seconds_and_leaves_no_process():
    command = torchrun(2, SOURCE_CODE / "main_ddp.py", *COMMON, "--epochs", "10000")
    began = time.monotonic()
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as job:
        next(line for line in job.stdout if line.startswith("Train Epoch: 2"))
        ranks = children(job.pid)
        assert len(ranks) == 2
        os.kill(ranks[-1], signal.SIGKILL)
        start = time.monotonic()
        assert job.wait(timeout=120) != 0
        assert time.monotonic() - start < max(SECONDS, start - began)
        job.stdout.close()
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--batch-size", "33"], "2 do not divide it"),
        (["--per-gpu-batch", "0"], "numbers above 0"),
        (["--bucket-mb", "-1"], "numbers above 0"),
        (["--patience", "0"], "--patience is a number above 0"),
        (["--resume"], "--resume needs --checkpoint"),
        (["--resume", "--checkpoint", "."], "cannot resume from .: Is a directory."),
    ],
)
def test_wrong_flags_get_a_sentence(monkeypatch, capsys, flags, why):
    monkeypatch.setattr(sys, "argv", ["main_ddp.py", *COMMON, *flags])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as ended:
        args = distributed.parse_args("A script.", amp=True)
        run = distributed.DistributedRun.__new__(distributed.DistributedRun)
        run.args, run.group = args, SimpleNamespace(leads=True)
        run.kept()
    assert ended.value.code == 2 and why in capsys.readouterr().err


def test_more_ranks_than_seeds_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main_ddp.py"])
    monkeypatch.setenv("WORLD_SIZE", str(distributed.MOST_RANKS + 1))
    with pytest.raises(SystemExit):
        distributed.parse_args("A script.")
    assert "dropout would repeat" in capsys.readouterr().err


def test_each_rank_s_workers_have_seeds_of_their_own_that_come_again():
    drawn = []
    for seed, rank in ((1, 0), (1, 1), (2, 0), (1, 0)):
        run = distributed.DistributedRun.__new__(distributed.DistributedRun)
        run.args, run.rank = SimpleNamespace(seed=seed), rank
        drawn.append(int(torch.empty((), dtype=torch.int64).random_(generator=run.generator())))
    assert drawn[0] == drawn[3] and len(set(drawn)) == 3


@pytest.mark.parametrize(("samples", "batch"), [(60_000, 1024), (60_000, 512), (5_632, 512), (2_048, 512), (300, 512)])
def test_a_rehearsal_takes_as_many_steps_as_are_wanted(samples, batch):
    """Also where an epoch has fewer; and where it has more, it is gone through once."""
    passes, whole = distributed.times(11, samples, batch), min(11, samples // batch)
    assert passes * max(1, whole) >= 11 > (passes - 1) * max(1, whole)


SAMPLED = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for rate in (None, 2**31 - 1):
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    if rate:
        model._set_ddp_runtime_logging_sample_rate(rate)
    seen = set()
    for _ in range(120):
        model(torch.zeros(1, 2)).sum().backward()
        seen.add(model._get_ddp_logging_data()["iteration"])
    print(sorted(seen))
"""


def test_ddp_times_its_first_ten_steps_and_no_hundredth_where_it_is_told_so():
    """With events, which a captured step cannot hold: what ``main_ddp_graph.py`` rests on."""
    said = subprocess.run([sys.executable, "-c", SAMPLED], capture_output=True, text=True, check=True).stdout
    usual, told = map(json.loads, said.splitlines())
    assert usual == [*range(11), 100] and told == [*range(11)]


def test_a_batch_for_each_gpu_is_another_global_batch(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main_ddp.py", "--per-gpu-batch", "100"])
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert distributed.parse_args("A script.").batch_size == 300


@pytest.mark.parametrize(("samples", "ranks"), [(12, 3), (13, 3), (2, 3), (7, 1)])
def test_shares_are_equal_and_apart(samples, ranks):
    runs = []
    for rank in range(ranks):
        run = distributed.DistributedRun.__new__(distributed.DistributedRun)
        run.rank, run.ranks = rank, ranks
        runs.append(run)
    shares = [run.own(torch.arange(samples)).tolist() for run in runs]
    assert {len(share) for share in shares} == {samples // ranks}
    assert sorted(digit for share in shares for digit in share) == list(range(samples // ranks * ranks))


# The transformer whose weights are shared out

SMALL = {"width": 16, "depth": 2, "heads": 2, "length": 12, "batch-size": 8, "pool": 2, "steps": 12, "warm-up": 1}


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """The record of a small transformer's training on so many ranks, its weights or its gradients shared."""
    folder = tmp_path_factory.mktemp("transformer")

    @cache
    def trained(ranks: int, share: str, copies: int = 1) -> dict:
        file = folder / f"{ranks}-{share}-{copies}.json"
        flags = (
            SMALL
            | {"copies": copies}
            | {"lr": 0.02, "device": "cpu", "param-dtype": "float32", "share": share, "record": file}
        )
        words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
        ran(ranks, SOURCE_CODE / "main_fsdp.py", *words)
        return json.loads(file.read_text())

    return trained


def test_a_sharded_transformer_learns_what_an_unsharded_one_learns(transformer):
    alone, sharded = transformer(1, "ddp"), transformer(2, "fsdp")
    assert sharded["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert sharded["losses"][0] > text.KNOWS_NOTHING - 0.5 and sharded["losses"][-1] < sharded["losses"][0] - 0.5
    assert [row["rank"] for row in sharded["rows"]] == [0, 1] and sharded["ranks"] == 2
    assert all(len(row["step_s"]) == 12 and min(row["step_s"]) > 0 for row in sharded["rows"])


STEPS = ["--steps", 3, "--warm-up", 1, "--keep-every", 2, "--checkpoint"]


def kept_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the one checkpoint in a folder, which is of the last step."""
    (last,) = folder.glob("step-*")
    assert last.name == "step-000004"
    whole = folder.with_suffix(".pt")
    dcp_to_torch_save(last, whole)
    return torch.load(whole)["model"]


def test_a_sharded_training_goes_on_on_as_many_ranks_as_there_are(tmp_path):
    """On as many as before bit by bit; on one the sums are others, so equal but for rounding. None kept: it starts.

    But for the bias of attention's keys: it adds the same to all scores of a query and changes no output. Its gradient
    is rounding alone, which Adam divides by itself.
    """
    small = [word for flag, size in SMALL.items() if flag not in ("steps", "warm-up") for word in (f"--{flag}", size)]
    words = [SOURCE_CODE / "main_fsdp.py", *small, "--device", "cpu", "--param-dtype", "float32", "--lr", 0.02, *STEPS]
    places = {name: tmp_path / name for name in ("unbroken", "two", "one")}
    ran(2, *words, places["unbroken"], "--resume")
    died = forked.ranks(
        2, [ALTERED, "dying-once", *words, places["two"]], environment() | {"TORCHELASTIC_RESTART_COUNT": "0"}
    )
    assert all(one.returncode for one in died) and [one.name for one in places["two"].iterdir()] == ["step-000002"]
    shutil.copytree(places["two"], places["one"])
    ran(2, *words, places["two"], "--resume")
    ran(1, *words, places["one"], "--resume")
    unbroken, two, one = map(kept_weights, places.values())
    for name, whole in unbroken.items():
        assert torch.equal(two[name], whole), name
        told = torch.ones_like(whole, dtype=torch.bool)
        if name.endswith("qkv.bias"):
            told.view(3, -1)[1] = False
        assert torch.allclose(one[name][told], whole[told], rtol=1e-4, atol=1e-5), name


def test_copies_that_share_nothing_learn_what_shards_do(transformer):
    """``--copies`` as many as ranks: FSDP's types, and nothing shared out; the arm that tells types from sharding."""
    copies = transformer(2, "fsdp", copies=2)
    assert copies["losses"] == pytest.approx(transformer(2, "fsdp")["losses"], rel=1e-4)


def test_the_made_language_follows_its_table():
    symbols = text.sequences(200, 50, seed=3)
    pairs = {tuple(pair) for pair in torch.stack([symbols[:, :-1], symbols[:, 1:]], -1).flatten(0, 1).tolist()}
    followers = [sum(1 for first, _ in pairs if first == symbol) for symbol in range(text.VOCABULARY)]
    assert max(followers) <= text.SUCCESSORS and len(pairs) > 0.9 * text.VOCABULARY * text.SUCCESSORS
    assert torch.equal(symbols, text.sequences(200, 50, seed=3)) and not torch.equal(
        symbols, text.sequences(200, 50, 4)
    )


def test_a_block_of_the_transformer_sees_only_what_came_before():
    model = text.Transformer(width=16, depth=2, heads=2, length=10).eval()
    symbols = text.sequences(2, 10, seed=1)
    later = symbols.clone()
    later[:, 6:] = (later[:, 6:] + 1) % text.VOCABULARY
    with torch.no_grad():
        one, other = model(symbols), model(later)
    assert torch.allclose(one[:, :6], other[:, :6], atol=1e-5) and not torch.allclose(one[:, 6:], other[:, 6:])
