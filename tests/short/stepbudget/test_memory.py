"""Memory held: allocations and frees as the driver made them, of one process and one card."""

from __future__ import annotations

import pytest

from stepbudget.ask import memory
from stepbudget.report import open_report
from synthetic import SyntheticReport, changed

KERNEL = "at::native::vectorized_elementwise_kernel<4>"
MB = 10**6


@pytest.fixture
def made(tmp_path) -> SyntheticReport:
    made = SyntheticReport(tmp_path / "made.sqlite").range(100, 200, "training")
    return made.kernel(120, 130, KERNEL, call=(110, 111))


def held(made: SyntheticReport) -> memory.Memory | None:
    return memory.memory(open_report(made.write()))


def test_peak_and_end_of_a_window(made):
    made.allocate(10, 1, 5 * MB).allocate(20, 2, 3 * MB).free(30, 2)  # before it: 5 MB are held as it begins
    made.allocate(110, 3, 20 * MB).allocate(120, 4, 7 * MB).free(130, 3).allocate(140, 3, 2 * MB).free(150, 1)
    made.allocate(300, 5, 100 * MB)  # after it
    found = held(made)
    assert (found.start_bytes, found.peak_bytes, found.end_bytes) == (5 * MB, 32 * MB, 9 * MB)
    assert (found.allocations, found.frees, found.unknown_frees) == (3, 2, 0)
    assert found.largest_bytes == [20 * MB, 7 * MB, 2 * MB]


def test_a_window_in_which_nothing_changes_holds_what_it_began_with(made):
    found = held(made.allocate(10, 1, 5 * MB).free(400, 1))
    assert (found.start_bytes, found.peak_bytes, found.end_bytes, found.allocations) == (5 * MB, 5 * MB, 5 * MB, 0)


def test_a_free_of_older_memory_is_counted_and_takes_nothing(made):
    found = held(made.free(110, 77, 9 * MB).allocate(120, 1, 5 * MB))
    assert (found.unknown_frees, found.peak_bytes, found.end_bytes) == (1, 5 * MB, 5 * MB)


def test_an_address_given_again_without_a_free_replaces_what_was_there(made):
    found = held(made.allocate(110, 1, 5 * MB).allocate(120, 1, 8 * MB))
    assert (found.peak_bytes, found.end_bytes) == (8 * MB, 8 * MB)


def test_other_processes_cards_and_the_hosts_memory_do_not_count(made):
    made.allocate(110, 1, 5 * MB).allocate(111, 1, 50 * MB, process=99).allocate(112, 1, 60 * MB, device=1)
    made.allocate(114, 3, 448, kind="device static")  # a variable of code that was loaded
    found = held(made.allocate(113, 2, 70 * MB, kind="pinned"))
    assert (found.gpu, found.peak_bytes, found.allocations) == (0, 5 * MB, 1)


def test_without_the_table_nothing_is_said_but_the_option(made, answer):
    found = answer(made.write())
    assert found["memory"] is None and any(memory.OPTION in text for text in found["not_looked_at"])


def test_the_answer_says_whose_count_it_is(made, ask):
    made.allocate(110, 1, 5 * MB).free(150, 1)
    out = " ".join(ask(made.write())[1].split())
    assert "GPU memory: at most 5.0 MB held at once, 0.0 MB at the end" in out and "PyTorch's cache" in out
    assert memory.OPTION not in out


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE {} SET bytes = -1",
        "UPDATE {} SET bytes = 'many'",
        "UPDATE {} SET start = NULL",
        "UPDATE {} SET start = 9223372036854775807",
        "UPDATE {} SET start = -9223372036854775807",
        "UPDATE {} SET memoryOperationType = 9",
        "UPDATE {} SET memKind = 1",
        "UPDATE {} SET globalPid = 9223372036854775807",
        "UPDATE {} SET deviceId = -3",
        "ALTER TABLE {} DROP COLUMN address",
        "DELETE FROM {}",
    ],
)
def test_damaged_rows_are_passed_over(made, answer, change):
    path = made.allocate(110, 1, 5 * MB).free(150, 1).write()
    assert answer(changed(path, change.format(memory.TABLE)))["memory"] is None
