"""What is told about a model: its settings, their names in words, and which of them vary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from equipoise.data.interactions import Interactions
from equipoise.data.signals import SETTINGS, Signals
from equipoise.errors import SettingError
from equipoise.models.saving import plain
from equipoise.models.snapshots import atomic

EXPONENTS = ("alpha", "beta", "gamma")
# settings of a model's parts that `tune` varies by their own names
PARTS = {"normalizer": EXPONENTS, "lowpass": ("strength", "exponent"), "signals": SETTINGS}


@dataclass(kw_only=True, eq=False)
class Configured:
    """Settings as fields of a dataclass; parts such as a normalizer have settings of their own."""

    signals: Signals | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """A short name for tables, such as "EASE+DAN"."""
        parts = [part["name"] for part in self.settings().values() if isinstance(part, dict)]
        return "+".join([type(self).__name__, *(name for name in parts if name != "NoNorm")])

    def settings(self, *, resolved: bool = False) -> dict[str, Any]:
        """Return the name and the hyper-parameters as plain values.

        With `resolved`, those that were "auto" have the numbers that fitting took from the data.
        """
        entries = dataclasses.fields(cast(Any, self))
        values = {each.name: getattr(self, each.name) for each in entries if each.init}
        signals = values.pop("signals", None)
        if resolved:
            values = {name: getattr(self, f"{name}_", value) for name, value in values.items()}
        values |= {} if signals is None else {"signals": signals}
        return {"model": type(self).__name__, **plain(values)}

    def summary(self) -> str:
        """Return the model and its settings in one line; once fitted, with numbers for "auto".

        >>> import equipoise as eq
        >>> eq.EASE(l2=100.0, normalizer=eq.DAN(0.2, 0.3)).summary()
        'EASE l2=100 DAN(alpha=0.2, beta=0.3)'
        """
        return in_words(self.settings(resolved=True))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as scikit-learn asks for them.

        With `deep`, also those of parts, such as "normalizer__alpha".
        """
        own = [each.name for each in dataclasses.fields(cast(Any, self)) if each.init]
        values = {name: getattr(self, name) for name in own}
        for name, part in list(values.items()) if deep else []:
            if dataclasses.is_dataclass(part):
                inner = {each.name: getattr(part, each.name) for each in dataclasses.fields(part)}
                values |= {f"{name}__{key}": value for key, value in inner.items()}
        return values

    @atomic
    def set_params(self, **params: Any) -> Self:
        """Change settings by their names in `get_params`; the model has to be fitted again."""
        own: dict[str, Any] = {}
        known = self.get_params()
        for key, value in params.items():
            if key not in known:
                has = ", ".join(known) or "none"
                raise SettingError(f"{type(self).__name__} has no setting {key!r}; it has {has}")
            name, _, inner = key.partition("__")
            part = own.get(name, getattr(self, name))
            own[name] = dataclasses.replace(part, **{inner: value}) if inner else value
        self.__dict__ = dataclasses.replace(cast(Any, self), **own).__dict__
        return self

    def clone(self) -> Self:
        """Return a model with the same settings, not fitted."""
        return cast(Self, dataclasses.replace(cast(Any, self)))

    @classmethod
    def prototype(cls) -> Self:
        """Return the model that `tune` varies where it is given the class alone."""
        return cls()

    def tunable(self) -> list[str]:
        """Return the names of the settings that `tune` can vary."""
        entries = dataclasses.fields(cast(Any, self))
        own = [each.name for each in entries if each.init and each.name != "signals"]
        return [*own, *self._signal_settings()]

    def _signal_settings(self) -> dict[str, Any]:
        """Return the settings of the signals that `tune` can vary, by name."""
        if self.signals is None:
            return {}
        return {name: getattr(self.signals, name) for name in SETTINGS}

    def vary(self, settings: Mapping[str, Any]) -> Self:
        """Return a copy with other settings, those of its parts included; not fitted."""
        own = dict(settings)
        for part, names in PARTS.items():
            mine = getattr(self, part, None)
            if mine is not None:
                theirs = [name for name in names if name in own and not hasattr(self, name)]
                changed = {name: own.pop(name) for name in theirs}
                own |= {part: dataclasses.replace(mine, **changed)} if changed else {}
        return cast(Self, dataclasses.replace(cast(Any, self), **own))

    def search_start(self, data: Interactions) -> dict[str, Any]:
        """Return the settings that a search begins with; "auto" is replaced by numbers."""
        theirs = self._signal_settings()
        return {name: theirs.get(name, getattr(self, name, None)) for name in self.tunable()}

    def search_point(self) -> dict[str, Any]:
        """Return the family and the settings of a fitted model, as a row of `Tuned.trials`."""
        settings = self.settings()
        settings.pop("signals", None)
        return {"family": settings.pop("model"), **settings, **self._signal_settings()}


def in_words(settings: Mapping[str, Any]) -> str:
    """Return settings in one line; what is None, 0 or off is left out.

    >>> in_words({"model": "EASE", "l2": 100.0, "normalizer": {"name": "DAN", "alpha": 0.2}})
    'EASE l2=100 DAN(alpha=0.2)'
    """
    words = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            said = [(key, part) for key, part in [*value.items()][1:] if part is not None]
            inner = ", ".join(f"{key}={_short(part)}" for key, part in said)
            words += [f"{value['name']}({inner})" if inner else value["name"]]
        elif value:
            words += [str(value) if name == "model" else f"{name}={_short(value)}"]
    return " ".join(word for word in words if word != "NoNorm")


def _short(value: Any) -> str:
    if isinstance(value, list):
        shown = "/".join(map(_short, value[:4]))
        return shown if len(value) <= 4 else f"{shown}/..."
    return f"{value:.4g}" if isinstance(value, float) else str(value)
