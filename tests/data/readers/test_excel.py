"""Excel workbooks: sheets, dates, ids and what is wrong with them."""

from __future__ import annotations

import datetime as dt
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

import equipoise as eq
from equipoise.errors import DataError, MissingExtraError, SettingError

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
STYLES = '<cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="22" applyNumberFormat="1"/></cellXfs>'


def cell(value: Any) -> str:
    if isinstance(value, dt.datetime):  # days since the end of 1899, in a format of dates
        days = (value - dt.datetime(1899, 12, 30)) / dt.timedelta(days=1)
        return f'<c s="1"><v>{days}</v></c>'
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return "<c/>" if value is None else f"<c><v>{value}</v></c>"


def workbook(path: Path, **sheets: list[tuple[Any, ...]]) -> Path:
    """Write the least of a workbook that is one."""
    tabs, links, kinds = "", "", ""
    with zipfile.ZipFile(path, "w") as book:
        for number, (name, rows) in enumerate(sheets.items(), 1):
            part = f"worksheets/sheet{number}.xml"
            lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
            book.writestr(
                f"xl/{part}",
                f'<worksheet xmlns="{MAIN}"><sheetData>{lines}</sheetData></worksheet>',
            )
            tabs += f'<sheet name="{name}" sheetId="{number}" r:id="r{number}"/>'
            links += f'<Relationship Id="r{number}" Type="{OFFICE}/worksheet" Target="{part}"/>'
        links += f'<Relationship Id="s" Type="{OFFICE}/styles" Target="styles.xml"/>'
        book.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>{tabs}</sheets></workbook>',
        )
        book.writestr("xl/styles.xml", f'<styleSheet xmlns="{MAIN}">{STYLES}</styleSheet>')
        head = f'<Relationships xmlns="{PACKAGE}/relationships">'
        book.writestr("xl/_rels/workbook.xml.rels", f"{head}{links}</Relationships>")
        target = f'<Relationship Id="b" Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/>'
        book.writestr("_rels/.rels", f"{head}{target}</Relationships>")
        book.writestr(
            "[Content_Types].xml", f'<Types xmlns="{PACKAGE}/content-types">{kinds}</Types>'
        )
    return path


NOON = dt.datetime(2024, 1, 31, 12)
ORDERS = [
    ("CustomerID", "StockCode", "Quantity", "InvoiceDate"),
    (17850, "85123A", 6, NOON),
    (17850, 71053, 2, NOON + dt.timedelta(hours=1)),
    (13047, "007", 1, NOON + dt.timedelta(days=1)),
]


def test_a_workbook_is_a_table(tmp_path: Path) -> None:
    data = eq.read(workbook(tmp_path / "shop.xlsx", Orders=ORDERS), weight="Quantity")
    assert data.users.tolist() == [13047, 17850]
    assert data.items.tolist() == ["007", "71053", "85123A"]
    assert data.matrix.toarray().tolist() == [[1, 0, 0], [0, 2, 6]]
    assert data.times is not None
    assert data.times.tolist() == [1_706_788_800, 1_706_706_000, 1_706_702_400]


def test_another_sheet_is_read_by_its_name(tmp_path: Path) -> None:
    views = [("user", "item"), ("a", "x"), ("b", "y")]
    path = workbook(tmp_path / "shop.xlsx", Orders=ORDERS, Views=views)
    assert eq.read(path, sheet="Views").users.tolist() == ["a", "b"]
    assert "read the sheet 'Orders'; pass sheet= for another: 'Views'" in eq.read(path).notes
    with pytest.raises(DataError, match="has no sheet 'Clicks'; it has Orders, Views"):
        eq.read(path, sheet="Clicks")


def test_attributes_may_be_a_workbook(tmp_path: Path) -> None:
    titles = [("StockCode", "Description"), ("85123A", "Holder"), ("007", "Spy")]
    catalogue = workbook(tmp_path / "titles.xlsx", Items=titles)
    data = eq.read(workbook(tmp_path / "shop.xlsx", Orders=ORDERS), catalogue=catalogue)
    assert data.label("007") == "Spy"


def test_bad_rows_of_a_sheet_are_named_as_excel_counts_them(tmp_path: Path) -> None:
    path = workbook(tmp_path / "shop.xlsx", Orders=[*ORDERS, (None, "71053", 1, NOON)])
    with pytest.raises(DataError, match=r"shop\.xlsx, row 5: column 'CustomerID' is an empty"):
        eq.read(path)


def test_a_file_that_is_not_a_workbook_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.xlsx"
    path.write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(DataError, match=r"shop\.xlsx is not a complete Excel workbook"):
        eq.read(path)
    table = tmp_path / "events.csv"
    table.write_text("user,item\n1,2\n2,3\n")
    with pytest.raises(SettingError, match=r"sheet= applies to Excel files"):
        eq.read(table, sheet="Orders")


def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'equipoise\[excel\]'"):
        eq.read(workbook(tmp_path / "shop.xlsx", Orders=ORDERS))


def test_a_sheet_may_have_no_header(tmp_path: Path) -> None:
    path = workbook(tmp_path / "shop.xlsx", Orders=ORDERS[1:])
    data = eq.read(path, header=False, user=0, item=1)
    named = eq.read(workbook(tmp_path / "named.xlsx", Orders=ORDERS))
    assert data.users.tolist() == named.users.tolist()
    assert data.items.tolist() == named.items.tolist()
    path = workbook(tmp_path / "shop.xlsx", Orders=[*ORDERS[1:], (None, "71053", 1, NOON)])
    with pytest.raises(DataError, match=r"shop\.xlsx, row 4: "):
        eq.read(path, header=False, user=0, item=1)
