"""What does this report say? The command line, ``python3 -m stepbudget REPORT``, for any PyTorch program."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from stepbudget.errors import ReportError, printable, speak_any_encoding

TYPE_CHECKING = False  # what type checkers take for true; the module typing takes longer to load than the sums to make
if TYPE_CHECKING:
    from typing import NoReturn


SLOWER = 3  # exit status; 1 is that of a crash, 2 that of wrong arguments
OF_ONE_REPORT = ("--html", "--trace", "--markdown")
NOT_WITH = {  # option → others, and why
    "--ranks": (("--compare", "--gpu", *OF_ONE_REPORT), "about all ranks of one run"),
    "--trace": (("--compare",), "of one report"),
    "--tables": (
        ("--range", "--occurrence", "--gpu", "--compare", "--ranks", *OF_ONE_REPORT),
        "about the whole capture",
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Print what the report says; 0, or 2 with one sentence on stderr where it cannot be read.

    With ``--fail-if-slower``: SLOWER where the second side is, and 2 where the two cannot be compared.
    """
    args = _arguments(arguments)
    status = 0
    try:
        plain = _schema if args.schema else _tables if args.tables else _ranks if args.ranks else None
        said, status = (plain(args), 0) if plain else _answer(args)
    except ReportError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return 130
    try:
        _say(said)
    except BrokenPipeError:  # the reader, such as head, has read enough; nothing is left to be flushed at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):  # what is left in the buffer has nowhere to go
            sys.stdout.close()
        return _failed(f"the answer cannot be written: {error.strerror}.")
    return _failed("the two sides cannot be compared: see above what differs.") if status == 2 else status


def _schema(args: argparse.Namespace) -> str:
    from stepbudget.show import json

    return json.schema()


def _tables(args: argparse.Namespace) -> str:
    """The plain sums of ``--tables``; nothing is imported for them that loads slowly."""
    from stepbudget.ask import sums

    found = sums.sums(args.reports[0])
    if not args.json:
        return "\n".join(sums.lines(found))
    from stepbudget.show import json

    return json.text(sums.objects(found))


def _answer(args: argparse.Namespace) -> tuple[str, int]:
    """All that is printed, made before anything is (no half answers), and the exit status."""
    from stepbudget.ask import compare
    from stepbudget.ask.budget import budget
    from stepbudget.report import open_report
    from stepbudget.show import json, summary, terminal

    with contextlib.ExitStack() as opened:
        sides = [[opened.enter_context(open_report(path)) for path in side] for side in (args.reports, args.compare)]
        windows = [[report.window(args.range, args.occurrence or 1, args.gpu) for report in side] for side in sides]
        first = sides[0][0]
        found = summary.summary(first, windows[0][0], budget(first, windows[0][0], args.gpu))
        lines, status = terminal.answer(found), 0
        if args.compare:
            made = compare.compare(*sides, *windows, args.gpu, args.each)
            said = found["comparison"] = summary.compared(*sides, made, args.fail_if_slower)
            lines += ["", *terminal.comparison(found, summary.plain(said))]
            if args.fail_if_slower is not None:
                status = SLOWER if said["slower_than_allowed"] else 0 if made.comparable else 2
        if args.html or args.trace:
            from stepbudget.show import files

            looked_at = [list(zip(side, own, strict=True)) for side, own in zip(sides, windows, strict=True)]
            lines += ["", *files.written(args.html, args.trace, looked_at, args.gpu, summary.plain(found))]
        if args.markdown:
            from stepbudget.show import pull_request

            return pull_request.answer(summary.plain(found)), status
        return (json.text(summary.plain(found)) if args.json else "\n".join(lines)), status


def _ranks(args: argparse.Namespace) -> str:
    """What the ranks of one run say together."""
    from stepbudget.ask import ranks
    from stepbudget.report import open_report
    from stepbudget.show import json, summary, terminal
    from stepbudget.show import ranks as say

    with contextlib.ExitStack() as opened:
        reports = [opened.enter_context(open_report(path)) for path in args.reports]
        found = say.summary(ranks.together(reports, args.range, args.occurrence or 1))
    return json.text(summary.plain(found)) if args.json else "\n".join(terminal.lines(say.blocks(summary.plain(found))))


