"""The picture of the steps: drawn where it happened, and the same each time."""

import io

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from labkit.display.charts import flow
from labkit.display.fingerprint import drawn_data
from labkit.display.show import described
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


def test_steps_without_a_loader_s_range(tmp_path):
    made = SyntheticReport(tmp_path / "loop.sqlite").range(0, 300, "training").gpu("a GPU").api(0, 1, "cudaFree")
    for at in (0, 100, 200):
        made.range(at, at + 50, "forward").range(at + 50, at + 90, "backward")
    with Report(made.write()) as report:
        fig = flow.step_chart({"loop": report})
        assert any("no range says when it waits for the loader" in words for words in texts(fig))
        fig.savefig(io.BytesIO(), format="png")


def test_a_figure_is_the_same_each_time(report):
    first = flow.step_chart({"tiny": report})
    said = drawn_data(first)
    first.savefig(io.BytesIO(), format="png")
    assert drawn_data(first) == said == drawn_data(flow.step_chart({"tiny": report}))
    assert said in described(first)
