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

from stepbudget.export import frames, kinds

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
        "start", "end", "eventType", "rangeId", "text", "textId", "globalTid", "endGlobalTid", "domainId", "jsonText",
        "jsonTextId", "binaryData",
    ],
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": ["domainId", "schemaId", "idx", "type", "name", "offset"],
    "OSRT_API": ["start", "end", "eventClass", "globalTid", "nameId", "returnValue", "nestingLevel"],
    "PROFILER_OVERHEAD": ["start", "end", "globalTid", "nameId"],
    "GPU_METRICS": ["timestamp", "typeId", "metricId", "value"],
    "TARGET_INFO_GPU_METRICS": ["typeId", "sourceId", "typeName", "metricId", "metricName"],
    "TARGET_INFO_GPU": [
        "id", "name", "l2CacheSize", "totalMemory", "memoryBandwidth", "clockRate", "smCount", "chipName",
        "computeMajor", "computeMinor", "cuDevice",
    ],
    "TARGET_INFO_CUDA_DEVICE": ["gpuId", "cudaId", "pid"],
    "TARGET_INFO_SESSION_START_TIME": ["utcEpochNs"],
    "ANALYSIS_DETAILS": ["duration", "startTime", "stopTime"],
    "StringIds": ["id", "value"],
}  # fmt: skip
NAME_COLUMNS = ["demangledName", "shortName", "nameId", "textId", "jsonTextId", "symbol", "module"]
PAYLOADS = ("jsonText", "jsonTextId", "binaryData")  # kept of NCCL's ranges; what others wrote is not ours to ship
FORMS = {"binaryData": "BLOB", "jsonText": "TEXT"}  # of Python's backtraces, the shorter one first
NVTX_NAME = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId), '')"
_DOMAIN = f"eventType = {kinds.DOMAIN_CREATED} AND {NVTX_NAME} IN {frames.DOMAINS}"
_DOMAINS = f"SELECT globalTid >> 24, domainId FROM NVTX_EVENTS WHERE {_DOMAIN}"
OF_PYTHON = f"coalesce((globalTid >> 24, domainId) IN ({_DOMAINS}), 0)"
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
    _drop_payloads(db)
    used = [_backtraces(db)]
    for table in sorted(tables & KEPT.keys()):
        have = [row[1] for row in db.execute(f'PRAGMA main.table_info("{table}")')]
        # Without NULLs: "NOT IN" a list that holds one is never true, and nothing would be deleted.
        columns = [column for column in NAME_COLUMNS if column in have]
        used += [f'SELECT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL' for column in columns]
    db.execute(f"DELETE FROM StringIds WHERE id NOT IN ({' UNION '.join(used)})")


def _drop_payloads(db: sqlite3.Connection) -> None:
    """Leave out what programs wrote beside their NVTX ranges, but for NCCL's calls and Python's backtraces."""
    have = {row[1] for row in db.execute('PRAGMA main.table_info("NVTX_EVENTS")')}
    payloads = [column for column in PAYLOADS if column in have]
    if payloads:
        domains = f"SELECT domainId FROM NVTX_EVENTS WHERE eventType = {kinds.DOMAIN_CREATED} AND text = 'NCCL'"
        kept = f"{NVTX_NAME} GLOB 'nccl[A-Z]*' OR coalesce(domainId IN ({domains}), 0) OR {OF_PYTHON}"
        db.execute(f"UPDATE NVTX_EVENTS SET {', '.join(f'{column} = NULL' for column in payloads)} WHERE NOT ({kept})")


def _backtraces(db: sqlite3.Connection) -> str:
    """Scrub the paths of backtraces; SQL for the ids of the texts that Python's need."""
    db.execute("CREATE TEMP TABLE named (id INTEGER PRIMARY KEY)")
    have = {row[1] for row in db.execute("PRAGMA main.table_info(NVTX_EVENTS)")}
    forms = {name: f"CAST({name} AS {kind})" for name, kind in FORMS.items() if name in have}
    if forms:
        marks = f"SELECT rowid, {', '.join(forms.values())} FROM NVTX_EVENTS WHERE {OF_PYTHON}"
        for row, *told in db.execute(marks).fetchall():
            found = [frames.bare(one) for one in told]
            at = next((at for at, one in enumerate(found) if one), None)  # of two forms one is enough
            kept = [found[at][0] if place == at else None for place in range(len(found))]
            db.execute(f"UPDATE NVTX_EVENTS SET {' = ?, '.join(forms)} = ? WHERE rowid = ?", (*kept, row))
            ids = found[at][1] if at is not None else []
            db.executemany("INSERT OR IGNORE INTO named VALUES (?)", [(number,) for number in ids])
    chains = "SELECT symbol FROM CUDA_CALLCHAINS UNION SELECT module FROM CUDA_CALLCHAINS UNION "
    has_chains = db.execute("SELECT 1 FROM main.sqlite_master WHERE name = 'CUDA_CALLCHAINS'").fetchall()
    named = "SELECT id FROM named"
    texts = db.execute(f"SELECT id, value FROM StringIds WHERE id IN ({chains * bool(has_chains)}{named})").fetchall()
    scrubbed = [(frames.scrubbed(text), number) for number, text in texts if isinstance(text, str)]
    db.executemany("UPDATE StringIds SET value = ? WHERE id = ?", scrubbed)
    return named
