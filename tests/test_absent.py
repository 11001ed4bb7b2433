from __future__ import annotations

import pytest

from tests.absent import absent


def test_a_missing_requirement_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no chromium found"):
        absent("no chromium found")


def test_a_missing_requirement_elsewhere_is_a_skip_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no chromium found"):
        absent("no chromium found")
