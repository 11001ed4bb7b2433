from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Answer, Run, call
from typer.testing import CliRunner, Result

import equipoise as eq
from equipoise.cli.app import app


def test_stats_prints_what_describe_finds(shop: Path, run: Run, answer: Answer) -> None:
    expected = eq.describe(eq.read(shop / "events.csv"))
    (document,) = answer("stats", "events.csv")
    assert document == {"data": "events.csv", **expected.to_dict()}
    shown = run("stats", "events.csv").stdout
    for text in (f"{expected.gini_items:.4f}", f"{expected.homophily:.4f}", "density"):
        assert text in shown


def test_stats_of_several_data_is_a_row_each(run: Run) -> None:
    rows = run("stats", "events.csv", "split", "events.csv").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:5]] == ["data", "events.csv", "split", "events.csv"]
    assert rows[2].split()[1:4] == rows[4].split()[1:4]


def test_reading_options_reach_the_reader(tmp_path: Path, answer: Answer) -> None:
    table = tmp_path / "likes.dat"
    rows = ["a;x;5;extra", "a;y;2;extra", "b;x;4;extra", "b;z;5;extra", "a;z;nan;extra"]
    table.write_text("\n".join(rows) + "\n")
    options = ["--separator", ";", "--no-header", "--user", "0", "--item", "1", "--rating", "2"]
    (document,) = answer("stats", table, *options, "--min-rating", 4, "--on-bad", "skip")
    assert (document["n_users"], document["n_items"], document["n_interactions"]) == (2, 2, 3)


def test_the_unit_of_times_is_an_option(tmp_path: Path, run: Run, answer: Answer) -> None:
    table = tmp_path / "clicks.csv"
    table.write_text("user,item,time\n1,x,1700000000\n2,y,1700000001000\n3,x,1700000002000\n")
    assert "--time-unit ms" in run("stats", table).output
    (document,) = answer("stats", table, "--time-unit", "ms")
    assert document["n_users"] == 3


def test_data_whose_path_looks_like_a_pattern_is_read_from_it(
    tmp_path: Path, answer: Answer
) -> None:
    (tmp_path / "r1.csv").write_text("user,item\n1,x\n2,y\n")
    (tmp_path / "r[1].csv").write_text("user,item\n1,x\n2,y\n3,x\n")
    (document,) = answer("stats", tmp_path / "r[1].csv")
    assert document["n_users"] == 3


def test_catalogue_id_names_the_id_column_of_the_catalogue(tmp_path: Path, run: Run) -> None:
    events, artists = tmp_path / "plays.csv", tmp_path / "artists.dat"
    events.write_text("user,item\n1,51\n2,52\n3,51\n")
    artists.write_text("id\tname\turl\n51\t'Duran\tDuran'\td.example\n52\tBjork\tb.example\n")
    refused = run("stats", events, "--catalogue", artists, "--quote", "'")
    assert refused.exit_code == 1
    assert "pass --catalogue-id id," in " ".join(refused.output.split())
    for column in ("id", 0):
        done = run(
            "stats", events, "--catalogue", artists, "--quote", "'", "--catalogue-id", column
        )
        assert done.exit_code == 0
        assert "titles from its column 'name'" in " ".join(done.output.split())


def test_a_catalogue_may_have_several_tables_and_told_types(tmp_path: Path, run: Run) -> None:
    events, items, prices = (tmp_path / f"{name}.csv" for name in ("events", "items", "prices"))
    events.write_text("user,sku\n1,tea\n2,salt\n3,tea\n")
    items.write_text("sku,title,code\ntea,Tea,007\nsalt,Salt,012\nrum,Rum,003\n")
    prices.write_text("sku,price\ntea,2.5\nsalt,1\n")
    tables = ("--catalogue", items, "--catalogue", prices, "--catalogue-id", "sku")
    done = run("stats", events, "--item", "sku", *tables, "--catalogue-type", "code=category")
    assert done.exit_code == 0, done.output
    output = " ".join(done.output.split())
    assert "attributes title (text), code (category), price (number)" in output
    assert "new items 1 of the catalogue without events" in output
    assert "attributes: 'title' (text), 'code' (category), 'price' (number, 33% missing)" in output
    wrong = run("stats", events, "--item", "sku", *tables, "--catalogue-type", "code")
    assert wrong.exit_code != 0
    assert "--catalogue-type must look like genres=list" in " ".join(wrong.output.split())
    odd = run("stats", events, "--item", "sku", *tables, "--catalogue-type", "code=colour")
    assert "the type of 'code' must be one of category, list," in " ".join(odd.output.split())
    unused = run("stats", events, "--catalogue-type", "code=list")
    assert "pass --catalogue too" in " ".join(unused.output.split())


