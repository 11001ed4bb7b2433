from __future__ import annotations

from equipoise.reproduce.pace import Pace


def test_the_rest_is_told_from_the_mean_so_far() -> None:
    moments = iter([0.0, 10.0, 40.0, 60.0])
    said: list[str] = []
    pace = Pace(3, said.append, clock=lambda: next(moments))
    for name in "abc":
        pace.step(name)
    assert said == ["a (1 of 3, about 20 s left)", "b (2 of 3, about 20 s left)", "c (3 of 3)"]


def test_silence_is_possible() -> None:
    pace = Pace(1, None)
    pace.step("a")
    assert pace.done == 1
