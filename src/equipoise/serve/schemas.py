"""Schemas of requests and answers, from which the OpenAPI description is generated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    model_validator,
)

LONGEST = 512  # characters of an id
DEEPEST = 10_000  # last place of a list that can be asked for


def _text(value: int | str) -> str:
    """Return an id as text; refuse NUL, which PostgreSQL cannot store."""
    text = str(value)
    if "\0" in text:
        raise ValueError("an id must not contain the character NUL")
    return text


def _check_unicode(value: str) -> str:
    """Refuse lone surrogates, which JSON can express and UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("a text must be valid Unicode, without lone surrogates") from None
    return value


def _check_unicode_within(value: dict[str, Any]) -> dict[str, Any]:
    try:
        _check_unicode(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    return value


Text = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=LONGEST)]
Whole = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
if TYPE_CHECKING:
    Id = str
else:
    Id = Annotated[Whole | Text, AfterValidator(_text)]
# report the first wrong id only; reporting all of them could take very long
Ids = Annotated[list[Id], Field(fail_fast=True)]
Length = Annotated[StrictInt, Field(ge=1, le=DEEPEST)]
Offset = Annotated[StrictInt, Field(ge=0, le=DEEPEST)]
Dial = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Words = Annotated[str, AfterValidator(_check_unicode)]
Plain = StrictBool | Whole | Annotated[float, Field(allow_inf_nan=False)] | Words | None
Plains = Annotated[list[Plain], Field(fail_fast=True)]
Name = Annotated[str, StringConstraints(strict=True, max_length=64)]
# Ids leave as text: a JSON number above 2^53 is rounded by JavaScript and much else.
IdKind = Literal["integer", "text"]
ITEM_IDS = Field(
    description="Type of the item ids in the training data; answers have them as text."
)
FIELDS = 64  # of a body or a filter, at most


def _check_fields(value: Any) -> Any:
    """Refuse mappings of many keys at once, each of which would be an error of its own."""
    if isinstance(value, dict) and len(value) > FIELDS:
        raise ValueError(f"{len(value):,} fields; at most {FIELDS} are allowed")
    return value


class Body(BaseModel):
    """A request; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    _is_small = model_validator(mode="before")(_check_fields)


class Who(Body):
    """A user, a history of items, or the clicks of a session."""

    user: Id | None = Field(
        default=None, description="A user: the training history and live events."
    )
    history: Ids | None = Field(default=None, description="Items of a history.")
    session: Ids | None = Field(default=None, description="Items in the order of the clicks.")
    model: Name | None = Field(default=None, description="Name of the model.")
    alpha: Dial | None = Field(
        default=None, description="Popularity dial; larger favours the tail."
    )

    @model_validator(mode="after")
    def _check_one(self) -> Who:
        if (self.user is None) + (self.history is None) + (self.session is None) != 2:
            raise ValueError("give one of user, history and session")
        return self


class Recommend(Who):
    """Request for a list."""

    k: Length = Field(default=20, description="Length of the list.")
    offset: Offset = Field(default=0, description="Ranks to skip, for the next page.")
    # not `default=[]`, which pydantic would copy for each request
    exclude: Ids = Field(
        default_factory=list,
        json_schema_extra={"default": []},
        description="Items to leave out.",
    )
    candidates: Ids | None = Field(default=None, description="Items to choose from.")
    filters: Annotated[dict[Name, Plain | Plains], BeforeValidator(_check_fields)] = Field(
        default_factory=dict,
        json_schema_extra={"default": {}},
        description="Attributes and the values they may have.",
    )
    rules: Annotated[dict[str, Any], AfterValidator(_check_unicode_within)] | None = Field(
        default=None, description="Rules as in docs/rules.md: pin, boost, at_most, diversity, ..."
    )
    exclude_seen: StrictBool = Field(default=True, description="Leave out used and shown items.")
    new_items: Factor | None = Field(
        default=None,
        description="Factor of the scores of items without users; 0 leaves them out.",
    )
    explain: Annotated[StrictInt, Field(ge=0, le=20)] = Field(
        default=0, description="Reasons for each item, at most this many."
    )
    mark: Literal["seen"] | None = Field(
        default=None, description='"seen" keeps the listed items from coming back to the user.'
    )

    @property
    def filter_values(self) -> dict[str, list[Any]]:
        """Values that each attribute may have."""
        return {n: v if isinstance(v, list) else [v] for n, v in self.filters.items()}


class Batch(Body):
    """Request for several lists; each entry is answered or refused separately."""

    requests: Annotated[list[dict[str, Any]], Field(fail_fast=True)] = Field(
        description="Requests as for /v1/recommend."
    )


class Explain(Who):
    """Request for the reasons behind the score of an item."""

    item: Id


class Score(Who):
    """Request for the scores of items."""

    items: Ids


class NewEvent(Body):
    """Something a user did with an item, or was shown."""

    user: Id
    item: Id
    id: Text | None = Field(
        default=None, description="Makes a repeated request harmless; generated if left out."
    )
    type: Name = Field(
        default="view",
        description="A type with a weight in the settings or in the signals of a model.",
    )
    weight: Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)] | None = Field(
        default=None, description="Overrides that of the type; below 0 it is a dislike."
    )
    time: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds since 1970; now if left out."
    )
    mark: Literal["seen"] | None = Field(
        default=None, description='"seen": the item was only shown and does not join the history.'
    )
    list_id: Text | None = Field(default=None, description="Id of the list that led to the event.")

    @model_validator(mode="after")
    def _no_nul(self) -> NewEvent:
        for text in (self.id, self.type, self.list_id):
            if text is not None and "\0" in text:
                raise ValueError("a text must not contain the character NUL")
        return self


class Events(Body):
    """One event or many."""

    events: Annotated[list[NewEvent], Field(fail_fast=True)] = Field(min_length=1)


class Attributes(Body):
    """Attributes of an item: `available`, `category` and any tags."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)
    __pydantic_extra__: dict[str, Plain | Plains]

    available: StrictBool = True
    category: Words | None = None

    @model_validator(mode="after")
    def _check_size(self) -> Attributes:
        names = [*type(self).model_fields, *(self.model_extra or ())]
        if len(names) > 50 or any(len(name) > 64 for name in names):
            raise ValueError("an item has at most 50 attributes, with names of at most 64 letters")
        return self


