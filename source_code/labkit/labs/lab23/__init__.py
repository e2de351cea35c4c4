"""Lab 23: which numbers of a training may have eight bits or sixteen, and what that gains.

``blocks`` and ``first_bad`` stand on PyTorch, and are imported where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from labkit.checks import Claim
from labkit.labs.lab23.exercises import EXERCISES
from labkit.labs.lab23.formats import MARGIN_PCT, WORDS, by_chance, by_format, fails_gate, kept, losses, trainings
from labkit.labs.lab23.fp8 import NAN, bounds, gains, layers, products, small_and_large, speedup
from labkit.labs.lab23.sequences import around, attention, cases, fastest, narrow, recurrent, recurrent_types, sizes
from labkit.predictions import Guess
from stepbudget.kernel_names import short as short_kernel

# --- what it claims -----------------------------------------------------------------------------------------


SHORT_PRODUCTS = ("tf32", "fp16 autocast", "bf16 autocast", "fp8 linear")  # variants whose weights stay in FP32
A_THOUSAND_UPDATES = 1 + 1000 * 2.0**-9  # to 1, each too small for BF16


def gate(found: pd.DataFrame) -> Iterator[Claim | str]:
    """Which formats fail the gate, and that the accuracy shows none of it; ``found``: of ``trainings``."""
    failing = fails_gate(found)
    yield f"may be worse than FP32 by more than {MARGIN_PCT:g} %: {'; '.join(failing) or 'none'}"
    has_fp8 = "fp8 linear" in set(found["variant"])
    yield Claim(
        f"short products alone{', down to FP8,' if has_fp8 else ''} pass the gate",
        not {WORDS[name] for name in SHORT_PRODUCTS} & set(failing),
        failing,
        because="with few seeds, or on another GPU's kernels, chance is larger",
        so="run more seeds before you blame the format",
    )
    accuracy = found["possible_pct"].min()
    yield Claim("all formats guess right", accuracy > 99.9, accuracy, because="few steps", so="train longer")


def nothing_added(weight: float) -> Iterator[Claim | str]:
    """What a weight in BF16 is that was 1 before a thousand updates."""
    yield f"1 + a thousand times 2⁻⁹, in BF16: {weight} and exactly: {A_THOUSAND_UPDATES}."
    yield Claim("nothing happened, a thousand times", weight == 1.0)


def moments_stay(before: Sequence[float], after: Sequence[float]) -> Iterator[Claim | str]:
    """Moments in BF16, and what they are once multiplied by 0.999."""
    same = [one == other for one, other in zip(before, after, strict=True)]
    yield f"Unchanged by × 0.999: {same}."
    yield Claim("a moment in BF16 does not fade", all(same))


def nothing_lost(mean: float) -> Iterator[Claim | str]:
    """The mean of weights that were 1 before a thousand updates, each rounded by chance."""
    yield f"10,000 weights, a thousand steps: {mean:.3f} in the mean, exactly {A_THOUSAND_UPDATES:.3f}."
    yield Claim("on average nothing is lost", abs(mean - A_THOUSAND_UPDATES) < 0.01)


def chance_mends(found: Mapping[str, float]) -> Iterator[Claim | str]:
    """Rounding by chance beside FP32, of ``formats.by_chance``; of a GPU without BF16 there is nothing to say."""
    if found:
        more_pct, share = found["more_pct"], found["share of bytes"]
        yield Claim(
            "rounding by chance comes within a tenth of FP32's distance, in half the memory",
            abs(more_pct) < 10 and share < 0.51,
            f"{more_pct:+.1f} %, {share:.2f} of the bytes",
            because="fewer seeds, or another random generator",
            so="look at the dots: is a seed far off, or all?",
        )


def pays_in_large_layers(times: Mapping[str, float]) -> Iterator[Claim | str]:
    """Where FP8 pays: how many times as fast it makes small layers and large ones, of ``fp8.small_and_large``."""
    if not times:
        yield "this GPU has no FP8 (it came with Ada and Hopper): its columns stay empty"
        return
    yield Claim(
        "FP8 loses with small layers, wins with large ones, and by less than the rates promise",
        times["small"] < 1 < times["large"] < times["limit"],
        f"{times['small']:.2f} and {times['large']:.2f} times as fast, of {times['limit']:.2f}",
        because="this CPU launches faster, or BF16 stays further below its rate",
        so="measure at the width of your own layers",
    )


def attention_gains(best: Mapping[str, float]) -> Iterator[Claim | str]:
    """What 16 bits are worth to attention: the fastest kernel's time by type."""
    short = narrow(list(best))
    yield f"in {short.upper()}, {best['fp32'] / best[short]:.1f} times as fast as in FP32"
    if "tf32" not in best:
        return
    yield Claim(
        "16 bits are worth more to attention than to a product: more than twice TF32",
        best["tf32"] > 2 * best[short],
        f"{best['tf32'] / best[short]:.2f} times",
        because="this PyTorch has fused kernels for FP32, too",
        so="leave the choice of the kernel to PyTorch",
    )


