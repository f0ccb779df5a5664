"""As much of kustomize as the manifests here use, and an error for all else: what it makes of them is what `kubectl apply -k` would apply,
but for the hashes at the ends of generated names."""

import copy

KNOWN = {"apiVersion", "kind", "resources", "patches", "namespace", "secretGenerator", "generatorOptions"}
# What tells the entries of these lists apart when a patch is laid over them; any other list is replaced.
MERGED = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
CLUSTER_WIDE = {"Namespace"}


def build(folder, yaml):
    """The objects that the kustomization in `folder` gives."""
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(spec) - KNOWN
    if unknown:
        raise ValueError(f"{folder}: {sorted(unknown)} is nothing that is rendered here")
    objects = []
    for name in spec.get("resources", []):
        path = folder / name
        objects += build(path, yaml) if path.is_dir() else [one for one in yaml.safe_load_all(path.read_text()) if one]
    objects += [_secret(one, spec.get("generatorOptions", {})) for one in spec.get("secretGenerator", [])]
    for patch in spec.get("patches", []):
        laid = yaml.safe_load((folder / patch["path"]).read_text())
        chosen = [one for one in objects if _matches(one, patch["target"])]
        if not chosen:
            raise ValueError(f"{folder}: nothing is what {patch['path']} is laid over")
        for one in chosen:
            one["spec"] = merged(one["spec"], laid["spec"])
    if "namespace" in spec:
        for one in objects:
            if one["kind"] not in CLUSTER_WIDE:
                one["metadata"]["namespace"] = spec["namespace"]
    return objects


def merged(under, over, name=None):
    """A strategic merge: maps by key, some lists by what names their entries, all else replaced."""
    if isinstance(under, dict) and isinstance(over, dict):
        both = {key: merged(under[key], value, key) if key in under else copy.deepcopy(value) for key, value in over.items()}
        return {**under, **both}
    if isinstance(under, list) and isinstance(over, list) and name in MERGED:
        by, laid = MERGED[name], {one[MERGED[name]]: one for one in over}
        kept = [merged(one, laid.pop(one[by])) if one[by] in laid else one for one in under]
        return kept + copy.deepcopy(list(laid.values()))
    return copy.deepcopy(over)


def _matches(one, target):
    key, _, value = target["labelSelector"].partition("=")
    return one["kind"] == target["kind"] and one["metadata"].get("labels", {}).get(key) == value


def _secret(spec, options):
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": spec["name"], "labels": dict(options.get("labels", {}))},
        "data": {path.rsplit("/", 1)[-1]: "" for path in spec["files"]},
        "type": "Opaque",
        "files": spec["files"],
    }
