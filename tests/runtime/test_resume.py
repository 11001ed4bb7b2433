"""A long job resumes from its state file, and from no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.errors import DataError, FileFormatError
from equipoise.runtime.resume import first_difference, read_state, write_state

JOB = {"data": "a", "rows": 256, "values": {"l2": [1.0]}}


def test_a_state_is_read_back_by_its_own_job(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert read_state(file, JOB, "remove it", lambda state: state.whole_number("done")) is None
    write_state(file, JOB, done=3)
    assert read_state(file, JOB, "remove it", lambda state: state.whole_number("done")) == 3
    assert list(tmp_path.iterdir()) == [file]


def test_a_state_of_another_job_is_refused_with_the_difference(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write_state(file, JOB, done=3)
    with pytest.raises(DataError, match="holds another fit: its rows is 256, not 512; give"):
        read_state(
            file, {**JOB, "rows": 512}, "remove it", lambda state: state.whole_number("done")
        )


def test_a_damaged_state_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write_state(file, JOB, done=3)
    file.write_text(file.read_text().replace('"done": 3', '"done": 4'))
    with pytest.raises(FileFormatError, match=r"is damaged: .*; remove it"):
        read_state(file, JOB, "remove it", lambda state: state.whole_number("done"))


@pytest.mark.parametrize(
    ("current", "difference"),
    [
        ({**JOB, "data": "b"}, "its data is 'a', not 'b'"),
        ({**JOB, "values": {"l2": [1.0, 2.0]}}, "its values.l2 is [1.0], not [1.0, 2.0]"),
        ({**JOB, "values": {}}, "its values.l2 is [1.0], and here there is none"),
        ({**JOB, "seed": 1}, "its seed is not there, and here it is 1"),
    ],
)
def test_the_first_difference_is_named(current: dict[str, object], difference: str) -> None:
    assert first_difference(JOB, current) == difference
