"""Files as bytes: compression by content, byte-order marks, encodings, separators."""

from __future__ import annotations

import glob
import gzip
import re
import zlib
from pathlib import Path

from equipoise.errors import DataError

SAMPLE = 1 << 16
SEPARATORS = (",", "\t", ";", "|", "::", " ")
UTF8_BOM = b"\xef\xbb\xbf"
NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars", "::": "'::'", " ": "blanks"}
COMMA = re.compile(rb'\s*"?[+-]?\d+,\d+"?\s*')
FOREIGN = {
    b"PK\x03\x04": "a zip archive or an Excel workbook; unpack it or save it as CSV",
    b"SQLite format 3": "an SQLite database; export the table as CSV or Parquet",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it or use gzip",
    b"BZh": "compressed with bzip2; unpack it or use gzip",
    b"\xfd7zXZ": "compressed with xz; unpack it or use gzip",
}


def existing_file(path: Path) -> Path:
    """Return the path of a readable, non-empty file, or say what is wrong."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a file")
    if not path.exists():
        near = (
            sorted(p.name for p in path.parent.glob(f"{glob.escape(path.stem)}*"))
            if path.stem
            else []
        )
        hint = f"; did you mean {near[0]!r}?" if near else "; check the path"
        raise DataError(f"there is no file {path}{hint}")
    try:
        empty = not first_bytes(path, 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check its rights") from error
    if empty:
        raise DataError(f"{path} is empty; it needs at least one row")
    return path


def is_blank(path: Path) -> bool:
    """Whether a file, packed or not, holds nothing but blanks; a damaged one does not."""
    sample = first_bytes(path)
    if sample.startswith(b"\x1f\x8b"):
        try:
            with gzip.open(path, "rb") as unpacked:
                sample = unpacked.read(SAMPLE)
        except (EOFError, OSError, zlib.error):
            return False
    return len(sample) < SAMPLE and not sample.strip()


def contents(path: Path) -> bytes | Path:
    """Return the path itself, or the unpacked bytes of a gzipped file."""
    with existing_file(path).open("rb") as stream:
        head = stream.read(16)
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            raise DataError(f"{path} is {what}")
    if not head.startswith(b"\x1f\x8b"):
        return path
    try:
        with gzip.open(path, "rb") as unpacked:
            data = unpacked.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path} is a truncated or damaged gzip file; fetch it again ({error})"
        ) from error
    if not data:
        raise DataError(f"{path} is empty; it needs at least one row")
    return data


def text_contents(path: Path, encoding: str) -> bytes | Path:
    """Return the content as UTF-8 without a byte-order mark; the path itself if it is that."""
    data = contents(path)
    head = first_bytes(data, 4)
    plain = encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
    if plain and head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16; save it as UTF-8 or pass encoding='utf-16'")
    if plain and not head.startswith(UTF8_BOM):
        return data
    whole = data if isinstance(data, bytes) else data.read_bytes()
    if plain:
        return whole.removeprefix(UTF8_BOM)
    try:
        return whole.decode(encoding).encode("utf-8")
    except UnicodeDecodeError as error:
        line = whole.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not {encoding}; pass another encoding=") from error


def sniff(name: str, sample: bytes) -> str:
    r"""Find the separator that cuts the first lines into the same number of fields.

    >>> sniff("ratings.dat", b"1::10::5\n2::10::3\n")
    '::'
    """
    lines = [line for line in sample.splitlines()[:100] if line.strip()]
    if len(sample) == SAMPLE and len(lines) > 1:
        lines.pop()  # it may be cut
    if _has_decimal_commas(lines):
        return ";"
    best, best_score = "", 0.0
    for separator in SEPARATORS:
        counts = [line.count(separator.encode()) for line in lines]
        usual = max(set(counts), key=counts.count) if counts else 0
        score = counts.count(usual) / len(counts) if usual else 0.0
        # What the first line lacks cannot cut it; a blank cuts words where nothing else does.
        if not usual or not counts[0] or (separator == " " and best):
            continue
        # A name that tells the separator settles it: titles may hold any other one.
        if name.endswith((".csv", ".csv.gz")) and separator == ",":
            score += 1
        if name.endswith((".tsv", ".tsv.gz", ".inter", ".item")) and separator == "\t":
            score += 1
        if score > best_score or (separator == "::" and score >= best_score):
            best, best_score = separator, score
    if best or not lines:
        return best
    # No separator is usual: then it is the one of the header, and the rows are wrong.
    header = lines[0].decode("utf-8", "replace")
    return max((s for s in SEPARATORS if s in header), key=header.count, default="")


def _has_decimal_commas(lines: list[bytes]) -> bool:
    """Whether semicolons separate the fields and every comma is within a number.

    Two fields, the user and the item, must be free of commas: ``1,2;3`` is no such line.
    """
    rows = [line.split(b";") for line in lines]
    if not rows or len({len(row) for row in rows}) > 1:
        return False
    body = rows[1:] if b"," not in lines[0] else rows
    decimal = [any(b"," in row[place] for row in body) for place in range(len(rows[0]))]
    return (
        any(decimal)
        and decimal.count(False) >= 2
        and all(COMMA.fullmatch(cell) for row in body for cell in row if b"," in cell)
    )


def first_bytes(data: bytes | Path, size: int = SAMPLE) -> bytes:
    """Return the first bytes of the content."""
    if isinstance(data, bytes):
        return data[:size]
    with data.open("rb") as stream:
        return stream.read(size)
