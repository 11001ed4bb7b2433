"""Files of plain numbers are read in one pass, to the same values as any other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.data.readers import delimited
from equipoise.data.readers.delimited import parse_numbers

NAMES = ("user", "item", "rating", "time")
CELLS = st.one_of(
    st.integers(0, 30).map(str),
    st.integers(-(10**18), 10**18).map(str),
    st.decimals(-99, 99, places=2).map(str),
    st.sampled_from(
        ["007", "-0", "+7", " 7", "7 ", "", "1e3", "5.", ".5", "nan", '"7"', "a", "é"]
    ),
    st.sampled_from(["-", "1.50", "12345678.123456789", "9" * 19, "-" + "9" * 18, "0.0", "1\x00"]),
)
PLAIN = st.tuples(
    st.integers(0, 9).map(str),
    st.integers(0, 9).map(str),
    st.sampled_from(["1", "2.5", "0.1"]),
    st.integers(10**9, 2 * 10**9).map(str),
)


def outcome(path: Path) -> Any:
    """Return all that a reading gives, or what it refuses."""
    try:
        data = eq.read(path, user="user", item="item", rating="rating", time="time", header=True)
    except eq.EquipoiseError as error:
        return type(error), str(error)
    events = data.events
    times = None if events is None else (events.items.tolist(), events.times.tolist())
    return data.fingerprint, data.users.tolist(), data.items.tolist(), times, data.notes


@settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(PLAIN, min_size=1, max_size=6),
    odd=st.none() | st.tuples(st.integers(0, 5), st.integers(0, 3), CELLS),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.sampled_from(["", "\n", "\n\n"]),
)
def test_it_reads_and_refuses_what_two_passes_do(
    rows: list[tuple[str, ...]],
    odd: tuple[int, int, str] | None,
    end: str,
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = [list(row) for row in rows]
    if odd is not None:
        cells[odd[0] % len(cells)][odd[1]] = odd[2]
    path = tmp_path / "events.csv"
    path.write_bytes((end.join(",".join(row) for row in [NAMES, *cells]) + last).encode())
    one_pass = outcome(path)
    with monkeypatch.context() as patch:
        patch.setattr(delimited.TextFile, "numbers", lambda *_: None)
        assert outcome(path) == one_pass


@pytest.mark.parametrize(
    "text",
    [
        "user,item,note,rating\n1,7,a b,2.5\n2,9,,0.1\n",
        "user,item,note,rating\n1,7,a b,5\n2,9,,many\n",
        'user,item,note,rating\n"1","7","a b",2.5\r\n2,9,,0.1',
    ],
)
def test_a_good_file_is_not_scanned_for_bad_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "events.csv"
    path.write_text(text, newline="")
    monkeypatch.setattr(delimited, "scan", lambda *_, **__: pytest.fail("two passes"))
    data = eq.read(path)
    assert (data.users.tolist(), data.items.tolist()) == ([1, 2], [7, 9])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_parse_the_same_numbers(threads: int) -> None:
    from equipoise.runtime.machine import limited

    rng = np.random.default_rng(0)
    integers, cents = rng.integers(-(10**15), 10**15, 9000), rng.integers(0, 10**9, 9000)
    lines = [f"{a},{b // 100}.{b % 100:02}\n" for a, b in zip(integers, cents, strict=True)]
    with limited(threads):
        frame = parse_numbers("".join(lines).encode(), ",", "ab", "ab", header=False, quote="")
    assert frame is not None
    np.testing.assert_array_equal(frame["a"], integers)
    np.testing.assert_array_equal(frame["b"], [float(line.split(",")[1]) for line in lines])
