"""What did NCCL write beside its calls? Communicator, message size, rank: the payloads of its NVTX ranges.

NCCL opens a range in its NVTX domain "NCCL" around each call, and writes numbers beside it, whose names it registers.
An export holds them as JSON (``jsonText``), or as bytes (``binaryData``) that the table NVTX_PAYLOAD_SCHEMA_ENTRIES
explains: 32 bytes (1 in all that were read, the schema within the range's domain, size, and where it begins), then the
numbers. Nothing of it is there unless nsys exported it (``--include-json``, ``--include-blobs``; Nsight Systems 2024.2
and 2022.4 leave it out), and nothing where NVTX was not traced. Both forms were read from recordings of DDP and FSDP
(Nsight Systems 2025.3), and say the same: the communicator and the size of each collective, ranks only in the calls
that make a communicator or end one, and no number of the operation.

Sources: NCCL 2.30, src/include/nvtx_payload_schemas.h (the names, and which call writes which), src/collectives.cc
(the size is one rank's message; before 2.25 without the communicator), src/nccl.h.in (types); NVTX 3,
nvToolsExtPayload.h (the types of numbers, and where each begins); Nsight Systems' recipe documentation, table
NCCL_GPU_OPERATIONS_COLLECTIVE (commHash, commRank, count, dataType, seqNumber: ``--trace nccl``, from 2025.6).
"""

from __future__ import annotations

import json
import re
import struct
from functools import lru_cache

import pandas as pd

from stepbudget.export.frames import HEADER
from stepbudget.export.kinds import DOMAIN_CREATED, MOST_BYTES
from stepbudget.export.sqlite import RANGES, Export

COLUMNS = ["start", "end", "thread", "process", "function", "communicator", "bytes", "rank", "ranks", "sequence"]
ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"

_CALLS = """
SELECT
    event.start, coalesce(event."end", event.start), event.globalTid, {domain}, coalesce({text}, registered.value),
    coalesce({json}, (SELECT value FROM StringIds WHERE id = {json_id})), CAST({binary} AS BLOB)
FROM NVTX_EVENTS AS event LEFT JOIN StringIds AS registered ON registered.id = {text_id}
WHERE event.eventType IN ({types}) AND (
    coalesce({text}, registered.value) GLOB 'nccl[A-Z]*' OR ({domain}, event.globalTid >> 24) IN (
        SELECT {domain}, globalTid >> 24 FROM NVTX_EVENTS WHERE eventType = {created} AND {text} = 'NCCL'))
ORDER BY event.start
"""
# Each process registers its own copy.
_ENTRIES = """
SELECT domainId, schemaId, min(name), min(type), min({offset})
FROM NVTX_PAYLOAD_SCHEMA_ENTRIES GROUP BY domainId, schemaId, idx ORDER BY domainId, schemaId, idx
"""

# What a number is called, letters alone → what it is called here.
FIELDS = {
    "ncclcommunicatorid": "communicator",
    "commhash": "communicator",
    "messagesizebytes": "bytes",
    "noofranks": "ranks",
    "nranks": "ranks",
    "rank": "rank",
    "commrank": "rank",
    "seqnumber": "sequence",
    "count": "count",
    "datatype": "type",
}
MOST = {"bytes": MOST_BYTES, "ranks": 2**24, "rank": 2**24, "sequence": 2**53, "count": MOST_BYTES}
TYPE_BITS = re.compile(r"(?:u?int|b?float)(8|16|32|64)", re.IGNORECASE)  # ncclFloat16, ncclBfloat16, ncclInt8
TYPES = (8, 8, 32, 32, 64, 64, 16, 32, 64, 16, 8, 8)  # bits of ncclDataType_t 0, 1, 2, …
WHOLE = dict(zip(range(1, 19), "bBhHiIqQqQbBhHiIqQ", strict=True)) | {22: "Q", 23: "Q"}  # NVTX_PAYLOAD_ENTRY_TYPE_…


