"""The recipes fit the service."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.serve.conftest import Serve
from tests.serve.test_api import click

from equipoise.serve.config import Config
from equipoise.serve.drift import DriftMetrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
VERSIONS = ("1.30", "1.37")  # of Kubernetes
FOREIGN = {"up"}  # metrics that Prometheus makes itself
# words of expressions that are no metrics: functions, and names of labels
WORDS = {"sum", "by", "on", "and", "rate", "increase", "histogram_quantile", "le", "model",
         "source", "kind", "status", "part"}  # fmt: skip


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_TOKEN", "a token of the shop")
    monkeypatch.setenv("EQUIPOISE_ADMIN", "a token of the operator")


@pytest.mark.usefixtures("tokens")
def test_the_settings_of_the_recipe_are_valid() -> None:
    config = Config.read(DEPLOY / "serve.toml")
    assert [token.role for token in config.tokens] == ["write", "admin"]
    assert config.workers == 2


def test_the_guide_names_every_route_and_setting() -> None:
    pages = [ROOT / "docs" / f"{name}.md" for name in ("serving", "operating")]
    guide = "".join(page.read_text(encoding="utf-8") for page in pages)
    for name in Config.model_fields:
        assert f"`{name}" in guide, name
    folder = ROOT / "src" / "equipoise" / "serve"
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    for route in re.findall(r'@app\.\w+\(\s*"(/v1/[^"{]*)', source):
        assert route.rstrip("/") in guide, route


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    text = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_follow_the_schemas_of_kubernetes(
    manifests: dict[str, Any], version: str
) -> None:
    for manifest in manifests.values():
        assert kubernetes_validate.validate(manifest, version, strict=True) == version
    wrong = {**manifests["Service"], "spec": {"selector": 7}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.usefixtures("tokens")
def test_manifests_fit_the_service_and_each_other(
    manifests: dict[str, Any], tmp_path: Path
) -> None:
    settings = tmp_path / "serve.toml"
    settings.write_text(manifests["ConfigMap"]["data"]["serve.toml"])
    config = Config.read(settings)
    pod = manifests["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["ports"][0]["containerPort"] == config.port
    labels = pod["metadata"]["labels"]
    for selector in (
        manifests["Deployment"]["spec"]["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    readiness = container["readinessProbe"]
    assert readiness["httpGet"]["path"] == "/readyz"
    assert config.drain > readiness["periodSeconds"] * readiness["failureThreshold"]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= config.drain + 20
    # the watchdog replaces a hung worker before the probe restarts the pod
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > config.watchdog
    wanted = set(re.findall(r'env:(\w+)"', settings.read_text())) | {"EQUIPOISE_STORE"}
    assert {entry["name"] for entry in container["env"]} == wanted
    comment = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8").partition("apiVersion")[0]
    for entry in container["env"]:
        assert f"--from-literal={entry['valueFrom']['secretKeyRef']['key']}=" in comment
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["spec"]["volumes"]}
    recipe = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    for path in (
        mounts["settings"],
        mounts["kernels"],
        str(pod["spec"]["securityContext"]["runAsUser"]),
    ):
        assert path in recipe
    folder = config.models["default"]
    assert folder.startswith(mounts["models"])
    job = manifests["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert f"equipoise update {folder}" in job["containers"][0]["command"][-1]


@pytest.fixture(scope="module")
def expressions() -> dict[str, list[str]]:
    """Return the expressions of the alerts and of the dashboard."""
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text(encoding="utf-8"))
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return {
        "rules": [rule["expr"] for group in rules["groups"] for rule in group["rules"]],
        "dashboard": [
            target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
        ],
    }


def names_in(expression: str) -> set[str]:
    """Return the metrics of an expression."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\"[^\"]*\"", " ", expression)
    return set(re.findall(r"[a-z_]+", bare)) - WORDS


def test_alerts_and_panels_use_metrics_that_the_service_has(
    served: Serve, expressions: dict[str, list[str]], models: Path
) -> None:
    api = served(models={"default": str(models / "dan")})
    click(api, "new", 3, "unheard of")
    api.get("/v1/recommend/new")
    api.post("/v1/admin/reload")
    DriftMetrics(api.telemetry).update(api.state, api.state.models.values())
    text = api.get("/metrics").text
    known = set(re.findall(r"^([a-z_]+)(?:\{| )", text, re.MULTILINE))
    labels = set(re.findall(r'(\w+)="', text)) | {"job"}
    for place, listed in expressions.items():
        assert len(listed) >= 10
        for expression in listed:
            assert names_in(expression) <= known | FOREIGN, (place, expression)
            assert names_in(expression), expression
            assert set(re.findall(r'(\w+)=~?"', expression)) <= labels, expression
            assert expression.count("(") == expression.count(")")
    drawn = set().union(*map(names_in, expressions["dashboard"]))
    assert {name for name in known if name.startswith("equipoise_drift")} <= drawn


def test_alerts_and_panels_are_complete() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text(encoding="utf-8"))
    (group,) = rules["groups"]
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    assert all(panel["title"] and panel["description"] for panel in panels)


def test_the_unit_and_the_compose_file_wait_for_the_drain() -> None:
    drain = tomllib.loads((DEPLOY / "serve.toml").read_text(encoding="utf-8"))["drain"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    grace = int(compose["services"]["service"]["stop_grace_period"].removesuffix("s"))
    unit = (DEPLOY / "equipoise.service").read_text(encoding="utf-8")
    stop = int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0])
    assert min(grace, stop) > drain + 20
