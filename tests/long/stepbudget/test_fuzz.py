"""Mutated reports: an answer that adds up or one sentence, never an exception, a hang, or a change to the file.

    LAB_FUZZ=10000 pytest tests/long/stepbudget/test_fuzz.py

tries that many files (default: few enough for every day). A failure names its seed; this tries that one file again:

    PYTHONPATH=tests/support python3 tests/long/stepbudget/test_fuzz.py SEED [SEED ...]
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from labkit.paths import RECORDED
from stepbudget.__main__ import main
from synthetic import AUTOGRAD, METRIC_SET, PROCESS, SyntheticReport

CASES = int(os.environ.get("LAB_FUZZ", "128"))
BATCHES = 8
LIMIT_S = 20  # of processor time, which a busy machine does not lengthen
GEMM, POINTWISE, UNKNOWN = "ampere_s16816gemm_128x64", "at::native::vectorized_elementwise_kernel<4>", "mystery"
ALLREDUCE, SEND = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)", "ncclDevKernel_SendRecv"

# Recorded reports, some milliseconds of each: one GPU; operators with sizes; a CUDA graph; JAX; two processes with
# NCCL's ranges in one report; a rank of two.
WHOLE = "h200/main_opt3"
SHORTENED = (WHOLE, "h200/main_shapes_ops", "h200/clinic_digits_graph", "h200/keras_mnist_jax")
SHORTENED += ("h200/clinic_two_log", "h200-x2/main_ddp_x2_rank0")
OTHERS = [["--tables"], ["--tables", "--json"], ["--ranks"], ["--ranks", "--json"]]  # questions of whole captures
WRITTEN = "written.json"  # page or trace


# --- what is mutated ----------------------------------------------------------------------------------------


@cache
def bases() -> dict[str, bytes]:
    """The whole files that mutations start from, by name."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "table metrics": _synthetic(Path(folder) / "table.sqlite", as_json=False).read_bytes(),
            "json metrics": _synthetic(Path(folder) / "json.sqlite", as_json=True).read_bytes(),
            "ranks": _ranks(Path(folder) / "ranks.sqlite").read_bytes(),
            **{name: _shortened(Path(folder) / "recorded.sqlite", name).read_bytes() for name in SHORTENED},
        }


