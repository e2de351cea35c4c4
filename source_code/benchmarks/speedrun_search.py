"""Speedrun: try settings of an entry on digits held out of the training set, the better ones with more seeds."""

import time

import torch

from labkit.errors import one_sentence
from labkit.speedrun import ranking, referee, rules, search
from labkit.training import steps


def line(row):
    """A row in words."""
    settings = " ".join(f"{name}={value}" for name, value in row["settings"].items())
    if "failed" in row:
        return f"  failed   {settings}: {row['failed']}"
    mark = "*" if ranking.reaches(row) else " "
    return f"{mark} {row['mean_pct']:.3f} ± {row['error_pct']:.3f} %  {row['median_ms']:8.2f} ms  {settings}"


def main():
    parser = steps.script_parser(__doc__)
    add = parser.add_argument
    add("entry", help="the entry's file, or one of the course's: any_net, own_kernels, course_net")
    add(
        "--over",
        action="append",
        default=[],
        metavar="NAME=VALUE,VALUE",
        help="settings to try in all combinations, the likely ones first; default: SPACE",
    )
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting than the entry's own")
    add("--minutes", type=steps.positive, default=1.0, help="at most; two thirds for the first round (%(default)s)")
    add(
        "--seeds", type=steps.at_least(2), default=3, help="of each in the first round, hopeless ones two (%(default)s)"
    )
    add("--finalists", type=steps.at_least(1), default=8, help="that go on to the second (default: %(default)s)")
    add("--final-seeds", type=steps.at_least(2), default=12, help="of each there (default: %(default)s)")
    add("--data-dir", metavar="DIR", help="where MNIST lies")
    add("--limit", type=steps.at_least(1), metavar="N", help="train on the first N samples only")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    args = parser.parse_args()
    with one_sentence():
        device = steps.pick_device(args.device)
        entry = referee.read(args.entry).but(**dict(search.setting(one) for one in args.set))
        space = [search.choices(one) for one in args.over] or [*entry.space.items()]
        tries = search.combinations(space)
        digits = steps.found_digits(args)
        sets = referee.split(digits.train, min(rules.HELD_OUT, len(digits.train) // 6))
    steps.set_fp32_precision(tf32=False)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{entry.file.name} | {where} | {len(tries)} combinations | data: {digits.source}")

    rows, seconds, start, combinations = [], 60 * args.minutes, time.monotonic(), len(tries)
    fresh = range(args.seeds + 1, args.seeds + args.final_seeds + 1)  # the first ones chose who goes on
    first = {"seeds": range(1, args.seeds + 1), "until": start + 2 / 3 * seconds, "stops": True}
    second = {"seeds": fresh, "until": start + seconds}
    for number, limits in enumerate((first, second), start=1):
        if number == 2:
            tries = [row["settings"] for row in ranking.ranked(rows)[: args.finalists]]
        print(f"Round {number}: {len(tries)} to try, {len(limits['seeds'])} seeds each", flush=True)
        with one_sentence():
            for row in search.tried(entry, tries, sets, device, **limits):
                rows.append(row | {"round": number})
                print(line(row), flush=True)
    best = ranking.ranked([row for row in rows if row["round"] == 2])
    print("Best (*: at 99 % with a standard error to spare):", *(line(row) for row in best[:10]), sep="\n")
    more = {
        "combinations": combinations,
        "entry": entry.file.name,
        "entry_hash": entry.hash,
        "data_source": digits.source,
    }
    with one_sentence():
        steps.write_benchmark_record(args, device, rows, recipe=entry.recipe, **more)


if __name__ == "__main__":
    main()
