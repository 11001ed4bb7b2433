"""Compute the answers to validated requests, and their cost.

Lists are written as JSON at once, since they are requested most often; what they say of an item is
encoded once per item. Other answers are plain values.
"""

from __future__ import annotations

import functools
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic_core import to_json

from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.models.recommendations import PAIRS, Reasons
from equipoise.ranking.rules import ItemRules
from equipoise.serve import schemas
from equipoise.serve.config import Limits
from equipoise.serve.exploring import Draw, Explorer, log_entry
from equipoise.serve.folding import type_weights
from equipoise.serve.security import short_id
from equipoise.serve.state import (
    NOTHING,
    Catalogue,
    History,
    Listed,
    Positions,
    Served,
    State,
    allowed_items,
    assign,
    find,
    rules_of_user,
)
from equipoise.serve.store import NO_EVENTS, Event, Live, Mark, Write
from equipoise.serve.telemetry import Telemetry
from equipoise.serve.transfer import as_stored, type_weight
from equipoise.serve.trends import NEGLIGIBLE, half_life_of

SHOWN = 5  # ids in a message

# steps of a request, estimated before any work is done; about a nanosecond of one processor each
LIST_STEPS = 100_000  # per list
ID_STEPS = 1_000  # per id
ROW_STEPS = 2_000  # per listed item or reason
PAIR_STEPS = 200  # per pair of a history item and a listed item
RULE_STEPS = 20_000  # per entry of the rules
ATTRIBUTE_STEPS = 2_500  # per comparison of an attribute with a rule
QUOTA_STEPS = 5  # per comparison of two items under at_most
DIVERSITY_STEPS = 50  # per comparison of two items under diversity
LONG_STEPS = 10_000_000  # beyond these a list does not keep other requests waiting
SELECTING = ("include", "exclude")  # rules that select by attributes
NUMBERED = ("boost", "bonus")  # rules with numbers by id or attribute


class Budget:
    """Remaining budget of a request; `spend` raises when it is exceeded."""

    __slots__ = ("_limits", "_rules", "steps")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.steps = 0.0
        self._rules: set[str] = set()  # counted already

    def spend(self, steps: float, remedy: str, *numbers: int) -> None:
        """Count steps before they are done; `remedy` names what to reduce, with these numbers."""
        if self.steps + steps > self._limits.cost:
            total = f"{self.steps + steps:,.0f}"
            raise SettingError(
                f"the request costs {total} steps and limits.cost is {self._limits.cost:,}; "
                f"reduce {remedy.format(*numbers)}"
            )
        self.steps += steps

    def spend_rules(self, rules: Mapping[str, Any], n_items: int) -> None:
        """Count the rules of a list; rules of an earlier list are free."""
        entries, lookups = count_entries(rules), count_lookups(rules)
        if entries > self._limits.rules:
            raise SettingError(
                f"the rules have {entries:,} entries and limits.rules is {self._limits.rules:,}; "
                "reduce the ids and attributes they name"
            )
        text = json.dumps(rules, sort_keys=True)
        if text not in self._rules:
            steps = RULE_STEPS * entries + ATTRIBUTE_STEPS * lookups * n_items
            remedy = "the {:,} attributes and {:,} entries of the rules"
            self.spend(steps, remedy, lookups, entries)
            self._rules.add(text)


def check_size(queries: Sequence[schemas.Recommend], limits: Limits) -> None:
    """Refuse requests that name too many ids, or whose answers would be too long."""
    ids = rows = 0
    for query in queries:
        ids += count_ids(query)
        rows += query.k * (1 + query.explain)
    if ids > limits.ids:
        raise SettingError(
            f"the request names {ids:,} ids and values, and limits.ids is {limits.ids:,}; reduce "
            "history, exclude, candidates, filters or rules, or send it in parts"
        )
    if rows > limits.rows:
        raise SettingError(
            f"the answer would have {rows:,} items and reasons, and limits.rows is "
            f"{limits.rows:,}; reduce k or explain, or send fewer requests in a batch"
        )


