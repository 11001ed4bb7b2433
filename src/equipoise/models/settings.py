"""Settings of a model: as plain values, as a line of text, and as variables of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np

from equipoise.data.interactions import Interactions
from equipoise.data.signals import SETTINGS, Signals
from equipoise.display.notebook import fragment, table
from equipoise.errors import SettingError
from equipoise.models.trend import SETTINGS as TREND_SETTINGS
from equipoise.models.trend import Trend

EXPONENTS = ("alpha", "beta", "gamma")
# settings of a model's parts that `tune` varies, by part
PARTS = {
    "normalizer": EXPONENTS,
    "lowpass": ("strength", "exponent"),
    "features": ("feature_strength",),
    "signals": SETTINGS,
    "trend": TREND_SETTINGS,
}
# fields of a part that a search calls otherwise: `strength` is that of a LowPass
FIELDS = {"feature_strength": "strength"}
SHARED_PARTS = ("signals", "trend")  # parts that any model can have; None is left out


@dataclass(kw_only=True, eq=False)
class Configured:
    """Settings as fields of a dataclass; parts such as a normalizer are dataclasses too."""

    signals: Signals | None = field(default=None, repr=False)
    trend: Trend | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """A short name for tables, such as "EASE+DAN"."""
        parts = [part["name"] for part in self.settings().values() if isinstance(part, dict)]
        return "+".join([type(self).__name__, *(name for name in parts if name != "NoNorm")])

    def settings(self, *, resolved: bool = False) -> dict[str, Any]:
        """Return the name and the hyper-parameters as plain values.

        With `resolved`, a fitted model has numbers in place of "auto".
        """
        values = self.get_params(deep=False)
        shared = {name: values.pop(name, None) for name in SHARED_PARTS}
        if resolved:
            values = {name: getattr(self, f"{name}_", value) for name, value in values.items()}
        values |= {name: part for name, part in shared.items() if part is not None}
        return {"model": type(self).__name__, **plain(values)}

    def summary(self) -> str:
        """Return the model and its settings as a line of text; once fitted, without "auto".

        >>> import equipoise as eq
        >>> eq.EASE(l2=100.0, normalizer=eq.DAN(0.2, 0.3)).summary()
        'EASE l2=100 DAN(alpha=0.2, beta=0.3)'
        """
        return in_words(self.settings(resolved=True))

    def _repr_html_(self) -> str:
        settings = self.settings(resolved=True)
        title = str(settings.pop("model"))
        rows = [
            (name, in_words({"": value}) if isinstance(value, Mapping) else _short(value))
            for name, value in settings.items()
            if value is not None
        ]
        data = vars(self).get("interactions_")
        rows.append(("fitted to", "no data yet" if data is None else str(data)))
        return fragment(title, table(["setting", "value"], rows, words=2))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as in scikit-learn.

        With `deep`, also those of parts, such as "normalizer__alpha".
        """
        fields = dataclasses.fields(cast(Any, self))
        values = {entry.name: getattr(self, entry.name) for entry in fields if entry.init}
        for name, part in list(values.items()) if deep else []:
            if dataclasses.is_dataclass(part):
                names = [entry.name for entry in dataclasses.fields(part)]
                values |= {f"{name}__{inner}": getattr(part, inner) for inner in names}
        return values

    def set_params(self, **params: Any) -> Self:
        """Change settings by their names in `get_params`; the model has to be fitted again."""
        changes: dict[str, Any] = {}
        known = self.get_params()
        for key, value in params.items():
            if key not in known:
                has = ", ".join(known) or "none"
                raise SettingError(f"{type(self).__name__} has no setting {key!r}; it has {has}")
            name, _, inner = key.partition("__")
            part = changes.get(name, getattr(self, name))
            changes[name] = dataclasses.replace(part, **{inner: value}) if inner else value
        self.__dict__ = dataclasses.replace(cast(Any, self), **changes).__dict__
        return self

    def clone(self) -> Self:
        """Return an unfitted model with the same settings."""
        return cast(Self, dataclasses.replace(cast(Any, self)))

    @classmethod
    def _prototype(cls) -> Self:
        """Return the model that `tune` varies if it is passed the class."""
        return cls()

    def _tunable(self) -> list[str]:
        """Return the names of the settings that `tune` can vary."""
        names = [name for name in self.get_params(deep=False) if name not in SHARED_PARTS]
        return [*names, *self._shared_settings()]

    def _shared_settings(self) -> dict[str, Any]:
        """Return the settings of signals and trend that `tune` can vary, by name."""
        parts = {name: getattr(self, name) for name in SHARED_PARTS}
        return {
            name: getattr(part, name)
            for part_name, part in parts.items()
            if part is not None
            for name in PARTS[part_name]
        }

    def _vary(self, settings: Mapping[str, Any]) -> Self:
        """Return an unfitted copy with other settings, those of its parts included."""
        changes = dict(settings)
        for part_name, names in PARTS.items():
            part = getattr(self, part_name, None)
            if part is not None:
                moved = [name for name in names if name in changes and not hasattr(self, name)]
                inner = {FIELDS.get(name, name): changes.pop(name) for name in moved}
                changes |= {part_name: dataclasses.replace(part, **inner)} if inner else {}
        return cast(Self, dataclasses.replace(cast(Any, self), **changes))

    def _search_start(self, data: Interactions) -> dict[str, Any]:
        """Return the settings that a search begins with, with numbers in place of "auto"."""
        shared = self._shared_settings()
        return {name: shared.get(name, getattr(self, name, None)) for name in self._tunable()}

    def _search_point(self) -> dict[str, Any]:
        """Return the family and the settings of a fitted model, as a row of `Tuned.trials`."""
        settings = self.settings()
        for part in SHARED_PARTS:
            settings.pop(part, None)
        return {"family": settings.pop("model"), **settings, **self._shared_settings()}


def in_words(settings: Mapping[str, Any]) -> str:
    """Return settings as a line of text, without those that are None, 0 or False.

    >>> in_words({"model": "EASE", "l2": 100.0, "normalizer": {"name": "DAN", "alpha": 0.2}})
    'EASE l2=100 DAN(alpha=0.2)'
    """
    words = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            entries = [entry for entry in [*value.items()][1:] if entry[1] is not None]
            inner = ", ".join(f"{key}={_short(part)}" for key, part in entries)
            words += [f"{value['name']}({inner})" if inner else value["name"]]
        elif value:
            words += [str(value) if name == "model" else f"{name}={_short(value)}"]
    return " ".join(word for word in words if word != "NoNorm")


def _short(value: Any) -> str:
    if isinstance(value, list):
        shown = "/".join(map(_short, value[:4]))
        return shown if len(value) <= 4 else f"{shown}/..."
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plain(value: Any) -> Any:
    """Return settings as JSON values, nested dataclasses as their name and fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
        return {"name": type(value).__name__, **plain(fields)}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
