from __future__ import annotations

import json

import pytest
from polars.testing import assert_frame_equal
from tests.evaluated import Part, Popular, halves, make_drinks

from equipoise.data.split.parts import identity
from equipoise.errors import FileFormatError, UnknownIdError
from equipoise.evaluation.evaluator import evaluate
from equipoise.evaluation.results import Result


@pytest.fixture
def drinks() -> tuple[Popular, Part]:
    return make_drinks()


def test_a_result_survives_a_round_trip(synthetic, tmp_path):
    train, part = halves(synthetic)
    result = evaluate(Popular(train), part, [5, 20], tuned_on_test=True)
    result.save(tmp_path / "result")
    back = Result.load(tmp_path / "result")
    assert back.to_dict() == result.to_dict()
    assert_frame_equal(back.per_user, result.per_user)
    assert json.loads(back.to_json())["fingerprint"] == identity(part.target)


def test_a_foreign_directory_is_not_loaded_as_a_result(tmp_path, toy):
    toy.save(tmp_path / "toy")
    with pytest.raises(FileFormatError, match=r"expected 'equipoise-result'"):
        Result.load(tmp_path / "toy")


def test_a_manifest_that_lacks_fields_is_refused(drinks, tmp_path):
    evaluate(*drinks, k=2).save(tmp_path / "result")
    manifest = tmp_path / "result" / "manifest.json"
    content = json.loads(manifest.read_text())
    del content["meta"]["protocol"]
    manifest.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=r"not a complete result: protocol"):
        Result.load(tmp_path / "result")


def test_a_result_records_its_origin(drinks):
    model, part = drinks
    result = evaluate(model, part, 3)
    assert (result.name, result.protocol, result.part) == ("popular", "strong", "test")
    assert result.fingerprint == identity(part.target)
    assert result.data_fingerprint == model.data_fingerprint_
    assert result.settings == {"name": "popular", "taste": 0.0}
    assert set(result.seconds) == {"rank", "metrics", "bootstrap"}
    assert set(result.definitions) == {name.partition("@")[0] for name in result}
    assert (result.n_users, result.n_items, result.k) == (3, 6, (3,))
    assert evaluate(model, part, 3, name="top sellers").label == "top sellers"


def test_a_result_tuned_on_its_test_part_says_so_everywhere(drinks):
    result = evaluate(*drinks, k=3, tuned_on_test=True)
    for text in (repr(result), result.to_markdown(), result.to_latex(), result.to_json()):
        assert "tuned on" in text
    assert result.to_frame()["model"][0] == "popular (tuned on test)"
    assert "tuned" not in evaluate(*drinks, k=3).to_markdown()


def test_tables_show_every_metric_once(drinks):
    result = evaluate(*drinks, k=[2, 3], metrics=["ndcg", "head_ndcg", "coverage"])
    lines = result.to_markdown().splitlines()
    where = f"strong test part {identity(drinks[1].target)}, 3 users."
    assert lines[0] == f"**popular**, {where}"
    assert lines[2] == "| metric | over | @2 | @3 |"
    assert lines[6] == "| coverage | all | 0.6667 | 0.8333 |"
    assert lines[4].startswith("| ndcg | all | 0.")
    assert lines[4].count("[") == 2
    latex = result.to_latex()
    assert latex.count(r"\\") == 4
    assert r"\begin{tabular}{llrr}" in latex
    assert r"recall\_full" in evaluate(*drinks, metrics="recall_full").to_latex()
    assert "ndcg@3       0." in repr(result)


def test_a_missing_number_names_the_nearest(drinks):
    result = evaluate(*drinks, k=3)
    with pytest.raises(UnknownIdError, match=r"no 'ndgc@3'; did you mean 'ndcg@3'\?"):
        result["ndgc@3"]
