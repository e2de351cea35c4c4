"""Figures and tables say what they were given, the same each time, and differently when a number differs."""

import base64
import io
import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from labkit.display import charts, style
from labkit.display import show as showing
from labkit.display.charts import bars as bars_of
from labkit.display.fingerprint import drawn_data
from labkit.display.spread import Spread
from labkit.labs import lab02, lab03
from stepbudget.ask.iterations import step_windows
from stepbudget.errors import ReportError
from stepbudget.kernel_names import short as short_kernel
from stepbudget.report import Report
from stepbudget.show.table import table
from synthetic import AUTOGRAD, SyntheticReport

GEMM = "sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize64x64x64_stage3_tensor16x8x16_execute_kernel__5x_cublas"
FILL = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
    "std::array<char *, (unsigned long)1>>(int, T2, T3)"
)
PHASES = ["data loading", "copy to device", "zero grad", "forward", "backward", "optimizer step"]


@pytest.fixture
def report(tmp_path):
    """Three steps of 1,000 µs, and a fourth fetch of data that finds none; the GPU works 480 of each 1,000 µs."""
    made = SyntheticReport(tmp_path / "tiny.sqlite").range(0, 3100, "training")
    for step in range(3):
        at = 1000 * step
        for number, (name, start, end) in enumerate(
            zip(PHASES, [0, 400, 460, 480, 560, 700], [390, 450, 470, 550, 690, 900], strict=True)
        ):
            made.range(at + start, at + end, name, registered=number % 2 == 0)
        made.copy(at + 420, at + 440, 3_211_264, call=(at + 405, at + 445))
        made.kernel(at + 500, at + 600, FILL, call=(at + 490, at + 495))
        made.kernel(at + 600, at + 900, GEMM, call=(at + 570, at + 575), thread=AUTOGRAD)
        made.kernel(at + 900, at + 960, "triton_poi_fused", call=(at + 710, at + 715))
        made.api(at + 800, at + 960, "cudaStreamSynchronize_v3020")
        made.counter(at + 550, 0).counter(at + 650, 20)
    made.range(3000, 3090, "data loading")
    with Report(made.write()) as opened:
        yield opened


def texts(fig: Figure) -> list[str]:
    """All that stands in a figure's axes and keys."""
    legends = [*fig.legends, *(ax.get_legend() for ax in fig.axes if ax.get_legend())]
    keys = [text.get_text() for legend in legends for text in legend.get_texts()]
    return [text.get_text() for ax in fig.axes for text in ax.texts] + keys


def bars(ax) -> list[tuple[float, float, float]]:
    """Row, left end and width of each bar, to six digits."""
    found = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return [(round(p.get_y() + p.get_height() / 2), round(p.get_x(), 6), round(p.get_width(), 6)) for p in found]


# --- tables -------------------------------------------------------------------------------------------------

NUMBERS = pd.DataFrame(
    {
        "step": ["main_baseline", "main_opt1"],
        "runs": [3, 1200],
        "seconds": [61.234, 4.5],
        "speedup": [np.nan, 13.6075],
        "faster": [False, True],
    }
)


def test_a_table_writes_and_aligns_its_cells():
    shown = table(NUMBERS, "All runs", {"speedup": "{:.1f}×"})
    assert shown.cells() == [
        ["main_baseline", "3", "61.2", "–", "no"],
        ["main_opt1", "1,200", "4.5", "13.6×", "yes"],
    ]
    assert str(shown).splitlines() == [
        "All runs",
        "step            runs  seconds  speedup  faster",
        "─────────────  ─────  ───────  ───────  ──────",
        "main_baseline      3     61.2        –  no",
        "main_opt1      1,200      4.5    13.6×  yes",
    ]


def test_a_table_is_html_too_and_always_the_same():
    formats = {"step": lambda name: name[:6] + "…"}
    made = [table(NUMBERS.copy(), "a < b", formats)._repr_mimebundle_() for _ in range(2)]
    assert made[0] == made[1]
    html = made[0]["text/html"]
    assert "a &lt; b</caption>" in html
    assert html.startswith("<table ") and html.count("<tr>") == 3 and html.count("<td ") == 10
    assert 'title="main_baseline">main_b…</td>' in html
    assert html.count("text-align: right") == 9  # three columns of numbers, three rows with the head
    assert "#" not in html  # no fixed colours: it takes the page's


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1234567, 2], ["1,234,567", "2"]),
        ([0.1234, 0.5], ["0.123", "0.500"]),
        ([250.26, None], ["250", "–"]),
        ([None, None], ["–", "–"]),
        ([np.int64(3), np.float64(2.5)], ["3.00", "2.50"]),
        (["1.0 s (0.9–1.1)", None], ["1.0 s (0.9–1.1)", "–"]),
    ],
)
def test_cells_without_a_format(values, shown):
    cells = table(pd.DataFrame({"x": pd.Series(values, dtype=object)})).cells()
    assert [cell for (cell,) in cells] == shown


