"""Lab 28: 99 % on MNIST, as fast as possible."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from labkit.checks import Claim
from labkit.display import style
from labkit.errors import LabError
from labkit.exercises.kinds import BOUND, READ, Code, Number, quietly
from labkit.lazily import torch
from labkit.numbers import Quantity
from labkit.paths import SOURCE_CODE
from labkit.predictions import Guess
from labkit.source import recorded
from labkit.speedrun import ranking, rules
from stepbudget.show.table import Table, table

# --- the entries --------------------------------------------------------------------------------------------


FOLDER = SOURCE_CODE / "speedrun"
ENTRIES, PUBLISHED = FOLDER / "entries", FOLDER / "published.json"
OWN = ("own_kernels", "course_net", "any_net")  # the course's entries, which are recorded
PLACES = {"conv1": 26 * 26, "conv2": 24 * 24, "fc1": 1, "fc2": 1}  # where a weight of the course's net is used
NAN = float("nan")


@dataclass(frozen=True)
class Line:
    """A line of the table: an entry, or a published result, whose clock may have run over other things."""

    track: str
    name: str
    author: str
    gpu: str
    mean_pct: float
    spread_pct: float
    seeds: int
    training_ms: float
    published: str = ""  # where; empty for an entry


def line(record: dict) -> Line:
    """An entry's line: mean accuracy, and the median of its times; whether it breaks a rule, ``rules`` says.

    Without a seed, as where the test set stayed closed, no number.
    """
    accuracies = [row["accuracy_pct"] for row in record["rows"]]
    return Line(
        record["track"], record["entry"].removesuffix(".py"), record["author"], record["gpu"] or "–",
        statistics.fmean(accuracies) if accuracies else NAN,
        statistics.stdev(accuracies) if len(accuracies) > 1 else NAN, len(accuracies),
        statistics.median(row["training_ms"] for row in record["rows"]) if accuracies else NAN,
    )  # fmt: skip


def entries(folder: Path = ENTRIES) -> list[dict]:
    """The records of a folder. LabError names a file that holds none."""
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            record["rows"], record["track"]
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"{file} holds no record of speedrun.py.") from error
        found.append(record)
    return found


def own() -> list[dict]:
    """The course's own entries, as recorded."""
    return [recorded.held(lambda where, n=name: recorded.records("benchmarks", f"speedrun.py {n}", where))[0][0]
            for name in OWN]  # fmt: skip


def published() -> list[Line]:
    """What others have published, with the place."""
    return [Line(**one) for one in json.loads(PUBLISHED.read_text(encoding="utf-8"))]


def standing(records: Iterable[dict]) -> Table:
    """Every entry and every published result, fastest first."""
    lines = [*map(line, records), *published()]
    lines.sort(key=lambda one: (one.training_ms != one.training_ms, one.training_ms))
    frame = pd.DataFrame(
        {
            "entry": [one.name for one in lines],
            "track": [one.track for one in lines],
            "by": [one.author or "the course" for one in lines],
            "GPU": [one.gpu for one in lines],
            "training ms": [one.training_ms for one in lines],
            "mean %": [one.mean_pct for one in lines],
            "spread %": [one.spread_pct for one in lines],
            "seeds": [one.seeds for one in lines],
        }
    )
    formats = {"training ms": "{:,.1f}", "mean %": "{:.3f}", "spread %": "{:.3f}"}
    return table(frame, "Time to 99 %: median over the seeds, and the test accuracy", formats)


def seeds(record: dict) -> Table:
    """Each seed of an entry."""
    frame = pd.DataFrame(record["rows"], columns=["seed", "training_ms", "untrained_pct", "accuracy_pct"])
    frame.columns = ["seed", "training ms", "before %", "after %"]
    formats = {"training ms": "{:,.2f}", "before %": "{:.1f}", "after %": "{:.2f}"}
    return table(frame, f"{record['entry']}, seed by seed", formats)


