"""A process as a line, where two lines cross, and the run with cold caches."""

import json
from math import inf
from pathlib import Path

import pytest

from labkit.display.fingerprint import drawn_data
from labkit.labs.lab08 import Cost, cost, ends_table, epochs_until_even, lines_chart, lines_table
from labkit.source import Live, Recorded, kinds, recorded, running
from stand_in import StandIn


def record(process_s: float, first_s: float, later_s: list[float]) -> dict:
    epochs = [{"training_s": s - 0.01, "test_s": 0.01} for s in (first_s, *later_s)]
    return {"process_s": process_s, "epochs": epochs}


def test_the_line_through_runs():
    runs = [record(10.0, 3.0, [0.5, 0.5, 0.9]), record(11.0, 3.0, [0.6, 0.6, 0.6]), record(20.0, 3.0, [0.7] * 3)]
    own = cost(runs)
    assert own.epoch_s == pytest.approx(0.6)
    assert own.fixed_s == pytest.approx(11.0 - 4 * 0.6)
    assert own.seconds(4) == pytest.approx(11.0)


@pytest.mark.parametrize(
    ("slow", "fast", "epochs"),
    [
        (Cost(2, 1.0), Cost(7, 0.5), 10),
        (Cost(2, 1.0), Cost(1, 0.5), 0),
        (Cost(2, 1.0), Cost(7, 1.0), inf),
        (Cost(2, 1.0), Cost(7, 2.0), inf),
        (Cost(2, 1.0), Cost(1, 2.0), inf),
    ],
)
def test_break_even(slow, fast, epochs):
    assert epochs_until_even(slow, fast) == epochs
    if 0 < epochs < inf:
        assert slow.seconds(epochs) == fast.seconds(epochs)


def test_lines_cross_where_they_should():
    costs = {"eager": Cost(2, 1.0), "compiled": Cost(7, 0.5), "slower": Cost(8, 2.0)}
    fig = lines_chart(costs)
    ax = fig.axes[0]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [(*dot.get_xdata(), *dot.get_ydata()) for dot in dots] == [(10, 12)]
    assert "10 epochs" in [text.get_text() for text in ax.texts]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(costs)
    far = lines_chart({"eager": Cost(2, 1.0), "compiled": Cost(7, 0.1), "never": Cost(8, 2.0)}).axes[0]
    assert far.get_xlim() == (0, 250), "past the last crossing, and past the 200 that an exercise asks about"
    assert drawn_data(fig) != drawn_data(lines_chart(costs | {"slower": Cost(8, 2.1)}))


def test_too_many_lines_are_refused():
    with pytest.raises(ValueError, match="7 steps"):
        lines_chart({str(n): Cost(1, n) for n in range(7)})


def test_the_recorded_cold_run():
    source, said = Recorded(recorded.folder()), []
    found = source.get(kinds.cold_run("main_opt6.py"), said.append)
    assert found["command"] == "main_opt6.py" and found["extras"]["warm_up_s"] > 0
    assert "TORCHINDUCTOR_CACHE_DIR=" in said[0] and "main_opt6-cold.json" in said[1]
    assert source.get(kinds.cold_run("main_opt4.py"), said.append) is None, (
        "nobody recorded one, and a notebook goes on"
    )
    assert said[-1].startswith("no run of 'main_opt4.py' with cold caches was recorded")


def test_a_cold_run_has_empty_caches_of_its_own(monkeypatch, tmp_path):
    script = tmp_path / "probe.py"
    script.write_text(
        "import json, os, sys\n"
        "caches = [os.environ[name] for name in ('TORCHINDUCTOR_CACHE_DIR', 'TRITON_CACHE_DIR')]\n"
        "found = {'caches': caches, 'there': [os.path.exists(own) for own in caches], 'arguments': {}}\n"
        "json.dump(found, open(sys.argv[sys.argv.index('--record') + 1], 'w'))\n"
    )
    monkeypatch.setattr(running, "_script", lambda command: [str(script)])
    first, second = (running.run_cold("probe.py", tmp_path / f"{n}.json") for n in (1, 2))
    assert first["there"] == [False, False] and not set(first["caches"]) & set(second["caches"])
    assert json.loads((tmp_path / "1.json").read_text())["process_s"] > 0
    assert not Path(first["caches"][0]).exists()


@pytest.mark.parametrize(("how", "asked"), [("full", "main_opt6.py"), ("quick", "main_opt6.py --epochs 3")])
def test_live_a_cold_run_is_made_and_kept_with_the_others(monkeypatch, tmp_path, how, asked):
    monkeypatch.setenv("LAB_LIVE", how)
    made = []
    programs = StandIn(run_cold=lambda command, file: made.append((command, file)) or {"process_s": 1.0})
    assert Live(programs, tmp_path).get(kinds.cold_run("main_opt6.py"), lambda line: None) == {"process_s": 1.0}
    assert made == [(asked, tmp_path / "runs" / f"{recorded.key(asked)}-cold.json")] and made[0][1].parent.is_dir()


def test_the_tables_of_whole_processes():
    runs = [record(10.0, 3.0, [0.5, 0.5]) | {"startup_s": 2.0, "wall_s": 9.0, "extras": {}}]
    compiled = [one | {"extras": {"warm_up_s": 4.0}, "process_s": 16.0} for one in runs]
    told = str(ends_table({"opt4: plain": runs, "opt6": compiled})).splitlines()
    assert told[3].split()[-4:] == ["2.0", "0.0", "1.0", "10.0"]
    assert told[4].split()[-4:] == ["2.0", "4.0", "7.0", "16.0"]
    told = str(lines_table({"opt4: plain": Cost(2, 1.0), "opt6": Cost(7, 0.5), "worse": Cost(7, 2.0)})).splitlines()
    assert "caught up with opt4 after epochs" in told[1]
    assert [line.split()[-1] for line in told[3:]] == ["–", "10", "inf"]
