"""The pictures of the queue and of the steps: drawn where it happened, and the same each time."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from labkit.display import style
from labkit.display.charts import flow
from labkit.display.fingerprint import drawn_data
from labkit.display.show import described
from stepbudget.ask.iterations import step_windows
from stepbudget.report import Report
from synthetic import SyntheticReport


@pytest.fixture
def report(tmp_path):
    """Twenty-four steps of 1 ms; each fourth waits 600 µs for data, the others 50 µs; two kernels a step."""
    made = SyntheticReport(tmp_path / "tiny.sqlite").range(0, 24_000, "training")
    for step in range(24):
        at = 1000 * step
        wait = 600 if step % 4 == 3 else 50 + step
        made.range(at, at + wait, "data loading").range(at + wait, at + 990, "forward")
        made.kernel(at + 700, at + 800, "k", call=(at + 650, at + 660))
        made.kernel(at + 800, at + 900, "k", call=(at + 670, at + 680))
    with Report(made.write()) as opened:
        yield opened


def texts(fig) -> list[str]:
    keys = [text.get_text() for legend in fig.legends for text in legend.get_texts()]
    return [text.get_text() for ax in fig.axes for text in ax.texts] + keys


def test_the_queue_is_drawn_where_it_was(report):
    fig = flow.queue_depth(report, step_windows(report)[2])
    phases, kernels, depth = fig.axes
    assert phases.get_title(loc="left") == "tiny: work queued for the GPU, step 3"
    assert depth.get_xlim() == (0, 1)
    assert [label.get_text() for label in depth.get_yticklabels()] == ["0", "2"]
    filled, dry = depth.collections
    corners = {(round(x, 3), int(y)) for x, y in filled.get_paths()[0].vertices}
    assert {(0.65, 1), (0.67, 2), (0.8, 1), (0.9, 0)} <= corners
    boxes = [path.get_extents() for path in dry.get_paths()]
    assert [(round(box.x0, 3), round(box.x1, 3)) for box in boxes] == [(0, 0.65), (0.9, 1)]
    assert to_hex(dry.get_facecolor()[0]) == to_hex(style.VERMILION)
    said = "on average 0.4 queued; nothing queued 75 % of the time; a kernel 100.0 µs, a launch 20.0 µs (medians)"
    assert said in texts(fig)
    assert len(kernels.collections) == 1


def test_the_queue_of_a_usual_step_by_default(report):
    title = flow.queue_depth(report).axes[0].get_title(loc="left")
    assert "step" in title


def test_a_long_window_keeps_its_highest_queue(tmp_path):
    made = SyntheticReport(tmp_path / "dense.sqlite").range(0, 100_000, "training")
    for number in range(5000):
        at = 20 * number
        made.kernel(at + 5, at + 8, "k", call=(at, at + 1))
    for number in range(7):  # for 2 of 100,000 µs there are seven more
        made.kernel(50_011 + number / 7, 50_012 + number / 7, "k", call=(50_010 + number / 10, 50_011), stream=9)
    with Report(made.write()) as report:
        depth = flow.queue_depth(report, report.window()).axes[-1]
    filled = depth.collections[0].get_paths()[0].vertices
    assert len(filled) < 6 * flow.PIXELS
    assert filled[:, 1].max() == int(depth.get_yticklabels()[-1].get_text()) >= 6


def test_a_bar_a_step_and_its_rhythm(report):
    fig = flow.step_chart({"one": report, "again": report})
    assert len(fig.axes) == 2
    bars = [patch for patch in fig.axes[0].patches if isinstance(patch, Rectangle)]
    assert len(bars) == 23  # the first step is left out
    assert bars[2].get_height() == pytest.approx(0.6)
    busy = fig.axes[1].lines[0]
    assert np.allclose(busy.get_ydata(), 0.2) and [*busy.get_xdata()] == [*range(2, 25)]
    assert any(words.endswith("median step 1.0 ms; long waits every 4 steps") for words in texts(fig))
    assert {"waits for the loader", "GPU busy", "one", "again"} <= {*texts(fig)}


def test_a_report_without_steps_says_so(report, tmp_path):
    with Report(SyntheticReport(tmp_path / "bare.sqlite").kernel(0, 10, "k").write()) as bare:
        assert "no NVTX range says where a step begins" in texts(flow.step_chart({"tiny": report, "bare": bare}))
        assert "no NVTX range says where a step begins" in texts(flow.step_chart({"bare": bare}))
        said = texts(flow.queue_depth(bare))
    assert any(words.startswith("not looked at: ") for words in said)


def test_steps_without_a_loader_s_range(tmp_path):
    made = SyntheticReport(tmp_path / "loop.sqlite").range(0, 300, "training").gpu("a GPU").api(0, 1, "cudaFree")
    for at in (0, 100, 200):
        made.range(at, at + 50, "forward").range(at + 50, at + 90, "backward")
    with Report(made.write()) as report:
        fig = flow.step_chart({"loop": report})
        assert any("no range says when it waits for the loader" in words for words in texts(fig))
        fig.savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize("draw", [flow.queue_depth, lambda report: flow.step_chart({"tiny": report})])
def test_a_figure_is_the_same_each_time(report, draw):
    first = draw(report)
    said = drawn_data(first)
    first.savefig(io.BytesIO(), format="png")
    assert drawn_data(first) == said == drawn_data(draw(report))
    assert said in described(first)


def test_another_window_is_another_figure(report):
    steps = step_windows(report)
    assert drawn_data(flow.queue_depth(report, steps[2])) != drawn_data(flow.queue_depth(report, steps[4]))