def test_a_table_refuses_columns_that_it_does_not_have():
    with pytest.raises(ReportError, match=r"no column secnods\. There are: seconds\."):
        table(NUMBERS, formats={"secnods": "{:.1f}"})


def test_an_empty_table_shows_its_head():
    assert str(table(NUMBERS.iloc[:0])).splitlines()[0].split() == list(NUMBERS.columns)


# Names as they stand in reports of the course's scripts on an H200.
KERNEL_NAMES = [
    (FILL, "vectorized_elementwise_kernel<FillFunctor>"),
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::launch_clamp_scalar("
        "at::TensorIteratorBase &, c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::[lambda() (instance 1)]"
        "::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], "
        "std::array<char *, (unsigned long)2>>(int, T2, T3)",
        "vectorized_elementwise_kernel<launch_clamp_scalar>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<float, float, float, void "
        "at::native::<unnamed>::threshold_kernel_impl<float>(at::TensorIteratorBase &, T1, T1)::[lambda(float, float) "
        "(instance 1)]>, std::array<char *, (unsigned long)3>>(int, T2, T3)",
        "vectorized_elementwise_kernel<threshold_kernel_impl>",
    ),
    (
        "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::"
        "CUDAFunctor_add<float>>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
        "elementwise_kernel<CUDAFunctor_add>",
    ),
    (
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::func_wrapper_t<float,"
        " at::native::sum_functor<float, float, float>::operator ()(at::TensorIterator &)::[lambda(float, float) "
        "(instance 1)]>, unsigned int, float, (int)4, (int)4>>(T3)",
        "reduce_kernel<sum_functor>",
    ),
    (
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)1>, "
        "at::native::<unnamed>::UnaryOpFunctor<float, (int)1, (int)1, (int)0>, at::native::Sqrt<float>>(T1, T2, T3...)",
        "multi_tensor_apply_kernel<UnaryOpFunctor, Sqrt>",
    ),
    (
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)3>, "
        "at::native::<unnamed>::PointwiseOpScalarFunctor<float, (int)3, (int)3, (int)0>, std::multiplies<float>, "
        "float>(T1, T2, T3...)",
        "multi_tensor_apply_…<PointwiseOpScalarFunctor, multiplies>",
    ),
    (
        "void at::native::<unnamed>::max_pool_backward_nchw<float, float, int>(const T1 *, const long *, T3, T3, T3, "
        "T3, T3, T3, int, int, int, int, int, int, int, int, T1 *)",
        "max_pool_backward_nchw<…>",
    ),
    (
        "void wgrad_alg0_engine<float, (int)128, (int)5, (int)5, (int)3, (int)3, (int)3, (bool)0, (int)512>(int, int, "
        "int, const T1 *, int, T1 *, const T1 *, kernel_grad_params, unsigned long long, int, float, int, int, int, "
        "int)",
        "wgrad_alg0_engine<…>",
    ),
    (
        "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_stage3_warpsize2x2x1_g1_ffma_"
        "aligna4_alignc4_execute_kernel__5x_cudnn",
        "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_…_ffma_…",
    ),
    (
        "sm80_xmma_wgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage4_warpsize2x2x1_"
        "g1_tensor16x8x16_execute_kernel__5x_cudnn",
        "sm80_xmma_wgrad_…_f16f16_f16f32_f32_…_tensor16x8x16_…",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(T1::Params)",
        "cutlass_80_simt_sgemm_128x64_8x5_tn_align1",
    ),
    (
        "void cutlass__5x_cudnn::Kernel<cutlass__5x_cudnn::reduction::kernel::ReduceSplitK<cutlass__5x_cudnn::"
        "MatrixShape<(int)4, (int)256>>>(T1::Params)",
        "cutlass::Kernel<ReduceSplitK>",
    ),
    (
        "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, float>(cublasLt::cublasSplitKParams<T6>)",
        "cublasLt::splitKreduce_kernel<…>",
    ),
    (
        "void <unnamed>::softmax_warp_forward<float, float, float, (int)4, (bool)1, (bool)0>(T2 *, const T1 *, int)",
        "softmax_warp_forward<…>",
    ),
    (
        "at::native::amp_update_scale_cuda_kernel(float *, int *, const float *, double, double, int)",
        "amp_update_scale_cuda_kernel",
    ),
    ("nvjet_sm90_hsh_320x128_64x3_1x2_h_bz_coopB_NNT", "nvjet_sm90_hsh_320x128_64x3_1x2_h_bz_coopB_NNT"),
]


