"""Quotation marks: escaped, loose and never closed; each costs at most its own line."""

from __future__ import annotations

import pytest

import equipoise as eq
from equipoise.data.readers.delimited import doubled
from equipoise.errors import DataError, SettingError

ROWS = [f'"u{n}";"i{n % 7}";"{n % 5}"' for n in range(60)]
HEAD = '"user";"item";"stars"'


def written(folder, rows, head=HEAD, end="\n"):
    path = folder / "events.csv"
    path.write_text(end.join([head, *rows]) + end, newline="")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_marks_that_a_backslash_escapes_are_found(tmp_path, end):
    rows = [*ROWS, r'"v";"\"x";"1"', *ROWS[:5], r'"w";"a \"b\"";"1"', r'"v";"tea";"2"']
    path = written(tmp_path, rows, end=end)
    data = eq.read(path)
    assert data.n_interactions == len(ROWS) + 3
    assert {'"x', 'a "b"'} <= set(data.items)
    assert (
        "quotation marks are escaped by backslashes; pass escape='' if they are not" in data.notes
    )
    assert eq.read(path, escape="\\").fingerprint == data.fingerprint


def test_one_escaped_mark_does_not_swallow_the_rows_after_it(tmp_path):
    rows = [*ROWS[:10], r'"v";"\"x";"1"', *ROWS[10:]]
    data = eq.read(written(tmp_path, rows), escape="", on_bad="skip")
    assert data.n_interactions == len(ROWS)
    assert any("skipped 1 bad row: 1 where the record holds a stray" in n for n in data.notes)


def test_a_backslash_at_the_end_of_a_field_is_text_where_that_is_right(tmp_path):
    data = eq.read(written(tmp_path, [*ROWS, '"v";"C:\\";"1"']))
    assert "C:\\" in data.items
    assert not any("escaped" in note for note in data.notes)


def test_escapes_that_would_leave_other_marks_wrong_are_not_taken(tmp_path):
    rows = [*ROWS, r'"v";"\"x";"1"', '"w";"y"z;"1"']
    with pytest.raises(DataError, match=r"line 62: .* stray quotation mark; .* escape="):
        eq.read(written(tmp_path, rows))


def test_a_mark_that_is_never_closed_costs_its_line_only(tmp_path):
    plain = [row.replace('"', "") for row in ROWS]
    rows = [*plain[:20], 'v;"x;1', *plain[20:]]
    path = written(tmp_path, rows, head="user;item;stars")
    with pytest.raises(DataError, match=r"events\.csv, line 22: a quotation mark is never closed"):
        eq.read(path)
    data = eq.read(path, on_bad="skip")
    assert data.n_interactions == len(ROWS)
    assert any("skipped 1 bad row: 1 where a quotation" in note for note in data.notes)
    assert '"x' in eq.read(path, quote="").items


@pytest.mark.parametrize("gap", [5, 30])
def test_a_field_that_holds_whole_rows_is_named_by_its_first_line(tmp_path, gap):
    plain = [row.replace('"', "") for row in ROWS]
    rows = [*plain[:20], 'v;"x;1', *plain[20 : 20 + gap], 'w;y";1', *plain[20 + gap :]]
    path = written(tmp_path, rows, head="user;item;stars")
    with pytest.raises(DataError, match=r"line 22: a quotation mark .*encloses whole rows"):
        eq.read(path)
    data = eq.read(path, on_bad="skip")
    # the mark at the end of y" is a stray one once the field is not taken as one
    assert data.n_interactions == len(ROWS)
    assert any("skipped 2 bad rows" in note for note in data.notes)
    assert eq.read(path, quote='"').n_interactions == len(ROWS) - gap + 1


def test_texts_of_many_lines_are_fields(tmp_path):
    review = "\n".join(["first; second", "third", "", "fourth; fifth; sixth; seventh"] * 4)
    rows = [f'u{n};i{n};"{review} ""{n}"""' for n in range(5)]
    data = eq.read(written(tmp_path, rows, head="user;item;review"))
    assert data.n_interactions == 5


def test_every_line_is_kept_or_counted_whatever_the_marks(tmp_path):
    faults = ['v1;"x;1', 'v2;"x"y;1', 'v3;x"y;1', 'v4;"x"";1', '"v5;x;1', 'v6;x;"1']
    rows = []
    for place, fault in enumerate(faults):
        rows += [f"a{place}{n};i{n};1" for n in range(3)] + [fault]
        rows += [f'"b{place}{n}";"i{n}";1' for n in range(3)]
    data = eq.read(written(tmp_path, rows, head="user;item;stars"), on_bad="skip")
    assert data.n_interactions == 6 * len(faults)
    assert any(f"skipped {len(faults)} bad rows" in note for note in data.notes)


def test_lines_are_named_rightly_after_a_mark_that_was_not_closed(tmp_path):
    rows = ["a;x;1", 'b;"y;1', "c;z;1", ";w;1"]
    path = written(tmp_path, rows, head="user;item;stars")
    data = eq.read(path, on_bad="skip")
    assert data.users.tolist() == ["a", "c"]
    path.write_text(path.read_text().replace('"y', "y"))
    with pytest.raises(DataError, match="line 5: column 'user' is an empty user id"):
        eq.read(path)


def test_another_mark_may_enclose_fields(tmp_path):
    rows = ["'a;1';x;1", "'it''s';y;1", 'b;"z;1']
    data = eq.read(written(tmp_path, rows, head="user;item;stars"), quote="'")
    assert set(data.users) == {"a;1", "it's", "b"}
    assert '"z' in data.items


@pytest.mark.parametrize(
    "settings",
    [{"quote": "ab"}, {"quote": "é"}, {"escape": "x"}, {"escape": '"'},
     {"quote": "", "escape": "\\"}],
)  # fmt: skip
def test_invalid_quotation_marks_are_refused(tmp_path, settings):
    with pytest.raises(SettingError, match=r"(quote|escape) "):
        eq.read(written(tmp_path, ROWS), **settings)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (rb'"a\"b"', b'"a""b"'),
        (rb'"a\\","b"', b'"a\\","b"'),
        (rb'a\b,"c\d"', rb'a\b,"c\d"'),
        (rb'"a""\""', b'"a"""""'),
        (b'"a\\', b'"a\\'),
    ],
)
def test_escapes_become_doubled_marks(text, same):
    assert doubled(text, '"', "\\") == same
