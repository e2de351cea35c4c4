"""What does this report say? The command line, ``python3 -m stepbudget REPORT``, for any PyTorch program."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping

from stepbudget.errors import ReportError, printable

TYPE_CHECKING = False  # what type checkers take for true; the module typing takes longer to load than the sums to make
if TYPE_CHECKING:
    from typing import NoReturn

    from stepbudget.report import Report


def main(arguments: list[str] | None = None, labs: Mapping[str, str] | None = None) -> int:
    """Print what the report says; 0, or 2 with one sentence on stderr where it cannot be read.

    ``labs``: fix → the name of the lab that treats it, printed beside the advice.
    """
    args = _arguments(arguments)
    try:
        said = _tables(args) if args.tables else _answer(args, labs)
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
    return 0


def _tables(args: argparse.Namespace) -> str:
    """The plain sums of ``--tables``; nothing is imported for them that loads slowly."""
    from stepbudget.ask import sums

    found = sums.sums(args.report)
    if args.json:
        return _json(sums.objects(found))
    return "\n".join(sums.lines(found))


def _answer(args: argparse.Namespace, labs: Mapping[str, str] | None) -> str:
    """All that is printed, made before anything is: no half answers."""
    from stepbudget.ask import compare
    from stepbudget.ask.budget import budget
    from stepbudget.report import open_report
    from stepbudget.say import summary, text

    with open_report(args.report) as report:
        occurrence = args.occurrence or 1
        window = report.window(args.range, occurrence, args.gpu)
        _check_gpu(report, args.gpu)
        found = summary.summary(report, window, budget(report, window, args.gpu), labs)
        if args.compare:
            with open_report(args.compare) as other:
                _check_gpu(other, args.gpu)
                comparison = compare.compare(report, other, window, other.window(args.range, occurrence), args.gpu)
                found["comparison"] = summary.compared(report, other, comparison)
                lines = [*text.answer(found), "", *text.comparison(comparison, found["comparison"])]
        else:
            lines = text.answer(found)
        if args.json:
            return _json(summary.plain(found))
        return "\n".join(lines)


def _json(found: dict) -> str:
    import json

    return json.dumps(found, indent=1, allow_nan=False)


def _check_gpu(report: Report, number: int | None) -> None:
    """ReportError where a GPU is asked for that did nothing in the report."""
    from stepbudget.say import summary

    used = summary.gpus_used(report)
    if number is not None and number not in used:
        listed = f"the GPUs that did are {', '.join(map(str, used))}" if used else "nor on any other"
        raise ReportError(f"{report.path.name} holds no work on a GPU with the number {number}; {listed}.")


def _say(text: str) -> None:
    """Print a text; letters that the terminal's encoding lacks come out as '?'."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        print(text.encode(encoding, "replace").decode(encoding), flush=True)


def _failed(why: object) -> int:
    print(printable(" ".join(str(why).split())), file=sys.stderr)  # one line, whatever names it holds
    return 2


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.tables:
        about_a_part = {"--range": args.range, "--occurrence": args.occurrence, "--gpu": args.gpu}
        for option, value in {**about_a_part, "--compare": args.compare}.items():
            if value is not None:
                parser.error(f"argument --tables: not allowed with argument {option}: it is about the whole capture")
    return args


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments, without what in them would steer a terminal."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python3 -m stepbudget",
        description="What a report of NVIDIA Nsight Systems says: the step budget, phases, copies, kernels, Tensor "
        "Cores, and what to do next.",
    )
    add = parser.add_argument
    add("report", metavar="REPORT", help="a .nsys-rep (nsys exports it), a .sqlite, or one packed as .sqlite.xz")
    add("--range", metavar="NAME", help="an NVTX range (default: 'training' where there is one, else all)")
    add("--occurrence", metavar="N", type=_positive, help="its N-th occurrence (default: the first)")
    add(
        "--gpu",
        metavar="N",
        type=_number,
        help="number of the card (default: the lowest that ran the program's kernels)",
    )
    add("--json", action="store_true", help="print one JSON object")
    add("--tables", action="store_true", help="only the plain sums of the whole capture, as nsys stats gives them")
    add("--compare", metavar="OTHER", help="a report of the same work after a fix: compare, and score the prediction")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 on")
    return int(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no GPU's number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
