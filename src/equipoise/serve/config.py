"""Settings of the service from flags, the environment and a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import ipaddress
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from equipoise.checks import count, non_negative, number, period, positive
from equipoise.errors import DataError, SettingError

PREFIX = "EQUIPOISE_"
NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")
NO_TENANTS = "the service has no tenants; run one service per tenant (docs/serving.md)"
ROLES = ("read", "write", "admin")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on requests.

    Parameters
    ----------
    body
        Bytes of a request body.
    headers
        Bytes of the address and the headers of a request.
    k, batch, events, history
        Length of a list, entries of a batch, events of a request, items of a history.
    ids
        Ids and values that a request names in history, exclude, candidates, filters and rules.
    rules
        Entries of the rules of one list.
    rows
        Items and reasons in an answer, over all lists of a batch.
    cost
        Steps that a request may take, about a nanosecond each.
    cache
        Bytes of the cache of rules and filters in a worker.
    rate
        Requests per second of one token or address; 0 for no limit.
    timeout
        Seconds until headers and body must have arrived, and the store must have answered.
    connections
        Concurrent requests of a worker; further ones get 503.
    """

    body: int = 1_000_000
    headers: int = 32_768
    k: int = 1000
    batch: int = 1000
    events: int = 1000
    history: int = 5000
    ids: int = 200_000
    rules: int = 10_000
    rows: int = 100_000
    cost: int = 5_000_000_000
    cache: int = 64_000_000
    rate: float = 0.0
    timeout: float = 10.0
    connections: int = 1000

    def __post_init__(self) -> None:
        counts = ("body", "headers", "k", "batch", "events", "history", "ids", "rules", "rows")
        for name in (*counts, "cost", "connections"):
            count(name, getattr(self, name))
        count("cache", self.cache, 0)
        non_negative("rate", self.rate)
        positive("timeout", self.timeout)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token that gives access to the service.

    Parameters
    ----------
    name
        Unique name, used in logs and limits.
    secret
        Unique, at least 16 characters; "env:NAME" takes it from the environment.
    role
        "read" gets lists, "write" also sends events and attributes, "admin" also reloads.
    """

    name: str
    secret: str = dataclasses.field(repr=False)
    role: Literal["read", "write", "admin"] = "read"

    def __post_init__(self) -> None:
        secret = self.secret
        if secret.startswith("env:"):
            variable = secret.removeprefix("env:")
            secret = os.environ.get(variable, "")
            if not secret:
                raise SettingError(f"token {self.name!r} needs the variable {variable}; set it")
        if len(secret) < 16:
            raise SettingError(f"the secret of token {self.name!r} is shorter than 16 characters")
        if not secret.isascii() or secret != secret.strip():
            raise SettingError(
                f"the secret of token {self.name!r} begins or ends with a space, or is not ASCII; "
                "no request could send it"
            )
        object.__setattr__(self, "secret", secret)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Assigns users to models by a stable hash of the name and the user.

    Parameters
    ----------
    name
        Another name assigns the users anew.
    models
        Shares of the users by model; scaled to sum to 1.
    """

    name: str
    models: dict[str, float]

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise SettingError(f"experiment {self.name!r} needs at least two models with shares")
        for model, share in self.models.items():
            positive(f"share of {model} in experiment {self.name!r}", share)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of `equipoise serve`; a TOML file has the same names.

    Parameters
    ----------
    models
        Folders of saved models by name; the first one is the default.
    store
        URL of the event store: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.
    host, port
        Address to listen on; without tokens a loopback address.
    workers
        Processes that answer requests.
    drain
        Seconds from SIGTERM until the socket is closed, during which /readyz answers 503 so that a
        load balancer sends requests elsewhere.
    refresh
        Time between updates of the models from the store; None for no updates.
    keep
        Age at which events, marks and lists are deleted; None for never.
    weights
        Weights by event type; negative for dislikes. Types in the signals of a served model need
        no entry.
    tokens, experiments, limits
        See their classes.
    cors
        Origins of other sites whose pages may call the service.
    access_log
        Log a line per request.
    """

    models: dict[str, str]
    store: str = "sqlite:///equipoise.db"
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    drain: float = 2.0
    refresh: str | None = None
    keep: str | None = None
    weights: dict[str, float] = dataclasses.field(
        default_factory=lambda: {"view": 1.0, "dislike": -1.0}
    )
    tokens: list[Token] = dataclasses.field(default_factory=list)
    experiments: list[Experiment] = dataclasses.field(default_factory=list)
    cors: list[str] = dataclasses.field(default_factory=list)
    access_log: bool = True
    limits: Limits = dataclasses.field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.models:
            raise SettingError("there is no model to serve; give a folder that `fit` wrote")
        count("port", self.port, 0, 65_535)
        count("workers", self.workers, 1, 256)
        non_negative("drain", self.drain)
        for name in ("refresh", "keep"):
            if getattr(self, name) is not None:
                period(name, getattr(self, name))
        named: list[Token | Experiment] = [*self.tokens, *self.experiments]
        for name in [*self.models, *(setting.name for setting in named)]:
            if not NAME.fullmatch(name):
                raise SettingError(
                    f"names are made of a-z, 0-9, '-', '_' and '.', at most 64; got {name!r}"
                )
        for name, weight in self.weights.items():
            number(f"weights of {name!r}", weight)
        _check_distinct(self.tokens)
        for experiment in self.experiments:
            for name in experiment.models:
                if name not in self.models:
                    hint = _nearest(name, self.models)
                    raise SettingError(
                        f"experiment {experiment.name!r} has no model {name!r}{hint}"
                    )
        if len(self.experiments) > 1:
            raise SettingError("the service runs one experiment at a time; leave the others out")
        if not self.tokens and not is_loopback(self.host):
            raise SettingError(
                f"without tokens the service listens on loopback addresses only, not on "
                f"{self.host}; give tokens, or leave host out"
            )

    @property
    def keep_seconds(self) -> float | None:
        """Age in seconds at which events are deleted."""
        return None if self.keep is None else period("keep", self.keep)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str] | None = None,
        flags: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Self:
        """Read settings; flags override the environment, which overrides the file."""
        values = {} if path is None else _read_toml(Path(path))
        for name in ("store", "host", "port", "workers", "drain", "refresh", "keep"):
            text = environment.get(PREFIX + name.upper())
            if text is not None:
                values[name] = _number(text)
        values |= {name: value for name, value in (flags or {}).items() if value is not None}
        values.setdefault("models", {})
        config: Self = _build(cls, values, "")
        return config


def _number(text: str) -> int | float | str:
    """Return a text as a number if it is one."""
    if text.isdecimal():
        return int(text)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else text


def _check_distinct(tokens: Iterable[Token]) -> None:
    """Refuse tokens with the same name or secret."""
    owners: dict[str, str] = {}  # names by their secret
    for token in tokens:
        if token.name in owners.values():
            raise SettingError(
                f"two tokens have the name {token.name!r}, which limits and logs use; "
                "choose different names"
            )
        if token.secret in owners:
            both = f"{owners[token.secret]!r} and {token.name!r}"
            raise SettingError(f"tokens {both} have the same secret; choose different ones")
        owners[token.secret] = token.name


@functools.lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path} cannot be read: {reason}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a TOML file: {error}") from error


def _build(kind: Any, table: Any, where: str) -> Any:
    """Build a dataclass from a TOML table; the error for an unknown key names the nearest one."""
    if not isinstance(table, Mapping):
        raise SettingError(f"{where or 'the settings'} must be a table, got {table!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {}
    for key, value in table.items():
        if key in ("tenant", "tenants"):
            raise SettingError(f"{where}{key}: {NO_TENANTS}")
        if key not in fields:
            raise SettingError(f"unknown setting {where + key!r}{_nearest(key, fields)}")
        values[key] = _value(hints[key], value, where + key)
    for name, field in fields.items():
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if is_required and name not in values:
            raise SettingError(f"{where}{name} is missing")
    return kind(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    """Convert a TOML value to this type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in parts:
            return None
        kind = next(part for part in parts if part is not type(None))
        return _value(kind, value, where)
    if dataclasses.is_dataclass(kind):
        return _build(kind, value, f"{where}.")
    if origin is list:
        if not isinstance(value, list):
            raise SettingError(f"{where} must be a list, got {value!r}")
        return [_value(parts[0], part, f"{where}[{n}]") for n, part in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise SettingError(f"{where} must be a table, got {value!r}")
        return {name: _value(parts[1], part, f"{where}.{name}") for name, part in value.items()}
    if origin is Literal:
        if value not in parts:
            raise SettingError(f"{where} must be one of {', '.join(parts)}, got {value!r}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise SettingError(f"{where} must be of type {kind.__name__}, got {value!r}")
    return value


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"