def goals(records: Iterable[dict]) -> Table:
    """Each track's goal, and the fastest entry in it so far; NaN where it has none."""
    lines = [line(record) for record in records]
    rows = [
        {
            "track": track.name,
            "goal, ms": track.goal_ms,
            "best ms": min((one.training_ms for one in lines if one.track == track.name and one.seeds), default=NAN),
        }
        for track in rules.TRACKS.values()
    ]
    formats = {"goal, ms": "{:.0f}", "best ms": "{:.1f}"}
    return table(pd.DataFrame(rows), None, formats)


def steps(record: dict) -> int:
    """Steps of a training of this recipe over all training digits; what does not fill a batch is left out."""
    recipe = record["recipe"]
    return int(recipe["epochs"] * record["train_samples"] / recipe["batch"])


def mflop() -> float:
    """Million operations of the course's network for one digit, there and back.

    A weight is multiplied and added once for each place where it is used, and again for each of the two gradients; the
    first layer's input has none.
    """
    forward = {}
    for name, places in PLACES.items():
        outputs, *inputs = rules.COURSE_NET[f"{name}.weight"]
        weights = outputs
        for size in inputs:
            weights *= size
        forward[name] = 2 * places * weights
    return (3 * sum(forward.values()) - forward["conv1"]) / 1e6


def same_recipe(one: dict, other: dict) -> bool:
    """Did both train the same parameters with the same settings, as far as both have them?"""
    shared = one["recipe"].keys() & other["recipe"].keys()
    settings = all(one["recipe"][name] == other["recipe"][name] for name in shared)
    return settings and one["parameters"] == other["parameters"]


def trainings(record: dict) -> tuple[int, float]:
    """How many trainings were timed in an entry's process, on held-out digits and on all; their seconds together."""
    times = [row["training_ms"] for row in (*record["hold_out"], *record["rows"])]
    return len(times), sum(times) / 1e3


def knew(records: Iterable[dict]) -> list[float]:
    """Per cent that each network had right before it was trained."""
    return [row["untrained_pct"] for record in records for row in record["rows"]]


def hidden(records: Iterable[dict]) -> Table:
    """What an entry's median does not say: the range of its times, its worst seed, and its whole process."""
    rows = []
    for record in records:
        times = [row["training_ms"] for row in record["rows"]] or [NAN]
        count, seconds = trainings(record)
        rows.append(
            {
                "entry": line(record).name,
                "fastest ms": min(times),
                "slowest ms": max(times),
                "worst seed %": min((row["accuracy_pct"] for row in record["rows"]), default=NAN),
                "trainings": count,
                "training s": seconds,
                "whole process s": record["process_s"],
            }
        )
    formats = {"fastest ms": "{:.1f}", "slowest ms": "{:.1f}", "worst seed %": "{:.2f}", "training s": "{:.2f}"}
    formats["whole process s"] = "{:.0f}"
    return table(pd.DataFrame(rows), "What the median hides", formats)


# --- the searches -------------------------------------------------------------------------------------------


def tried(search: dict, number: int) -> list[dict]:
    """The rows of a search's first or second round that ran."""
    return [row for row in search["rows"] if row["round"] == number and "failed" not in row]


def chosen(search: dict) -> dict:
    """The row that a search ends with: of its second round, else of its first; of no settings where nothing ran."""
    rows = ranking.ranked(tried(search, 2)) or ranking.ranked(tried(search, 1))
    return rows[0] if rows else {"settings": {}, "seeds": 0, "mean_pct": NAN, "error_pct": NAN, "median_ms": NAN}


def first_round(search: dict, row: dict) -> dict:
    """What the first round said of a row's settings; the row itself where they had no other."""
    return next((one for one in tried(search, 1) if one["settings"] == row["settings"]), row)


def is_recipe_of(row: dict, record: dict) -> bool:
    """Was an entry trained with this row's settings?"""
    settings = row["settings"]
    return bool(settings) and all(record["recipe"][name] == value for name, value in settings.items())


