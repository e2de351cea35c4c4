"""A program that brackets itself for Nsight Systems is traced by PyTorch's profiler, by the lab's own command."""

from __future__ import annotations

from dataclasses import replace

from labkit.source import Live, kinds
from stand_in import A_GPU, StandIn
from stepbudget.ask.iterations import steps
from stepbudget.ask.phases import phases

PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import helper
import labkit.training

def main():
    loader = DataLoader(TensorDataset(torch.randn(64, helper.SIZE)), 8, num_workers=2)
    net = torch.nn.Linear(helper.SIZE, 4)
    torch.cuda.profiler.start()
    torch.cuda.nvtx.range_push("training")
    for (batch,) in loader:
        with torch.cuda.nvtx.range("forward"):
            loss = net(batch).sum()
        with torch.cuda.nvtx.range("backward"):
            loss.backward()
    torch.cuda.nvtx.range_pop()
    torch.cuda.profiler.stop()
    print("flags", sys.argv[1:])

if __name__ == "__main__":
    main()
"""


def test_a_program_is_traced_as_it_is_run_with_its_flags_its_modules_and_its_workers(tmp_path):
    script, said = tmp_path / "program.py", []
    script.write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("SIZE = 8\n")
    command = f"nsys profile --trace cuda --output reports/own python3 {script} --profile"
    live = Live(StandIn(replace(A_GPU, nsys=None)), tmp_path / "reports")
    with live.get(kinds.profile(command), said.append) as report:
        assert report.profiler == "torch.profiler" and report.window().name == "training"
        found = phases(report).set_index("phase")["count"]
        assert (found["forward"], found["backward"], len(steps(report))) == (8, 8, 8)
    assert "| flags ['--profile']" in said
    again: list[str] = []
    live.get(kinds.profile(command), again.append).close()
    assert not any("flags" in line for line in again), "the same program, unchanged: its trace is used again"
    script.write_text(PROGRAM.replace("8, num", "16, num"))
    with live.get(kinds.profile(command), again.append) as report:
        assert len(steps(report)) == 4, "another program is traced anew"