def test_baskets_are_a_format(tmp_path: Path, run: Run, answer: Answer) -> None:
    table = tmp_path / "groceries.csv"
    table.write_text("milk,bread,tea\ntea\nbread,tea\nmilk,tea,salt,ham\n")
    refused = run("stats", table)
    assert refused.exit_code == 1
    assert "pass --format baskets" in " ".join(refused.output.split())
    (document,) = answer("stats", table, "--format", "baskets")
    assert (document["n_users"], document["n_items"], document["n_interactions"]) == (4, 5, 10)


def test_k_core_options_filter(answer: Answer) -> None:
    (all_data,), (core,) = (
        answer("stats", "events.csv"),
        answer("stats", "events.csv", "--min-user", 5),
    )
    assert core["n_users"] < all_data["n_users"]
    assert core["min_user"] >= 5


@pytest.mark.parametrize(
    ("options", "same", "settings"),
    [
        ("-p strong --seed 3 --history 0.5", eq.split.strong, {"seed": 3, "history": 0.5}),
        ("-p weak --test 0.3 --seed 3", eq.split.weak, {"test": 0.3, "seed": 3}),
        ("-p last -n 1", eq.split.leave_last_out, {"test": 1}),
        ("-p time --test 0.2", eq.split.time_cut, {"test": 0.2}),
    ],
)
def test_split_saves_what_the_function_gives(
    options: str, same: Any, settings: dict[str, Any], shop: Path, tmp_path: Path, answer: Answer
) -> None:
    document = answer("split", "events.csv", tmp_path / "out", *options.split())
    expected = same(eq.read(shop / "events.csv"), **settings)
    assert document["fingerprint"] == expected.fingerprint
    assert eq.Split.load(tmp_path / "out").fingerprint == expected.fingerprint
    assert document["test"]["users"] == expected.test.n_users


@pytest.mark.parametrize("protocol", ["strong", "weak"])
def test_split_saves_folds(protocol: Any, shop: Path, tmp_path: Path, answer: Answer) -> None:
    words = ["split", "events.csv", tmp_path, "-p", protocol, "--folds", 3, "--seed", 4]
    document = answer(*words)
    data = eq.read(shop / "events.csv")
    expected = [fold.fingerprint for fold in eq.split.folds(data, 3, protocol=protocol, seed=4)]
    assert [fold["fingerprint"] for fold in document["folds"]] == expected
    saved = [eq.Split.load(tmp_path / str(number)).fingerprint for number in (1, 2, 3)]
    assert saved == expected


def test_split_cuts_sessions_at_pauses(tmp_path: Path, answer: Answer) -> None:
    document = answer("split", "events.csv", tmp_path / "out", "-p", "session", "--gap", "36h")
    assert document["protocol"] == "session"
    assert document["test"]["users"] > 0


def test_split_at_a_date(tmp_path: Path, answer: Answer) -> None:
    moment = "2023-11-15T12:00:00"
    document = answer(
        "split", "events.csv", tmp_path / "out", "-p", "time", "--test-from", moment, "--valid", 0
    )
    assert document["test"]["to_find"] > 0


def test_split_notes_that_the_future_leaks(tmp_path: Path, run: Run) -> None:
    done = run("split", "events.csv", tmp_path / "out")
    assert "ignores time" in done.stdout
    assert "Split: strong" in done.stdout
    assert f"saved in {tmp_path / 'out'}" in done.stdout


def test_a_published_split_is_taken_as_it_is(tmp_path: Path, answer: Answer) -> None:
    pairs = {
        "train": ([0, 0, 1, 1, 2], [0, 1, 1, 2, 0]),
        "valid_in": ([3], [0]),
        "valid_target": ([3], [1]),
        "test_in": ([4, 4], [1, 2]),
        "test_target": ([4], [0]),
    }
    for name, (users, items) in pairs.items():
        np.savez(tmp_path / f"{name}.npz", users=np.array(users), items=np.array(items))
    document = answer("split", tmp_path, tmp_path / "out", "-p", "given")
    assert document["protocol"] == "strong"
    test = document["test"]
    assert (document["train"]["users"], test["known"], test["to_find"]) == (3, 2, 1)