def _synthetic(path: Path, as_json: bool) -> Path:
    """A little of everything that a report can hold, with the column types of an export."""
    build = SyntheticReport(path)
    build.range(0, 1000, "training").gpu("NVIDIA H200", 0, (9, 0)).gpu("NVIDIA H200", 1, (9, 0))
    for step in range(4):
        at = 240 * step
        build.range(at, at + 60, "data loading").os_call(at + 2, at + 50, "poll")
        build.os_call(at + 51, at + 52, "connect").os_call(at + 53, at + 54, "recvmsg")
        build.range(at + 60, at + 90, "forward", registered=True).range(at + 90, at + 150, "backward")
        build.range(at + 62, at + 80, "aten::linear, seq = 3, sizes = [[64, 784], [128, 784], [128]]")
        sizes = "sizes = [[8, 3, 9, 9], [4, 3, 3, 3], [4], []], input_op_ids = [(0,-1), (0,-1), (0,-1), (0,-1)]"
        build.range(at + 94.5, at + 97.5, f"aten::conv2d, seq = 4, op_id = {step + 1}, {sizes}", thread=AUTOGRAD)
        build.range(at + 98, at + 99, f"aten::relu, op_id = 9, sizes = [[8, 4, 7, 7]], input_op_ids = [({step + 1},0)]")
        build.range(at + 150, at + 170, "optimizer step").overhead(at + 171, at + 173, "CUPTI Buffer flush")
        build.copy(at + 66, at + 70, 200_000, call=(at + 60, at + 68)).api(at + 68, at + 71, "cudaStreamSynchronize")
        build.copy(at + 160, at + 162, 4, "device to host", "pinned", call=(at + 155, at + 156))
        build.kernel(at + 72, at + 90, GEMM, call=(at + 71, at + 72)).kernel(at + 90, at + 99, UNKNOWN)
        build.kernel(at + 100, at + 140, POINTWISE, call=(at + 95, at + 97), thread=AUTOGRAD)
        build.kernel(at + 100, at + 110, GEMM, call=(at + 97, at + 98), device=1, stream=8)
        build.memset(at + 141, at + 143, 512).graph(at + 150, at + 158, call=(at + 149, at + 150))
        build.api(at + 170, at + 200, "cudaDeviceSynchronize_v3020")
        build.mpi(at + 173, at + 190, "MPI_Allreduce").mpi(at + 190, at + 195, "MPI_Wait", "START_WAIT")
        build.scheduled(at, at + 60).scheduled(at + 80, at + 235, thread=AUTOGRAD)
        build.chain(("sync", "/home/a/lib.so"), ("main", "/home/a/run"))
        build.python(("backward", "/x/site-packages/torch/a.py", 3), ("train", "/home/a/train.py", 41))
        frames = ("train", "/home/a/train.py", 30 + step), ("<module>", "/home/a/train.py", 90)
        build.python_sample(at + 67, *frames).python_sample(at + 69, *frames, of_2024=True)
        build.sample(at + 120, ("step", "/home/a/run"), ("_start", "/home/a/run"))
        build.allocate(at + 5, 4096 * step, 1 << 20).free(at + 190, 4096 * step, 1 << 20)
    for time_us in range(0, 1000, 9):
        build.cpu_sample(time_us, "memcpy", "main")
    build.range(980, None, "open").kernel(985, 995, POINTWISE, process=99).program("python3")
    build.diagnostic("Some CUPTI events may be missing.").rows("CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH", {"start": 1})
    if not as_json:
        for time_us in range(0, 1000, 20):
            build.counter(time_us, time_us % 90).counter(time_us, 50, "SMs Active [Throughput %]")
    build.write()
    db = sqlite3.connect(path)
    with db:
        _typed(db)
        db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3.2'), ('X', NULL)")
        db.execute("CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER)")
        db.execute(f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, {PROCESS}), (1, 1, {PROCESS})")
        for table, rows in {
            "ENUM_CUDA_MEMCPY_OPER": {1: "CUDA_MEMCPY_KIND_HTOD", 2: "CUDA_MEMCPY_KIND_DTOH"},
            "ENUM_CUDA_MEM_KIND": {0: "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", 1: "CUDA_MEMOPR_MEMORY_KIND_PINNED"},
            "ENUM_NSYS_EVENT_TYPE": {59: "NvtxPushPopRange", 60: "NvtxStartEndRange"},
        }.items():
            db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT, label TEXT)")
            db.executemany(f"INSERT INTO {table} (id, name) VALUES (?, ?)", rows.items())
        if as_json:
            _json_metrics(db, build)
    db.close()
    return path


def _ranks(path: Path) -> Path:
    """Two processes on a GPU each that reduce together, the second a little late."""
    build = SyntheticReport(path)
    for process, device in ((11, 0), (22, 1)):
        build.range(device, 1000, "training", process=process).program("python3", process)
        for step in range(6):
            at = 160 * step + 7 * device
            build.range(at, at + 150, f"step {step}", process=process).copy(
                at, at + 9, 90_000, call=(at, at + 2), device=device, process=process
            )
            build.kernel(at + 20, at + 60, GEMM, call=(at + 10, at + 12), device=device, process=process)
            build.kernel(at + 50, at + 90, ALLREDUCE, (at + 14, at + 16), device=device, stream=9, process=process)
            build.kernel(at + 95, at + 99, SEND, (at + 17, at + 18), device=device, stream=9, process=process)
            build.api(at + 100, at + 140, "cudaDeviceSynchronize_v3020", process=process)
    for time_us in range(0, 1000, 20):
        build.counter(time_us, time_us % 90)
    build.write()
    with sqlite3.connect(path) as db:
        _typed(db)
    db.close()
    return path


def _typed(db: sqlite3.Connection) -> None:
    """Give the columns the types of an export: whole numbers but for texts and names."""
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE name <> 'StringIds'").fetchall():
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        kinds = ["TEXT" if name in ("text", "name", "metricName", "value") else "INTEGER" for name in names]
        columns = ", ".join(f'"{name}" {kind}' for name, kind in zip(names, kinds, strict=True))
        db.execute(f"ALTER TABLE {table} RENAME TO old")
        db.execute(f"CREATE TABLE {table} ({columns})".replace('"value" TEXT', '"value" INTEGER'))
        db.execute(f"INSERT INTO {table} SELECT * FROM old")
        db.execute("DROP TABLE old")