def second_round(search: dict) -> list[tuple[float, float, float]]:
    """Of each recipe that was tried again: milliseconds, mean accuracy and its standard error in per cent."""
    rows = tried(search, 2)
    return [(round(row["median_ms"], 2), round(row["mean_pct"], 3), round(row["error_pct"], 3)) for row in rows]


def cost(searches: Iterable[dict]) -> Table:
    """What it took to find a recipe: combinations, trainings, and where the seconds went.

    Also how many trainings by the recipe that was found would take as long as all that were made.
    """
    rows = []
    for search in searches:
        ran = [row for number in (1, 2) for row in tried(search, number)]
        trained_ms = sum(row["seeds"] * row["median_ms"] for row in ran)
        rows.append(
            {
                "entry": search["entry"].removesuffix(".py"),
                "combinations": search["combinations"],
                "tried": len(tried(search, 1)),
                "again": len(tried(search, 2)),
                "trainings": sum(row["seeds"] for row in ran),
                "training s": trained_ms / 1e3,
                "by the chosen recipe": trained_ms / chosen(search)["median_ms"],
                "preparing s": sum(row["warm_up_s"] for row in ran),
                "whole process s": search["process_s"],
            }
        )
    formats = {
        "tried": "{}",
        "again": "{}",
        "trainings": "{}",
        "training s": "{:.1f}",
        "by the chosen recipe": "{:.0f}",
        "preparing s": "{:.1f}",
    }
    formats["whole process s"] = "{:.0f}"
    return table(pd.DataFrame(rows), "What the search took", formats)


def rounds(searches: Iterable[dict]) -> Table:
    """Of each search's chosen recipe: seeds, mean and standard error of the first round, and of the second."""
    rows = []
    for search in searches:
        first = first_round(search, chosen(search))
        again = chosen(search) if tried(search, 2) else {"seeds": 0, "mean_pct": NAN, "error_pct": NAN}
        rows.append(
            {
                "entry": search["entry"].removesuffix(".py"),
                **{name: first[field] for name, field in (("seeds", "seeds"), *_OF_A_ROUND)},
                "again": again["seeds"],
                **{f"{name} again": again[field] for name, field in _OF_A_ROUND},
            }
        )
    formats = {f"{name}{when}": "{:.3f}" for name, _ in _OF_A_ROUND for when in ("", " again")}
    return table(pd.DataFrame(rows), "The chosen recipes in the first round, and again in the second", formats)


_OF_A_ROUND = (("mean %", "mean_pct"), ("± %", "error_pct"))


# --- their charts -------------------------------------------------------------------------------------------


ROW = 0.8  # of the height between two entries that the seeds take
SMALL = 8.5  # points
MARKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)  # per cent of wrong digits
TENTHS = [tenths / 10 for tenths in range(5, 21)]  # where all are near the goal


def seeds_chart(records: Sequence[dict]) -> Figure:
    """A row an entry, a dot a seed, in their order from above: its test accuracy; the mean as a line."""
    lines = [line(record) for record in records]
    with style.chart(1.2 + 0.9 * len(records)) as (fig, ax):
        for place, (record, own) in enumerate(zip(records, lines, strict=True)):
            rows = record["rows"]
            heights = [place + ROW * ((number + 0.5) / len(rows) - 0.5) for number in range(len(rows))]
            ax.scatter([row["accuracy_pct"] for row in rows], heights, s=14, color=style.BLUE, alpha=0.75, lw=0)
            ax.plot([own.mean_pct] * 2, [place - ROW / 2, place + ROW / 2], color=style.INK, lw=1.6)
        ax.axvline(rules.GOAL_PCT, color=style.VERMILION, lw=1.2)
        ax.set_yticks(range(len(lines)), [f"{own.name}\n{own.training_ms:,.1f} ms" for own in lines])
        ax.set(ylim=(len(lines) - 0.5, -0.5), xlabel="correct test digits, %")
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        style.suptitle(
            fig, f"One dot per run, a line at the mean; orange: the {rules.GOAL_PCT} % that the mean must reach"
        )
    return fig