def test_stats_of_published_folders_are_those_of_their_training_data(
    tmp_path: Path, answer: Answer, synthetic: eq.Interactions
) -> None:
    expected = []
    for name, n_users in (("gowalla", 300), ("yelp2018", 120)):
        train, test = (synthetic.rows(np.arange(*ends)) for ends in ((0, n_users), (0, 50)))
        for part, data in (("train", train), ("test", test)):
            users, items = data.matrix.nonzero()
            (tmp_path / name / "weak").mkdir(parents=True, exist_ok=True)
            np.savez(tmp_path / name / "weak" / f"{part}.npz", users=users, items=items)
        expected.append(eq.describe(train))
    document = answer("stats", *(tmp_path / name / "weak" for name in ("gowalla", "yelp2018")))
    for one, other in zip(document, expected, strict=True):
        assert one["gini_items"] == pytest.approx(other.gini_items)
        assert one["homophily"] == pytest.approx(other.homophily)
        sizes = (other.n_users, other.n_items, other.n_interactions)
        assert (one["n_users"], one["n_items"], one["n_interactions"]) == sizes


@pytest.mark.data
def test_table_1_of_the_paper_comes_out_of_stats(shared_data: Path, answer: Answer) -> None:
    parts = [shared_data / name / "weak" for name in ("gowalla", "yelp2018")]
    gowalla, yelp = answer("stats", *parts)
    assert [f"{gowalla[name]:.4f}" for name in ("gini_items", "homophily")] == ["0.4410", "0.0914"]
    assert [f"{yelp[name]:.4f}" for name in ("gini_items", "homophily")] == ["0.5315", "0.0424"]
    sizes = [
        (data["n_users"], data["n_items"], data["n_interactions"]) for data in (gowalla, yelp)
    ]
    assert sizes == [(29_858, 40_981, 810_128), (31_668, 38_048, 1_237_259)]


def test_every_data_set_is_listed_with_its_licence(run: Run, answer: Answer) -> None:
    document = answer("datasets", "list")
    assert [entry["name"] for entry in document] == eq.datasets.names()
    assert all(entry["licence"] for entry in document)
    assert document[0]["published"] == {"users": 943, "items": 1682, "interactions": 100_000}
    shown = run("datasets").stdout
    assert "manual: see" in shown
    assert "CC BY-NC-SA 4.0" in shown


def test_datasets_alone_also_prints_json(answer: Answer) -> None:
    assert answer("datasets") == answer("datasets", "list")


def test_show_tells_how_to_get_a_set(run: Run, answer: Answer) -> None:
    assert answer("datasets", "show", "gowalla")["home"].startswith("https://snap.stanford.edu")
    assert "datasets fetch gowalla --raw FOLDER" in run("datasets", "show", "gowalla").stdout
    assert "equipoise stats movielens-1m" in run("datasets", "show", "movielens-1m").stdout


def test_fetch_prepares_raw_files(tmp_path: Path, answer: Answer) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    events = ["session,item,time"] + [f"s{n // 2},i{n % 2},{n}" for n in range(40)]
    (raw / "notes.txt").write_text("\n".join(events))
    for name in ("train.txt", "test.txt"):
        rows = [f"{user} {' '.join(str(item) for item in range(12))}" for user in range(12)]
        (raw / name).write_text("\n".join(rows) + "\n")
    document = answer("datasets", "fetch", "gowalla", "--raw", raw, "--out", tmp_path / "out")
    assert document["users"] == 12
    assert eq.read(tmp_path / "out").n_items == 12


def test_demo_without_an_index_says_how_to_get_the_data(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    done = run("demo")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "put the .whl file into" in done.stderr.splitlines()[-1]


def piped(table: bytes, *args: str) -> Result:
    return CliRunner().invoke(app, args, input=table, catch_exceptions=False)


def test_a_minus_reads_a_table_from_standard_input(shop: Path, tmp_path: Path) -> None:
    table = (shop / "events.csv").read_bytes()
    stats = json.loads(piped(table, "stats", "-", "--json").stdout)[0]
    expected = json.loads(call("stats", shop / "events.csv", "--json").stdout)[0]
    assert {**stats, "data": ""} == {**expected, "data": ""}
    assert piped(table, "fit", "-", str(tmp_path / "m"), "--model", "ease").exit_code == 0
    assert eq.load(tmp_path / "m").interactions_.n_users == expected["n_users"]


def test_errors_about_standard_input_name_it() -> None:
    empty = piped(b"", "stats", "-")
    assert (empty.exit_code, "standard input is empty" in empty.stderr) == (1, True)
    bad = piped(b"user,item\na,b\nc\n", "stats", "-")
    assert bad.exit_code == 1
    assert "standard input, line 3" in bad.stderr
    assert "/" not in bad.stderr.split("standard input")[0]


def test_a_terminal_is_refused_as_standard_input() -> None:
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "equipoise", "stats", "-"],
        stdin=terminal,
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(controller)
    os.close(terminal)
    assert done.returncode == 1
    assert "which is a terminal; pipe a table" in done.stderr