def count_ids(query: schemas.Recommend) -> int:
    """Return the number of ids and values that a request names."""
    n_ids = len(query.exclude)
    for ids in (query.history, query.session, query.candidates):
        if ids is not None:
            n_ids += len(ids)
    if query.filters:
        for value in query.filters.values():
            n_ids += len(value) if isinstance(value, list) else 1
    if query.rules is not None:
        n_ids += count_entries(rules_of_user(query.rules, query.user))
    return n_ids


@dataclass(slots=True, eq=False)
class Plan:
    """A list that is allowed and not yet computed."""

    query: schemas.Recommend
    served: Served
    experiment: str | None
    history: History
    live: Live
    steps: float  # estimated

    @property
    def is_long(self) -> bool:
        """Whether to compute the list in another thread, so that other requests do not wait."""
        return self.steps > LONG_STEPS or not self.served.is_plain or bool(self.query.rules)


def count_entries(rules: Any) -> int:
    """Return the number of plain values in nested mappings and lists."""
    entries, waiting = 0, [rules]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        else:
            entries += 1
    return entries


def count_lookups(rules: Mapping[str, Any]) -> int:
    """Return the number of comparisons of an attribute that rules need."""
    users = rules.get("users")
    parts = [rules, *(users.values() if isinstance(users, Mapping) else ())]
    lookups = 0
    for part in parts:
        for name in SELECTING if isinstance(part, Mapping) else ():
            lookups += _count_columns(part.get(name))
    for name in NUMBERED:
        numbers = rules.get(name)
        for pair in numbers if isinstance(numbers, list) else ():
            lookups += _count_columns(pair[0] if isinstance(pair, list) and pair else None)
        for value in numbers.values() if isinstance(numbers, Mapping) else ():
            lookups += len(value) if isinstance(value, Mapping) else 0
    quotas = rules.get("at_most")
    return lookups + (len(quotas) if isinstance(quotas, Mapping) else 0)


def _count_columns(chosen: Any) -> int:
    """Return the number of attributes that a selection of items names."""
    selectors = chosen if isinstance(chosen, list) else [chosen]
    return sum(len(selector) for selector in selectors if isinstance(selector, Mapping))