def _say(text: str) -> None:
    """Print a text; letters that the terminal's encoding lacks come out as '?'."""
    speak_any_encoding()
    print(text, flush=True)


def _failed(why: object) -> int:
    print(printable(" ".join(str(why).split())), file=sys.stderr)  # one line, whatever names it holds
    return 2


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = _parser()
    args = parser.parse_args(arguments)
    if not args.reports and not args.schema:
        what = "the reports from before the fix first: REPORT --compare OTHER" if args.compare else "a report"
        parser.error(f"name {what}")
    if len(args.reports) > 1 and not args.compare and not args.ranks:
        parser.error(
            "several reports are one side of a comparison (name the other with --compare), or --ranks of a run"
        )
    said = {name: value for name, value in vars(args).items() if value not in (None, []) and value is not False}
    given = {f"--{name.replace('_', '-')}" for name in said}
    for option in ("--each", "--fail-if-slower"):
        if option in given and not args.compare:
            parser.error(f"argument {option}: it needs --compare")
    for option, (others, why) in NOT_WITH.items():
        for other in others:
            if {option, other} <= given:
                parser.error(f"argument {option}: not allowed with argument {other}: it is {why}")
    if args.trace and args.html and os.path.realpath(args.trace) == os.path.realpath(args.html):
        parser.error("argument --trace: the same file as --html")
    return args


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments, without what in them would steer a terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="stepbudget" if sys.argv[0].endswith("stepbudget") else "python3 -m stepbudget",
        description="What a report of NVIDIA Nsight Systems, or a trace of PyTorch's profiler, says: the step budget, "
        "phases, copies, kernels, Tensor Cores, and what to do next.",
        epilog="Exit status: 0; 2 where something cannot be read. With --fail-if-slower also 2 where the two cannot be "
        f"compared, and {SLOWER} where the second side is slower.",
    )
    add = parser.add_argument
    what = (
        "a .nsys-rep (nsys exports it), a .sqlite, one packed as .sqlite.xz, or a trace of torch.profiler (.json, "
        ".json.gz); to compare, any number of one program"
    )
    add("reports", metavar="REPORT", nargs="*", help=what)
    add("--range", metavar="NAME", help="an NVTX range (default: 'training', where there is none the whole capture)")
    add("--occurrence", metavar="N", type=_positive, help="its N-th occurrence (default: the first)")
    add(
        "--gpu",
        metavar="N",
        type=_number,
        help="number of the card (default: the one with the program's work, the lowest of several)",
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help="print one JSON object")
    printed.add_argument("--markdown", action="store_true", help="print Markdown, short, for a pull request")
    page = "write the answer, or the comparison, with a timeline as one HTML file that opens anywhere"
    add("--html", metavar="FILE", help=page)
    trace = "write what ran when as a trace for Perfetto or chrome://tracing: .json, or .json.gz"
    add("--trace", metavar="FILE", type=_trace, help=trace)
    add("--schema", action="store_true", help="print the JSON Schema of these objects: every key and its unit")
    add("--tables", action="store_true", help="only the plain sums of the whole capture, as nsys stats gives them")
    of_a_run = "the reports are those of one run's ranks: clocks aligned, who waited for whom, and why"
    add("--ranks", action="store_true", help=of_a_run)
    other = "reports of the same work after a fix: compare, and score the prediction; as many as before are pairs"
    add("--compare", metavar="OTHER", nargs="+", default=[], help=other)
    add("--each", metavar="NAME", help="compare the median of the ranges of this name, such as a kind of step")
    slower = (
        f"with --compare: exit with status {SLOWER} if the second side is slower by more than this share (0.05: 5 %%), "
    )
    add("--fail-if-slower", metavar="SHARE", type=_share, help=slower + "beyond what the profiles of a side differ by")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 on")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no share from 0 on, such as 0.05")
    return share


def _trace(text: str) -> str:
    if not text.endswith((".json", ".json.gz")):
        raise argparse.ArgumentTypeError(f"'{text}' ends in neither .json nor .json.gz")
    return text


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no GPU's number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