class DescribedItem(Attributes):
    """An item with its attributes, as a line of a bulk request."""

    item: Id


class DescribedItems(BaseModel):
    """The number of items whose attributes were replaced."""

    items: int


class Reason(BaseModel):
    """An item of the history and what it adds to a score."""

    item: str
    title: str
    contribution: float
    shared: list[tuple[str, str]] | None = Field(
        default=None, description="Attributes and values that it shares with a new item."
    )


class Item(BaseModel):
    """An item of a list."""

    item: str
    title: str
    rank: int
    score: float | None = Field(
        description="null for a popular item, and for a pinned one without a score."
    )
    tail: bool = Field(description="Not among the fifth of the items with most users.")
    users: int = Field(description="Training users of the item.")
    reasons: list[Reason] | None = None


class Answered(BaseModel):
    """Where an answer comes from."""

    model: str
    version: str
    source: Literal["model", "popular"]
    item_ids: IdKind = ITEM_IDS


class Recommended(Answered):
    """A list."""

    list_id: str = Field(description="Id of the list; events may refer to it.")
    user: str | None
    alpha: float | None
    experiment: str | None
    unknown_items: list[str]
    items: list[Item]


class Problem(BaseModel):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = Field(description="The id of the request, as in the log.")


class BatchEntry(BaseModel):
    """A list, or why there is none."""

    result: Recommended | None = None
    problem: Problem | None = None


class BatchAnswer(BaseModel):
    """An entry for each request, in their order."""

    answers: list[BatchEntry]


class Similar(Answered):
    """The most similar items."""

    item: str
    title: str
    items: list[Item]


class TrendingItem(BaseModel):
    """An item that is popular lately."""

    item: str
    title: str
    rank: int
    recent_users: float = Field(description="Users, each counted by the age of the last use.")
    users: int = Field(description="Training users of the item.")
    tail: bool


class Trending(BaseModel):
    """The items with the most recent users."""

    model: str
    version: str
    item_ids: IdKind = ITEM_IDS
    half_life: float = Field(description="Age in seconds at which a use counts one half.")
    time: float | None = Field(description="Time of the last use, from which ages are measured.")
    items: list[TrendingItem]


class Explained(Answered):
    """What each item of the history adds to a score; the contributions sum to it."""

    item: str
    title: str
    score: float
    reasons: list[Reason]


class ItemScore(BaseModel):
    """The score of an item; null where there is none."""

    item: str
    score: float | None


class Scored(Answered):
    """Scores in the order of the items."""

    scores: list[ItemScore]


class Found(BaseModel):
    """An item of the catalogue."""

    item: str
    title: str
    users: int
    tail: bool
    attributes: dict[str, Any]


class Page(BaseModel):
    """A page of the catalogue."""

    total: int
    offset: int
    item_ids: IdKind = ITEM_IDS
    items: list[Found]