def odd_size_costs(found: pd.DataFrame) -> Iterator[Claim | str]:
    """Hidden sizes of the recurrent network around 1,024: which kernels they take, and how long."""
    hidden = around(found, "hidden", narrow(found["dtype"])).set_index("size")
    for size in (1024, 1023):
        (name, _), *_ = hidden.loc[size, "kernels"] or [("not known", 0.0)]
        yield f"the kernel that takes longest at {size:,}: {short_kernel(name)}"
    fp16 = around(found, "hidden", "fp16").set_index("size")["lstm_us"] / 1e3
    by_size = ", ".join(f"{size:,}: {ms:.1f}" for size, ms in fp16.items())
    yield f"the LSTM alone in FP16, ms by hidden size: {by_size}"
    longer = 100 * (hidden["relative_us"][1023] - 1)
    yield Claim(
        "an odd hidden size costs, though it is less work", longer > 2, longer,
        because="newer libraries pad by themselves",
        so="pad where your profile shows it, and leave it where not",
    )  # fmt: skip


def finer_scales_keep_more(many_sizes: Mapping[str, float], outliers: Mapping[str, float]) -> Iterator[Claim | str]:
    """What becomes zero among numbers of many sizes, and beside large columns: per cent, by format."""
    finer = many_sizes["MXFP8"] < many_sizes["FP8 E4M3, one scale"]
    yield Claim("a scale a block keeps more than a scale a matrix", finer)
    yield Claim("beside large columns, finer blocks with finer scales lose less", outliers["NVFP4"] < outliers["MXFP4"])
    zero = " and ".join(f"{outliers[name]:.0f} % in {name}" for name in ("MXFP4", "NVFP4"))
    yield f"beside large columns, {zero} become zero"


def culprit_found(loss: float, module: str | None, way: str | None) -> Iterator[Claim | str]:
    """The loss shows nothing, and the first module that made a NaN is named, and which way."""
    yield Claim("the loss is fine", math.isfinite(loss))
    yield Claim("and the culprit is found", (module, way) == ("length", "backward"))


# --- what it asks before it shows ---------------------------------------------------------------------------


WIDTH = 8192


def _more_pct(variant: str) -> Callable[[pd.DataFrame], float]:
    return lambda found: float(found.set_index("variant")["more_pct"].get(variant, NAN))


def _bound(row: int) -> Callable[[dict], float]:
    return lambda record: float(bounds(record, WIDTH).frame["times as fast"][row])


def _longer_pct(part: str) -> Callable[[pd.DataFrame], float]:
    def pct(found: pd.DataFrame) -> float:
        own = around(found, "hidden", narrow(found["dtype"])).set_index("size")
        return float(100 * (own[f"relative_{part}"][1023] - 1))

    return pct


PREDICTIONS = {
    "worse": Guess(
        "distance to the least loss, BF16 weights", " %", _more_pct("bf16 nearest"),
        wrong={
            "That's what BF16 products cost. Here small updates of the weights are lost, too.": (
                _more_pct("bf16 autocast")
            ),
            "That's what FP8 products cost. Products forgive more than weights do.": _more_pct("fp8 linear"),
        },
    ),
    "gain": Guess(
        "FP8 against BF16, layers of width 8,192", "×", lambda record: speedup(record, WIDTH),
        wrong={
            "That's the ratio of the data sheet's rates. Making FP8 numbers takes time, too.": _bound(0),
            "That's the gain of the products alone. Making FP8 numbers takes time, too.": _bound(1),
            "That's the gain without torch.compile, which fuses the kernels that make FP8 numbers.": (
                lambda record: speedup(record, WIDTH, "")
            ),
        },
    ),
    "longer": Guess(
        "a hidden size of 1,023 instead of 1,024", " %", _longer_pct("us"),
        wrong={
            "That's the LSTM alone. The layer to the vocabulary has an odd size, too.": _longer_pct("lstm_us"),
            "That counts operations. An odd size gets other kernels.": lambda found: 0.0,
        },
    ),
}  # fmt: skip
