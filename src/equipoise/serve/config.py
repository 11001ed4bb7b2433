"""Settings of the service: flags, the environment or one TOML file, each key checked by name."""

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
from dataclasses import dataclass, field
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
    """What one request may ask for.

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
        Bytes that a worker keeps of rules and filters that were looked up.
    rate
        Requests per second of one token or address; 0 for no limit.
    timeout
        Seconds until headers and body must have arrived, and the store must have answered.
    connections
        Requests that a worker answers at the same time; more are told to come back.
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
    """A secret that opens the service.

    Parameters
    ----------
    name
        What logs and limits call its bearer; no two tokens share it.
    secret
        At least 16 characters, no other token's; "env:NAME" takes it from the environment.
    role
        "read" asks, "write" also sends events and attributes, "admin" also reloads.
    """

    name: str
    secret: str = field(repr=False)
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
    """Users are dealt to models by a stable hash of the name and the user.

    Parameters
    ----------
    name
        Another name deals the users anew.
    models
        Shares of the users by the name of the model; they are scaled to sum to 1.
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
    """Everything `equipoise serve` can be told; a TOML file has the same names.

    Parameters
    ----------
    models
        Folders of saved models by name; the first one is asked where a request names none.
    store
        URL of the event store: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.
    host, port
        Address to listen on. Without tokens it has to be this machine's own.
    workers
        Processes that answer requests.
    drain
        Seconds from SIGTERM until the socket is closed, in which /readyz answers 503 and all else
        goes on, so that a load balancer sends requests elsewhere; 0 for none.
    refresh
        Time between two updates of the models from the store; None for none.
    keep
        Age at which events and seen marks leave the store; None keeps them.
    weights
        What an event of each type counts; one below 0 is a dislike. Types that the signals of a
        served model weigh need no entry.
    tokens, experiments
        As their own classes say.
    cors
        Origins of other pages whose scripts may call the service.
    access_log
        Write a line for each request.
    limits
        As their own class says.
    """

    models: dict[str, str]
    store: str = "sqlite:///equipoise.db"
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    drain: float = 2.0
    refresh: str | None = None
    keep: str | None = None
    weights: dict[str, float] = field(default_factory=lambda: {"view": 1.0, "dislike": -1.0})
    tokens: list[Token] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    cors: list[str] = field(default_factory=list)
    access_log: bool = True
    limits: Limits = field(default_factory=Limits)

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
                f"without tokens the service listens on this machine alone, not on {self.host}; "
                "give tokens, or leave host out"
            )

    @property
    def keep_seconds(self) -> float | None:
        """Age at which events leave the store."""
        return None if self.keep is None else period("keep", self.keep)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str] | None = None,
        flags: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Self:
        """Return the settings of a file, over them the environment, over that the flags."""
        found: dict[str, Any] = {}
        if path is not None:
            found = _toml(Path(path))
        for name in ("store", "host", "port", "workers", "drain", "refresh", "keep"):
            text = environment.get(PREFIX + name.upper())
            if text is not None:
                found[name] = _number(text)
        found |= {name: value for name, value in (flags or {}).items() if value is not None}
        found.setdefault("models", {})
        made: Self = _made(cls, found, "")
        return made


def _number(text: str) -> int | float | str:
    """Return the number that a text stands for, or the text."""
    if text.isdecimal():
        return int(text)
    return float(text) if re.fullmatch(r"\d+\.\d+", text) else text


def _check_distinct(tokens: Iterable[Token]) -> None:
    """Refuse two tokens that limits and logs could not tell apart."""
    owners: dict[str, str] = {}  # names by their secret
    for token in tokens:
        if token.name in owners.values():
            raise SettingError(
                f"two tokens have the name {token.name!r}, by which limits and logs go; "
                "give each its own"
            )
        if token.secret in owners:
            both = f"{owners[token.secret]!r} and {token.name!r}"
            raise SettingError(f"tokens {both} have the same secret; give each its own")
        owners[token.secret] = token.name


@functools.lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        told = error.strerror or error
        raise DataError(f"{path} cannot be read: {told}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a TOML file: {error}") from error


def _made(kind: Any, given: Any, where: str) -> Any:
    """Return a dataclass from a table of TOML; an unknown key names the nearest one."""
    if not isinstance(given, Mapping):
        raise SettingError(f"{where or 'the settings'} must be a table, got {given!r}")
    hints = typing.get_type_hints(kind)
    fields = {each.name: each for each in dataclasses.fields(kind)}
    values = {}
    for key, value in given.items():
        if key in ("tenant", "tenants"):
            raise SettingError(f"{where}{key}: {NO_TENANTS}")
        if key not in fields:
            raise SettingError(f"unknown setting {where + key!r}{_nearest(key, fields)}")
        values[key] = _value(hints[key], value, where + key)
    for name, each in fields.items():
        needed = each.default is each.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise SettingError(f"{where}{name} is missing")
    return kind(**values)


def _value(kind: Any, value: Any, where: str) -> Any:
    """Return a value of this type from TOML."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in parts:
            return None
        kind = next(part for part in parts if part is not type(None))
        return _value(kind, value, where)
    if dataclasses.is_dataclass(kind):
        return _made(kind, value, f"{where}.")
    if origin is list:
        if not isinstance(value, list):
            raise SettingError(f"{where} must be a list, got {value!r}")
        return [_value(parts[0], each, f"{where}[{n}]") for n, each in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise SettingError(f"{where} must be a table, got {value!r}")
        return {name: _value(parts[1], each, f"{where}.{name}") for name, each in value.items()}
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