class Accepted(BaseModel):
    """Numbers of events and marks on disk, and of events that were known before."""

    accepted: int
    duplicates: int
    seen: int
    ids: list[str]


class UserHistory(BaseModel):
    """History of a user."""

    user: str
    known: bool = Field(description="Whether there is a training history or a live event.")
    experiment: str | None
    model: str
    item_ids: IdKind = ITEM_IDS
    items: list[Found]
    events: int
    seen: int


class Users(BaseModel):
    """Training users."""

    total: int
    user_ids: IdKind = Field(description="Type of the user ids in the training data.")
    users: list[str]


class Forgotten(BaseModel):
    """Number of deleted rows; the user's training history is ignored from now on."""

    user: str
    removed: int
    remains: list[str] = Field(
        description="Models whose training data include the user until their next update."
    )


class StoredEvent(BaseModel):
    """An event in the store."""

    number: int = Field(description="Its place in the order of arrival.")
    id: str
    user: str
    item: str
    type: str
    weight: float
    time: float
    list_id: str | None


class EventPage(BaseModel):
    """Events in the order of their arrival."""

    events: list[StoredEvent]
    next: int | None = Field(description="`after` of the next page; null on the last one.")


class DeletedEvent(BaseModel):
    """An event that the store no longer has."""

    id: str
    models: list[str] = Field(description="Models that have learned from it already.")


class Imported(BaseModel):
    """Numbers of events read, and of those on disk now, known before, and seen marks."""

    rows: int
    accepted: int
    duplicates: int
    seen: int


class PersonalData(BaseModel):
    """Everything about a user: rows of the store by table, and training data by model."""

    user: str
    events: list[dict[str, Any]]
    seen: list[dict[str, Any]]
    lists: list[dict[str, Any]]
    forgotten: list[dict[str, Any]]
    training: dict[str, list[dict[str, Any]]]


class Forecast(BaseModel):
    """Quality to expect after the last event, measured on earlier slices of time."""

    values: dict[str, dict[str, float]] = Field(description="Figures and intervals by metric.")
    yardsticks: dict[str, float] = Field(
        description="The same figure of simple baselines, by name."
    )
    verdict: str | None = Field(description="Whether the model is better than these.")


class ModelFacts(BaseModel):
    """A model that is being served."""

    name: str
    version: str
    settings: dict[str, Any]
    summary: str
    users: int
    items: int
    user_ids: IdKind = Field(description="Type of the user ids in the training data.")
    item_ids: IdKind = ITEM_IDS
    interactions: int
    fitted: float
    loaded: float
    alpha: float | None
    explains: bool
    folds_in: bool
    ordered: bool
    head: int
    curve: list[int] = Field(description="Users of the items, most popular first.")
    shown: float = Field(description="Share of the items that were listed since it was loaded.")
    half_life: float | None = Field(
        description="Age at which /v1/trending counts a use half, in seconds; null without times."
    )
    forecast: Forecast | None


class Models(BaseModel):
    """All models, the default one first."""

    models: list[ModelFacts]
    experiment: dict[str, Any] | None


class Reloaded(BaseModel):
    """Versions of the models after a reload."""

    models: dict[str, str]


class Overview(BaseModel):
    """Numbers for the operator's view, over all workers since the start."""

    time: float
    requests: dict[str, float]
    seconds: dict[str, float]
    buckets: dict[str, float]
    lists: dict[str, float]
    shown: dict[str, float]
    coverage: dict[str, float]
    unknown: dict[str, float]
    events: dict[str, float]
    drift_events: dict[str, float] = Field(description="Latest events measured, by model.")
    drift_unknown: dict[str, float | None] = Field(
        description="Share of these events, and of their users, that the model does not know."
    )
    drift_popularity: dict[str, float | None] = Field(
        description="Population stability index of item popularity; null with too few events."
    )
    drift_overlap: dict[str, float | None] = Field(
        description="Share of the items of lists that the lists at the fit had."
    )
    store: dict[str, int] | None
    past: list[dict[str, Any]] = Field(description="The same numbers at earlier times.")


class ExperimentComparison(BaseModel):
    """The models of the running experiment, compared by the clicks on their lists."""

    experiment: str | None
    models: list[dict[str, Any]] = Field(description="Users, lists and click rate by model.")
    tests: list[dict[str, Any]] = Field(description="Each model against the first, with verdict.")
    shares: dict[str, Any] | None = Field(description="Whether users are spread as planned.")
    switched_users: int
    how: str = Field(description="The method, or why there is no comparison.")


class Health(BaseModel):
    """The process is alive, or ready to answer."""

    status: Literal["ok"]
