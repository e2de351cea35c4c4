"""``python3 -m labkit.recording``: measure what the labs show, or say what of it is still true.

python3 -m labkit.recording                       what is missing or no longer true, into reports/recorded/<gpu>/
python3 -m labkit.recording --status              say what that is; exit status 1 if a page shows such without a word
python3 -m labkit.recording --check               say which files are not what was recorded; exit status 1 if any
python3 -m labkit.recording --only profiles       one kind
python3 -m labkit.recording --only clinic --only findings      the clinic's cases, and what other tools say of them
python3 -m labkit.recording --only ranks --only ranks_accuracy    all GPUs of this host, into …/recorded/<gpu>-x<n>/
python3 -m labkit.recording --named bench_peaks   only what has this in its name
python3 -m labkit.recording --time-limit 500      begin nothing new after so many seconds
python3 -m labkit.recording --machine h200-4cores --quick      part 1 and the ladder, as the labs run them live
python3 -m labkit.recording --machine h100 --only runs --only profiles      a part of it on another card
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from labkit import cases, course
from labkit.errors import LabError, one_sentence
from labkit.paths import RECORDED
from labkit.recording import make, pages, plan, provenance, status
from labkit.recording.tools import TOOLS
from labkit.source import command, originals, quick
from labkit.training import machine

WITHOUT_GPU = (*plan.ON_CPU, *plan.FROM_REPORTS, "nsys_stats")  # kinds
ONLY_NAMED = (*plan.ON_CPU, *plan.FROM_REPORTS, *plan.BOTH, *plan.OF_RANKS)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m labkit.recording", description="Measure everything that the labs show."
    )
    add = parser.add_argument
    add("--status", action="store_true", help="measure nothing: say which recordings are still true")
    add("--check", action="store_true", help="measure nothing: say which files are not what was recorded")
    add("--machine", metavar="NAME", help="the folder in reports/recorded/ (default: after the GPU's name)")
    add("--quick", action="store_true", help="part 1 and the ladder only, of few epochs, as the labs run them live")
    add("--only", choices=plan.KINDS, action="append", help="this kind only (may be given more than once)")
    add("--named", metavar="TEXT", action="append", help="only what has TEXT in its name (may be given more than once)")
    usual = f"default: {quick.FULL_ROUNDS}, quick {quick.ROUNDS}"
    add("--rounds", type=int, help=f"runs of each step, and profiles of it ({usual}; quick, one profile)")
    add("--seeds", type=int, default=plan.SEEDS, help="trainings for the accuracy gate (default: %(default)s)")
    add("--jobs", type=int, default=max(1, machine.usable_cores() // 2), help="accuracy runs at a time")
    add("--time-limit", type=float, default=float("inf"), metavar="S", help="begin nothing new after S seconds")
    add("--reference", type=Path, metavar="FILE", help="also time PyTorch's MNIST example, given as FILE")
    return parser.parse_args()


def folder_name(gpu: str) -> str:
    """The usual folder of a GPU: ``NVIDIA H200`` → ``h200``."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")


def chosen(args: argparse.Namespace) -> list[plan.Item]:
    """The items that the command line asks for."""
    rounds = args.rounds or (quick.ROUNDS if args.quick else quick.FULL_ROUNDS)
    items = plan.plan(rounds, args.seeds, args.quick, args.reference is not None, machine.usable_cores())
    if of_ranks(args):
        items += plan.of_ranks(gpus(), rounds)
    items = without_keras(items)
    asked = args.only or [kind for kind in plan.KINDS if kind not in ONLY_NAMED]
    items = without_missing([item for item in items if item.kind in asked])
    if args.named:
        items = [item for item in items if any(text in item.label for text in args.named)]
        if not items:
            raise LabError(f"nothing that is recorded has {' or '.join(args.named)} in its name.")
    return items


def without_keras(items: list[plan.Item]) -> list[plan.Item]:
    """The items without those of labs 16 and 17 for which Keras or their backend is missing here, which is said."""

    def absent(item: plan.Item) -> list[str]:
        backends = re.findall(r"--backend (\w+)", item.command)
        return machine.missing("keras", *backends) if item.kind.startswith("keras") else []

    if packages := sorted({package for item in items for package in absent(item)}):
        print(f"of labs 16 and 17 is left out what needs {' and '.join(packages)}: not to be imported here")
    return [item for item in items if not absent(item)]