def _json_metrics(db: sqlite3.Connection, build: SyntheticReport) -> None:
    db.execute("CREATE TABLE GENERIC_EVENT_SOURCES (sourceId INTEGER, data TEXT)")
    db.execute("CREATE TABLE GENERIC_EVENT_TYPES (typeId INTEGER, sourceId INTEGER, data TEXT)")
    db.execute("CREATE TABLE GENERIC_EVENTS (rawTimestamp INTEGER, timestamp INTEGER, typeId INTEGER, data TEXT)")
    fields = {"Fields": [{"Name": "Tensor Active"}, {"Name": "SM Active"}, {"Name": "Vertex/Tess Warps"}]}
    db.execute('INSERT INTO GENERIC_EVENT_SOURCES VALUES (1, \'{"Name": "GpuMetrics"}\')')
    db.execute("INSERT INTO GENERIC_EVENT_TYPES VALUES (?, 1, ?)", (METRIC_SET, json.dumps(fields)))
    for time_us in range(0, 1000, 20):
        values = json.dumps({"Tensor Active": str(time_us % 90), "SM Active": "50"})
        db.execute(
            "INSERT INTO GENERIC_EVENTS VALUES (?, NULL, ?, ?)",
            (round(1000 * (build.origin_us + time_us)), METRIC_SET, values),
        )


def _shortened(path: Path, name: str) -> Path:
    """Some milliseconds of a recorded report, of any machine (``machine/report``)."""
    machine, _, report = name.partition("/")
    path.write_bytes(lzma.decompress((RECORDED / machine / "profiles" / f"{report}.sqlite.xz").read_bytes()))
    db = sqlite3.connect(path)
    with db:
        named = "text = 'training' OR textId IN (SELECT id FROM StringIds WHERE value = 'training')"
        first = db.execute(f"SELECT start FROM NVTX_EVENTS WHERE {named}").fetchone()[0]
        if _columns(db, "CUPTI_ACTIVITY_KIND_MEMCPY"):
            after = "SELECT min(start) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start > ?"
            first = db.execute(after, (first,)).fetchone()[0]
        until = first + 3_000_000
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            time_of = "start" if "start" in columns else "timestamp" if "timestamp" in columns else None
            if time_of:
                kept = "1" if "end" not in columns else '"end" - start < 1e9'
                db.execute(f"DELETE FROM {table} WHERE NOT ({time_of} BETWEEN {first} - 500000 AND {until} AND {kept})")
    db.execute("VACUUM")
    db.close()
    return path


# --- mutations ----------------------------------------------------------------------------------------------
# Each takes a source of chance and the file, changes the file, and says what it has done.

PAGE = 4096


