"""Train a neural model on a published split and write its metrics as JSON after each evaluation.

    python benchmarks/neural.py --data FOLDER --set gowalla --protocol weak --model LightGCN
        --out FILE.json [--device cuda] [--epochs 400] [--batch-size 2048] [--learning-rate 0.001]
        [--seed 0] [--limit-seconds 600] [--holdout] [--set-option layers=4 ...]
        [--checkpoint FOLDER]

FOLDER/SET/PROTOCOL holds the parts as .npz pairs. The model of the epoch with the best NDCG@20 is
used. In the strong protocol, NDCG@20 is measured on the validation users; in the weak protocol on
test, as published, or with ``--holdout`` on `valid_subset_of_train`, which is removed
from train. With ``--holdout`` the model is then retrained on all of train for that many epochs.
In the file, "curve" has Recall@20 and NDCG@20 on the part that chooses the epoch, "final_epoch" is
its last entry, and "metrics" are those of `equipoise.evaluate` on test for the best epoch, written
at the end. Seconds include training and the evaluations that choose the epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.data.interactions import Interactions
from equipoise.data.readers.research import read_strong, read_weak
from equipoise.data.split.parts import Part
from equipoise.models.neural.base import Epoch, NeuralModel

MODELS = ("MultVAE", "LightGCN", "XSimGCL")


@dataclass(frozen=True)
class Data:
    """Data that choose the epoch (train, chooser), and data of the final result."""

    train: Interactions
    chooser: Part
    full_train: Interactions
    test: Part


def load(folder: Path, protocol: str, holdout: bool) -> Data:
    if protocol == "strong":
        parts = read_strong(folder)
        pairs = {
            name: (parts[f"{name}_in"], parts[f"{name}_target"]) for name in ("valid", "test")
        }
        split = eq.split.from_parts(parts["train"], protocol="strong", **pairs)
        assert split.valid is not None
        return Data(split.train, split.valid, split.train, split.test)
    parts = read_weak(folder)
    train = parts["train"]
    test = eq.split.from_parts(train, test=(train, parts["test"]), protocol="weak").test
    if not holdout:
        return Data(train, test, train, test)
    hidden = parts["valid_subset_of_train"]
    remaining = train.difference(hidden)
    chooser = eq.split.from_parts(remaining, test=(remaining, hidden), protocol="weak").test
    return Data(remaining, Part(chooser.history, chooser.target, "weak", "valid"), train, test)


def build(args: argparse.Namespace) -> NeuralModel:
    options: dict[str, Any] = {}
    for option in args.set_option:
        name, _, value = option.partition("=")
        options[name] = json.loads(value)
    for name in ("epochs", "batch_size", "learning_rate", "seed", "evaluate_every", "patience"):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
    if options.get("patience") == 0:
        options["patience"] = None
    model: NeuralModel = getattr(eq, args.model)(**options)
    return model


def device_name(device: str) -> str:
    if device == "cpu":
        return "cpu"
    from equipoise.solve import torch_backend

    return torch_backend.device_name(device)


def write(file: Path, facts: dict[str, Any]) -> None:
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text(json.dumps(facts, indent=1) + "\n")
    os.replace(fresh, file)


class Log:
    """A progress callback that writes the file after each evaluation and stops at the limit."""

    def __init__(self, args: argparse.Namespace, facts: dict[str, Any]) -> None:
        self.args, self.facts = args, facts
        self.curve: list[dict[str, Any]] = []

    def __call__(self, epoch: Epoch) -> bool:
        """Record an epoch; return whether to stop."""
        limit = self.args.limit_seconds
        if epoch.recall is not None and epoch.ndcg is not None:
            entry = {"recall@20": epoch.recall, "ndcg@20": epoch.ndcg}
            entry = {"epoch": epoch.epoch, "loss": epoch.loss, **entry, "seconds": epoch.seconds}
            self.curve.append(entry)
            best = max(self.curve, key=lambda point: point["ndcg@20"])
            self.facts.update(epochs=epoch.epoch, seconds=epoch.seconds, kept_epoch=epoch.best)
            self.facts.update(chosen_by=best, final_epoch=entry, curve=self.curve)
            write(self.args.out, self.facts)
            print(
                f"{self.args.model} {self.args.set} epoch {epoch.epoch} loss {epoch.loss:.4f} "
                f"recall {epoch.recall:.4f} ndcg {epoch.ndcg:.4f} best {epoch.best} "
                f"{epoch.seconds:.1f} s",
                flush=True,
            )
        return limit is not None and epoch.seconds > limit


def measure(args: argparse.Namespace) -> None:
    data = load(args.data / args.set / args.protocol, args.protocol, args.holdout)
    model = build(args)
    facts: dict[str, Any] = {
        "model": args.model,
        "settings": model.settings(),
        "set": args.set,
        "protocol": args.protocol,
        "seed": model.seed,
        "chosen_on": data.chooser.name,
        "device": device_name(args.device),
    }
    options: dict[str, Any] = {"device": args.device}
    checkpoint_options = {"checkpoint": args.checkpoint, "checkpoint_every": args.checkpoint_every}
    log = Log(args, facts)
    model.fit(data.train, valid=data.chooser, progress=log, **options, **checkpoint_options)
    if args.holdout:
        last = model.epoch_
        model.fit(data.full_train, progress=lambda epoch: epoch.epoch >= last, **options)
    began = time.perf_counter()
    result = eq.evaluate(model, data.test, 20, bootstrap=0)
    facts.update({name: result[name] for name in ("recall@20", "ndcg@20")})
    numbers = {name: None if isnan(value) else value for name, value in result.values.items()}
    facts.update(metrics=numbers, evaluate_seconds=time.perf_counter() - began)
    write(args.out, facts)
    print(f"test recall@20 {result['recall@20']:.4f} ndcg@20 {result['ndcg@20']:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", required=True)
    parser.add_argument("--protocol", choices=("weak", "strong"), default="weak")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    for name in ("epochs", "batch-size", "seed", "evaluate-every"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument(
        "--patience", type=int, help="evaluations without improvement; 0: no early stop"
    )
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--limit-seconds", type=float)
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    parser.add_argument("--set-option", action="append", default=[], metavar="NAME=VALUE")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