@pytest.mark.parametrize(("name", "short"), KERNEL_NAMES)
def test_kernel_names_stay_telling_when_short(name, short):
    assert short_kernel(name) == short


@pytest.mark.parametrize("width", [20, 40, 60])
def test_kernel_names_keep_to_their_width(width):
    for name in [*(name for name, _ in KERNEL_NAMES), "", "void f<", "x" * 100, "attention::kernel<int>(int)"]:
        short = short_kernel(name, width)
        assert len(short) <= width and "\n" not in short
    assert short_kernel("attention::kernel<int>(int)") == "attention::kernel<…>"
    conditional = "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, Params<int, T> >(T)"
    assert short_kernel(conditional) == "internal::gemvx::kernel<…>"


# --- showing ------------------------------------------------------------------------------------------------


def line_figure(value: float = 1.0) -> Figure:
    fig = Figure()
    ax = fig.subplots()
    ax.plot([0, 1], [value, 2])
    ax.set_title("A line")
    return fig


def test_a_shown_figure_carries_its_fingerprint(monkeypatch):
    displayed = []
    monkeypatch.setattr(showing, "display", lambda bundle, raw, metadata: displayed.append(bundle))
    fig = line_figure()
    showing.show(fig)
    showing.show(line_figure(1.5), "Another\nline")
    words = [bundle["text/plain"] for bundle in displayed]
    assert words[0] == f"A line [drawn data: {drawn_data(fig)}]"
    assert words[1].startswith("Another line [drawn data: ") and words[1][-13:] != words[0][-13:]
    assert base64.b64decode(displayed[0]["image/png"]).startswith(b"\x89PNG")
    json.dumps(displayed)  # a notebook can keep it
    assert not plt.get_fignums()


def test_a_shown_figure_is_sharp_as_wide_as_its_drawing_and_told_in_words(monkeypatch):
    displayed = []
    monkeypatch.setattr(showing, "display", lambda bundle, raw, metadata: displayed.append((bundle, metadata)))
    with style.house_style():
        fig = style.figure(2.0)
    ax = fig.subplots()
    ax.plot([0, 1], color=style.BLUE, label="FP32")
    ax.set(title="Two\nlines", xlabel="epochs", ylabel="ms")
    ax.legend()
    showing.show(fig, "What they show")
    [(bundle, metadata)] = displayed
    picture = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    about = metadata["image/png"]
    assert about == {"width": 864, "alt": "What they show, Two lines; axes: epochs, ms; key: FP32"}
    assert picture.size == (2 * about["width"], 2 * 192)
    drawn = io.BytesIO()
    fig.savefig(drawn, format="svg")
    assert b'width="648pt"' in drawn.getvalue()  # 864 pixels of a page
    seen = {to_hex([part / 255 for part in colour]) for _, colour in picture.convert("RGB").getcolors()}
    assert {style.PAPER.lower(), style.BLUE.lower()} <= seen, "a palette keeps the colours"


# --- steps --------------------------------------------------------------------------------------------------


def test_steps_go_from_one_loading_of_data_to_the_next(report):
    origin = report.window().start
    steps = step_windows(report)
    assert [step.name for step in steps] == ["step 1", "step 2", "step 3"]
    assert [(step.start - origin) / 1e3 for step in steps] == [0, 1000, 2000]
    assert (steps[-1].end - origin) / 1e3 == 3000  # the last fetch found no data and is no step


def test_the_last_step_counts_when_it_is_whole(tmp_path):
    made = SyntheticReport(tmp_path / "loop.sqlite").range(0, 200, "training")
    for start in (0, 100):
        made.range(start, start + 10, "zero grad").range(start + 10, start + 90, "forward")
    with Report(made.write()) as report:
        assert [step.duration_ms for step in step_windows(report)] == [0.1, 0.1]


def test_without_ranges_there_are_no_steps(tmp_path):
    made = SyntheticReport(tmp_path / "bare.sqlite").kernel(0, 10, "k")
    with Report(made.write()) as report:
        assert step_windows(report) == []


# --- charts -------------------------------------------------------------------------------------------------


def runs(*seconds: float) -> list[dict]:
    return [{"process_s": s, "startup_s": 2.0, "training_s": 0.5 * s, "test_s": 0.1 * s} for s in seconds]


STEPS = {"baseline": runs(60, 62, 61), "opt1": runs(15.25, 14.9, 16)}


