"""Benchmark: a recurrent language model in good and bad sizes: width, vocabulary, batch, by number type (lab 23).

An embedding, an ``nn.LSTM`` and the linear layer to the vocabulary, forward and back, as in bigLSTM but smaller. Cases
alternate: each round measures every case once. Times are of the GPU, by CUDA events. Which kernels ran is asked in a
second pass, of PyTorch's profiler.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from labkit.display.spread import Spread
from labkit.training import steps
from labkit.training.clock import gpu_times, stopwatch
from labkit.training.number_types import missing

TYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FULL = {"hidden": 1024, "vocabulary": 32000, "batch": 128, "length": 32}
FULL |= {"hiddens": (1016, 1020, 1023, 1025, 1028, 1032, 1088), "vocabularies": (31999, 32001, 32008, 32064)}
FULL |= {"batches": (1, 8, 32, 127, 129, 136, 256, 512)}
TINY = {"hidden": 16, "vocabulary": 32, "batch": 8, "length": 4}
TINY |= {"hiddens": (15,), "vocabularies": (31, 40), "batches": (1,)}
ROUNDS, REPEATS = 5, 3  # calls in one round


class LanguageModel(nn.Module):
    """Symbols ``(batch, length)`` to logits ``(batch, length, vocabulary)``."""

    def __init__(self, hidden, vocabulary):
        super().__init__()
        self.symbols = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, symbols):
        return self.head(self.lstm(self.symbols(symbols))[0])


def cases(sizes):
    """Each case: the usual sizes with one thing changed; then in every type the usual ones and the odd ones."""
    usual = {name: sizes[name] for name in ("hidden", "vocabulary", "batch")}
    for name, others in (("hidden", "hiddens"), ("vocabulary", "vocabularies"), ("batch", "batches")):
        for dtype in ("fp16", "bf16"):
            for size in sizes[others]:
                yield usual | {name: size, "varied": name, "dtype": dtype}
    for dtype in TYPES:
        yield usual | {"varied": "", "dtype": dtype}
        if dtype in ("fp32", "tf32"):
            yield usual | {"hidden": usual["hidden"] - 1, "varied": "hidden", "dtype": dtype}


def flops(case, length):
    """Operations of the LSTM's and of the last layer's products, forward and back; (all, the LSTM's share of them)."""
    symbols, hidden = case["batch"] * length, case["hidden"]
    recurrent = 3 * symbols * 2 * 4 * hidden * (hidden + hidden)
    return recurrent + 3 * symbols * 2 * hidden * case["vocabulary"], recurrent


def prepare(case, length, device):
    """Calls that go forward and back: through the whole model, and through its LSTM alone."""
    dtype = TYPES[case["dtype"]]
    torch.manual_seed(1)
    with device:  # where the random numbers are quick
        model = LanguageModel(case["hidden"], case["vocabulary"]).to(dtype)
    symbols = torch.randint(case["vocabulary"], (case["batch"], length + 1), device=device)
    x = torch.randn(case["batch"], length, case["hidden"], device=device, dtype=dtype, requires_grad=True)
    gradient = torch.randn_like(x)

    def whole():
        model.zero_grad()
        logits = model(symbols[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten()).backward()

    def recurrent():
        model.lstm.zero_grad()
        x.grad = None
        model.lstm(x)[0].backward(gradient)

    return {"model": whole, "lstm": recurrent}


def times(work, device):
    """Seconds of a call, a few times in a row."""
    if device.type == "cuda":
        return gpu_times(work, REPEATS)
    with stopwatch() as own:
        work()
    return own


def measure(chosen, length, device):
    """All cases, round by round; a row each, with the median of every round, of the model and of the LSTM alone."""
    found = [{"model": [], "lstm": []} for _ in chosen]
    for _ in range(ROUNDS if device.type == "cuda" else 1):
        for case, own in zip(chosen, found, strict=True):
            steps.set_fp32_precision(case["dtype"] == "tf32")
            for part, work in prepare(case, length, device).items():
                own[part].append(1e6 * Spread.of(times(work, device)).median)
    for case, own in zip(chosen, found, strict=True):
        whole, recurrent = flops(case, length)
        row = case | {"length": length, "us_rounds": own["model"], "lstm_us_rounds": own["lstm"]}
        row["us"], row["lstm_us"] = Spread.of(own["model"]).median, Spread.of(own["lstm"]).median
        yield row | {"tflops": whole / row["us"] / 1e6, "lstm_tflops": recurrent / row["lstm_us"] / 1e6}


def kernels(case, length, device):
    """The kernels of one step of the model that took longest: name, and share of the time of all."""
    if device.type == "cpu":
        return []
    steps.set_fp32_precision(case["dtype"] == "tf32")
    work = prepare(case, length, device)["model"]
    work()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    own = sorted(profiler.key_averages(), key=lambda one: -one.self_device_time_total)
    total = sum(one.self_device_time_total for one in own) or 1
    return [[one.key, round(one.self_device_time_total / total, 4)] for one in own[:6]]


def told(row):
    sizes = f"hidden {row['hidden']:5} vocabulary {row['vocabulary']:6} batch {row['batch']:4} {row['dtype']}"
    return f"{sizes}: {row['us']:9.1f} µs {row['tflops']:6.1f} TFLOP/s; LSTM {row['lstm_us']:9.1f} µs"


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU too: to try it")
    args = parser.parse_args()
    device = steps.pick_device("auto") if args.tiny else steps.need_gpu()
    sizes = TINY if args.tiny else FULL
    chosen = [case for case in cases(sizes) if case["dtype"] not in missing(device)]
    rows = []
    for row in measure(chosen, sizes["length"], device):
        row["kernels"] = kernels({name: row[name] for name in chosen[0]}, sizes["length"], device)
        rows.append(row)
        print(told(row), flush=True)
    steps.write_benchmark_record(args, device, rows, rounds=ROUNDS)


if __name__ == "__main__":
    main()