def tries(search: dict) -> Figure:
    """What a search tried: milliseconds across, correct held-out digits upwards; the chosen settings ringed.

    The scale is logarithmic in the wrong digits, for near the goal a tenth of a per cent is much.
    """
    first, second, best = tried(search, 1), tried(search, 2), chosen(search)
    with style.chart(3.8) as (fig, ax):
        ax.scatter(*_places(first), s=18, color=style.MUTED, alpha=0.7, lw=0, label=_label("first round", first))
        across, wrong = _places(second)
        ax.scatter(across, wrong, s=26, color=style.BLUE, lw=0, label=_label("second round", second))
        ax.vlines(across, *([100 - row["mean_pct"] + sign * row["error_pct"] for row in second] for sign in (-1, 1)),
                  color=style.BLUE, lw=1)  # fmt: skip
        if best["settings"]:
            word = "chosen" if ranking.reaches(best) else "best, and short of the goal"
            ring = _places([best])
            ax.plot(*ring, "o", ms=13, mfc="none", mec=style.VERMILION, mew=1.5, label=word)
        ax.axhline(100 - rules.GOAL_PCT, color=style.VERMILION, lw=1.2)
        ax.set_yscale("log")
        shown = [100 - row["mean_pct"] for row in (*first, *second)] or [1.0]
        marks = MARKS if max(shown) > 2 * min(shown) else TENTHS
        ax.set_yticks(marks, [f"{100 - wrong:g}" for wrong in marks])
        ax.minorticks_off()
        ax.set_ylim(1.15 * max(shown), 0.9 * min(shown))
        ax.grid(axis="y")
        ax.set(
            xlabel="milliseconds of a training, on the digits that are not held out",
            ylabel="correct held-out digits, %\n(logarithmic in the wrong ones)",
        )
        ax.set_xlim(left=0)
        ax.legend(loc="lower right", fontsize=SMALL)
        entry = search["entry"].removesuffix(".py")
        style.suptitle(fig, f"{entry}: one dot per recipe; the line is {rules.GOAL_PCT} %")
    return fig


def _places(rows: list[dict]) -> tuple[list[float], list[float]]:
    """Milliseconds, and wrong digits in per cent."""
    return [row["median_ms"] for row in rows], [100 - row["mean_pct"] for row in rows]


def _label(what: str, rows: list[dict]) -> str:
    if not rows:
        return f"{what}: none"
    few, many = min(row["seeds"] for row in rows), max(row["seeds"] for row in rows)
    return f"{what}, {f'{few} or {many}' if few < many else many} seeds a recipe"


# --- what it claims -----------------------------------------------------------------------------------------


def reaches_the_goal(course_net: dict) -> Iterator[Claim | str]:
    """The entry with the course's network is right often enough; its record, of ``speedrun.py``."""
    found = line(course_net)
    yield Claim(
        f"the course's network reaches {rules.GOAL_PCT} %, as a mean over its seeds",
        found.mean_pct >= rules.GOAL_PCT,
        found.mean_pct,
        because="without MNIST at hand fewer digits are trained on",
        so="LAB_DATA_DIR says where the digits lie",
    )