def calls(export: Export) -> pd.DataFrame:
    """NCCL's own ranges in order of their starts; none where the export holds none.

    Columns: ``start``, ``end`` (ns, the export's own clock), ``thread``, ``process``, ``function`` (``AllReduce``,
    ``GroupEnd``, …), and where NCCL wrote them, else None: ``communicator`` (a text, the same on all its ranks),
    ``bytes`` of one rank's message, ``rank`` and ``ranks`` (this one's number in the communicator, and how many it
    has), ``sequence`` (the communicator's own number of the operation).
    """
    needed = {"start", "globalTid", "eventType"}
    if not needed <= export.columns(RANGES):
        return pd.DataFrame(columns=COLUMNS)
    names = {"text": "text", "text_id": "textId", "domain": "domainId", "json": "jsonText", "json_id": "jsonTextId"}
    names = {name: export.column(RANGES, column) for name, column in {**names, "binary": "binaryData"}.items()}
    kinds = {"types": export.range_types, "created": DOMAIN_CREATED}
    schemas = _schemas(export)
    rows = []
    for start, end, thread, domain, name, text, blob in export.rows(_CALLS.format(**names, **kinds)):
        found = _from_json(text) if isinstance(text, str) else _from_bytes(blob, domain, schemas)
        function = name.removeprefix("nccl") if isinstance(name, str) else ""
        numbers = [found.get(column) for column in COLUMNS[5:]]
        rows.append((start, end, thread, thread >> 24, function, *numbers))
    whole = dict.fromkeys(COLUMNS[:4], "int64")
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object).astype(whole)  # of objects: None stays None


@lru_cache(maxsize=65_536)
def _from_json(text: str) -> dict:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return _known(found) if isinstance(found, dict) else {}


def _from_bytes(blob: bytes | None, domain: object, schemas: dict[tuple[int, int], list[tuple[str, str, int]]]) -> dict:
    """The numbers of a payload, by the schema that its header names; none of what reaches beyond its end."""
    if not isinstance(blob, bytes) or len(blob) < HEADER.size:
        return {}
    _, schema, size, begin = HEADER.unpack_from(blob)
    entries = schemas.get((domain, schema), ())
    payload = blob[begin : begin + size]
    return _known(
        {
            name: struct.unpack_from(f"<{letter}", payload, offset)[0]
            for name, letter, offset in entries
            if offset + struct.calcsize(letter) <= len(payload)
        }
    )


def _schemas(export: Export) -> dict[tuple[int, int], list[tuple[str, str, int]]]:
    """(Domain, schema) → its whole numbers: name, struct's letter, and where each begins.

    Where the export names no place, a number begins after the one before it, at a multiple of its own size.
    """
    if not {"domainId", "schemaId", "idx", "name", "type"} <= export.columns(ENTRIES):
        return {}
    found: dict[tuple[int, int], list[tuple[str, str, int]]] = {}
    ends: dict[tuple[int, int], int] = {}
    for domain, schema, name, kind, offset in export.rows(_ENTRIES.format(offset=export.column(ENTRIES, "offset"))):
        letter = WHOLE.get(kind, "I")  # an enumeration has four bytes
        size = struct.calcsize(letter)
        offset = offset if isinstance(offset, int) and offset >= 0 else -(-ends.get((domain, schema), 0) // size) * size
        ends[domain, schema] = offset + size
        if isinstance(name, str):
            found.setdefault((domain, schema), []).append((name, letter, offset))
    return found


def _known(found: dict) -> dict:
    """Of a payload's names and values those that are known and can be."""
    known: dict = {}
    for name, value in found.items():
        field = FIELDS.get(re.sub(r"[^a-z]", "", str(name).lower()))
        if field in ("communicator", "type"):
            known[field] = _identity(value) if field == "communicator" else str(value)
        elif field and (number := _whole(value)) is not None and 0 <= number <= MOST[field]:
            known[field] = number
    bits = _bits(known.get("type", ""))
    if bits and "count" in known and "bytes" not in known:
        known["bytes"] = known["count"] * bits // 8
    return known


def _bits(kind: str) -> int | None:
    """Of one element of a type, by its name or its number; None: not told."""
    if kind.isdecimal():
        return TYPES[int(kind)] if len(kind) < 3 and int(kind) < len(TYPES) else None
    found = TYPE_BITS.search(kind)
    return int(found[1]) if found else None


def _identity(value: object) -> str | None:
    number = _whole(value)
    if number is not None:
        return f"0x{number & 2**64 - 1:016x}"
    return value[:64] if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        try:
            return int(value, 0)
        except ValueError:
            return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
