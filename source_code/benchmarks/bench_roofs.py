"""Benchmark: more roofs: products of zeros, memory, L2, shared memory; and so three floors of a step (lab 09)."""

from functools import partial

import torch
from bench_peaks import BUFFER_GB, REPEATS, measured

from labkit.display.spread import Spread
from labkit.errors import LabError
from labkit.kernels import bandwidth
from labkit.subjects import floors, nvml
from labkit.subjects.roofline import matmul_flops
from labkit.training import machine, steps
from labkit.training.clock import gpu_times
from labkit.training.devices import reduced_precision

SIZE = 8192  # of the products: the fastest of bench_peaks.py
# Share of zeros, and where they are. conv2's output gradient has 81 per cent and more, in one of two factors.
ZEROS = [(share, "left") for share in (0.0, 0.5, 0.75, 0.9, 1.0)] + [(share, "both") for share in (0.75, 0.9, 1.0)]
CALLS = 20  # in a graph
L2_MB, SHARED_ROUNDS, L2_ROUNDS = 20, 2001, 201


def watched(work, seconds):
    """Seconds of each call, for so long, and the clock (MHz) and power (W) that the driver told in the second half."""
    repeats = max(3, int(seconds / (CALLS * min(gpu_times(work, 3)))))
    try:
        with nvml.Sampler() as sampler:
            times = gpu_times(work, repeats, CALLS)
    except LabError:  # without NVIDIA's package the clock stays unknown
        return gpu_times(work, repeats, CALLS), {"mhz": None, "watts": None}
    busy = sampler.samples.iloc[len(sampler.samples) // 2 :]  # until then power and clock have settled
    found = {"mhz": busy["sm_mhz"].median(), "watts": busy["instant_w"].median()}
    return times, {key: None if value != value else float(value) for key, value in found.items()}


def products(device, size, seconds):
    """A row a share of zeros: briefly, as bench_peaks.py does it, and for some time, with clock and power."""
    factors, result = torch.randn(2, size, size, device=device), torch.empty(size, size, device=device)
    chance, dtype = torch.rand_like(factors), getattr(torch, reduced_precision())
    result = result.to(dtype)
    for zeros, factor in ZEROS:
        masked = factors * (chance >= zeros)
        a, b = masked[0].to(dtype), (masked if factor == "both" else factors)[1].to(dtype)
        work, flops = partial(torch.mm, a, b, out=result), matmul_flops(size, size, size)
        times, clock = watched(work, seconds)
        own = Spread.of([flops / one / 1e12 for one in times])
        row = {"what": "product", "zeros": zeros, "factor": factor, "size": size, "tflops": own.median}
        row |= {"tflops_range": [own.low, own.high], **clock}
        brief = Spread.of([flops / one / 1e12 for one in gpu_times(work, REPEATS)])
        row |= {"brief_tflops": brief.median, "brief_range": [brief.low, brief.high]}
        print(
            f"product  {zeros:4.0%} zeros in {factor:5} {own.median:8.1f} TFLOP/s, at first {brief.median:.1f}; "
            f"{clock['mhz']} MHz, {clock['watts']} W",
            flush=True,
        )
        yield row


def caches(device, l2_mb):
    """Shared memory and L2, read by kernels of our own; the sums tell that all was read."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    sums = torch.zeros(sms * bandwidth.THREADS, dtype=torch.int32, device=device)
    clocks = torch.zeros(sms, dtype=torch.int64, device=device)
    work = partial(bandwidth.shared_reads, sums, clocks, SHARED_ROUNDS)
    work()
    assert torch.equal(sums.cpu(), bandwidth.shared_reference(SHARED_ROUNDS).repeat(sms)), "shared memory: wrong sums"
    row = measured("shared", work, sms * bandwidth.BYTES * SHARED_ROUNDS, "tb_per_s")
    per_clock = bandwidth.BYTES * SHARED_ROUNDS / clocks.double().median().item()
    print(f"shared   {per_clock:.1f} bytes a clock and multiprocessor")
    yield row | {"per_clock": per_clock, "multiprocessors": sms}

    sums = torch.zeros(2 * sms * bandwidth.THREADS, dtype=torch.int32, device=device)
    for what, size_mb, rounds in (("l2", l2_mb, L2_ROUNDS), ("again", 1e3 * BUFFER_GB, 1)):
        whole = 4 * bandwidth.UNDER_WAY * len(sums)  # what all threads read at once
        count = round(size_mb * 1e6 / 4 / whole) * whole
        numbers = torch.randint(-(2**31), 2**31, (count,), device=device, dtype=torch.int32)
        work = partial(bandwidth.again, numbers, sums, rounds)
        work()
        found = sums.sum(dtype=torch.int64)
        assert (found - bandwidth.again_reference(numbers, rounds).long()) % 2**32 == 0, f"{what}: wrong sums"
        yield measured(what, work, numbers.nbytes * rounds, "tb_per_s", size_mb=numbers.nbytes / 1e6)


def memory(device):
    """As bench_peaks.py copies and reads."""
    source = torch.randn(int(BUFFER_GB * 1e9) // 4, device=device)
    target, total = torch.empty_like(source), torch.empty((), device=device)
    yield measured("copy", lambda: target.copy_(source), 2 * source.nbytes, "tb_per_s", size_gb=BUFFER_GB)
    yield measured("read", lambda: torch.sum(source, 0, out=total), source.nbytes, "tb_per_s", size_gb=BUFFER_GB)


def main():
    parser = steps.script_parser(__doc__)
    parser.add_argument("--seconds", type=steps.positive, default=1.0, help="of each product (default: %(default)s)")
    args = parser.parse_args()
    device = steps.need_gpu()
    torch.manual_seed(1)
    rows = [*products(device, SIZE, args.seconds), *memory(device), *caches(device, L2_MB)]
    for zeros in (0.0, 0.75):
        roofs = floors.roofs([{"gpu": machine.gpu_name(), "rows": rows}], zeros)
        print(f"\n{roofs}\n{floors.kernels(roofs).round(2).to_string(index=False)}")
        for name, us in floors.floors(roofs).items():
            print(f"floor of a step, {zeros:.0%} zeros, {name}: {us:.1f} µs")
    steps.write_benchmark_record(args, device, rows)


if __name__ == "__main__":
    main()
