"""Achieved FLOP/s: the arithmetic of every kind of op against a count by hand, and unknown where nothing tells it."""

from __future__ import annotations

import json
import math

import pytest

from labkit.source import recorded
from stepbudget import __main__ as command
from stepbudget.ask import flops
from stepbudget.report import open_report
from synthetic import AUTOGRAD, SyntheticReport

GEMM = "ampere_s16816gemm_128x64"
FORWARD, BACKWARD = "aten::conv2d", "aten::convolution_backward"


@pytest.fixture
def made(tmp_path) -> SyntheticReport:
    return SyntheticReport(tmp_path / "made.sqlite").range(0, 1000, "training")


def operator(made: SyntheticReport, at: float, name: str, sizes: str, op: int = 0, inputs: str = "", **where) -> None:
    """An operator that launches one kernel of 10 µs; ``inputs``: which op made each of its inputs."""
    made_by = f", input_op_ids = [{inputs}]" if inputs else ""
    made.range(at, at + 9, f"{name}, seq = 1, op_id = {op}, sizes = {sizes}{made_by}", **where)
    made.kernel(at + 20, at + 30, GEMM, call=(at + 1, at + 2), **where)


def used(made: SyntheticReport, at: float, sizes: str, by: str) -> None:
    """An operator that uses an output and launches nothing."""
    made.range(at, at + 1, f"aten::relu, op_id = 99, sizes = {sizes}, input_op_ids = [{by}]")


def row(made: SyntheticReport):
    (found,) = flops.flops(open_report(made.write())).itertuples()
    return found


@pytest.mark.parametrize(
    ("name", "sizes", "count"),
    [
        ("aten::mm", "[[3, 5], [5, 7]]", 2 * 3 * 5 * 7),
        ("aten::addmm", "[[7], [3, 5], [5, 7], [], []]", 2 * 3 * 5 * 7),
        ("aten::addmm_", "[[3, 7], [3, 5], [5, 7], [], []]", 2 * 3 * 5 * 7),
        ("aten::_addmm_activation", "[[7], [3, 5], [5, 7], [], [], []]", 2 * 3 * 5 * 7),
        ("aten::bmm", "[[4, 3, 5], [4, 5, 7]]", 4 * 2 * 3 * 5 * 7),
        ("aten::baddbmm", "[[4, 3, 7], [4, 3, 5], [4, 5, 7], [], []]", 4 * 2 * 3 * 5 * 7),
        ("aten::linear", "[[2, 3, 5], [7, 5], [7]]", 2 * 2 * 3 * 5 * 7),
        ("aten::matmul", "[[6, 1, 3, 5], [4, 5, 7]]", 6 * 4 * 2 * 3 * 5 * 7),
        ("aten::matmul", "[[5], [5, 7]]", 2 * 5 * 7),
        ("aten::matmul", "[[3, 5], [5]]", 2 * 3 * 5),
        ("aten::conv_transpose2d", "[[2, 6, 5, 5], [6, 4, 3, 3], [4]]", 2 * 2 * 6 * 25 * 4 * 9),
    ],
)
def test_the_arithmetic_of_a_product(made, name, sizes, count):
    operator(made, 10, name, sizes)
    found = row(made)
    assert found.unknown is None and found.gflop == pytest.approx(count / 1e9, rel=1e-12)
    assert found.tflops == pytest.approx(count / 10e-6 / 1e12, rel=1e-12)  # in 10 µs


@pytest.mark.parametrize(
    ("name", "sizes", "output", "count"),
    [
        (FORWARD, "[[2, 6, 9, 9], [8, 6, 3, 3], [8], [], []]", "[2, 8, 7, 7]", 2 * (2 * 8 * 49) * 6 * 9),
        (FORWARD, "[[2, 6, 9, 9], [8, 6, 3, 3], [8], [], []]", "[2, 8, 4, 4]", 2 * (2 * 8 * 16) * 6 * 9),  # stride 2
        (FORWARD, "[[2, 6, 9, 9], [6, 1, 3, 3], []]", "[2, 6, 7, 7]", 2 * (2 * 6 * 49) * 1 * 9),  # depthwise
        (FORWARD, "[[6, 9, 9], [8, 6, 3, 3], []]", "[8, 7, 7]", 2 * (8 * 49) * 6 * 9),  # no batch
        ("aten::conv1d", "[[2, 6, 9], [8, 6, 3], []]", "[2, 8, 7]", 2 * (2 * 8 * 7) * 6 * 3),
        ("aten::convolution", "[[2, 6, 9, 9], [8, 6, 3, 3], []]", "[2, 8, 7, 7]", 2 * (2 * 8 * 49) * 6 * 9),
    ],
)
def test_the_arithmetic_of_a_convolution_from_the_operator_that_uses_it(made, name, sizes, output, count):
    operator(made, 10, name, sizes, op=7)
    used(made, 40, "[[8], [2, 5, 7, 7]]", "(7,0), (7,0)")  # other tensors, in memory that was used again
    used(made, 50, f"[{output}]", "(7,0)")
    found = row(made)
    assert found.unknown is None and found.gflop == pytest.approx(count / 1e9, rel=1e-12)


