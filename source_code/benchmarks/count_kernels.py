"""Run kernels of labs 26 and 27 once, each in a range of its name: for Nsight Compute."""

import argparse
from functools import partial

import torch
from count_rungs import count

from labkit.kernels import attention, chains, shared_out, softmax, transpose
from labkit.training import steps

WARPS, ROUNDS = 32, 2000  # of the chains, as bench_kernels.py has them
SIDE = 8192  # of the matrix that is transposed
ROWS, COLUMNS, INNER = (12, 13), 11, 4096  # tiles down, of two products, and across: 132 fill an H100 or H200 once
NUMBERS, WIDTHS = 2**28, (256, 4096)  # of a softmax, and its rows'
LENGTH, HEADS, WIDTH, TILE = 8192, 16, 64, (64, 64, 4, 3)  # attention's, with the H200's fastest tile at 4,096


def ways(device):
    """What is counted, by name."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    sums, clocks = torch.empty(32 * WARPS * sms, device=device), torch.zeros(2 * sms, dtype=torch.int64, device=device)
    found = {
        f"chains {number}": partial(chains.launch, sums, clocks, number, WARPS, ROUNDS) for number in chains.CHAINS
    }
    x = torch.randn(SIDE, SIDE, device=device)
    found |= {form: partial(transpose.launch, x, torch.empty_like(x), form) for form in transpose.FORMS}
    rows, columns = shared_out.TILE[:2]
    for down in ROWS:
        a = torch.randn(rows * down, INNER, device=device).bfloat16()
        b = torch.randn(INNER, columns * COLUMNS, device=device).bfloat16()
        tiles = down * COLUMNS
        found[f"tiles {tiles}"] = partial(shared_out.shared_out, a, b, tiles, shared_out.TILE)
    for width in WIDTHS:
        x = torch.randn(NUMBERS // width, width, device=device).bfloat16()
        found[f"softmax {width}"] = partial(softmax.softmax, x)
        found[f"torch's softmax {width}"] = partial(softmax.softmax_reference, x)
    q, k, v = torch.randn(3, 2, HEADS, LENGTH, WIDTH, device=device).bfloat16()
    found["attention"] = partial(attention.attention, q, k, v, False, TILE)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="bracket them for the profiler")
    args = parser.parse_args()
    device = steps.need_gpu()
    torch.manual_seed(1)
    count(ways(device), args.profile)


if __name__ == "__main__":
    main()