class Answers:
    """Answers requests from the state of a worker."""

    def __init__(self, state: State, telemetry: Telemetry) -> None:
        self._state, self._store, self._telemetry = state, state.store, telemetry
        self._limits = state.config.limits
        self._explorer = Explorer(state.config.explore, state.config.explore_pool)

    def read_live(self, who: schemas.Who) -> Live:
        """Read the events of the request's user; the only method that waits for the store."""
        return NO_EVENTS if who.user is None else self._store.live(who.user)

    def _choose_model(self, who: schemas.Who) -> tuple[Served, str | None]:
        experiment = self._state.experiment
        if who.model is None and who.user is not None and experiment is not None:
            return self._state.model(assign(experiment, who.user)), experiment.name
        return self._state.model(who.model), None

    def _history(self, served: Served, who: schemas.Who, live: Live) -> History:
        if who.user is not None:
            history = served.history_of_user(who.user, live)
            if not len(history.places) and not live.events:
                self._telemetry.unknown.labels("user").inc()
        else:
            items = who.history if who.history is not None else who.session or []
            if len(items) > self._limits.history:
                raise SettingError(
                    f"a history has at most {self._limits.history} items, got {len(items):,}"
                )
            history = served.history_of_items(items)
        if history.unknown:
            self._telemetry.unknown.labels("item").inc(len(history.unknown))
        return history

    def plan(self, query: schemas.Recommend, live: Live, budget: Budget | None = None) -> Plan:
        """Check a request for a list and its cost, before any work is done.

        `budget` is the remaining budget of a batch.
        """
        if query.k > self._limits.k:
            raise SettingError(f"k must be at most {self._limits.k}, got {query.k}")
        if budget is None:
            check_size([query], self._limits)
            budget = Budget(self._limits)
        served, experiment = self._choose_model(query)
        history = self._history(served, query, live)
        spent = budget.steps
        self._spend(budget, query, served, len(history.places))
        return Plan(query, served, experiment, history, live, budget.steps - spent)

    def recommend(self, plan: Plan) -> tuple[bytes, Write | None]:
        """Return a list as JSON, and a write that has to be done before the list is sent."""
        query, served, history = plan.query, plan.served, plan.history
        catalogue = self._state.catalogue(served)
        rules = catalogue.rules(query.rules, query.user) if query.rules else None
        if rules is not None and rules.diversity and query.offset:
            raise SettingError(
                "with diversity the ranks of a list depend on its length; leave offset out"
            )
        hides_seen = query.exclude_seen
        if rules is not None:
            hides_seen = hides_seen and rules.seen not in ("include", "only")
            rules = _limit_pins(rules, query, catalogue, history, plan.live, hides_seen)
        allowed = allowed_items(
            served,
            catalogue,
            exclude=query.exclude,
            candidates=query.candidates,
            filters=query.filter_values if query.filters else None,
        )
        hidden = history.hidden if hides_seen else NOTHING
        depth, offset, draw = query.k + query.offset, query.offset, None
        explores = self._explorer.explores(query, rules)
        if explores:
            depth = self._explorer.depth(depth)
        listed = served.top(
            history,
            depth,
            allowed,
            query.alpha,
            rules,
            query.user,
            new_items=query.new_items,
            hidden=hidden,
        )
        if explores:
            draw = self._explorer.draw(listed, query.k)
            listed = draw.listed
        elif offset:
            listed = listed.after(offset)
        reasons = None
        if query.explain:
            reasons = served.reasons(
                history, listed.places, query.alpha, query.explain, query.new_items
            )
        self._telemetry.listed(served, listed.places, listed.source)
        list_id = short_id()
        facts = {
            "list_id": list_id,
            "user": query.user,
            "alpha": served.alpha if query.alpha is None else query.alpha,
            "experiment": plan.experiment,
            "unknown_items": history.unknown[:100],
        }
        mark = self._record(plan, list_id, listed, draw)
        return _listing(served, listed, facts, offset, reasons), mark

    def _spend(
        self, budget: Budget, query: schemas.Recommend, served: Served, length: int
    ) -> None:
        k = min(query.k + query.offset, served.n_items)
        if query.rules:
            rules = rules_of_user(query.rules, query.user)
            budget.spend_rules(rules, served.n_items)
            comparison = DIVERSITY_STEPS * bool(rules.get("diversity"))
            comparison += QUOTA_STEPS * count_entries(rules.get("at_most") or {})
            budget.spend(
                comparison * k * served.n_items,
                "k + offset ({:,}) or the rules at_most and diversity",
                k,
            )
        rows = min(query.k, k) * (1 + query.explain)
        steps: float = LIST_STEPS + ID_STEPS * count_ids(query) + ROW_STEPS * rows
        budget.spend(steps, "the ids that are named, k or explain, or send fewer lists in a batch")
        remedy = "the history ({:,} items), or send fewer lists in a batch"
        budget.spend(served.steps(length), remedy, length)
        if query.explain:
            pairs = min(query.k, k) * length
            batches = -(-pairs // PAIRS)
            steps = length * served.steps(1) * batches + PAIR_STEPS * pairs
            remedy = "the history ({:,} items) or k ({:,}), or leave explain out"
            budget.spend(steps, remedy, length, query.k)

    def _record(self, plan: Plan, list_id: str, listed: Listed, draw: Draw | None) -> Write | None:
        """Record a list of an experiment or one to replay; return the write of its seen marks."""
        query, served = plan.query, plan.served
        is_recorded = plan.experiment is not None or draw is not None
        is_marked = query.mark is not None and query.user is not None
        if not is_recorded and not is_marked:
            return None
        now, items = time.time(), served.names_of(listed)
        if is_recorded:
            row = {"id": list_id, "time": now, "user": query.user, "items": json.dumps(items)}
            row |= {"model": served.name, "version": served.version}
            row["experiment"] = plan.experiment or ""
            if draw is not None:
                ranked = [str(served.ids[place]) for place in draw.ranked]
                row["exploration"] = log_entry(draw, items, ranked, query)
            self._store.submit(self._store.record(row))
        if not is_marked:
            return None
        return self._store.add([], [Mark(str(query.user), item, now) for item in items])

    def _position(self, served: Served, item: str) -> int:
        place = int(find(served.items, [item])[0])
        if place < 0:
            self._telemetry.unknown.labels("item").inc()
            raise UnknownIdError(f"unknown item {item!r}")
        return place

    def similar(self, item: str, k: int, model: str | None, alpha: float | None) -> bytes:
        """Return the most similar items as JSON."""
        if k > self._limits.k:
            raise SettingError(f"k must be at most {self._limits.k}, got {k}")
        served = self._state.model(model)
        if not served.model.fold_in:
            raise DataError(
                f"model {served.name!r} scores only users; request similar items of another model"
            )
        place = self._position(served, item)
        history = served.history_of_items([str(served.ids[place])])
        catalogue = self._state.catalogue(served)
        allowed = allowed_items(served, catalogue)
        listed = served.top(history, k, allowed, alpha, with_trend=False, hidden=history.hidden)
        return _listing(served, listed, _name(served, place))

    def trending(self, k: int, model: str | None) -> dict[str, Any]:
        """Return the available items with the most recent users; waits for the store."""
        if k > self._limits.k:
            raise SettingError(f"k must be at most {self._limits.k}, got {k}")
        served = self._state.model(model)
        trend, counts = self._state.trend_of(served)
        # nobody has used items that were added since the fit
        counts = np.append(counts, np.zeros(served.n_items - len(counts)))
        counts = np.where(self._state.catalogue(served).available, counts, 0)
        places = np.argsort(-counts, kind="stable")[:k]
        places = places[counts[places] > NEGLIGIBLE]
        return {
            "model": served.name,
            "version": served.version,
            "item_ids": served.items.kind_name,
            "half_life": trend.half_life,
            "time": trend.last_use if np.isfinite(trend.last_use) else None,
            "items": [
                {
                    **_name(served, place),
                    "rank": rank,
                    "recent_users": float(counts[place]),
                    "users": int(served.counts[place]),
                    "tail": not served.head[place],
                }
                for rank, place in enumerate(places.tolist(), start=1)
            ],
        }

    def explain(self, query: schemas.Explain, live: Live) -> dict[str, Any]:
        """Return the contribution of each history item to the score of an item."""
        served, _ = self._choose_model(query)
        place = self._position(served, query.item)
        history = self._history(served, query, live)
        if served.is_cold(history):
            raise DataError(
                "the history is empty, or no user has its items, so there is nothing to explain; "
                "such a history gets popular items"
            )
        length = len(history.places)
        steps = length * (served.steps(1) + PAIR_STEPS + ROW_STEPS)
        Budget(self._limits).spend(steps, "the history ({:,} items)", length)
        places = np.array([place])
        (reasons,) = served.reasons(history, places, query.alpha, self._limits.history)
        return {
            **_origin(served, "model"),
            **_name(served, place),
            "score": served.scores(history, places, query.alpha)[0],
            "reasons": _reasons(served, reasons, place),
        }

    def score(self, query: schemas.Score, live: Live) -> dict[str, Any]:
        """Return the scores of the requested items."""
        if len(query.items) > self._limits.history:
            raise SettingError(
                f"a request scores at most {self._limits.history} items, got {len(query.items):,}"
            )
        served, _ = self._choose_model(query)
        history = self._history(served, query, live)
        length = len(history.places)
        Budget(self._limits).spend(served.steps(length), "the history ({:,} items)", length)
        places = find(served.items, query.items)
        known: Positions = places[places >= 0]
        scores = dict(zip(known.tolist(), served.scores(history, known, query.alpha), strict=True))
        rows = [
            {"item": item, "score": scores.get(place)}
            for item, place in zip(query.items, places.tolist(), strict=True)
        ]
        source = "popular" if served.is_cold(history) else "model"
        return {**_origin(served, source), "scores": rows}

    def _item_facts(self, served: Served, place: int) -> dict[str, Any]:
        return {
            **_name(served, place),
            "users": int(served.counts[place]),
            "tail": not served.head[place],
            "attributes": self._state.catalogue(served).attributes(place),
        }

    def items(self, text: str, limit: int, offset: int, model: str | None) -> dict[str, Any]:
        """Return a page of the catalogue."""
        served = self._state.model(model)
        places, total = served.search(text, limit, offset)
        return {
            "total": total,
            "offset": offset,
            "item_ids": served.items.kind_name,
            "items": [self._item_facts(served, place) for place in places],
        }

    def item(self, item: str, model: str | None) -> dict[str, Any]:
        """Return one item with its attributes."""
        served = self._state.model(model)
        return self._item_facts(served, self._position(served, item))

    def events(self, body: schemas.Events) -> tuple[list[Event], list[Mark]]:
        """Return the events and seen marks of a request, as the store takes them."""
        if len(body.events) > self._limits.events:
            raise SettingError(
                f"a request has at most {self._limits.events} events, got {len(body.events):,}"
            )
        return as_stored(body.events, self.type_weight, secrets.token_hex(12))

    def check_announced(self, new: Sequence[schemas.NewEvent]) -> None:
        """Raise if the catalogue is closed and does not have the items; may wait for the store."""
        if self._state.config.catalogue == "open":
            return
        items = [event.item for event in new]
        if not self._state.unannounced(items):
            return
        self._state.renew_attributes(at_once=True)  # another worker may have taken them
        names = self._state.unannounced(items)
        if names:
            shown = ", ".join(map(repr, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")
            raise SettingError(
                f"the catalogue is closed and does not have {shown}; announce an item with "
                "PUT /v1/items/{item} before its first event"
            )

    def type_weight(self, event_type: str) -> float:
        """Return the weight of an event type from the settings, else from a model's signals."""
        models = self._state.models.values()
        return type_weight(
            event_type,
            [self._state.config.weights, *(type_weights(served.model) for served in models)],
        )

    def user(self, user: str, live: Live, model: str | None) -> dict[str, Any]:
        """Return the history of a user."""
        served, experiment = self._choose_model(schemas.Who(user=user, model=model))
        history = served.history_of_user(user, live)
        liked = history.places[history.weights > 0]  # negative weights are dislikes
        return {
            "user": user,
            "known": bool(len(history.places) or live.events),
            "experiment": experiment,
            "model": served.name,
            "item_ids": served.items.kind_name,
            "items": [self._item_facts(served, place) for place in liked.tolist()],
            "events": len(live.events),
            "seen": len(live.seen),
        }

    def users(self, text: str, limit: int, model: str | None) -> dict[str, Any]:
        """Return training users whose id starts with a text, or an even sample of all."""
        served = self._state.model(model)
        ids = served.users.values
        if text:
            users = [name for name in map(str, ids.tolist()) if name.startswith(text)][:limit]
        else:
            step = max(1, len(ids) // limit)
            users = [str(user) for user in ids[::step][:limit].tolist()]
        return {"total": len(ids), "user_ids": served.users.kind_name, "users": users}

    def model_facts(self, served: Served) -> dict[str, Any]:
        """Return the settings, sizes and abilities of a model."""
        data, model = served.data, served.model
        return {
            "name": served.name,
            "version": served.version,
            "settings": model.settings(resolved=True),
            "summary": model.summary(),
            "users": data.n_users,
            "items": data.n_items,
            "user_ids": served.users.kind_name,
            "item_ids": served.items.kind_name,
            "interactions": data.n_interactions,
            "fitted": served.fitted,
            "loaded": served.loaded,
            "alpha": model.alpha_,
            "explains": model.explains and served.is_plain,
            "folds_in": model.fold_in,
            "ordered": model.ordered,
            "head": int(served.head.sum()),
            "curve": served.curve(),
            "shown": self._telemetry.coverage_of(served),
            "half_life": half_life_of(model),
            "forecast": _forecast(model.estimate_),
        }

    def models(self) -> dict[str, Any]:
        """Return all models and the experiment."""
        experiment, facts = self._state.experiment, None
        if experiment is not None:
            total = sum(experiment.models.values())
            shares = {name: share / total for name, share in experiment.models.items()}
            facts = {"name": experiment.name, "shares": shares}
        models = [self.model_facts(served) for served in self._state.models.values()]
        return {"models": models, "experiment": facts}


def _limit_pins(
    rules: ItemRules,
    query: schemas.Recommend,
    catalogue: Catalogue,
    history: History,
    live: Live,
    hides_seen: bool,
) -> ItemRules:
    """Return the rules without pinned unknown items that the request excludes."""
    hidden = {*query.exclude, *(history.unknown if hides_seen else ())}
    hidden.update(live.seen if hides_seen else ())
    candidates = None if query.candidates is None else set(query.candidates)

    def is_shown(item: Any) -> bool:
        name = str(item)
        is_candidate = name not in hidden and (candidates is None or name in candidates)
        return is_candidate and catalogue.shows_unknown(item, query.filter_values)

    return rules.limit_unknown_pins(is_shown)


def _listing(
    served: Served,
    listed: Listed,
    facts: Mapping[str, Any],
    offset: int = 0,
    reasons: Sequence[Reasons] | None = None,
) -> bytes:
    """Return a list and these facts about it as JSON."""
    n_items, places = served.n_items, listed.places.tolist()
    scores = [b"null"] * len(places)  # a popular item has a number of users, and no score
    if listed.source == "model" and places:
        # labels and scores may be NaN or infinite, which JSON does not have
        scores = to_json(listed.scores.tolist(), inf_nan_mode="null")[1:-1].split(b",")
    if listed.pins:  # positions beyond those of the model's items
        pins = [_pin_json(str(pin), title) for pin, title in listed.pins]
        known = iter(served.items_json([place for place in places if place < n_items]))
        heads = [next(known) if place < n_items else pins[place - n_items] for place in places]
        scores = [s if n < n_items else b"null" for n, s in zip(places, scores, strict=True)]
    else:
        heads = served.items_json(places)
    ranks = _ranks_json(offset, len(places))
    if reasons is not None:
        ranks = [
            b'%s,"reasons":%s}' % (rank[:-1], to_json(_reasons(served, of_item, place)))
            for rank, of_item, place in zip(ranks, reasons, places, strict=True)
        ]
    items = b",".join(map(b"".join, zip(heads, scores, ranks, strict=True)))
    origin, more = served.origin_json[listed.source], to_json(facts)[1:-1]
    return b'%s,%s,"items":[%s]}' % (origin, more, items)


@functools.lru_cache(64)
def _ranks_json(offset: int, length: int) -> list[bytes]:
    """Return the ranks of a list as ends of objects."""
    return [b',"rank":%d}' % rank for rank in range(offset + 1, offset + 1 + length)]


def _pin_json(pin: str, title: str) -> bytes:
    """Return what a list says of a pinned item that the model does not know."""
    return to_json({"item": pin, "title": title, "tail": True, "users": 0})[:-1] + b',"score":'


def _forecast(estimate: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the promise of a model for the time after its data, and those of simple rivals."""
    if estimate is None or estimate.get("protocol") != "time":
        return None
    return {
        "values": estimate["values"],
        "yardsticks": estimate.get("yardsticks", {}),
        "verdict": estimate.get("verdict"),
    }


def _name(served: Served, place: int) -> dict[str, Any]:
    return {"item": str(served.ids[place]), "title": served.titles[place]}


def _reasons(served: Served, reasons: Reasons, target: int) -> list[dict[str, Any]]:
    """Return the reasons for an item; for a new one with the attributes that it shares."""
    rows = [{**_name(served, place), "contribution": part} for place, part in reasons]
    shared = None
    if target < served.n_items:  # no pin that the model does not know
        shared = served.model._shared_attributes([place for place, _ in reasons], target)
    if shared is None:
        return rows
    return [{**row, "shared": pairs} for row, pairs in zip(rows, shared, strict=True)]


def _origin(served: Served, source: str) -> dict[str, Any]:
    return {
        "model": served.name,
        "version": served.version,
        "source": source,
        "item_ids": served.items.kind_name,
    }