@pytest.mark.parametrize(("gradients", "products"), [("(7,0), (7,1)", 2), ("(0,-1), (7,1)", 1), ("(7,0), (0,-1)", 1)])
def test_a_backward_pass_has_as_many_products_as_gradients_that_are_used(made, gradients, products):
    operator(made, 10, BACKWARD, "[[2, 8, 7, 7], [2, 6, 9, 9], [8, 6, 3, 3], [], []]", op=7, thread=AUTOGRAD)
    used(made, 50, "[[2, 6, 9, 9], [8, 6, 3, 3]]", gradients)
    assert row(made).gflop == pytest.approx(products * 2 * (2 * 8 * 49) * 6 * 9 / 1e9, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "sizes", "reason"),
    [
        (FORWARD, "[[2, 6, 9, 9], [8, 6, 3, 3], [8]]", flops.NO_OUTPUT),
        (BACKWARD, "[[2, 8, 7, 7], [2, 6, 9, 9], [8, 6, 3, 3]]", flops.NO_GRADIENT),
        ("aten::cudnn_convolution_backward", "[[2, 8, 7, 7], [2, 6, 9, 9], [8, 6, 3, 3]]", flops.NO_FORMULA),
        ("aten::scaled_dot_product_attention", "[[2, 8, 64, 32], [2, 8, 64, 32], [2, 8, 64, 32]]", flops.NO_FORMULA),
        ("aten::mm", "[[3, 5], [6, 7]]", flops.NO_FORMULA),
        ("aten::mm", "[[3, 5]]", flops.NO_FORMULA),
        ("aten::mm", "[[3, -5], [-5, 7]]", flops.NO_FORMULA),
        ("aten::mm", "[[3, 0.5], [0.5, 7]]", flops.NO_FORMULA),
        ("aten::mm", "[3, 5]", flops.NO_FORMULA),
        ("aten::mm", f"[[{10**300}, 5], [5, 7]]", flops.NO_FORMULA),
        ("aten::mm", "[[3, 5], [5, 7", flops.NO_SIZES),
        (FORWARD, "[[2, 6, 9, 9], [8, 0, 3, 3], [8]]", flops.NO_FORMULA),
        (FORWARD, "[[2, 6, 9, 9], [8, 4, 3, 3], [8]]", flops.NO_FORMULA),
    ],
)
def test_what_cannot_be_derived_is_unknown_and_says_why(made, name, sizes, reason):
    operator(made, 10, name, sizes, op=7)
    found = row(made)
    assert found.unknown == reason and math.isnan(found.gflop) and math.isnan(found.tflops)


def test_ops_of_one_shape_and_different_arithmetic_are_two_kinds(made):
    sizes = "[[2, 6, 9, 9], [8, 6, 3, 3], [8], [], []]"
    for number, output in enumerate(("[2, 8, 7, 7]", "[2, 8, 4, 4]", "[2, 8, 7, 7]")):
        operator(made, 100 * number + 10, FORWARD, sizes, op=number + 1)
        used(made, 100 * number + 50, f"[{output}]", f"({number + 1},0)")
    found = flops.flops(open_report(made.write()))
    assert sorted(found["ops"]) == [1, 2] and found["gpu_ms"].sum() == pytest.approx(0.03)


def test_another_process_with_the_same_number_of_an_op_is_not_asked(made):
    operator(made, 10, FORWARD, "[[2, 6, 9, 9], [8, 6, 3, 3], [8]]", op=7)
    made.range(50, 51, "aten::relu, op_id = 9, sizes = [[2, 8, 7, 7]], input_op_ids = [(7,0)]", process=99)
    assert row(made).unknown == flops.NO_OUTPUT


def test_without_sizes_it_is_not_looked_at_and_the_option_is_named(made, capsys):
    made.kernel(20, 30, GEMM, call=(10, 11))
    assert command.main([str(made.write()), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["flops"] == [] and any("emit_nvtx(record_shapes=True)" in text for text in found["not_looked_at"])


def test_the_answer_shows_it_beside_the_tensor_cores(made, capsys):
    operator(made, 10, "aten::linear", "[[1024, 9216], [128, 9216], [128], [], []]")
    assert command.main([str(made.write())]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "aten::linear [[" in line]
    assert line.split("  ")[0] == "aten::linear [[1024, 9216], [128, 9216], [128]]"
    assert line.split()[-5:] == ["1", "2.42", "0.01", "241.6", "using"]


def test_a_recorded_epoch_does_the_arithmetic_of_the_network():
    """59 steps of the course's network: 71.57 MFLOP a sample, forward and backward, as counted from its layers."""
    report = open_report(recorded.folder() / "profiles" / "main_opt2_ops.sqlite.xz")
    found = flops.flops(report)
    assert found["unknown"].isna().all()
    layers = 2 * 26**2 * 32 * 9, 2 * 24**2 * 64 * 32 * 9, 2 * 9216 * 128, 2 * 128 * 10
    a_sample = 3 * sum(layers) - layers[0]  # nobody asks for the gradient of the images
    assert (found["gflop"] * found["ops"]).sum() == pytest.approx(60_000 * a_sample / 1e9, rel=1e-9)
    assert found["tflops"].max() < 67  # what the H200 can do in FP32
