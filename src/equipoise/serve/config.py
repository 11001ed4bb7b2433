"""Settings of the service from flags, the environment and a TOML file."""

from __future__ import annotations

import difflib
import functools
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from equipoise.checks import period
from equipoise.errors import DataError, SettingError

PREFIX = "EQUIPOISE_"
NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,62}[a-z0-9])?")
NO_TENANTS = "the service has no tenants; run one service per tenant (docs/serving.md)"
ROLES = ("read", "write", "admin")
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise SettingError(
            f"names are made of a-z, 0-9, '-', '_' and '.', at most 64; got {name!r}"
        )
    return name


def _check_period(text: str, info: ValidationInfo) -> str:
    period(str(info.field_name), text)
    return text


Name = Annotated[str, AfterValidator(_check_name)]
Period = Annotated[str, AfterValidator(_check_period)]


class Limits(BaseModel):
    """Limits on requests.

    Parameters
    ----------
    body, bulk
        Bytes of a request body, and of the body of an import.
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

    model_config = STRICT

    body: PositiveInt = 1_000_000
    bulk: PositiveInt = 500_000_000
    headers: PositiveInt = 32_768
    k: PositiveInt = 1000
    batch: PositiveInt = 1000
    events: PositiveInt = 1000
    history: PositiveInt = 5000
    ids: PositiveInt = 200_000
    rules: PositiveInt = 10_000
    rows: PositiveInt = 100_000
    cost: PositiveInt = 5_000_000_000
    cache: NonNegativeInt = 64_000_000
    rate: NonNegativeFloat = 0.0
    timeout: PositiveFloat = 10.0
    connections: PositiveInt = 1000


class Token(BaseModel):
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

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    name: Name
    secret: str = Field(repr=False)
    role: Literal["read", "write", "admin"] = "read"

    @field_validator("secret")
    @classmethod
    def _read_secret(cls, secret: str, info: ValidationInfo) -> str:
        name = info.data.get("name")
        if secret.startswith("env:"):
            variable = secret.removeprefix("env:")
            secret = os.environ.get(variable, "")
            if not secret:
                raise SettingError(f"token {name!r} needs the variable {variable}; set it")
        if len(secret) < 16:
            raise SettingError(f"the secret of token {name!r} is shorter than 16 characters")
        if not secret.isascii() or secret != secret.strip():
            raise SettingError(
                f"the secret of token {name!r} begins or ends with a space, or is not ASCII; "
                "no request could send it"
            )
        return secret


class Experiment(BaseModel):
    """Assigns users to models by a stable hash of the name and the user.

    Parameters
    ----------
    name
        Another name assigns the users anew.
    models
        Shares of the users by model; scaled to sum to 1.
    """

    model_config = STRICT

    name: Name
    models: dict[str, PositiveFloat]

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if len(self.models) < 2:
            raise SettingError(f"experiment {self.name!r} needs at least two models with shares")
        return self


class Config(BaseSettings):
    """Settings of `equipoise serve`; a TOML file has the same names.

    Flags override the environment (EQUIPOISE_PORT, ...), which overrides the file.

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
    watchdog
        Seconds after which a worker whose event loop hangs is replaced, but at least twice the
        timeout of the limits, which a busy store may take; 0 for never. One without any sign of
        life is replaced after this time too, or after 30 seconds.
    refresh
        Time between updates of the models from the store; None for no updates.
    follow
        Time between looks at the model folders: models that another process has saved are loaded;
        None for a reload only on request.
    keep
        Age at which events, marks and lists are deleted; None for never.
    weights
        Weights by event type; negative for dislikes. Types in the signals of a served model need
        no entry.
    tokens, experiments, limits
        See their classes.
    explore, explore_pool
        Share of the lists that are drawn at random, from this many first items of the ranking; all
        lists of users are then logged, for `equipoise replay`.
    cors
        Origins of other sites whose pages may call the service.
    access_log
        Log a line per request.
    log
        "json", "text" for people, or "auto": text on a terminal.
    traces
        Send traces by OpenTelemetry, as the variables OTEL_... say; needs the extra `otel`.
    catalogue
        "closed" refuses events on items that no model and no attribute announces.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, coerce_numbers_to_str=True
    )

    models: dict[Name, str] = {}
    store: str = "sqlite:///equipoise.db"
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65_535)
    workers: int = Field(1, ge=1, le=256)
    drain: float = Field(2.0, ge=0, allow_inf_nan=False)
    watchdog: float = Field(30.0, ge=0, allow_inf_nan=False)
    refresh: Period | None = None
    follow: Period | None = None
    keep: Period | None = None
    weights: dict[str, FiniteFloat] = {"view": 1.0, "dislike": -1.0}
    tokens: list[Token] = []
    experiments: list[Experiment] = []
    explore: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    explore_pool: PositiveInt = 100
    cors: list[str] = []
    access_log: bool = True
    log: Literal["auto", "json", "text"] = "auto"
    traces: bool = False
    catalogue: Literal["open", "closed"] = "open"
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.models:
            raise SettingError("there is no model to serve; give a folder that `fit` wrote")
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
        return self

    @property
    def keep_seconds(self) -> float | None:
        """Age in seconds at which events are deleted."""
        return None if self.keep is None else period("keep", self.keep)

    @property
    def hung_seconds(self) -> float:
        """Seconds after which a worker counts as hung; 0 for never."""
        return max(self.watchdog, 2 * self.limits.timeout) if self.watchdog else 0.0

    @property
    def follow_seconds(self) -> float | None:
        """Seconds between looks at the model folders."""
        return None if self.follow is None else period("follow", self.follow)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read settings from a TOML file and the environment; flags override both."""
        values = {} if path is None else _read_toml(Path(path))
        values = {name: v for name, v in values.items() if PREFIX + name.upper() not in os.environ}
        values |= {name: value for name, value in (flags or {}).items() if value is not None}
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingError(_message(error)) from None  # the error may contain secrets
        except SettingsError as error:
            raise SettingError(f"{error}; write tables and lists as JSON") from error


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


def _message(error: ValidationError) -> str:
    """Return the message for the first invalid setting; unknown ones come first."""
    errors = error.errors()
    first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    location, key = first["loc"], str(first["loc"][-1])
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    where = "".join(parts).removeprefix(".")
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] == "extra_forbidden":
        if key in ("tenant", "tenants"):
            return f"{where}: {NO_TENANTS}"
        tables: dict[Any, type[BaseModel]]
        tables = {"limits": Limits, "tokens": Token, "experiments": Experiment}
        table = Config if len(location) == 1 else tables[location[0]]
        return f"unknown setting {where!r}{_nearest(key, table.model_fields)}"
    # "Input should be a valid dictionary or instance of Limits"
    text = first["msg"].partition(" or instance")[0].replace("valid dictionary", "table")
    return f"{where} must{text.partition('should')[2]}, got {first['input']!r}"


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"
