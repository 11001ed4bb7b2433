"""Compute the answers to validated requests, as plain values that become JSON."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise.errors import DataError, SettingError, UnknownIdError
from equipoise.ranking.rules import ItemRules
from equipoise.serve import schemas
from equipoise.serve.costs import (
    DIVERSITY_STEPS,
    ID_STEPS,
    LIST_STEPS,
    PAIR_STEPS,
    PAIRS,
    QUOTA_STEPS,
    ROW_STEPS,
    Budget,
    check_size,
    count_entries,
    count_ids,
    rules_of_user,
)
from equipoise.serve.folding import type_weights
from equipoise.serve.state import (
    Catalogue,
    History,
    Listed,
    Positions,
    Served,
    State,
    allowed_items,
    assign,
    find,
)
from equipoise.serve.store import Event, Live, Mark, Write
from equipoise.serve.telemetry import Telemetry

NO_USER = Live([], [], 0)
DAY = 86_400


class Answers:
    """Answers requests from the state of a worker."""

    def __init__(self, state: State, telemetry: Telemetry) -> None:
        self._state, self._store, self._telemetry = state, state.store, telemetry
        self._limits = state.config.limits

    def read_live(self, who: schemas.Who) -> Live:
        """Read the events of the request's user; the only method that waits for the store."""
        return NO_USER if who.user is None else self._store.live(who.user)

    def _choose_model(self, who: schemas.Who) -> tuple[Served, str | None]:
        """Return the model for a request, and the name of the experiment that chose it."""
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

    def recommend(
        self, query: schemas.Recommend, live: Live, budget: Budget | None = None
    ) -> tuple[dict[str, Any], Write | None]:
        """Return a list, and a write that has to be done before the list is sent.

        `budget` is the remaining budget of a batch.
        """
        if query.k > self._limits.k:
            raise SettingError(f"k must be at most {self._limits.k}, got {query.k}")
        if budget is None:
            check_size([query], self._limits)
            budget = Budget(self._limits)
        served, experiment = self._choose_model(query)
        history = self._history(served, query, live)
        self._spend(budget, query, served, len(history.places))
        catalogue = self._state.catalogue(served)
        rules = catalogue.rules(query.rules, query.user)
        if rules is not None and rules.diversity and query.offset:
            raise SettingError(
                "with diversity the ranks of a list depend on its length; leave offset out"
            )
        hides_seen = query.exclude_seen
        if rules is not None:
            hides_seen = hides_seen and rules.seen not in ("include", "only")
            rules = _limit_pins(rules, query, catalogue, history, live, hides_seen)
        filters, candidates = query.filter_values, query.candidates
        allowed = allowed_items(
            served,
            catalogue,
            history,
            exclude_seen=hides_seen,
            exclude=query.exclude,
            candidates=candidates,
            filters=filters,
        )
        depth = query.k + query.offset
        listed = served.top(history, depth, allowed, query.alpha, rules, query.user)
        places = listed.places[query.offset :]
        listed = replace(listed, places=places, scores=listed.scores[query.offset :])
        items = _items(served, listed, query.offset)
        is_known = places < served.n_items
        if query.explain:
            known = places[is_known]
            reasons = iter(served.reasons(history, known, query.alpha, query.explain))
            for item, has_reasons in zip(items, is_known, strict=True):
                item["reasons"] = _reasons(served, next(reasons) if has_reasons else [])
        self._telemetry.listed(served, places[is_known], listed.source)
        answer = {
            "list_id": secrets.token_hex(8),
            **_origin(served, listed.source),
            "user": query.user,
            "alpha": served.alpha if query.alpha is None else query.alpha,
            "experiment": experiment,
            "unknown_items": history.unknown[:100],
            "items": items,
        }
        return answer, self._record(query, answer)

    def _spend(
        self, budget: Budget, query: schemas.Recommend, served: Served, length: int
    ) -> None:
        """Count the cost of a list before it is computed."""
        k = min(query.k + query.offset, served.n_items)
        if query.rules:
            rules = rules_of_user(query.rules, query.user)
            budget.spend_rules(rules, served.n_items)
            comparison = DIVERSITY_STEPS * bool(rules.get("diversity"))
            comparison += QUOTA_STEPS * count_entries(rules.get("at_most") or {})
            steps = comparison * k * served.n_items
            budget.spend(steps, f"k + offset ({k:,}) or the rules at_most and diversity")
        rows = min(query.k, k) * (1 + query.explain)
        steps = LIST_STEPS + ID_STEPS * count_ids(query) + ROW_STEPS * rows
        budget.spend(steps, "the ids that are named, k or explain, or send fewer lists in a batch")
        history = f"the history ({length:,} items)"
        budget.spend(served.steps(length), f"{history}, or send fewer lists in a batch")
        if query.explain:
            pairs = min(query.k, k) * length
            batches = -(-pairs // PAIRS)
            alone = length * served.steps(1) * batches
            budget.spend(
                alone + PAIR_STEPS * pairs, f"{history} or k ({query.k:,}), or leave explain out"
            )

    def _record(self, query: schemas.Recommend, answer: dict[str, Any]) -> Write | None:
        """Record the list of an experiment; return the write that marks its items as seen."""
        now, items = time.time(), [item["item"] for item in answer["items"]]
        if answer["experiment"] is not None:
            names = ("experiment", "user", "model", "version")
            row = {name: answer[name] for name in names}
            row |= {"id": answer["list_id"], "time": now, "items": json.dumps(items)}
            self._store.submit(self._store.record(row))
        if query.mark is None or query.user is None:
            return None
        return self._store.add([], [Mark(query.user, item, now) for item in items])

    def _position(self, served: Served, item: str) -> int:
        place = int(find(served.items, [item])[0])
        if place < 0:
            self._telemetry.unknown.labels("item").inc()
            raise UnknownIdError(f"unknown item {item!r}")
        return place

    def similar(self, item: str, k: int, model: str | None, alpha: float | None) -> dict[str, Any]:
        """Return the most similar items."""
        if k > self._limits.k:
            raise SettingError(f"k must be at most {self._limits.k}, got {k}")
        served = self._state.model(model)
        if not served.model.fold_in:
            raise DataError(
                f"model {served.name!r} scores users only; ask another model for similar items"
            )
        place = self._position(served, item)
        history = served.history_of_items([str(served.ids[place])])
        catalogue = self._state.catalogue(served)
        allowed = allowed_items(served, catalogue, history, exclude_seen=True)
        listed = served.top(history, k, allowed, alpha)
        origin = _origin(served, listed.source)
        return {**origin, **_name(served, place), "items": _items(served, listed)}

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
        Budget(self._limits).spend(steps, f"the history ({length:,} items)")
        places = np.array([place])
        (reasons,) = served.reasons(history, places, query.alpha, self._limits.history)
        return {
            **_origin(served, "model"),
            **_name(served, place),
            "score": served.scores(history, places, query.alpha)[0],
            "reasons": _reasons(served, reasons),
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
        Budget(self._limits).spend(served.steps(length), f"the history ({length:,} items)")
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
        now, prefix = time.time(), secrets.token_hex(12)
        events, marks = [], []
        for number, new in enumerate(body.events):
            when = now if new.time is None else new.time
            if when > now + DAY:
                raise SettingError(
                    "an event lies more than a day ahead; times are seconds since 1970"
                )
            if new.mark is not None:
                marks.append(Mark(new.user, new.item, when))
                continue
            weight = self._type_weight(new.type) if new.weight is None else new.weight
            name = new.id or f"{prefix}-{number:06d}"  # ids in the order of the events
            events.append(Event(name, new.user, new.item, new.type, weight, when, new.list_id))
        return events, marks

    def _type_weight(self, event_type: str) -> float:
        """Return the weight of an event type from the settings, else from a model's signals."""
        models = self._state.models.values()
        tables = [self._state.config.weights, *(type_weights(served.model) for served in models)]
        for weights in tables:
            if event_type in weights:
                return weights[event_type]
        known = ", ".join(sorted({name for weights in tables for name in weights}))
        raise SettingError(
            f"no weight for events of type {event_type!r}; known are {known}; "
            "send a weight with it, or add it to weights in the settings"
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


def _items(served: Served, listed: Listed, offset: int = 0) -> list[dict[str, Any]]:
    scores: list[Any] = listed.scores.tolist()
    if listed.source == "popular":
        scores = [None] * len(scores)  # they are numbers of users, not scores of the model
    ids, titles, head, counts = served.ids, served.titles, served.head, served.counts
    items = []
    ranked = zip(listed.places.tolist(), scores, strict=False)
    for rank, (place, score) in enumerate(ranked, start=offset + 1):
        if place >= served.n_items:  # pinned, and not known to the model
            pin = str(listed.pins[place - served.n_items])
            facts = {"item": pin, "title": pin, "score": None, "tail": True, "users": 0}
        else:
            facts = {
                "item": str(ids[place]),
                "title": titles[place],
                "score": score,
                "tail": not head[place],
                "users": int(counts[place]),
            }
        items.append({**facts, "rank": rank})
    return items


def _name(served: Served, place: int) -> dict[str, Any]:
    return {"item": str(served.ids[place]), "title": served.titles[place]}


def _reasons(served: Served, reasons: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
    return [{**_name(served, place), "contribution": part} for place, part in reasons]


def _origin(served: Served, source: str) -> dict[str, Any]:
    return {
        "model": served.name,
        "version": served.version,
        "source": source,
        "item_ids": served.items.kind_name,
    }