def of_ranks(args: argparse.Namespace) -> bool:
    """Are the GPUs of this host asked for, together? LabError where they cannot be recorded so."""
    named = set(args.only or ())
    if not named & set(plan.OF_RANKS):
        return False
    if named - set(plan.OF_RANKS) or gpus() < 2:
        raise LabError(
            f"{' and '.join(plan.OF_RANKS)} want two GPUs or more (here: {gpus()}), and a call of their own."
        )
    return True


def gpus() -> int:
    """How many GPUs programs may use here."""
    import torch

    return torch.cuda.device_count()


def without_missing(items: list[plan.Item]) -> list[plan.Item]:
    """The items without those cases of the clinic for which GPUs or another tool are missing here, which is said."""
    kinds = {item.kind for item in items}
    if kinds & {"clinic", "both"} and gpus() < 2:
        print("one GPU here: the clinic's programs for two are left out")
        several = {case.report for case in cases.CASES if case.gpus > 1}
        items = [item for item in items if item.kind not in ("clinic", "both") or item.label not in several]
    if "findings" in kinds:
        for name, tool in TOOLS.items():
            if tool.version() is None:
                print(f"{tool.name} is not here: its findings are left out")
                items = [item for item in items if not item.file.startswith(f"findings/{name}--")]
    return items


def record(folder: Path, items: list[plan.Item], args: argparse.Namespace) -> int:
    """Make what is missing or outdated, after saying how long that takes; how many are still missing then."""
    found = status.findings(folder, items)
    todo = [finding.item for finding in found if not status.is_done(finding)]
    print(f"{folder.name}: {len(items)} items, {len(items) - len(todo)} of them there already", flush=True)
    if todo:
        expected = status.expected_s([folder, RECORDED / course.DEFAULT_MACHINE], todo)
        print(f"to record: {len(todo)}: {status.estimate(expected)}", flush=True)

    def is_done(item: plan.Item) -> bool:
        return status.is_done(status.judge(folder, item))

    try:
        missing = make.make(folder, items, is_done, args.jobs, args.time_limit, args.reference)
    finally:
        provenance.write(folder)
    print(f"{len(missing)} of {len(items)} items are missing" if missing else f"all {len(items)} items are there")
    return len(missing)


def say_status(name: str | None) -> int:
    """Print the state of one machine's recordings, or of all; how many pages show an outdated one without a word."""
    shown_on, silent = pages.shown_on(), {}
    for folder in _folders(name):
        found = status.findings(folder)
        print(status.report(folder, found, shown_on))
        silent |= status.unsaid(folder, found, shown_on)
    for page, files in silent.items():
        print(f"{page} does not say that this is {status.OUTDATED}: {', '.join(files)}")
    return len(silent)


def say_differing(name: str | None) -> int:
    """Print which files of one machine's folder, or of all, are not what was recorded; how many."""
    folders = _folders(name)
    found = {folder: originals.differing(folder) for folder in folders}
    for folder, files in found.items():
        print(f"{folder.name}: {f'{len(files)} files differ' if files else 'every file is as it was recorded'}")
        print("".join(f"  {file}: {what}\n" for file, what in files.items()), end="")
    return sum(map(len, found.values()))


def _folders(name: str | None) -> list[Path]:
    """The folder of a machine's recordings, or of all; LabError where there is none."""
    folders = originals.machines(RECORDED, name or "*")
    if not folders:
        raise LabError(f"nothing was recorded on {name or 'any machine'} (in {RECORDED}).")
    return folders


def refuse_changed(folder: Path) -> None:
    """LabError where a file is not the one that was recorded: the list made afterwards would vouch for it."""
    if (folder / provenance.FILE).is_file():
        changed = [name for name, what in originals.differing(folder).items() if what == originals.CHANGED]
        if changed:
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise LabError(
                f"{originals.shown(folder / changed[0])}{more} is {originals.CHANGED}. {originals.AGAIN}, "
                "or delete it to have it measured again."
            )


def main() -> None:
    args = parse_args()
    with one_sentence():
        if args.check:
            sys.exit(1 if say_differing(args.machine) else 0)
        if args.status:
            sys.exit(1 if say_status(args.machine) else 0)
        gpu = machine.gpu_name()
        if gpu is None and not (args.machine and args.only and set(args.only) <= set(WITHOUT_GPU)):
            raise LabError("recording needs a GPU, and none answers here.")
        folder = RECORDED / (args.machine or folder_name(gpu) + (f"-x{gpus()}" if of_ranks(args) else ""))
        command.check_writable(folder)
        refuse_changed(folder)
        items = chosen(args)
        try:
            missing = record(folder, items, args)
        except KeyboardInterrupt:
            sys.exit("interrupted: what was finished is kept, and the next call goes on from there")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