def test_ladder():
    fig = charts.ladder(STEPS)
    ax = fig.axes[0]
    assert bars(ax) == [(0, 0, 61), (1, 0, 15.25)]
    whisker, dots = ax.lines[2:]
    assert whisker.get_xdata().tolist() == [14.9, 16]
    assert list(dots.get_xdata()) == [15.25, 14.9, 16]
    assert texts(fig) == ["61.0 s", "15.2 s   4.0×"]
    assert ax.get_title(loc="left") == "Whole process: median and range of 3 runs"


def test_ladder_parts_add_up_to_the_median_run():
    fig = charts.ladder_parts(STEPS)
    first = [(left, width) for row, left, width in bars(fig.axes[0]) if row == 0]
    assert first == [(0, 2), (2, 30.5), (32.5, 6.1), (38.6, 22.4)]
    assert "61.0 s" in texts(fig) and "30.5" in texts(fig)


TRANSFER_ROWS = [
    {"size_mb": size, "memory": memory, "non_blocking": free, "returned_us": size * a, "done_us": size * b}
    for size in (1.0, 3.2)
    for memory, free, a, b in [
        ("pageable", False, 90, 100),
        ("pageable", True, 80, 90),
        ("pinned", False, 30, 35),
        ("pinned", True, 2, 30),
    ]
]


def test_transfer_grid():
    fig = lab03.transfer_grid(TRANSFER_ROWS)
    left, right = fig.axes
    widths = [width for _, _, width in bars(left)]
    assert widths[:2] == pytest.approx([320, 288]) and widths[-2:] == pytest.approx([96, 6.4])
    assert "6 / 96 µs" in texts(fig)
    rates = {line.get_label(): list(line.get_ydata()) for line in right.lines}
    assert rates["pageable"] == pytest.approx([10, 10])
    assert rates["pinned, non_blocking"][0] == pytest.approx(33.333, rel=1e-3)


def test_worker_sweep():
    points = [(4, Spread(1.2, 1.1, 1.3, 3)), (0, Spread(4.4, 4.3, 4.5, 3)), (1, Spread(4.0, 3.9, 4.1, 3))]
    ax = lab02.worker_sweep(points).axes[0]
    ideal, line, dots = ax.lines
    assert list(ideal.get_ydata()) == [4.0, 1.0]
    assert list(line.get_xdata()) == [1, 4] and list(line.get_ydata()) == [4.0, 1.2]
    assert list(dots.get_ydata()) == [4.4, 4.0, 1.2]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


UNDERFLOW_ROWS = [
    {
        "epoch": epoch,
        "scale": scale,
        "layer": layer,
        "zero_share": 0.1 * epoch / scale,
        "not_finite_share": over,
    }
    for layer in ("conv1", "fc1")
    for scale, over in ((1.0, 0.0), (65536.0, 0.5))
    for epoch in (0, 1, 2)
]


def test_underflow():
    fig = charts.underflow(UNDERFLOW_ROWS)
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["conv1", "fc1"]
    plain, scaled, overflowed = fig.axes[0].lines
    assert list(plain.get_ydata()) == pytest.approx([0, 10, 20])
    assert overflowed.get_marker() == "x" and list(overflowed.get_xdata()) == list(scaled.get_xdata())
    assert texts(fig) == ["no loss scaling", "loss × 65,536"]


def changed(rows: list[dict], field: str) -> list[dict]:
    """The same rows, one number a hundredth larger."""
    return [{**rows[-1], field: rows[-1][field] * 1.01}, *rows[:-1]]


@pytest.mark.parametrize(
    ("draw", "data", "other"),
    [
        (charts.ladder, STEPS, {**STEPS, "opt1": changed(STEPS["opt1"], "process_s")}),
        (charts.ladder_parts, {"a": runs(60)}, {"a": changed(runs(60), "training_s")}),
        (lab03.transfer_grid, TRANSFER_ROWS, changed(TRANSFER_ROWS, "done_us")),
        (lab02.worker_sweep, [(1, Spread(4, 3, 5, 3))], [(1, Spread(4, 3, 5.01, 3))]),
        (charts.underflow, UNDERFLOW_ROWS, changed(UNDERFLOW_ROWS, "zero_share")),
    ],
)
def test_a_changed_number_changes_the_fingerprint(draw, data, other):
    said = drawn_data(draw(data))
    assert said == drawn_data(draw(data))
    assert said != drawn_data(draw(other))


def test_drawing_leaves_matplotlibs_settings_alone():
    before = dict(plt.rcParams)
    charts.ladder(STEPS)
    assert dict(plt.rcParams) == before
    assert not plt.get_fignums()


def test_numbers_on_bars_have_three_digits():
    assert [bars_of.seconds(value) for value in (0.0312, 4.338, 13.44, 134.2)] == ["0.031", "4.34", "13.4", "134"]
