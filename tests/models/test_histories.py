"""Who is asked about, what may be listed, and how the answers are written to a file."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.models.sessions import drawn

import equipoise as eq
from equipoise.errors import DataError, EquipoiseError, SolveError, UnknownIdError
from equipoise.ids import IdIndex
from equipoise.interactions import Interactions
from equipoise.models import Recommender

USERS = ["ann", "bob", "cleo", "dan", "eve", "finn", "gus"]
ITEMS = ["tea", "milk", "salt", "rice"]
LETTERS = ["a", "b", "ab", "c"]


@pytest.fixture
def model(toy: Interactions) -> eq.EASE:
    return eq.EASE(l2=1.0).fit(toy)


@pytest.fixture
def letters() -> Interactions:
    """Users and items `a`, `b` and `ab`, which an iterated text would confuse."""
    rows = [[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 0], [1, 1, 0, 1]]
    return Interactions(np.array(rows, float), LETTERS, LETTERS)


def test_a_text_in_place_of_users_to_forget_is_one_user(letters: Interactions) -> None:
    model = eq.EASE(l2=1.0).fit(letters)
    assert model.update(removed="ab").interactions_.users.tolist() == ["a", "b", "c"]
    with pytest.raises(UnknownIdError, match="'bc'"):
        model.update(removed="bc")
    with pytest.raises(UnknownIdError, match="b'ab'"):
        model.update(removed=b"ab")


def test_a_user_to_forget_may_be_named_twice(letters: Interactions) -> None:
    model = eq.EASE(l2=1.0).fit(letters)
    assert model.update(removed=["a", "a"]).interactions_.users.tolist() == ["b", "ab", "c"]


@pytest.mark.parametrize("added", ["ab", ["a", "b"], 3])
def test_what_is_no_interactions_cannot_be_added(letters: Interactions, added: Any) -> None:
    model = eq.EASE(l2=1.0).fit(letters)
    with pytest.raises(DataError, match="added must be Interactions"):
        model.update(added=added)


def test_a_text_in_place_of_items_is_one_item(letters: Interactions) -> None:
    model = eq.EASE(l2=1.0).fit(letters)
    every = {"k": 4, "exclude_seen": False}
    assert sorted(model.recommend("a", **every, exclude="ab").items[0]) == ["a", "b", "c"]
    assert model.recommend("a", **every, candidates="ab").items == [["ab"]]
    assert model.recommend(["a", "b"], **every, candidates="ab").items == [["ab"]] * 2
    assert model.recommend({"x": "ab"}, 4).items == model.recommend({"x": ["ab"]}, 4).items
    assert model.explain("ab", "c").sources == model.explain(["a", "ab"], "c").sources
    for option in ("exclude", "candidates"):
        with pytest.raises(UnknownIdError, match="'bc'"):
            model.recommend("a", **{option: "bc"})


def test_bytes_are_never_read_as_numbers() -> None:
    data = Interactions(np.eye(3), [97, 98, 99], [97, 98, 99])
    model = eq.Popularity().fit(data)
    for ask in (
        lambda: model.recommend(b"ab"),
        lambda: model.recommend([b"ab"]),
        lambda: model.recommend({"x": b"ab"}),
        lambda: model.recommend(97, exclude=b"ab"),
        lambda: model.recommend(97, candidates=[b"ab"]),
        lambda: data.select(users=b"ab"),
    ):
        with pytest.raises(UnknownIdError, match="b'ab'; the ids of this data are integers"):
            ask()


def test_a_session_given_as_a_text_is_one_click() -> None:
    clicks = drawn(60, 12, seed=3)
    names = [f"{n % 10}{n // 10}" for n in range(12)]
    data = Interactions(clicks.matrix, None, names, events=clicks.sequences)
    model = eq.SLIS(l2=2.0).fit(data)
    assert model.recommend(session="20").items == model.recommend(session=["20"]).items
    assert model.recommend({"x": "20"}).items == model.recommend([["20"]]).items


def test_the_same_user_twice_gets_the_same_list_twice(model: eq.EASE, tmp_path: Path) -> None:
    one = model.recommend(["ann", "bob"], 3)
    found = model.recommend(["ann", "bob", "ann"], 3)
    assert found.users == ["ann", "bob", "ann"]
    assert found.items == [*one.items, one.items[0]]
    assert found.to_frame()["user"].to_list() == ["ann"] * 2 + ["bob"] * 2 + ["ann"] * 2
    scores = model.score(["ann", "ann"])
    np.testing.assert_array_equal(scores[0], scores[1])
    path = tmp_path / "lists.parquet"
    for batch_size in (1, 2, 9):
        assert model.recommend_to(path, ["ann", "bob", "ann"], 3, batch_size=batch_size) == 3
        assert_frame_equal(pl.read_parquet(path), found.to_frame(), check_exact=True)


def test_the_same_session_twice_gets_the_same_list_twice() -> None:
    model = eq.SLIS(l2=2.0).fit(drawn(60, 12, seed=3))
    found = model.recommend([4, 4, 5], 5)
    assert found.users == [4, 4, 5]
    assert found.items[0] == found.items[1] == model.recommend(4, 5).items[0]


@pytest.mark.parametrize("option", ["exclude", "candidates"])
def test_lists_of_items_are_looked_up_once_for_all_users(
    option: str, model: eq.EASE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = IdIndex.positions

    def counted(self: IdIndex, wanted: Any, **options: Any) -> Any:
        found = original(self, wanted, **options)
        asked.append((self.axis, len(found)))
        return found

    monkeypatch.setattr(IdIndex, "positions", counted)
    listed = {option: (item for item in ["tea", "salt"])}
    model.recommend_to(tmp_path / "lists.parquet", USERS, 3, batch_size=2, **listed)
    assert sum(size for axis, size in asked if axis == "item") == 2


def test_a_list_for_all_users_takes_no_memory_for_each() -> None:
    n_items, n_users = 4_000, 500
    data = Interactions(np.eye(2, n_items))
    model = eq.Popularity().fit(data)
    histories = [[0]] * n_users
    model.recommend(histories, 1)
    listed = list(range(n_items))
    tracemalloc.start()
    try:
        model.recommend(histories, 1, exclude=listed[5:])
        model.recommend(histories, 1, candidates=listed)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * n_users * n_items / 2


@pytest.mark.parametrize("k", [4, 10**6])
def test_lists_have_room_for_the_items_there_are(
    model: eq.EASE, toy: Interactions, k: int
) -> None:
    assert model.rank(toy, k).items.shape == (7, 4)
    assert (
        model.recommend(toy, k, exclude_seen=False).items[0]
        == (model.recommend(toy, 4, exclude_seen=False).items[0])
    )


def test_a_session_has_room_for_the_items_there_are() -> None:
    data = drawn(60, 12, seed=3)
    assert eq.SLIS(l2=2.0).fit(data).rank(data, 10**6).items.shape == (60, 12)


def test_skipped_users_take_their_own_lists_along(model: eq.EASE) -> None:
    found = model.recommend(
        ["ann", "nobody", "gus"],
        4,
        exclude=[["salt"], ["tea"], ["rice"]],
        candidates=[ITEMS, ["milk"], ["rice", "tea"]],
        unknown="skip",
    )
    assert found.users == ["ann", "gus"]
    assert found.items == [["rice"], ["tea"]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["tea", ["milk"]], "not a mixture"),
        ([["tea"], ["milk"], []], "3 lists of items for 2 users"),
        ({"ann": ["tea"]}, "not a mapping"),
        (3, "unknown item 3"),
    ],
)
@pytest.mark.parametrize("option", ["exclude", "candidates"])
def test_lists_of_items_that_do_not_fit_the_users_are_refused(
    model: eq.EASE, tmp_path: Path, option: str, given: Any, message: str
) -> None:
    with pytest.raises(EquipoiseError, match=message):
        model.recommend(["ann", "bob"], **{option: given})
    with pytest.raises(EquipoiseError, match=message):
        model.recommend_to(tmp_path / "f.parquet", ["ann", "bob"], batch_size=1, **{option: given})
    assert not list(tmp_path.iterdir())


def test_a_first_batch_without_items_is_written_like_any_other(
    model: eq.EASE, tmp_path: Path
) -> None:
    path = tmp_path / "lists.parquet"
    # cleo has all items
    found = model.recommend(["cleo", "ann"], 4)
    assert model.recommend_to(path, ["cleo", "ann"], 4, batch_size=1) == 2
    assert_frame_equal(pl.read_parquet(path), found.to_frame(), check_exact=True)
    model.recommend_to(path, ["cleo"], 4)
    assert pl.read_parquet(path).schema == found.to_frame().schema
    assert model.recommend([], 4).to_frame().schema["item"] == pl.String


def test_names_of_histories_of_several_kinds_are_written_as_text(
    model: eq.EASE, tmp_path: Path
) -> None:
    asked = {1: ["tea"], "two": ["milk"], ("three", 3): ["salt"]}
    model.recommend_to(tmp_path / "lists.parquet", asked, 1, batch_size=1)
    written = pl.read_parquet(tmp_path / "lists.parquet")
    assert written["user"].to_list() == ["1", "two", "('three', 3)"]
    assert_frame_equal(written, model.recommend(asked, 1).to_frame(), check_exact=True)


def test_an_error_in_a_later_batch_keeps_its_class_and_leaves_no_file(
    toy: Interactions, tmp_path: Path
) -> None:
    model = eq.EASE(l2=1.0).fit(toy)
    model.inverse_[3, 2] = np.nan  # only histories with rice are concerned
    with pytest.raises(SolveError, match="not numbers"):
        model.recommend_to(tmp_path / "f.parquet", [["tea"], ["milk"], ["rice"]], batch_size=1)
    assert not list(tmp_path.iterdir())


ids = st.lists(st.sampled_from(ITEMS), max_size=4)
FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "generator": iter,
    "array": lambda listed: np.array([*listed, None], object)[:-1],
    "series": lambda listed: pl.Series(listed),
}


@st.composite
def item_lists(draw: st.DrawFn, n_users: int) -> Callable[[], Any]:
    """Lists of items for all users or for each, made anew on every call."""
    kind = draw(st.sampled_from(["none", "one", "flat", "each"]))
    if kind == "none":
        return lambda: None
    if kind == "one":
        item = draw(st.sampled_from(ITEMS))
        return lambda: item
    form = FORMS[draw(st.sampled_from(sorted(FORMS)))]
    if kind == "flat":
        listed = draw(ids)
        return lambda: form(listed)
    each = [draw(ids) for _ in range(n_users)]
    if not n_users:
        return lambda: []
    outer = list if form is FORMS["series"] else form
    return lambda: outer([form(listed) for listed in each])


@given(data=st.data(), batch_size=st.integers(1, 8), k=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_written_file_holds_what_recommend_answers(
    data: st.DataObject, batch_size: int, k: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = ["1100", "1010", "1111", "0110", "1000", "0000", "0100"]
    matrix = np.array([[int(cell) for cell in row] for row in rows], dtype=np.float32)
    model = eq.EASE(l2=1.0).fit(Interactions(matrix, USERS, ITEMS))
    asked = data.draw(
        st.one_of(
            st.lists(st.sampled_from(USERS), min_size=1, max_size=7),
            st.lists(ids, min_size=1, max_size=7),
            st.dictionaries(st.one_of(st.integers(0, 9), st.text("xyz")), ids, min_size=1),
        )
    )
    exclude, candidates = (data.draw(item_lists(len(asked))) for _ in range(2))
    seen = data.draw(st.booleans())
    path = tmp_path_factory.getbasetemp() / "written.parquet"
    options = {"exclude_seen": seen}
    found = model.recommend(asked, k, exclude=exclude(), candidates=candidates(), **options)
    count = model.recommend_to(
        path,
        asked,
        k,
        batch_size=batch_size,
        exclude=exclude(),
        candidates=candidates(),
        **options,
    )
    assert count == len(asked) == len(found)
    assert_frame_equal(pl.read_parquet(path), found.to_frame(), check_exact=True)


def test_an_empty_history_is_scored_and_ranked_by_popularity_everywhere(
    synthetic: Interactions, tmp_path: Path
) -> None:
    bare = Interactions(synthetic.matrix[:3] * 0, ["x", "y", "z"], synthetic.item_index)
    best = np.argsort(-synthetic.item_counts, kind="stable")[:6]
    for model in (
        eq.EASE(l2=3.0, normalizer=eq.DAN(0.3, 0.3)).fit(synthetic),
        eq.LAE(l2=3.0, lowpass=eq.LowPass(rank=4)).fit(synthetic),
        eq.GFCF(n_factors=4).fit(synthetic),
        eq.ItemKNN().fit(synthetic),
    ):
        ranked = model.rank(bare, 6)
        np.testing.assert_array_equal(ranked.items, np.tile(best, (3, 1)))
        found = model.recommend(bare, 6)
        assert found.source == ["popular"] * 3
        assert found.items[0] == synthetic.items[best].tolist()
        np.testing.assert_array_equal(ranked.scores[0], found.scores[0])
        scores = model.score([[], synthetic.history("u1")])
        np.testing.assert_array_equal(scores[0], synthetic.item_counts)
        np.testing.assert_array_equal(scores[1], model.score("u1")[0])
        model.recommend_to(tmp_path / "f.parquet", bare, 6, batch_size=2)
        assert_frame_equal(pl.read_parquet(tmp_path / "f.parquet"), found.to_frame())


def test_an_empty_session_is_scored_and_ranked_by_popularity_everywhere() -> None:
    data = drawn(60, 12, seed=3)
    order = np.arange(12)[::-1]
    turned = Interactions(data.matrix[:, order], events=data.sequences.recode(order))
    model = eq.SLIS(l2=2.0).fit(turned)
    best = np.argsort(-turned.item_counts, kind="stable")
    none = turned.sequences.take(np.array([0])).keep(np.zeros(len(turned.sequences[0]), bool))
    bare = Interactions(turned.matrix[:1] * 0, events=none)
    assert model.recommend(session=[]).items[0] == best.tolist()
    assert model.rank(bare, 12).items[0].tolist() == best.tolist()
    np.testing.assert_array_equal(model.score([[]])[0], turned.item_counts)


def test_an_explanation_needs_a_history(model: eq.EASE, toy: Interactions) -> None:
    with pytest.raises(DataError, match="the history is empty"):
        model.explain([], "tea")
    rows = np.vstack([toy.matrix.toarray(), np.zeros(4)])
    bare = eq.EASE(l2=1.0).fit(Interactions(rows, [*USERS, "zoe"], ITEMS))
    with pytest.raises(DataError, match="the history is empty"):
        bare.explain("zoe", "tea")
    with pytest.raises(DataError, match="the history is empty"):
        bare.explain(["gin"], "tea", unknown="skip")


def test_an_explanation_takes_one_history(model: eq.EASE, toy: Interactions) -> None:
    for history in ({"ann": ["tea"]}, toy):
        with pytest.raises(DataError, match="one history"):
            model.explain(history, "tea")
    with pytest.raises(UnknownIdError, match="unknown user None"):
        model.explain(None, "tea")


@pytest.mark.parametrize("item", ["gin", "", 3, None, ["tea"], [], b"tea"])
def test_an_item_that_cannot_be_looked_up_is_named(item: Any, toy: Interactions) -> None:
    sessions = drawn(60, 12, seed=3)
    named = Interactions(sessions.matrix, None, [*ITEMS, *"ABCDEFGH"], events=sessions.sequences)
    models: list[Recommender] = [eq.EASE(l2=1.0).fit(toy), eq.SLIS(l2=2.0).fit(named)]
    for model in models:
        for ask in (lambda m: m.similar(item), lambda m: m.explain(["tea"], item)):
            with pytest.raises(EquipoiseError, match="item") as raised:
                ask(model)
            assert repr(item) in str(raised.value)
            assert "skip" not in str(raised.value)


def test_similar_items_are_named_after_the_item_they_are_similar_to() -> None:
    sessions = drawn(60, 12, seed=3)
    data = Interactions(sessions.matrix, None, list("ABCDEFGHIJKL"), events=sessions.sequences)
    found = eq.SLIS(l2=2.0).fit(data).similar("C", 3)
    assert found.users == ["C"]
    assert found.to_frame()["user"].to_list() == ["C"] * 3


def test_numbers_of_any_width_name_histories_and_items(synthetic: Interactions) -> None:
    model = eq.Popularity().fit(synthetic)
    found = model.recommend({np.int32(4): [13], np.uint8(5): [23]}, 1)
    assert found.to_frame()["user"].to_list() == [4, 5]
    assert model.similar(np.int64(13), 1).to_frame()["user"].to_list() == [13]
    large = model.recommend({2**70: [13], 1: []}, 1).to_frame()
    assert large["user"].to_list() == [str(2**70), "1"]
