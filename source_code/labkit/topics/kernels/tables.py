"""How fast are kernels of one's own, and what is there to gain? As tables."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.display.table import Table, table
from labkit.topics.kernels import readings
from labkit.topics.kernels.charts import WAYS
from labkit.topics.roofline.readings import Peaks


def softmax(records: Sequence[dict], peaks: Peaks) -> Table:
    """By columns: each way's share of the memory's roof, in per cent."""
    shares = 100 * readings.softmax_shares(records, peaks)[["operators", "torch", "compiled", "triton", "pieces"]]
    names = [WAYS[way][0] for way in shares]
    frame = shares.set_axis(names, axis=1).rename_axis("columns").reset_index()
    caption = "Softmax: per cent of the memory's roof (read once, written once), medians of rounds"
    return table(frame, caption, {"columns": "{:,}"} | dict.fromkeys(names, "{:.0f}"), names)


def attention_floors(records: Sequence[dict], peaks: Peaks) -> Table:
    """By length, what each roof asks for: µs of arithmetic, of memory, of exponentials; and of the naive form."""
    found = readings.attention_floors(records, peaks).xs(False, level="causal")
    names = {
        "arithmetic": "arithmetic µs",
        "memory": "memory µs, one kernel",
        "naive memory": "memory µs, naive",
        "exponentials": "exponentials µs",
    }
    frame = found[[*names]].rename(columns=names).rename_axis("places").reset_index()
    shapes = readings.rows(records, "attention").drop_duplicates("length").sort_values("length")
    (few, most), first = shapes["length"].iloc[[0, -1]], shapes.iloc[0]
    caption = f"Attention at the roofs of one {peaks.gpu}, {first['heads']} heads of {first['width']} numbers: "
    caption += f"{first['batch']} × {few:,} to {shapes['batch'].iloc[-1]} × {most:,} places"
    return table(frame, caption, {"places": "{:,}"}, list(names.values()))


def attention(records: Sequence[dict], peaks: Peaks) -> Table:
    """By direction and length: µs of each way, shares, and the memory beside inputs."""
    times, floors = readings.attention_times(records), readings.attention_floors(records, peaks)
    least = floors[["arithmetic", "memory"]].max(axis=1)
    extra = readings.rows(records, "attention").pivot(index=["length", "causal"], columns="way", values="extra_bytes")
    frame = pd.DataFrame(
        {
            "places": [length for length, _ in times.index],
            "causal": ["yes" if causal else "no" for _, causal in times.index],
            "naive µs": times["naive"].to_numpy(),
            "flash µs": times["flash"].to_numpy(),
            "ours µs": times["triton"].to_numpy(),
            "naive / ours": (times["naive"] / times["triton"]).to_numpy(),
            "flash / ours": (times["flash"] / times["triton"]).to_numpy(),
            "ours, % of the bound": (100 * least.reindex(times.index) / times["triton"]).to_numpy(),
            "naive, GB more": (extra["naive"].reindex(times.index) / 1e9).to_numpy(),
        }
    ).sort_values(["causal", "places"])
    formats = {"places": "{:,}"} | dict.fromkeys(["naive µs", "flash µs", "ours µs"], "{:,.0f}")
    formats |= {"naive / ours": "{:.1f}", "flash / ours": "{:.2f}", "ours, % of the bound": "{:.0f}"}
    formats |= {"naive, GB more": "{:.2f}"}
    caption = "Attention forward: medians of rounds, GPU time; flash is PyTorch's"
    return table(frame, caption, formats, [name for name in formats if name != "places"])


def tuning(records: Sequence[dict]) -> Table:
    """Each choice of attention's space: what it takes of a multiprocessor, how long it compiled, how fast it is."""
    found = readings.rows(records, "tuning").sort_values("us", na_position="last")
    choices = pd.DataFrame(found["choice"].tolist(), columns=["rows", "places", "warps", "stages"])
    frame = choices.assign(
        **{
            "registers": found["registers"].to_numpy(),
            "shared kB": found["shared_bytes"].to_numpy() / 1e3,
            "compiled s": found["compile_s"].to_numpy(),
            "µs": found["us"].to_numpy(),
        }
    )
    measured = ["registers", "shared kB", "compiled s", "µs"]
    formats = {"shared kB": "{:.0f}", "compiled s": "{:.1f}", "µs": "{:,.0f}"}
    length = int(found["length"].iloc[0])
    return table(frame, f"Causal attention of {length:,} places, by choice, the fastest first", formats, measured)


def registers(records: Sequence[dict]) -> Table:
    """The same choices, the fastest first: registers of a thread, and how many warps find room beside one another."""
    found = readings.room(records)
    names = {"warps": "warps a program", "fit": "warps that fit, by registers", "us": "µs"}
    shown = found.rename(columns=names)
    measured = ["registers", "warps that fit, by registers", "µs"]
    return table(shown, "Attention by choice, the fastest first", {"µs": "{:,.0f}"}, measured)


def transposes(records: Sequence[dict], peaks: Peaks) -> Table:
    """The same matrix transposed in each form: µs, and the passes that a column takes in shared memory."""
    found = readings.rows(records, "transpose")
    asked = {form: readings.column_passes(*there) for form, there in readings.PLACES.items()}
    copy = float(found.set_index("form")["us"]["copy"])
    frame = pd.DataFrame(
        {
            "form": found["form"],
            "words a row": [readings.PLACES.get(form, (None, None))[1] for form in found["form"]],
            "passes for a column": [asked.get(form) for form in found["form"]],
            "µs": found["us"],
            "times a copy": found["us"] / copy,
            "TB/s": found["bytes"] / found["us"] / 1e6,
        }
    )
    side = int(found["side"][0])
    caption = f"{side:,} × {side:,} numbers in FP32; the memory's roof is ~{peaks.tb_per_s:.2f} TB/s"
    formats = {"µs": "{:.0f}", "times a copy": "{:.2f}", "TB/s": "{:.2f}"}
    return table(frame, caption, formats, list(formats))


def few(records: Sequence[dict]) -> Table:
    """Products of a few tiles, shared out in each way, in µs."""
    found = readings.few_times(records)
    tiles = readings.rows(records, "few").groupby(["rows", "columns", "inner"], sort=False)["tiles"].first()
    sizes = [" × ".join(f"{side:,}" for side in size) for size in found.index]
    ways = list(found.columns)
    frame = pd.DataFrame({"rows × columns × inner": sizes, "tiles": tiles.reindex(found.index).to_numpy()})
    frame = pd.concat([frame, found.reset_index(drop=True)], axis=1)
    caption = f"Products of a few tiles in µs, on {records[0]['multiprocessors']} multiprocessors"
    return table(frame, caption, dict.fromkeys(ways, "{:.1f}"), ways)


def stages(records: Sequence[dict]) -> Table:
    """The three large kernels of ``main_opt7``, with so many stages of loads and 4 or 8 warps a program."""
    found = readings.stages(records)
    names = {"kernel": "kernel", "stages": "stages", "shared_bytes": "its shared kB", "programs": "programs at once"}
    names |= {"us_4": "4 warps: µs", "us_8": "8 warps: µs"}
    frame = found.assign(shared_bytes=found["shared_bytes"] / 1e3)[list(names)].rename(columns=names)
    numbers = list(names.values())[2:]
    caption = "Loads in so many stages, 4 or 8 warps a program, on one {gpu} (–: refused)".format(**records[0])
    return table(frame, caption, dict.fromkeys(numbers, "{:.0f}"), numbers)