def shorter_steps(own: dict, course_net: dict, compiled: dict) -> Iterator[Claim | str]:
    """A step in kernels of its own and compiled, of one recipe; the fastest of each track and its goal."""
    yield Claim("own kernels and compiled: the same network by the same recipe", same_recipe(compiled, own))
    own_us, compiled_us = (
        1e3 * line(record).training_ms / steps(record) for record in (own, compiled)
    )  # fmt: skip
    yield f"a step, of {steps(own)}: {own_us:.0f} µs in own kernels, {compiled_us:.0f} µs compiled"
    yield Claim(
        "own kernels beat the compiler's, by its usual settings", own_us < compiled_us, own_us / compiled_us,
        because="their tiles were chosen on an H200",
        so="the compiled entry is the one to start from",
    )  # fmt: skip
    for _, row in goals([own, course_net, compiled]).frame.iterrows():
        goal_ms, best_ms = row["goal, ms"], row["best ms"]
        yield Claim(
            f"{row['track']}: {best_ms:.1f} ms, within the {goal_ms:.0f} ms that we set ourselves",
            best_ms <= goal_ms, best_ms,
            because="the goal was set for an H200", so="the fastest entry here is the one to beat",
        )  # fmt: skip


def compiler_takes_longest(own: dict, course_net: dict, compiled: dict) -> Iterator[Claim | str]:
    """Whose process is the longest."""
    longest = max((own, course_net, compiled), key=lambda one: one["process_s"])
    yield Claim(
        "the compiled entry has the longest process", longest is compiled, longest["entry"],
        because="what its compiler made before was still in the cache",
        so="the first run of a machine is the one to look at",
    )  # fmt: skip


def honest(search: dict, own: dict, records: Sequence[dict], knew: Sequence[float]) -> Iterator[Claim | str]:
    """No entry knew a digit before, the search chose the recipe, no rule is broken; held-out and test digits.

    ``knew``: per cent right before each training.
    """
    most, best = max(knew, default=0.0), chosen(search)
    yield Claim(
        "no network knew more than chance allows before its training", most <= rules.CHANCE_PCT, f"{most:.1f} %"
    )  # fmt: skip
    yield Claim(
        "the entry's recipe is the one that the search chose", is_recipe_of(best, own), best["settings"],
        because="a search with less time, or on another GPU, ends elsewhere",
        so="the entry keeps the recipe of the search that was recorded",
    )  # fmt: skip
    broken = [sentence for one in records for sentence in rules.broken(one)]
    yield Claim(
        "no rule is broken", not broken, "; ".join(dict.fromkeys(broken)),
        because="an accuracy near the goal, or MNIST not at hand, leaves too little",
        so="what broke a rule is no entry, however fast",
    )  # fmt: skip
    held, test = rules.mean_pct(own["hold_out"]), line(own).mean_pct
    yield f"own_kernels: {held:.3f} % of the held-out digits, {test:.3f} % of the test digits"


# --- its exercises ------------------------------------------------------------------------------------------


HIGHER_PCT = 99.1  # the exercise's goal: every recorded seed reaches that of the rules


@Quantity
def reaching(record: dict) -> int:
    """Seeds that reach the exercise's goal by themselves."""
    return sum(row["accuracy_pct"] >= HIGHER_PCT for row in record["rows"])


SEEDS = Quantity(lambda record: len(record["rows"]))
THEMSELVES = Number(
    READ,
    f"Count the rows of the table that have {HIGHER_PCT} or more in the last column.",
    right=reaching,
    wrong={
        "that is all of them: the mean may reach a goal that single seeds miss": SEEDS,
        "those are the ones that do not reach it": SEEDS - reaching,
        "that is a share in percent: the number of seeds is wanted": 100 * reaching / SEEDS,
    },
    within=1e-9,
)

# --- What the products alone would take -----------------------------------------------------------------------


def _bound_ms(steps: int, batch: int, mflop: float, tflops: float) -> float:
    return steps * batch * mflop * 1e6 / (tflops * 1e12) * 1e3


AT_THE_ROOF = Number(
    BOUND,
    "Digits taken in all, times the operations for one, over the operations a second.",
    right=_bound_ms,
    wrong={
        "that is one step: all of them are wanted": lambda steps, *rest: _bound_ms(1, *rest),
        "that is one epoch of 60,000: this recipe takes fewer or more digits": lambda steps, batch, *rest: _bound_ms(
            1, rules.TRAIN_SAMPLES, *rest
        ),
        "that is in seconds: milliseconds are wanted": lambda *given: _bound_ms(*given) / 1e3,
    },
)


