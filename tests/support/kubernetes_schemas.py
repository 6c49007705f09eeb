"""Objects of Kubernetes against the schemas of Kubernetes itself, and of Dask's operator."""

from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

VERSIONS = ("1.31", "1.37")
_CUSTOM = ("DaskJob", "DaskCluster")


def check(document: dict[str, Any]) -> None:
    """Fail where an object has a key that there is not, lacks one that must be, or has a value of another type."""
    if document["kind"] in _CUSTOM:
        jsonschema.Draft202012Validator(_custom_schema(document["kind"])).validate(document)
        return
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


@cache
def _custom_schema(kind: str) -> dict[str, Any]:
    """The operator's schema of its own objects, with pods as Kubernetes 1.21 had them; unknown keys are errors."""
    charts = files("dask_kubernetes.operator") / "deployment" / "helm" / "dask-kubernetes-operator" / "crds"
    definition = yaml.safe_load((charts / f"{kind.lower()}.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"] |= {key: {} for key in ("apiVersion", "kind", "metadata")}
    return _strict(schema)


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema and "additionalProperties" not in schema:
        strict["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        strict |= {"type": ["integer", "string"]}
    return strict
