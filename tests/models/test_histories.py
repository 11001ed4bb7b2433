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
from equipoise.data.ids import IdIndex
from equipoise.data.interactions import Interactions
from equipoise.errors import DataError, EquipoiseError, SettingError, SolveError, UnknownIdError
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


def test_a_string_of_users_to_forget_is_one_user(letters: Interactions) -> None:
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
def test_only_interactions_can_be_added(letters: Interactions, added: Any) -> None:
    model = eq.EASE(l2=1.0).fit(letters)
    with pytest.raises(DataError, match="added must be Interactions or a frame"):
        model.update(added=added)


def test_a_string_of_items_is_one_item(letters: Interactions) -> None:
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


def test_a_string_as_a_session_is_one_click() -> None:
    clicks = drawn(60, 12, seed=3)
    names = [f"{n % 10}{n // 10}" for n in range(12)]
    data = Interactions(clicks.matrix, None, names, events=clicks._sequences)
    model = eq.SLIS(l2=2.0).fit(data)
    assert model.recommend(session="20").items == model.recommend(session=["20"]).items
    assert model.recommend({"x": "20"}).items == model.recommend([["20"]]).items


def test_the_same_user_twice_gets_the_same_list_twice(model: eq.EASE, tmp_path: Path) -> None:
    one = model.recommend(["ann", "bob"], 3)
    lists = model.recommend(["ann", "bob", "ann"], 3)
    assert lists.users == ["ann", "bob", "ann"]
    assert lists.items == [*one.items, one.items[0]]
    assert lists.to_frame()["user"].to_list() == ["ann"] * 2 + ["bob"] * 2 + ["ann"] * 2
    scores = model.score(["ann", "ann"])
    np.testing.assert_array_equal(scores[0], scores[1])
    path = tmp_path / "lists.parquet"
    for batch_size in (1, 2, 9):
        assert model.recommend_to(path, ["ann", "bob", "ann"], 3, batch_size=batch_size) == 3
        assert_frame_equal(pl.read_parquet(path), lists.to_frame(details=True), check_exact=True)


def test_the_same_session_twice_gets_the_same_list_twice() -> None:
    model = eq.SLIS(l2=2.0).fit(drawn(60, 12, seed=3))
    lists = model.recommend([4, 4, 5], 5)
    assert lists.users == [4, 4, 5]
    assert lists.items[0] == lists.items[1] == model.recommend(4, 5).items[0]