@quietly
def _try_gradient(gradient: Callable) -> str | None:
    generator = torch.Generator().manual_seed(0)
    for count, smoothing in ((1, 0.1), (7, 0.2), (64, 0.0)):
        logits = torch.randn(count, 10, generator=generator, dtype=torch.float64).requires_grad_()
        labels = torch.randint(0, 10, (count,), generator=generator)
        [right] = torch.autograd.grad(
            torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing), logits
        )
        try:
            with torch.inference_mode():
                found = gradient(logits.detach().clone(), labels.clone(), smoothing)
        except RuntimeError as error:
            if "grad" in str(error):
                return "autograd is off here: write the derivative down yourself"
            raise
        if not isinstance(found, torch.Tensor) or found.shape != right.shape:
            return f"a tensor like the logits is wanted, ({count}, 10)"
        found = found.double()  # float32 is precise enough
        if torch.allclose(found, right, atol=1e-6):
            continue
        if torch.allclose(found, count * right, atol=1e-6):
            return "that is the gradient of the sum over the batch: the loss is its mean"
        if torch.allclose(found, -right, atol=1e-6):
            return "its sign is wrong: probabilities less target, not the other way round"
        others = _on_the_others(logits.detach(), labels, smoothing)
        if torch.allclose(found, others, atol=1e-6):
            return "the share goes to all ten, the true digit too"
        if abs(float(found.sum())) > 1e-6:
            return (
                "the gradients of a digit's ten logits must add up to 0: do probabilities and target each add up to 1?"
            )
        return "it is not the derivative of the loss"
    return None


def _right(logits, labels, smoothing):
    target = torch.nn.functional.one_hot(labels, 10) * (1 - smoothing) + smoothing / 10
    return (logits.softmax(1) - target) / len(labels)


def _no_mean(logits, labels, smoothing):
    return _right(logits, labels, smoothing) * len(labels)


def _turned(logits, labels, smoothing):
    return -_right(logits, labels, smoothing)


def _no_share(logits, labels, smoothing):
    return (logits.softmax(1) - torch.nn.functional.one_hot(labels, 10) * (1 - smoothing)) / len(labels)


def _on_the_others(logits, labels, smoothing):
    true = torch.nn.functional.one_hot(labels, 10)
    return (logits.softmax(1) - true * (1 - smoothing) - (1 - true) * smoothing / 9) / len(labels)


SMOOTHED = Code(
    "The gradient of log-softmax and cross-entropy together is the probabilities less the target, over the batch.",
    _try_gradient,
    wrong={
        "that is the gradient of the sum over the batch": _no_mean,
        "its sign is wrong": _turned,
        "must add up to 0": _no_share,
        "the share goes to all ten, the true digit too": _on_the_others,
    },
)

EXERCISES = {"28.1": THEMSELVES, "28.2": AT_THE_ROOF, "28.3": SMOOTHED}


# --- what it asks before it shows ---------------------------------------------------------------------------


LADDER_EPOCHS = 10


PROCESS_S = Quantity(lambda record: record["process_s"])
SHARE_PCT = 100 * Quantity(lambda record: trainings(record)[1]) / PROCESS_S
PREDICTIONS = {
    "epochs": Guess(
        "a training of the course's network to 99 %", " epochs", lambda record: record["recipe"]["epochs"],
        wrong={"That's the ladder's training, which ends below 99 %. The recipe is open.": lambda _: LADDER_EPOCHS},
    ),
    "share": Guess(
        "the trainings' share of a process that runs own_kernels", " %", SHARE_PCT,
        wrong={
            "That's one training. All of them count.": Quantity(lambda one: line(one).training_ms / 10) / PROCESS_S,
            "That's all but the trainings: start, kernels and judging.": 100 - SHARE_PCT,
        },
    ),
}  # fmt: skip
