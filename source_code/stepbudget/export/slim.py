"""How does a report become small enough to ship, and say nothing of the machine's owner?

An export of one epoch has tens of megabytes: call stacks, 22 counters, the environment. The slim copy keeps the tables
and columns that this package reads, under their own names, so that every query works on both; strings that no kept row
uses are left out. Environment variables, host, user and process names are in no table that is kept.

Of backtraces, those of CUDA calls and of Python stay, each file without the folder that it lay in (a library's: from
where the library begins). Those of calls into the operating system and of samples are many, and are left out.
"""

from __future__ import annotations

import lzma
import shutil
import sqlite3
import tempfile
from pathlib import Path

from stepbudget.export import frames

GPU_ACTIVITY = [
    "start",
    "end",
    "deviceId",
    "contextId",
    "streamId",
    "correlationId",
    "globalPid",
    "graphNodeId",
    "graphId",
]

# Tables and the columns kept of each. Enumerations (ENUM_*) are kept whole.
KEPT = {
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        *GPU_ACTIVITY, "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
        "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [*GPU_ACTIVITY, "bytes", "copyKind", "srcKind", "dstKind"],
    "CUPTI_ACTIVITY_KIND_MEMSET": [*GPU_ACTIVITY, "bytes", "memKind"],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": GPU_ACTIVITY,
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [*GPU_ACTIVITY, "syncType"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        "start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId",
    ],
    "CUDA_CALLCHAINS": ["id", "symbol", "module", "unresolved", "stackDepth"],
    "CUDA_GPU_MEMORY_USAGE_EVENTS": [
        "start", "globalPid", "deviceId", "contextId", "address", "bytes", "memKind", "memoryOperationType",
    ],
    "NVTX_EVENTS": [
        "start", "end", "eventType", "rangeId", "text", "textId", "globalTid", "endGlobalTid", "domainId", "binaryData",
    ],
    "OSRT_API": ["start", "end", "eventClass", "globalTid", "nameId", "returnValue", "nestingLevel"],
    "PROFILER_OVERHEAD": ["start", "end", "globalTid", "nameId"],
    "GPU_METRICS": ["timestamp", "typeId", "metricId", "value"],
    "TARGET_INFO_GPU_METRICS": ["typeId", "sourceId", "typeName", "metricId", "metricName"],
    "TARGET_INFO_GPU": [
        "id", "name", "l2CacheSize", "totalMemory", "memoryBandwidth", "clockRate", "smCount", "chipName",
        "computeMajor", "computeMinor", "cuDevice",
    ],
    "TARGET_INFO_CUDA_DEVICE": ["gpuId", "cudaId", "pid"],
    "ANALYSIS_DETAILS": ["duration", "startTime", "stopTime"],
    "StringIds": ["id", "value"],
}  # fmt: skip
NAME_COLUMNS = ["demangledName", "shortName", "nameId", "textId", "symbol", "module"]
KEPT_META = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
KEPT_COUNTERS = (
    "Tensor Active%",
    "SMs Active%",
    "SM Issue%",
    "DRAM Read Bandwidth%",
    "DRAM Write Bandwidth%",
)


def slim(source: Path, target: Path) -> None:
    """Write the slim, compressed copy of the export ``source`` (.sqlite) to ``target`` (.sqlite.xz); all or nothing."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        plain = Path(scratch) / "slim.sqlite"
        db = sqlite3.connect(plain)
        db.execute("ATTACH DATABASE ? AS source", (str(source),))
        try:
            _copy(db)
            db.commit()
            db.execute("DETACH DATABASE source")
            db.execute("VACUUM")
        finally:
            db.close()
        packed = Path(scratch) / target.name
        with plain.open("rb") as stream, lzma.open(packed, "wb", preset=6) as out:
            shutil.copyfileobj(stream, out)
        packed.replace(target)


def _copy(db: sqlite3.Connection) -> None:
    tables = {row[0] for row in db.execute("SELECT name FROM source.sqlite_master WHERE type = 'table'")}
    for table in sorted(tables):
        if table in KEPT:
            have = [row[1] for row in db.execute(f'PRAGMA source.table_info("{table}")')]
            columns = ", ".join(f'"{column}"' for column in KEPT[table] if column in have)
            db.execute(f'CREATE TABLE "{table}" AS SELECT {columns} FROM source."{table}"')
        elif table.startswith("ENUM_"):
            db.execute(f'CREATE TABLE "{table}" AS SELECT * FROM source."{table}"')
    if "META_DATA_EXPORT" in tables:
        kept = ", ".join(f"'{name}'" for name in KEPT_META)
        where = f"FROM source.META_DATA_EXPORT WHERE name IN ({kept})"
        db.execute(f"CREATE TABLE META_DATA_EXPORT AS SELECT name, value {where}")
    if "TARGET_INFO_GPU_METRICS" in tables:
        wanted = " OR ".join(f"metricName LIKE '{name}'" for name in KEPT_COUNTERS)
        db.execute(f"DELETE FROM TARGET_INFO_GPU_METRICS WHERE NOT ({wanted})")
        if "GPU_METRICS" in tables:
            known = "(SELECT typeId, metricId FROM TARGET_INFO_GPU_METRICS)"
            db.execute(f"DELETE FROM GPU_METRICS WHERE (typeId, metricId) NOT IN {known}")
    used = [_backtraces(db)]
    for table in sorted(tables & KEPT.keys()):
        have = [row[1] for row in db.execute(f'PRAGMA main.table_info("{table}")')]
        # Without NULLs: "NOT IN" a list that holds one is never true, and nothing would be deleted.
        columns = [column for column in NAME_COLUMNS if column in have]
        used += [f'SELECT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL' for column in columns]
    db.execute(f"DELETE FROM StringIds WHERE id NOT IN ({' UNION '.join(used)})")


def _backtraces(db: sqlite3.Connection) -> str:
    """Scrub the paths of backtraces, and drop all other payloads; SQL for the ids of the texts that Python's need."""
    db.execute("CREATE TEMP TABLE named (id INTEGER PRIMARY KEY)")
    if "binaryData" in {row[1] for row in db.execute("PRAGMA main.table_info(NVTX_EVENTS)")}:
        name = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
        domains = f"SELECT globalTid >> 24, domainId FROM NVTX_EVENTS WHERE eventType = {frames.DOMAIN_CREATED}"
        of_python = f"(globalTid >> 24, domainId) IN ({domains} AND {name} = '{frames.DOMAIN}')"
        columns = f"rowid, CAST(binaryData AS BLOB), {of_python}"
        for row, blob, is_own in db.execute(
            f"SELECT {columns} FROM NVTX_EVENTS WHERE binaryData IS NOT NULL"
        ).fetchall():
            ids = [number for number in frames.string_ids(blob) if number < 2**63] if is_own else []
            db.executemany("INSERT OR IGNORE INTO named VALUES (?)", [(number,) for number in ids])
            if not ids:
                db.execute("UPDATE NVTX_EVENTS SET binaryData = NULL WHERE rowid = ?", (row,))
    chains = "SELECT symbol FROM CUDA_CALLCHAINS UNION SELECT module FROM CUDA_CALLCHAINS UNION "
    has_chains = db.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'CUDA_CALLCHAINS'").fetchall()
    named = "SELECT id FROM named"
    texts = db.execute(f"SELECT id, value FROM StringIds WHERE id IN ({chains * bool(has_chains)}{named})").fetchall()
    scrubbed = [(frames.scrubbed(text), number) for number, text in texts if isinstance(text, str)]
    db.executemany("UPDATE StringIds SET value = ? WHERE id = ?", scrubbed)
    return named
