"""From a checked request to an answer, without HTTP: plain values that become JSON."""

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
from equipoise.serve.config import Config
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
from equipoise.serve.store import Event, Live, Mark, Store, Write
from equipoise.serve.telemetry import Telemetry

NO_USER = Live([], [], 0)


class Answers:
    """Answers requests."""

    def __init__(self, state: State, telemetry: Telemetry) -> None:
        self._state = state
        self._config: Config = state.config
        self._store: Store = state.store
        self._telemetry = telemetry

    @property
    def _limits(self) -> Any:
        return self._config.limits

    def live(self, who: schemas.Who) -> Live:
        """Ask the store about the user of a request; the only part that waits for it."""
        if who.user is None:
            return NO_USER
        return self._store.live(str(who.user))

    def _served(self, who: schemas.Who) -> tuple[Served, str | None]:
        """Return the model that a request gets, and the experiment that chose it."""
        experiment = self._state.experiment
        if who.model is None and who.user is not None and experiment is not None:
            return self._state.model(assign(experiment, str(who.user))), experiment.name
        return self._state.model(who.model), None

    def _history(self, served: Served, who: schemas.Who, live: Live) -> History:
        if who.user is not None:
            found = served.live(str(who.user), live)
            if not len(found.places) and not live.events:
                self._telemetry.unknown.labels("user").inc()
        else:
            items = who.history if who.history is not None else who.session or []
            if len(items) > self._limits.history:
                raise SettingError(f"a history has at most {self._limits.history} items")
            found = served.given([str(item) for item in items])
        if found.unknown:
            self._telemetry.unknown.labels("item").inc(len(found.unknown))
        return found

    def recommend(
        self, asked: schemas.Recommend, live: Live, budget: Budget | None = None
    ) -> tuple[dict[str, Any], Write | None]:
        """Return a list, and what has to be in the store before it is sent.

        `budget` is what the request that it belongs to may still cost.
        """
        if asked.k > self._limits.k:
            raise SettingError(f"k must be at most {self._limits.k}")
        if budget is None:
            check_size([asked], self._limits)
            budget = Budget(self._limits)
        served, experiment = self._served(asked)
        history = self._history(served, asked, live)
        self._spend(budget, asked, served, len(history.places))
        catalogue = self._state.catalogue(served)
        rules = catalogue.rules(asked.rules, None if asked.user is None else str(asked.user))
        if rules is not None and rules.diversity and asked.offset:
            raise SettingError(
                "with diversity the places of a list depend on its length; no offset"
            )
        seen_again = rules is not None and rules.seen in ("include", "only")
        allowed = allowed_items(
            served,
            catalogue,
            history,
            exclude_seen=asked.exclude_seen and not seen_again,
            exclude=[str(item) for item in asked.exclude],
            candidates=None if asked.candidates is None else [*map(str, asked.candidates)],
            filters=asked.filter_values,
        )
        if rules is not None:
            rules = self._with_pins(rules, asked, catalogue, history, live)
        user = None if asked.user is None else str(asked.user)
        depth = asked.k + asked.offset
        listed = served.top(history, depth, allowed, asked.alpha, rules, user)
        listed = replace(
            listed, places=listed.places[asked.offset :], scores=listed.scores[asked.offset :]
        )
        items = self._items(served, listed, asked.offset)
        is_known = listed.places < served.n_items
        if asked.explain:
            known = listed.places[is_known]
            reasons = iter(served.reasons(history, known, asked.alpha, asked.explain))
            for item, has_reasons in zip(items, is_known, strict=True):
                item["reasons"] = self._reasons(served, next(reasons) if has_reasons else [])
        self._telemetry.listed(served, listed.places[is_known], listed.source)
        number = secrets.token_hex(8)
        answer = {
            "list_id": number,
            "model": served.name,
            "version": served.version,
            "source": listed.source,
            "item_ids": served.items.kind_name,
            "user": user,
            "alpha": served.alpha if asked.alpha is None else asked.alpha,
            "experiment": experiment,
            "unknown_items": history.unknown[:100],
            "items": items,
        }
        return answer, self._keep(asked, answer, user)

    def _with_pins(
        self,
        rules: ItemRules,
        asked: schemas.Recommend,
        catalogue: Catalogue,
        history: History,
        live: Live,
    ) -> ItemRules:
        """Return the rules with those unknown pins alone that the request may be shown."""
        excluded, used = set(map(str, asked.exclude)), {*history.unknown, *live.seen}
        candidates = None if asked.candidates is None else set(map(str, asked.candidates))
        hides_seen = asked.exclude_seen and rules.seen not in ("include", "only")

        def is_shown(item: Any) -> bool:
            name = str(item)
            return (
                name not in excluded
                and (candidates is None or name in candidates)
                and not (hides_seen and name in used)
                and catalogue.shows_unknown(item, asked.filter_values)
            )

        return rules.limit_unknown_pins(is_shown)

    def _spend(
        self, budget: Budget, asked: schemas.Recommend, served: Served, length: int
    ) -> None:
        """Count what a list costs, before anything of it is worked out."""
        k = min(asked.k + asked.offset, served.n_items)
        if asked.rules:
            rules = rules_of_user(asked.rules, asked.user)
            budget.spend_rules(rules, served.n_items)
            comparison = DIVERSITY_STEPS * bool(rules.get("diversity"))
            comparison += QUOTA_STEPS * count_entries(rules.get("at_most") or {})
            steps = comparison * k * served.n_items
            budget.spend(steps, f"k + offset ({k:,}) or the rules at_most and diversity")
        rows = min(asked.k, k) * (1 + asked.explain)
        steps = LIST_STEPS + ID_STEPS * count_ids(asked) + ROW_STEPS * rows
        budget.spend(steps, "the ids that are named, k or explain, or send fewer lists in a batch")
        history = f"the history ({length:,} items)"
        budget.spend(served.steps(length), f"{history}, or send fewer lists in a batch")
        if asked.explain:
            pairs = min(asked.k, k) * length
            alone = length * served.steps(1) * -(-pairs // PAIRS)
            remedy = f"{history} or k ({asked.k:,}), or leave explain out"
            budget.spend(alone + PAIR_STEPS * pairs, remedy)

    def _keep(
        self, asked: schemas.Recommend, answer: dict[str, Any], user: str | None
    ) -> Write | None:
        """Record the list of an experiment; return the write that marks what was shown."""
        now = time.time()
        if answer["experiment"] is not None:
            names = ("experiment", "user", "model", "version")
            row = {name: answer[name] for name in names}
            items = json.dumps([item["item"] for item in answer["items"]])
            row |= {
                "id": answer["list_id"],
                "time": now,
                "items": items,
            }
            self._store.submit(self._store.record(row))
        if asked.mark and user is not None:
            marks = [Mark(user, item["item"], now) for item in answer["items"]]
            return self._store.add([], marks)
        return None

    def _items(self, served: Served, listed: Listed, offset: int = 0) -> list[dict[str, Any]]:
        scores: list[Any] = listed.scores.tolist()
        if listed.source == "popular":
            scores = [None] * len(scores)  # a number of users is no score of the model
        ids, titles, head, counts = served.ids, served.titles, served.head, served.counts
        items = []
        for rank, (place, score) in enumerate(
            zip(listed.places.tolist(), scores, strict=False), start=offset + 1
        ):
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

    def _reasons(self, served: Served, why: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        return [
            {"item": str(served.ids[place]), "title": served.titles[place], "contribution": part}
            for place, part in why
        ]

    def _place(self, served: Served, item: str) -> int:
        place = int(find(served.items, [item])[0])
        if place < 0:
            self._telemetry.unknown.labels("item").inc()
            raise UnknownIdError(f"unknown item {item!r}")
        return place

    def similar(self, item: str, k: int, model: str | None, alpha: float | None) -> dict[str, Any]:
        """Return the items that most follow from one."""
        if k > self._limits.k:
            raise SettingError(f"k must be at most {self._limits.k}")
        served = self._state.model(model)
        if not served.model.fold_in:
            raise DataError(
                f"model {served.name!r} knows users alone; ask another for similar items"
            )
        place = self._place(served, item)
        history = served.given([str(served.ids[place])])
        catalogue = self._state.catalogue(served)
        allowed = allowed_items(served, catalogue, history, exclude_seen=True)
        listed = served.top(history, k, allowed, alpha)
        own = {"item": str(served.ids[place]), "title": served.titles[place]}
        return {**self._from(served, listed.source), **own, "items": self._items(served, listed)}

    def _from(self, served: Served, source: str) -> dict[str, Any]:
        return {
            "model": served.name,
            "version": served.version,
            "source": source,
            "item_ids": served.items.kind_name,
        }

    def explain(self, asked: schemas.Explain, live: Live) -> dict[str, Any]:
        """Return what each item of a history adds to a score."""
        served, _ = self._served(asked)
        place = self._place(served, str(asked.item))
        history = self._history(served, asked, live)
        if served.is_cold(history):
            raise DataError(
                "the history is empty, or no user has its items, so there is nothing to explain; "
                "lists for it are of popular items"
            )
        length = len(history.places)
        steps = length * (served.steps(1) + PAIR_STEPS + ROW_STEPS)
        Budget(self._limits).spend(steps, f"the history ({length:,} items)")
        (why,) = served.reasons(history, np.array([place]), asked.alpha, self._limits.history)
        score = served.scores(history, np.array([place]), asked.alpha)[0]
        own = {"item": str(served.ids[place]), "title": served.titles[place], "score": score}
        return {**self._from(served, "model"), **own, "reasons": self._reasons(served, why)}

    def score(self, asked: schemas.Score, live: Live) -> dict[str, Any]:
        """Return the scores of some items."""
        if len(asked.items) > self._limits.history:
            raise SettingError(f"scores are given for at most {self._limits.history} items")
        served, _ = self._served(asked)
        history = self._history(served, asked, live)
        length = len(history.places)
        Budget(self._limits).spend(served.steps(length), f"the history ({length:,} items)")
        items = [str(item) for item in asked.items]
        places = find(served.items, items)
        known: Positions = places[places >= 0]
        found = dict(zip(known.tolist(), served.scores(history, known, asked.alpha), strict=True))
        scores = [
            {"item": item, "score": found.get(place)}
            for item, place in zip(items, places.tolist(), strict=True)
        ]
        source = "popular" if served.is_cold(history) else "model"
        return {**self._from(served, source), "scores": scores}

    def found(self, served: Served, place: int) -> dict[str, Any]:
        """Return an item of the catalogue."""
        return {
            "item": str(served.ids[place]),
            "title": served.titles[place],
            "users": int(served.counts[place]),
            "tail": not served.head[place],
            "attributes": self._state.catalogue(served).of(place),
        }

    def items(self, text: str, limit: int, offset: int, model: str | None) -> dict[str, Any]:
        """Return a page of the catalogue."""
        served = self._state.model(model)
        places, total = served.search(text, limit, offset)
        return {
            "total": total,
            "offset": offset,
            "item_ids": served.items.kind_name,
            "items": [self.found(served, place) for place in places],
        }

    def item(self, item: str, model: str | None) -> dict[str, Any]:
        """Return one item."""
        served = self._state.model(model)
        return self.found(served, self._place(served, item))

    def events(self, given: schemas.Events) -> tuple[list[Event], list[Mark], list[str]]:
        """Return events and marks as the store keeps them, and the ids of the events."""
        if len(given.events) > self._limits.events:
            raise SettingError(f"a request has at most {self._limits.events} events")
        now, start = time.time(), secrets.token_hex(12)
        events, marks = [], []
        for place, each in enumerate(given.events):
            when = now if each.time is None else each.time
            if when > now + 86_400:
                raise SettingError(
                    "an event lies more than a day ahead; times are seconds since 1970"
                )
            user, item = str(each.user), str(each.item)
            if each.mark is not None:
                marks.append(Mark(user, item, when))
                continue
            weight = self._type_weight(each.type) if each.weight is None else each.weight
            number = each.id or f"{start}-{place:06d}"  # ids in the order of the events
            events.append(Event(number, user, item, each.type, weight, when, each.list_id))
        return events, marks, [event.id for event in events]

    def _type_weight(self, event_type: str) -> float:
        """Return what a type of event counts by the settings, else by the signals of a model."""
        models = self._state.models.values()
        tables = [self._config.weights, *(type_weights(served.model) for served in models)]
        for weights in tables:
            if event_type in weights:
                return weights[event_type]
        known = ", ".join(sorted({name for weights in tables for name in weights}))
        raise SettingError(
            f"no weight for events of type {event_type!r}; known are {known}; "
            "send a weight with it, or add it to weights in the settings"
        )

    def user(self, user: str, live: Live, model: str | None) -> dict[str, Any]:
        """Return what is known of a user."""
        served, experiment = self._served(schemas.Who(user=user, model=model))
        history = served.live(user, live)
        used = history.places[history.weights > 0]  # below 0 is what the user does not want
        return {
            "user": user,
            "known": bool(len(history.places) or live.events),
            "experiment": experiment,
            "model": served.name,
            "item_ids": served.items.kind_name,
            "items": [self.found(served, place) for place in used.tolist()],
            "events": len(live.events),
            "seen": len(live.seen),
        }

    def users(self, text: str, limit: int, model: str | None) -> dict[str, Any]:
        """Return some training users, evenly spread, or those that begin with a text."""
        served = self._state.model(model)
        ids = served.users.values
        if text:
            found = [name for name in map(str, ids.tolist()) if name.startswith(text)][:limit]
        else:
            step = max(1, len(ids) // limit)
            found = [str(user) for user in ids[::step][:limit].tolist()]
        return {"total": len(ids), "user_ids": served.users.kind_name, "users": found}

    def facts(self, served: Served) -> dict[str, Any]:
        """Return what a model is."""
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
            "shown": self._telemetry.share(served),
        }

    def models(self) -> dict[str, Any]:
        """Return all models."""
        experiment = self._state.experiment
        told = None
        if experiment is not None:
            total = sum(experiment.models.values())
            shares = {name: share / total for name, share in experiment.models.items()}
            told = {"name": experiment.name, "shares": shares}
        return {
            "models": [self.facts(each) for each in self._state.models.values()],
            "experiment": told,
        }