@pytest.mark.parametrize("option", ["exclude", "candidates"])
def test_lists_of_items_are_looked_up_once_for_all_users(
    option: str, model: eq.EASE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = []
    original = IdIndex.positions

    def counted(self: IdIndex, ids: Any, **options: Any) -> Any:
        positions = original(self, ids, **options)
        lookups.append((self.axis, len(positions)))
        return positions

    monkeypatch.setattr(IdIndex, "positions", counted)
    listed = {option: (item for item in ["tea", "salt"])}
    model.recommend_to(tmp_path / "lists.parquet", USERS, 3, batch_size=2, **listed)
    assert sum(size for axis, size in lookups if axis == "item") == 2


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
    lists = model.recommend(
        ["ann", "nobody", "gus"],
        4,
        exclude=[["salt"], ["tea"], ["rice"]],
        candidates=[ITEMS, ["milk"], ["rice", "tea"]],
        unknown_users="skip",
    )
    assert lists.users == ["ann", "gus"]
    assert lists.items == [["rice"], ["tea"]]


@pytest.mark.parametrize(
    ("item_lists", "message"),
    [
        (["tea", ["milk"]], "not a mixture"),
        ([["tea"], ["milk"], []], "3 lists of items for 2 users"),
        ([True, False], "2 flags for 4 items"),
        (3, "unknown item 3"),
    ],
)
@pytest.mark.parametrize("option", ["exclude", "candidates"])
def test_lists_of_items_that_do_not_fit_the_users_are_refused(
    model: eq.EASE, tmp_path: Path, option: str, item_lists: Any, message: str
) -> None:
    with pytest.raises(EquipoiseError, match=message):
        model.recommend(["ann", "bob"], **{option: item_lists})
    with pytest.raises(EquipoiseError, match=message):
        model.recommend_to(
            tmp_path / "f.parquet", ["ann", "bob"], batch_size=1, **{option: item_lists}
        )
    assert not list(tmp_path.iterdir())


def test_a_first_batch_without_items_is_written_like_any_other(
    model: eq.EASE, tmp_path: Path
) -> None:
    path = tmp_path / "lists.parquet"
    # cleo has all items
    lists = model.recommend(["cleo", "ann"], 4)
    assert model.recommend_to(path, ["cleo", "ann"], 4, batch_size=1) == 2
    assert_frame_equal(pl.read_parquet(path), lists.to_frame(details=True), check_exact=True)
    model.recommend_to(path, ["cleo"], 4)
    assert pl.read_parquet(path).schema == lists.to_frame(details=True).schema
    assert model.recommend([], 4).to_frame().schema["item"] == pl.String


def test_names_of_histories_of_several_kinds_are_written_as_text(
    model: eq.EASE, tmp_path: Path
) -> None:
    histories = {1: ["tea"], "two": ["milk"], ("three", 3): ["salt"]}
    model.recommend_to(tmp_path / "lists.parquet", histories, 1, batch_size=1)
    written = pl.read_parquet(tmp_path / "lists.parquet")
    assert written["user"].to_list() == ["1", "two", "('three', 3)"]
    expected = model.recommend(histories, 1).to_frame(details=True)
    assert_frame_equal(written, expected, check_exact=True)


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
    lists = [draw(ids) for _ in range(n_users)]
    if not n_users:
        return lambda: []
    outer = list if form is FORMS["series"] else form
    return lambda: outer([form(listed) for listed in lists])


@given(data=st.data(), batch_size=st.integers(1, 8), k=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_written_file_holds_what_recommend_answers(
    data: st.DataObject, batch_size: int, k: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = ["1100", "1010", "1111", "0110", "1000", "0000", "0100"]
    matrix = np.array([[int(cell) for cell in row] for row in rows], dtype=np.float32)
    model = eq.EASE(l2=1.0).fit(Interactions(matrix, USERS, ITEMS))
    query = data.draw(
        st.one_of(
            st.lists(st.sampled_from(USERS), min_size=1, max_size=7),
            st.lists(ids, min_size=1, max_size=7),
            st.dictionaries(st.one_of(st.integers(0, 9), st.text("xyz")), ids, min_size=1),
        )
    )
    exclude, candidates = (data.draw(item_lists(len(query))) for _ in range(2))
    seen = data.draw(st.booleans())
    path = tmp_path_factory.getbasetemp() / "written.parquet"
    options = {"exclude_seen": seen}
    lists = model.recommend(query, k, exclude=exclude(), candidates=candidates(), **options)
    count = model.recommend_to(
        path,
        query,
        k,
        batch_size=batch_size,
        exclude=exclude(),
        candidates=candidates(),
        **options,
    )
    assert count == len(query) == len(lists)
    assert_frame_equal(pl.read_parquet(path), lists.to_frame(details=True), check_exact=True)


def test_an_empty_history_is_scored_and_ranked_by_popularity_everywhere(
    synthetic: Interactions, tmp_path: Path
) -> None:
    bare = Interactions(synthetic.matrix[:3] * 0, ["x", "y", "z"], synthetic.item_index)
    best = np.argsort(-synthetic.item_counts, kind="stable")[:6]
    for model in (
        eq.EASE(l2=3.0, normalizer=eq.DAN(0.3, 0.3)).fit(synthetic),
        eq.LAE(l2=3.0, lowpass=eq.LowPass(rank=4, strength=0.2)).fit(synthetic),
        eq.GFCF(n_factors=4).fit(synthetic),
        eq.ItemKNN().fit(synthetic),
    ):
        ranked = model.rank(bare, 6)
        np.testing.assert_array_equal(ranked.items, np.tile(best, (3, 1)))
        lists = model.recommend(bare, 6)
        assert lists.source == ["popular"] * 3
        assert lists.items[0] == synthetic.items[best].tolist()
        assert np.isnan(lists.scores[0]).all()
        scores = model.score([[], synthetic.history("u1")])
        np.testing.assert_array_equal(scores[0], synthetic.item_counts)
        np.testing.assert_array_equal(scores[1], model.score("u1")[0])
        model.recommend_to(tmp_path / "f.parquet", bare, 6, batch_size=2)
        assert_frame_equal(pl.read_parquet(tmp_path / "f.parquet"), lists.to_frame(details=True))


def test_an_empty_session_is_scored_and_ranked_by_popularity_everywhere() -> None:
    data = drawn(60, 12, seed=3)
    order = np.arange(12)[::-1]
    turned = Interactions(data.matrix[:, order], events=data._sequences.recode(order))
    model = eq.SLIS(l2=2.0).fit(turned)
    best = np.argsort(-turned.item_counts, kind="stable")
    none = turned._sequences.take(np.array([0])).keep(np.zeros(len(turned._sequences[0]), bool))
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
        bare.explain(["gin"], "tea", unknown_items="skip")


def test_an_explanation_takes_one_history(model: eq.EASE, toy: Interactions) -> None:
    for history in ({"ann": ["tea"]}, toy):
        with pytest.raises(DataError, match="one history"):
            model.explain(history, "tea")
    with pytest.raises(UnknownIdError, match="unknown user None"):
        model.explain(None, "tea")


@pytest.mark.parametrize("item", ["gin", "", 3, None, [["tea"]], ["gin"], b"tea"])
def test_an_item_that_cannot_be_looked_up_is_named(item: Any, toy: Interactions) -> None:
    sessions = drawn(60, 12, seed=3)
    named = Interactions(sessions.matrix, None, [*ITEMS, *"ABCDEFGH"], events=sessions._sequences)
    models: list[Recommender] = [eq.EASE(l2=1.0).fit(toy), eq.SLIS(l2=2.0).fit(named)]
    for model in models:
        for ask in (lambda m: m.similar(item), lambda m: m.explain(["tea"], item)):
            with pytest.raises(EquipoiseError, match="item") as raised:
                ask(model)
            named = item[0] if isinstance(item, list) else item
            assert repr(named) in str(raised.value)


def test_similar_items_are_named_after_the_item_they_are_similar_to() -> None:
    sessions = drawn(60, 12, seed=3)
    data = Interactions(sessions.matrix, None, list("ABCDEFGHIJKL"), events=sessions._sequences)
    similar = eq.SLIS(l2=2.0).fit(data).similar("C", 3)
    assert similar.users == ["C"]
    assert similar.to_frame()["user"].to_list() == ["C"] * 3


def test_numbers_of_any_width_name_histories_and_items(synthetic: Interactions) -> None:
    model = eq.Popularity().fit(synthetic)
    lists = model.recommend({np.int32(4): [13], np.uint8(5): [23]}, 1)
    assert lists.to_frame()["user"].to_list() == [4, 5]
    assert model.similar(np.int64(13), 1).to_frame()["user"].to_list() == [13]
    large = model.recommend({2**70: [13], 1: []}, 1).to_frame()
    assert large["user"].to_list() == [str(2**70), "1"]


def test_unused_items_count_as_an_empty_history(toy: Interactions) -> None:
    wider = toy.with_items([*ITEMS, "NEW", "NEWER"])
    for kind in (eq.EASE(l2=1.0), eq.ItemKNN(), eq.GFCF(n_factors=2), eq.Popularity()):
        model = kind.fit(wider)
        lists = model.recommend([["NEW"], ["NEW", "tea"], ["NEWER", "NEW"]], k=6)
        assert lists.source == ["popular", "model", "popular"]
        assert lists.items[0] == ["tea", "milk", "salt", "rice", "NEWER"]
        assert lists.items[2] == ["tea", "milk", "salt", "rice"]
        ranked = model.rank(Interactions(np.eye(6)[4:5], ["x"], wider.item_index), 6)
        assert ranked.items[0, :4].tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(model.score([["NEW"]])[0], wider.item_counts)


def test_other_items_keep_the_titles_of_those_that_stay(toy: Interactions) -> None:
    titles = pl.DataFrame({"title": ["Tea", "Milk", "Salt", "Rice"], "kind": [1, 2, 3, 4]})
    data = Interactions(toy.matrix, toy.users, toy.items, catalogue=titles)
    wider = data.with_items(["NEW", *ITEMS[::-1]])
    assert wider.catalogue is not None
    assert wider.catalogue["title"].to_list() == [None, "Rice", "Salt", "Milk", "Tea"]
    assert wider.catalogue["kind"].to_list() == [None, 4, 3, 2, 1]
    bare = toy.rows([0]).with_items(wider.item_index)
    assert wider.union(bare).catalogue["title"].to_list() == wider.catalogue["title"].to_list()


def test_unknown_users_are_an_error_left_out_or_answered(
    model: eq.EASE, toy: Interactions
) -> None:
    users = ["ann", "nobody", "bob"]
    with pytest.raises(
        UnknownIdError, match="unknown_users='popular' for popular items"
    ) as raised:
        model.recommend(users)
    assert not any(f"'{user}'" in str(raised.value) for user in USERS)
    with pytest.raises(UnknownIdError) as raised:
        toy.history("nobody")
    assert not any(f"'{user}'" in str(raised.value) for user in USERS)
    assert model.recommend(users, unknown_users="skip").users == ["ann", "bob"]
    lists = model.recommend(users, k=2, unknown_users="popular")
    assert lists.users == users
    assert lists.source == ["model", "popular", "model"]
    assert lists.items[1] == ["tea", "milk"]
    assert lists.to_frame().filter(user="nobody")["score"].to_list() == [None, None]
    np.testing.assert_array_equal(model.score(users, unknown_users="popular")[1], toy.item_counts)
    numbers = eq.Popularity().fit(Interactions(np.eye(3)))
    both = numbers.recommend([0, "x"], k=1, unknown_users="popular").to_frame()
    assert both["user"].to_list() == ["0", "x"]
    sessions = eq.SLIS(l2=2.0).fit(drawn(60, 12, seed=3))
    mixed = sessions.recommend([-1, 4, -2], k=3, unknown_users="popular")
    assert mixed.source == ["popular", "model", "popular"]
    assert mixed.items[1] == sessions.recommend(4, k=3).items[0]


def test_unknown_items_are_handled_separately(model: eq.EASE) -> None:
    with pytest.raises(UnknownIdError, match="pass unknown_items='skip' to leave them out"):
        model.recommend([["tea", "gin"]], unknown_users="skip")
    lists = model.recommend([["tea", "gin"]], unknown_items="skip")
    assert lists.items == model.recommend([["tea"]]).items
    with pytest.raises(UnknownIdError, match="nobody"):
        model.recommend(["nobody"], unknown_items="skip")
    assert model.similar(["tea", "gin"], unknown_items="skip").users == ["tea"]
    assert model.similar("gin", unknown_items="skip").items == []
    assert model.explain(["tea", "gin"], "milk", unknown_items="skip").sources == ["tea"]
    for option in ("unknown_users", "unknown_items"):
        with pytest.raises(EquipoiseError, match=f"{option} must be 'error'"):
            model.recommend("ann", **{option: "never"})


@pytest.mark.parametrize("option", ["exclude", "candidates"])
def test_item_lists_may_be_a_mask_or_a_mapping(model: eq.EASE, option: str) -> None:
    users, every = ["ann", "gus"], {"k": 4, "exclude_seen": False}
    for mask in (np.array([True, False, True, False]), [True, False, True, False]):
        by_mask = model.recommend(users, **every, **{option: mask})
        assert by_mask.items == model.recommend(users, **every, **{option: ["tea", "salt"]}).items
    by_mapping = model.recommend(users, **every, **{option: {"gus": ["tea"], "eve": ["rice"]}})
    assert by_mapping.items[0] == model.recommend("ann", **every).items[0]
    assert by_mapping.items[1] == model.recommend("gus", **every, **{option: ["tea"]}).items[0]


def test_updates_take_frames_and_one_id(toy: Interactions) -> None:
    def fresh() -> eq.EASE:
        return eq.EASE(l2=1.0).fit(toy)

    new = pl.DataFrame({"user": ["zoe", "zoe", "ann"], "item": ["tea", "rice", "rice"]})
    expected = fresh().update(eq.read(new)).interactions_.fingerprint
    assert fresh().update(new).interactions_.fingerprint == expected
    assert fresh().update(new.to_pandas()).interactions_.fingerprint == expected
    gone = pl.DataFrame({"user": ["ann"], "item": ["tea"]})
    gone = pl.concat([gone, pl.DataFrame({"user": ["cleo"], "item": ["rice"]})])
    assert fresh().update(removed=gone).interactions_.history("ann") == ["milk"]
    numbers = Interactions(np.eye(4), [5, 6, 7, 12348])
    for one in (12348, np.int64(12348), [12348]):
        left = eq.ItemKNN().fit(numbers).update(removed=one)
        assert left.interactions_.users.tolist() == [5, 6, 7]
    with pytest.raises(UnknownIdError, match="only users of the training data") as raised:
        fresh().update(removed="anne")
    assert "'ann'" not in str(raised.value)
    with pytest.raises(DataError, match="not a mapping"):
        fresh().update(removed={"ann": ["tea"]})


def test_lists_are_written_as_the_name_says_with_titles_and_reasons(
    toy: Interactions, tmp_path: Path
) -> None:
    titles = pl.DataFrame({"title": ["Tea", "Milk", "Salt", "Rice"]})
    model = eq.EASE(l2=1.0).fit(Interactions(toy.matrix, toy.users, toy.items, catalogue=titles))
    histories = {"x": ["tea", "milk"], "y": []}
    lists = model.recommend(histories, k=2, reasons=2)
    frame = lists.to_frame(details=True)
    for name in ("f.parquet", "f.csv", "f.jsonl"):
        assert model.recommend_to(tmp_path / name, histories, k=2, reasons=2, batch_size=1) == 2
    assert_frame_equal(pl.read_parquet(tmp_path / "f.parquet"), frame, check_exact=True)
    lines = pl.read_ndjson(tmp_path / "f.jsonl")
    assert lines["reasons"].to_list() == frame["reasons"].to_list()
    table = pl.read_csv(tmp_path / "f.csv")
    assert table.columns == frame.columns
    assert table["title"].to_list() == frame["title"].to_list()
    for item, reasons, because in (
        frame.filter(user="x").select("item", "reasons", "because").rows()
    ):
        parts = model.explain(["tea", "milk"], item)
        named = [s for s, c in zip(parts.sources, parts.contributions, strict=True) if c > 0]
        assert reasons == named
        assert because == "; ".join(reason.capitalize() for reason in named)
    assert frame.filter(user="y")["reasons"].to_list() == [[], []]
    with pytest.raises(EquipoiseError, match=r"must end in \.parquet, \.csv, \.jsonl"):
        model.recommend_to(tmp_path / "f.xlsx", histories)


def test_similar_items_of_many_items_come_at_once(model: eq.EASE, tmp_path: Path) -> None:
    similar = model.similar(["tea", "rice"], k=3)
    assert similar.users == ["tea", "rice"]
    assert similar.items == [model.similar(item, k=3).items[0] for item in ("tea", "rice")]
    for batch_size in (1, 3, 9):
        assert model.similar_to(tmp_path / "s.parquet", k=3, batch_size=batch_size) == 4
        written = pl.read_parquet(tmp_path / "s.parquet")
        assert_frame_equal(written, model.similar(ITEMS, k=3).to_frame(details=True))


@pytest.mark.parametrize("ids", ["integers", "text"])
@pytest.mark.parametrize("option", ["exclude", "candidates"])
def test_keys_of_item_lists_are_compared_like_ids(
    option: str, ids: str, toy: Interactions, tmp_path: Path
) -> None:
    users: list[Any] = list(range(7)) if ids == "integers" else [str(user) for user in range(7)]
    model = eq.EASE(l2=1.0).fit(Interactions(toy.matrix, users, toy.items))
    options = {"k": 4, "exclude_seen": False}
    expected = model.recommend([3], **options, **{option: [["tea"]]}).items
    every = model.recommend([3], **options).items
    assert expected != every
    for user in (3, "3", np.int64(3)):
        for query in ([3], ["3"], {3: toy.history("dan")}, {"3": toy.history("dan")}):
            lists = model.recommend(query, **options, **{option: {user: ["tea"], 99: ["salt"]}})
            assert lists.items == expected
        count = model.recommend_to(
            tmp_path / "l.csv", ["3"], **options, **{option: {user: ["tea"]}}
        )
        assert count == 1
        written = pl.read_csv(tmp_path / "l.csv")["item"].to_list()
        assert written == expected[0]
    for user in ("03", 3.0, " 3"):
        assert model.recommend(["3"], **options, **{option: {user: ["tea"]}}).items == every
    with pytest.raises(SettingError, match=f"{option} names the user 3 twice, as 3 and as '3'"):
        model.recommend([3], **{option: {3: ["tea"], "3": ["milk"]}})
