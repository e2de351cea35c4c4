"""Speedrun: the time of a training to 99 % on MNIST, of an entry, over many seeds; rules in speedrun/RULES.md."""

import json
from datetime import datetime, timezone

import torch

from labkit import paths
from labkit.errors import one_sentence
from labkit.speedrun import referee, rules, search
from labkit.training import steps


def played(entry, train, judged, device, seeds, what):
    """Rows of all seeds, a line for each; the play, for what it knows of the entry."""
    play = referee.Play(entry, train, device)
    print(f"{what}: {len(train):,} digits to train, {len(judged):,} to judge; warm-up {play.warm_up_s:.1f} s")
    rows = []
    for row in play.seeds(seeds, judged):
        rows.append(row)
        print(f"  seed {row['seed']:3}: {row['training_ms']:9.2f} ms  {row['accuracy_pct']:.2f} %", flush=True)
    found = referee.summary(rows)
    print(f"  mean {found['mean_pct']:.3f} ± {found['error_pct']:.3f} %, median {found['median_ms']:.2f} ms")
    return rows, play


def now():
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def log(entry, **what):
    """A line about the test set and an entry in the reader's own reports; the file's lines."""
    file = paths.REPORTS / "speedrun_tests.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(what | {"entry": entry.file.name, "entry_hash": entry.hash}) + "\n")
    return [json.loads(one) for one in file.read_text(encoding="utf-8").splitlines()]


def open_test_set(entry):
    """Note that it is opened, before a digit of it is judged; how often it was by now for an entry of this name."""
    lines = log(entry, opened=now(), recipe=entry.recipe)
    return sum("opened" in one and one["entry"] == entry.file.name for one in lines)


def main():
    parser = steps.script_parser(__doc__, "the entry's record")
    add = parser.add_argument
    add("entry", help="the entry's file, or one of the course's: any_net, own_kernels, course_net")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting than the entry's own")
    add("--seeds", type=steps.at_least(1), default=rules.SEEDS, help="trainings (default: %(default)s)")
    add("--author", default="", help="who made the entry, for the table")
    add("--hold-out", action="store_true", help="only on digits held out of the training set: to choose a recipe")
    add("--open-anyway", action="store_true", help="open the test set whatever the held-out digits say")
    add("--data-dir", metavar="DIR", help="where MNIST lies")
    add("--limit", type=steps.at_least(1), metavar="N", help="train on the first N samples only")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s; a CPU makes no entry")
    args = parser.parse_args()
    started = now()
    with one_sentence():
        device = steps.pick_device(args.device)
        entry = referee.read(args.entry).but(**dict(search.setting(one) for one in args.set))
        digits = steps.found_digits(args)
        train, held_out = referee.split(digits.train, min(rules.HELD_OUT, len(digits.train) // 6))
    steps.set_fp32_precision(tf32=False)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{entry.file.name}, track '{entry.track}' | {where} | data: {digits.source}\n{entry.recipe}")

    with one_sentence():
        chosen_by, play = played(entry, train, held_out, device, rules.HOLD_OUT_SEEDS[: args.seeds], "held out")
    parameters, warm_up_s = play.trainer.parameters(), play.warm_up_s  # the second play finds kernels compiled
    del play
    rows, opened = [], 0
    closed = referee.summary(chosen_by)["mean_pct"] < rules.GATE_PCT and not args.open_anyway
    if args.hold_out or closed:
        if closed:
            print(f"The test set stays closed: on held-out digits the mean is below {rules.GATE_PCT} %.")
    else:
        counts = digits.is_mnist and len(digits.test) == rules.TEST_SAMPLES
        opened = open_test_set(entry) if counts else 0
        rows, _ = played(entry, digits.train, digits.test, device, range(1, args.seeds + 1), "test set")
        if counts:
            log(entry, ended=now(), **referee.summary(rows))
    record = {
        "track": entry.track, "entry": entry.file.name, "entry_hash": entry.hash, "author": args.author,
        "recipe": entry.recipe, "parameters": parameters, "hold_out": chosen_by, "test_opened": opened,
        "warm_up_s": warm_up_s, "data_source": digits.source, "train_samples": len(digits.train),
        "test_samples": len(digits.test), "started": started,
    }  # fmt: skip
    with one_sentence():
        steps.write_benchmark_record(args, device, rows, **record)
    for line in rules.broken({"rows": rows, "device": device.type, **record}):
        print(f"not yet an entry: {line}")


if __name__ == "__main__":
    main()
