"""The ring of lab 29, by hand; and what a piece of a ``.cu`` file reads like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.display.listing import listing
from labkit.errors import LabError
from labkit.labs import lab29
from labkit.paths import SOURCE_CODE
from labkit.pretend import ring

FIFTH = SOURCE_CODE / "labkit" / "kernels" / "rungs" / lab29.FILE
OWN = tuple(lab29.HOLES.values())


@given(st.integers(2, 7), st.integers(1, 40))
def test_the_rung_s_own_ring_holds_with_any_number_of_stages_and_steps(stages, steps):
    assert ring.trouble(*OWN, stages, steps) is None
    assert ring.trouble(OWN[0], "0", OWN[2], stages, steps) is None, "to wait for this step's products, too, is slow"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({0: "1 - step / STAGES % 2"}, "step 0 does not wait"),
        ({0: "1 - 1"}, "step 4 does not wait"),
        ({0: "2"}, "PHASE is 2"),
        ({1: "2"}, "PENDING is 2"),
        ({2: "step + STAGES"}, "still read"),
        ({2: "step + STAGES + 1"}, "still to come"),
        ({2: "step"}, "still read"),
        ({2: "step - 1"}, "a second time"),
        ({1: "0", 2: "step + STAGES"}, "step 4 waits for ever"),
        ({2: "1000"}, "step 4 waits for ever"),
    ],
)
def test_what_breaks_a_ring_is_named(change, said):
    assert said in ring.trouble(*(change.get(place, own) for place, own in enumerate(OWN)))


@pytest.mark.parametrize("text", ["step ** 2", "stepp", "1.5", "f(step)", "step %", "step % 0", "", "step // 2"])
def test_what_is_no_expression_of_whole_numbers_is_refused(text):
    with pytest.raises(ValueError, match=r"is none of|cannot be worked out"):
        ring.value(text, {"step": 3})


@given(st.integers(-50, 50), st.integers(1, 9))
def test_division_is_that_of_c(step, by):
    names = {"step": step, "STAGES": by}
    assert by * ring.value("step / STAGES", names) + ring.value("step % STAGES", names) == step
    assert abs(ring.value("step % STAGES", names)) < by and ring.value("step % STAGES", names) * step >= 0


def test_the_holes_are_those_of_the_file_and_filling_them_as_it_has_them_changes_no_more_than_brackets():
    text = FIFTH.read_text()
    for name, own in lab29.HOLES.items():
        assert text.count(lab29.IN_FILE[name].format(own)) == (2 if name == "NEXT" else 1)
    again = text.replace("step - 1 + STAGES", "(step - 1 + STAGES)")
    assert lab29.filled(text, *OWN) == again


def test_a_piece_of_a_cu_file_is_the_statement_with_its_block():
    shown = str(listing("source_code/labkit/kernels/rungs/5_tma.cu", "auto fetch", "wgmma_wait<0>"))
    assert shown.splitlines()[1].startswith("auto fetch") and shown.splitlines()[-2:] == ["};", "wgmma_wait<0>();"]
    producer = str(listing("source_code/labkit/kernels/rungs/6_specialised.cu", "if (role == CONSUMERS)"))
    assert producer.splitlines()[-1] == "}" and producer.count("{") == producer.count("}")
    with pytest.raises(LabError, match="no statement begins with nothing"):
        listing("source_code/labkit/kernels/rungs/5_tma.cu", "nothing")


def test_a_tile_s_bytes_by_hand():
    assert lab29.tile_bytes(2, 4, 8) == 2 * (8 * 6 * 8 + 64), "8 tiles of 6 rows of 8 numbers; 64 results"