def flip_bytes(chance: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    places = sorted(chance.randrange(len(content)) for _ in range(chance.choice([1, 1, 2, 8, 64])))
    for place in places:
        content[place] ^= chance.randrange(1, 256)
    path.write_bytes(content)
    return f"bytes {places[:8]} flipped"


def flip_header(chance: random.Random, path: Path) -> str:
    """The first hundred bytes say how the rest is to be read; the head of a page says how the page is."""
    content = bytearray(path.read_bytes())
    page = chance.choice([0, 0, PAGE * chance.randrange(len(content) // PAGE)])
    place = page + chance.randrange(100 if page == 0 else 16)
    content[place] = chance.randrange(256)
    path.write_bytes(content)
    return f"byte {place} is {content[place]}"


def truncate(chance: random.Random, path: Path) -> str:
    size = path.stat().st_size
    pages = size // PAGE
    length = chance.choice(
        [0, 1, 15, 16, 17, 99, 100, 101, size - 1, PAGE * chance.randrange(pages), chance.randrange(size)]
    )
    with path.open("r+b") as stream:
        stream.truncate(length)
    return f"cut to {length} of {size} bytes"


def shuffle_pages(chance: random.Random, path: Path) -> str:
    content = path.read_bytes()
    pages = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
    one, other = chance.randrange(len(pages)), chance.randrange(len(pages))
    what = chance.choice(["swapped", "copied over", "zeroed", "noise", "lost"])
    if what == "swapped":
        pages[one], pages[other] = pages[other], pages[one]
    elif what == "copied over":
        pages[one] = pages[other]
    elif what == "zeroed":
        pages[one] = bytes(PAGE)
    elif what == "noise":
        pages[one] = chance.randbytes(PAGE)
    else:
        del pages[one]
    path.write_bytes(b"".join(pages))
    return f"pages {one}, {other} {what}"


def append(chance: random.Random, path: Path) -> str:
    with path.open("ab") as stream:
        stream.write(chance.randbytes(chance.choice([1, 100, PAGE])))
    return "noise appended"


def _tables(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


@contextlib.contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path)
    try:
        with db:
            yield db
    finally:
        db.close()


def drop_table(chance: random.Random, path: Path) -> str:
    with _open(path) as db:
        table = chance.choice(_tables(db))
        what = chance.choice(["DROP TABLE {}", "DELETE FROM {}", "ALTER TABLE {} RENAME TO GONE"])
        db.execute(what.format(table))
    return what.format(table)


def drop_column(chance: random.Random, path: Path) -> str:
    with _open(path) as db:
        table = chance.choice(_tables(db))
        columns = _columns(db, table)
        gone = chance.choice(columns)
        if len(columns) > 1 and chance.random() < 0.5:
            kept = ", ".join(f'"{column}"' for column in columns if column != gone)
            db.execute(f"CREATE TABLE kept AS SELECT {kept} FROM {table}")
            db.execute(f"DROP TABLE {table}")
            db.execute(f"ALTER TABLE kept RENAME TO {table}")
            return f"{table} without {gone}"
        new = chance.choice(["renamed", gone.upper(), f"{gone} x", "é"])
        db.execute(f'ALTER TABLE {table} RENAME COLUMN "{gone}" TO "{new}"')
    return f"{table}.{gone} called {new}"


STRANGE = [
    None, "", "text", "12", "nan", "NaN", "inf", "1e400", b"", b"\x00\xff\xfe", 0.5, -0.5, 1e18, 1e300, float("inf"),
    float("-inf"), 0, 1, -1, 2**31, 2**32 - 1, -(2**31), 2**53, 2**53 + 1, -(2**53) - 1, 2**62, -(2**62), 2**63 - 1,
    -(2**63), "☃" * 3, "a\nb", "a\x00b", "\x1b[31mred", "x" * 100_000, "%s %(x)s {} {0}", "[" * 5000, "{\"Fields\": 3}",
    "{\"Fields\": [{\"Name\": null}]}", "{\"Tensor Active\": []}", "training", "data loading", "step 1", True,
]  # fmt: skip


def strange_values(chance: random.Random, path: Path) -> str:
    """Values that do not belong there, in one row, some or all; in half of the cases with no type to mend them."""
    with _open(path) as db:
        table = chance.choice(_tables(db))
        column = chance.choice(_columns(db, table))
        untyped = chance.random() < 0.5
        if untyped:
            names = ", ".join(f'"{name}"' for name in _columns(db, table))
            db.execute(f"CREATE TABLE bare ({names})")
            db.execute(f"INSERT INTO bare SELECT * FROM {table}")
            db.execute(f"DROP TABLE {table}")
            db.execute(f"ALTER TABLE bare RENAME TO {table}")
        value = chance.choice(STRANGE)
        rows = chance.choice(["rowid = 1", "rowid % 3 = 0", "1"])
        change = chance.choice(["?", "?", "?", '-"{0}"', '"{0}" + ?', "CAST(x'ff41fe' AS TEXT)"]).format(column)
        query = f'UPDATE OR REPLACE {table} SET "{column}" = {change} WHERE {rows}'
        with contextlib.suppress(sqlite3.IntegrityError, sqlite3.OperationalError):  # a primary key takes no text
            db.execute(query, (value,) if "?" in change else ())
    return f"{query} with {str(value)[:40]!r}, {'un' if untyped else ''}typed"


def duplicate_rows(chance: random.Random, path: Path) -> str:
    with _open(path) as db:
        table = chance.choice(_tables(db))
        db.execute(f"CREATE TABLE more AS SELECT * FROM {table} UNION ALL SELECT * FROM {table} WHERE rowid % 2")
        db.execute(f"DROP TABLE {table}")
        db.execute(f"ALTER TABLE more RENAME TO {table}")
    return f"rows of {table} twice"


def delete_rows(chance: random.Random, path: Path) -> str:
    with _open(path) as db:
        table, share = chance.choice(_tables(db)), chance.choice([2, 3, 10])
        db.execute(f"DELETE FROM {table} WHERE abs(random()) % {share} = 0".replace("abs(random())", "rowid"))
    return f"every {share}th row of {table} deleted"


def swap_columns(chance: random.Random, path: Path) -> str:
    """Times where ids belong, and the like."""
    with _open(path) as db:
        table = chance.choice(_tables(db))
        one, other = chance.choice(_columns(db, table)), chance.choice(_columns(db, table))
        with contextlib.suppress(sqlite3.IntegrityError):
            db.execute(f'UPDATE OR REPLACE {table} SET "{one}" = "{other}", "{other}" = "{one}"')
    return f"{table}: {one} and {other} swapped"


def another_kind(chance: random.Random, path: Path) -> str:
    """A view, a table without rowid, a virtual table or a broken view where the table was."""
    with _open(path) as db:
        table = chance.choice(_tables(db))
        names = ", ".join(f'"{name}"' for name in _columns(db, table))
        what = chance.choice(["view", "without rowid", "broken view", "strict", "generated"])
        db.execute(f"ALTER TABLE {table} RENAME TO behind")
        if what == "view":
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM behind")
        elif what == "without rowid":
            db.execute(f"CREATE TABLE {table} (number INTEGER PRIMARY KEY, {names}) WITHOUT ROWID")
            db.execute(f"INSERT INTO {table} SELECT row_number() OVER (), * FROM behind")
        elif what == "broken view":
            db.execute(f"CREATE VIEW {table} AS SELECT {names} FROM nowhere")
        elif what == "strict":
            typed = ", ".join(f'"{name}" ANY' for name in _columns(db, "behind"))
            db.execute(f"CREATE TABLE {table} ({typed}) STRICT")
            db.execute(f"INSERT INTO {table} SELECT * FROM behind")
        else:
            first = _columns(db, "behind")[0]
            db.execute(f'CREATE TABLE {table} ({names}, more AS ("{first}" + 1))')
            db.execute(f"INSERT INTO {table} ({names}) SELECT * FROM behind")
    return f"{table} is another kind: {what}"


def another_encoding(chance: random.Random, path: Path) -> str:
    encoding, size = chance.choice(["UTF-16le", "UTF-16be", "UTF-8"]), chance.choice([512, 1024, 65536])
    with _open(path) as db:
        db.text_factory = lambda raw: raw.decode(errors="replace")
        script = list(db.iterdump())
    path.unlink()
    with _open(path) as db:
        db.execute(f"PRAGMA page_size = {size}")
        db.execute(f"PRAGMA encoding = '{encoding}'")
        db.executescript("\n".join(script))
    return f"encoding {encoding}, pages of {size}"


def another_journal(chance: random.Random, path: Path) -> str:
    with _open(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    if chance.random() < 0.5:
        return "journal WAL; " + flip_bytes(chance, path)
    return "journal WAL"


def packed(chance: random.Random, path: Path) -> str:
    """The course's own form, whole or damaged."""
    content = bytearray(lzma.compress(path.read_bytes(), preset=0))
    what = chance.choice(["whole", "cut", "flipped", "appended"])
    if what == "cut":
        del content[chance.randrange(len(content)) :]
    elif what == "flipped":
        content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
    elif what == "appended":
        content += chance.randbytes(50)
    path.write_bytes(content)
    return f"packed, {what}"


def clock(chance: random.Random, path: Path) -> str:
    """All times moved or stretched."""
    change = chance.choice(
        [
            "{0} + 1700000000000000000",
            "{0} - 9000000000000000000",
            "-{0}",
            "{0} * 1000000000",
            "{0} * 4000000000000",
            "0",
        ]
    )
    with _open(path) as db:
        chosen = _tables(db) if chance.random() < 0.5 else [chance.choice(_tables(db))]
        for table in chosen:
            for column in {"start", "end", "timestamp", "rawTimestamp"} & set(_columns(db, table)):
                db.execute(f'UPDATE {table} SET "{column}" = {change}'.format(f'"{column}"'))
    return f"times of {'all' if len(chosen) > 1 else chosen[0]}: {change}"


def unchanged(chance: random.Random, path: Path) -> str:
    return "unchanged"


MUTATIONS: dict[Callable[[random.Random, Path], str], int] = {
    strange_values: 30, flip_bytes: 12, flip_header: 8, truncate: 6, shuffle_pages: 8, append: 1, drop_table: 5,
    drop_column: 8, duplicate_rows: 5, delete_rows: 4, swap_columns: 5, another_kind: 4, another_encoding: 2,
    another_journal: 2, packed: 4, clock: 5, unchanged: 1,
}  # fmt: skip
IN_SQL = [strange_values, drop_column, drop_table, duplicate_rows, swap_columns, delete_rows]


# --- one case -----------------------------------------------------------------------------------------------


class TooLong(Exception):
    """The answer took longer than LIMIT_S."""


def mutate(mutation: Callable[[random.Random, Path], str], chance: random.Random, path: Path) -> str:
    """What the mutation did; or that SQLite would not have it, after an earlier one."""
    try:
        return mutation(chance, path)
    except sqlite3.Error as error:
        return f"{mutation.__name__} refused ({error})"


def check(seed: int, folder: Path) -> str:
    """Make the mutated file of this seed, ask for its answer and check it; what was done, and what came of it."""
    chance = random.Random(seed)
    base = chance.choice(["table metrics", "table metrics", "json metrics", "ranks", chance.choice(SHORTENED)])
    path = folder / "mutated.sqlite"
    path.write_bytes(bases()[base])
    (mutation,) = chance.choices([*MUTATIONS], [*MUTATIONS.values()])
    done = [base]
    if chance.random() < 0.2 and mutation not in (packed, another_journal):
        done.append(mutate(chance.choice(IN_SQL), chance, path))
    done.append(mutate(mutation, chance, path))
    arguments = question(chance, base, path)
    what = f"seed {seed}: {'; '.join(done)}; {' '.join(arguments[1:]).replace(str(folder), '')}"
    before = _state(folder)
    started = time.process_time()
    try:
        status, said, complaint = ask(arguments)
    except BaseException as error:
        raise AssertionError(f"{what}\n{traceback.format_exc()}") from error
    took_s = time.process_time() - started
    assert took_s < LIMIT_S, f"{what}: took {took_s:.0f} s"
    assert _state(folder) == before, f"{what}: a file was changed"
    try:
        if status == 0:
            assert complaint == ""
            assert said.strip()
            found = strict(said) if "--json" in arguments else {}
            if "budget" in found:
                check_answer(found)
        else:
            assert status == 2
            assert said == ""
            assert complaint.count("\n") == 1 and complaint.endswith("\n") and complaint.strip(), complaint
    except AssertionError as error:
        where = traceback.format_exc(limit=-1)
        raise AssertionError(f"{what}: status {status}\n{complaint[:500]}\n{where}") from error
    return f"{status} {took_s:.2f} s {what}: {complaint.strip()}"


def question(chance: random.Random, base: str, path: Path) -> list[str]:
    """What is asked of the mutated file: all that it says, of a part of it too or compared; or one of OTHERS."""
    if chance.random() < 0.15:
        return [str(path), *chance.choice(OTHERS)]
    arguments = [str(path)] + (["--json"] if chance.random() < 0.7 else chance.choice([[], [], ["--markdown"]]))
    if chance.random() < 0.1:
        other = path.with_name("whole.sqlite")
        other.write_bytes(bases()[base])
        sides = [[str(path), *[str(other)] * chance.randrange(3)], [str(other)] * chance.choice([1, 1, 2, 3])]
        first, second = sides if chance.random() < 0.5 else sides[::-1]
        arguments = [*first, *arguments[1:], "--compare", *second]
        arguments += chance.choice([[]] * 3 + [["--each", "step 3"], ["--each", "forward"]])
    elif chance.random() < 0.1:
        arguments += chance.choice([["--html", str(path.with_name(WRITTEN))], ["--trace", f"{path.parent}/{WRITTEN}"]])
    arguments += chance.choice([[]] * 8 + [["--range", "forward"], ["--range", "data loading", "--occurrence", "2"]])
    return arguments + chance.choice([[]] * 9 + [["--gpu", "1"]])


def ask(arguments: list[str]) -> tuple[int, str, str]:
    """The command line in this process: status, stdout, stderr. A warning counts as an exception."""
    out, err = io.StringIO(), io.StringIO()
    with (
        warnings.catch_warnings(),
        limited(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("error")
        status = main(arguments)
    return status, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """TooLong after LIMIT_S, where the system has such an alarm."""

    def ring(*_: object) -> None:
        raise TooLong(f"no answer within {LIMIT_S} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def strict(text: str) -> dict:
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def check_answer(found: dict) -> None:
    """What holds for every answer, whatever the report."""
    shares = [share or 0.0 for share in found["budget"].values()]  # null: not known
    assert sum(shares) == pytest.approx(1 if found["duration_ms"] else 0, abs=1e-9)
    assert all(0 <= share <= 1 for share in [*shares, found["gpu_busy_fraction"] or 0.0])
    assert found["duration_ms"] >= 0
    for row in found["communication"]:
        parts = [row[f"{part}_ms"] for part in ("hidden", "exposed", "waiting", "transfer", "unmatched")]
        assert sum(parts[:2]) == pytest.approx(row["total_ms"]) == sum(parts[2:]) and min(parts) >= -1e-9
    for phase in found["phases"]:
        assert phase["count"] >= 0 and all((phase[key] or 0) >= 0 for key in ("kernels", "gpu_ms", "cpu_ms"))
    for copy in found["copies"]:
        assert copy["count"] > 0 and copy["bytes"] >= 0 and copy["gpu_ms"] >= 0 and copy["api_ms"] >= 0
        assert copy["overlap_ms"] <= copy["gpu_ms"] + 1e-9
    used = found["tensor_cores"]
    kernels = found["kernels"]
    assert all(one["count"] > 0 and one["gpu_ms"] >= 0 for one in kernels)
    if used["yes_ms"] is not None:
        known_ms = used["yes_ms"] + used["no_ms"] + used["unknown_ms"]
        assert sum(one["gpu_ms"] for one in kernels) == pytest.approx(known_ms)
    for one in found["lines"]:
        assert one["count"] >= 0 and one["cpu_ms"] >= 0 and one["where"] and one["call"]
        assert one["idle_ms"] <= found["duration_ms"] * (1 + 1e-9)
    for cause in {one["cause"] for one in found["lines"]}:
        idle_ms = sum(one["idle_ms"] for one in found["lines"] if one["cause"] == cause)
        assert -1e-9 <= idle_ms <= (found["budget"][cause] or 0.0) * found["duration_ms"] * (1 + 1e-9) + 1e-6
    for one in found["flops"]:
        assert one["ops"] > 0 and (one["gflop"] or 0) >= 0 and (one["unknown"] is None) == (one["gflop"] is not None)
    held = found["memory"]
    assert held is None or held["peak_bytes"] >= max(held["start_bytes"], held["end_bytes"])
    assert all(one["upper_bound_ms"] <= found["duration_ms"] * (1 + 1e-9) for one in found["advice"])


def _state(folder: Path) -> dict[str, str]:
    """Every file of the folder, but what was asked for, with the hash of what it holds."""
    files = [path for path in sorted(folder.iterdir()) if path.name != WRITTEN]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# --- the tests ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGPROF"), reason="needs an alarm against hangs")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_mutated_report_gets_an_answer_or_one_sentence(tmp_path, batch):
    failures = []
    for seed in range(batch, CASES, BATCHES):
        try:
            check(seed, tmp_path)
        except AssertionError as error:
            failures.append(str(error))
        for left in tmp_path.iterdir():
            left.unlink()
    assert not failures, f"{len(failures)} of {len(range(batch, CASES, BATCHES))} files\n\n" + "\n\n".join(failures[:3])


@pytest.mark.parametrize("base", ["table metrics", "json metrics", "ranks", WHOLE])
def test_the_files_that_mutations_start_from_get_a_full_answer(tmp_path, base):
    path = tmp_path / "whole.sqlite"
    path.write_bytes(bases()[base])
    status, said, complaint = ask([str(path), "--json"])
    assert (status, complaint) == (0, "")
    found = strict(said)
    check_answer(found)
    assert found["kernels"] and found["copies"] and found["tensor_cores"]["samples"] and found["phases"]


if __name__ == "__main__":
    for number in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            print(check(int(number), Path(scratch)))
