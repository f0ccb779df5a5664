"""The Kubernetes manifests: they fit the API's schemas, what they name exists, and they say the same as docker-compose.yml and the code."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from local import wheels
from local.settings import SERVICES

from . import kustomize

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "infra" / "kubernetes" / "overlays" / "one-cluster"
# The oldest version that somebody may run, and the newest there are schemas for.
VERSIONS = ("1.30", "1.37")
NAME = "app.kubernetes.io/name"
# What a pod has that a container on one machine has no use for.
ONLY_HERE = {"ESC_WORKER_THREADS"}
# Where the browser of whoever sits at the machine finds things.
ONLY_THERE = {"ESC_TRACE_URL"}
# Pods of others, with what they may come for.
OTHERS = {("prometheus", service, 8080) for service in SERVICES} | {("keda", "nats", 8222)}
PORTS = {"nats": 4222, "postgres": 5432, "valkey": 6379}


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.validator, yaml = _modules()
        cls.objects = kustomize.build(OVERLAY, yaml)
        cls.compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())

    def of(self, *kinds):
        return {one["metadata"]["name"]: one for one in self.objects if one["kind"] in kinds}

    def pods(self):
        """The pod templates by the name of what makes them."""
        return {name: one["spec"]["template"] for name, one in self.of("Deployment", "StatefulSet", "Job").items()}

    def settings(self, service):
        """What the container of a service is told in plain words."""
        container = _container(self.pods()[service])
        told = {}
        for source in container.get("envFrom", []):
            told.update(self.of("ConfigMap")[source["configMapRef"]["name"]]["data"])
        told.update({one["name"]: one.get("value") for one in container.get("env", [])})
        return told

    def test_every_object_fits_the_schema_of_its_kind(self):
        for version in VERSIONS:
            for one in self.objects:
                if one["kind"] != "ScaledObject":
                    plain = {key: value for key, value in one.items() if key != "files"}
                    self.validator.validate(plain, version, strict=True)

    def test_names_are_told_apart_and_what_is_named_exists(self):
        names = [(one["kind"], one["metadata"]["name"]) for one in self.objects]
        self.assertEqual(len(names), len(set(names)))
        claims, secrets, maps = self.of("PersistentVolumeClaim"), self.of("Secret"), self.of("ConfigMap")
        for owner, pod in self.pods().items():
            volumes = {one["name"] for one in pod["spec"]["volumes"]}
            spec = self.of("Deployment", "StatefulSet", "Job")[owner]["spec"]
            volumes |= {one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", [])}
            for volume in pod["spec"]["volumes"]:
                if "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims, owner)
                if "secret" in volume:
                    self.assertIn(volume["secret"]["secretName"], secrets, owner)
            container = _container(pod)
            self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, volumes, owner)
            for source in container.get("envFrom", []):
                self.assertIn(source["configMapRef"]["name"], maps, owner)

    def test_every_selector_finds_the_pods_that_it_means(self):
        pods = {name: pod["metadata"]["labels"] for name, pod in self.pods().items()}
        for kind in ("Deployment", "StatefulSet", "PodDisruptionBudget", "Service"):
            for name, one in self.of(kind).items():
                wanted = one["spec"]["selector"]
                wanted = wanted if kind == "Service" else wanted["matchLabels"]
                found = [owner for owner, labels in pods.items() if wanted.items() <= labels.items()]
                self.assertEqual(found, [name], kind)
        self.assertEqual(set(self.of("PodDisruptionBudget")), set(SERVICES))
        for service in self.of("Service").values():
            ports = {port["name"] for port in _container(self.pods()[service["metadata"]["name"]])["ports"]}
            self.assertLessEqual({port["targetPort"] for port in service["spec"]["ports"]}, ports)

    def test_no_pod_may_more_than_its_work_needs(self):
        for owner, pod in self.pods().items():
            spec, own = pod["spec"], _container(pod)["securityContext"]
            self.assertIs(spec["automountServiceAccountToken"], False, owner)
            self.assertIs(spec["securityContext"]["runAsNonRoot"], True, owner)
            self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"}, owner)
            self.assertEqual(own["capabilities"], {"drop": ["ALL"]}, owner)
            self.assertEqual((own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]), (False, True), owner)
            resources = _container(pod)["resources"]
            self.assertTrue({"cpu", "memory"} <= set(resources["requests"]) and "memory" in resources["limits"], owner)

    def test_services_are_as_their_containers_are(self):
        dockerfile = (ROOT / "infra" / "docker" / "Dockerfile").read_text()
        user, port = int(re.search(r"--uid (\d+)", dockerfile)[1]), int(re.search(r"EXPOSE (\d+)", dockerfile)[1])
        self.assertIn(f"ESC_LISTEN=0.0.0.0:{port}", dockerfile)
        for service in SERVICES:
            container, pod = self.compose["services"][service], self.pods()[service]
            own = _container(pod)
            self.assertEqual(own["image"], container["image"])
            self.assertEqual(pod["spec"]["securityContext"]["runAsUser"], user)
            self.assertEqual([one["containerPort"] for one in own["ports"]], [port])
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                self.assertEqual(own[probe]["httpGet"]["port"], own["ports"][0]["name"])
            self.assertEqual(own["readinessProbe"]["httpGet"]["path"], "/readyz")
            self.assertEqual(f"{pod['spec']['terminationGracePeriodSeconds']}s", container["stop_grace_period"])
            mounted = {mount["mountPath"]: mount["name"] for mount in own["volumeMounts"]}
            volumes = dict(reversed(line.split(":")[:2]) for line in container["volumes"])
            secrets = {f"secrets-{service}": "secrets"}
            self.assertEqual(mounted, {path: secrets.get(name, name) for path, name in volumes.items()} | {"/tmp": "tmp"})

    def test_services_are_told_what_their_containers_are_and_nothing_that_they_do_not_know(self):
        for service in SERVICES:
            told = self.settings(service)
            wanted = self.compose["services"][service].get("environment", {})
            self.assertEqual(set(told) - ONLY_HERE, set(wanted) - ONLY_THERE, service)
            for key, value in told.items():
                plain = re.sub(r"\$\{\w+:-(.*)\}", r"\1", wanted[key] or "") if key in wanted else value
                self.assertEqual(value or "", plain, key)
            unknown = {key for key in told if key.startswith("ESC_")} - _keys(service)
            self.assertEqual(unknown, set(), service)

    def test_parts_are_as_their_containers_are(self):
        for part in PORTS:
            container, own = self.compose["services"][part], _container(self.pods()[part])
            self.assertEqual((own["image"], own["args"]), (container["image"], container["command"]))
            told = {one["name"]: one["value"] for one in own.get("env", [])}
            self.assertEqual(told, container.get("environment", {}))
            mounted = {mount["mountPath"] for mount in own["volumeMounts"]}
            self.assertLessEqual({line.split(":")[1] for line in container["volumes"]}, mounted)
            self.assertIn(PORTS[part], [port["containerPort"] for port in own["ports"]])

    def test_each_pod_has_the_secrets_that_are_made_for_it(self):
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "SECRETS_DIR": folder, "ESC_NATS_MONITOR": "0.0.0.0:8222"}
            subprocess.run([sys.executable, str(ROOT / "infra" / "docker" / "init")], env=env, check=True)
            made = {str(file.relative_to(folder)) for file in Path(folder).rglob("*") if file.is_file()}
            self.assertIn('http: "0.0.0.0:8222"', (Path(folder) / "nats" / "nats.conf").read_text())
        used = set()
        for name, secret in self.of("Secret").items():
            for path in secret["files"]:
                self.assertTrue(path.startswith(f"secrets/{name.removeprefix('escapement-')}/"), path)
                used.add(path.removeprefix("secrets/"))
        self.assertEqual(used, made - {"own/secrets.json"})
        for owner, pod in self.pods().items():
            named = [volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume]
            self.assertEqual(named, ["escapement-esc" if owner == "agents" else f"escapement-{owner}"])

    def test_the_network_lets_through_what_is_used_and_nothing_else(self):
        allowed = self._allowed("egress"), self._allowed("ingress")
        inside = set(self.pods())
        used = {(service, part, port) for service in (*SERVICES, "migrate") for part, port in PORTS.items()}
        used |= {(service, "artifact", 8080) for service in SERVICES if _asks_artifact(service)}
        used.add(("agents", "ingress", 8080))
        out = used | {(service, "jaeger", 4317) for service in SERVICES}
        out |= {(one, "world", 443) for one in ("planner", "approval")} | {("tool-executor", "world", None)}
        if "ESC_PROMETHEUS_URL" in self.settings("tool-executor"):
            out.add(("tool-executor", "prometheus", 9090))
        self.assertEqual(allowed[0], out)
        # Whoever is let out is let in; besides, everybody may come to the public door.
        everybody = ("anybody", "ingress", 8080)
        self.assertEqual(allowed[1] - {everybody}, OTHERS | {edge for edge in used if edge[1] != "ingress"})
        self.assertIn(everybody, allowed[1])
        closed = [one for one in self.of("NetworkPolicy").values() if set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"}]
        chosen = {name for one in closed for name in self._chosen(one["spec"]["podSelector"])}
        self.assertEqual(chosen, inside, "what no policy chooses may do everything")

    def _allowed(self, way):
        """Who may talk to whom at what port, names aside: (from, to, port)."""
        edges = set()
        for policy in self.of("NetworkPolicy").values():
            own = self._chosen(policy["spec"]["podSelector"])
            for rule in policy["spec"].get(way, []):
                ports = [port["port"] for port in rule.get("ports", [])] or [None]
                for peer in self._peers(rule.get("to" if way == "egress" else "from")):
                    pairs = [(one, peer) if way == "egress" else (peer, one) for one in own]
                    edges |= {(*pair, port) for pair in pairs for port in ports if port != 53}
        return edges

    def _peers(self, peers):
        if peers is None:
            return {"anybody"}
        found = set()
        for peer in peers:
            if "ipBlock" in peer:
                found.add("world")
            elif "podSelector" not in peer:
                found.add(peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"])
            else:
                selector = peer["podSelector"]
                expressions = selector.get("matchExpressions", [])
                named = [selector.get("matchLabels", {}).get(NAME)] if not expressions else expressions[0]["values"]
                found |= {name for name in named if name}
        return found

    def _chosen(self, selector):
        chosen = set()
        for owner, pod in self.pods().items():
            labels = pod["metadata"]["labels"]
            if selector.get("matchLabels", {}).items() <= labels.items() and all(
                one["operator"] == "In" and labels.get(one["key"]) in one["values"]
                for one in selector.get("matchExpressions", [])
            ):
                chosen.add(owner)
        named = [name for one in selector.get("matchExpressions", []) for name in one["values"]]
        self.assertLessEqual(set(named), set(self.pods()), "a policy for nobody")
        return chosen

    def test_scaling_asks_for_consumers_that_exist(self):
        streams = json.loads((ROOT / "infra" / "nats" / "permissions.json").read_text())
        namespace = self.of("Namespace").popitem()[0]
        for name, scaled in self.of("ScaledObject").items():
            spec = scaled["spec"]
            self.assertEqual(spec["scaleTargetRef"], {"name": name})
            self.assertNotIn("replicas", self.of("Deployment")[name]["spec"], "two would set it")
            self.assertTrue(2 <= spec["minReplicaCount"] <= spec["maxReplicaCount"])
            lags = [one["metadata"] for one in spec["triggers"] if one["type"] == "nats-jetstream"]
            self.assertTrue(lags)
            for lag in lags:
                self.assertEqual(lag["natsServerMonitoringEndpoint"], f"nats.{namespace}.svc:8222")
                self.assertIn(lag["consumer"], streams["users"][name]["consumes"][lag["stream"]])
                self.assertGreater(int(lag["lagThreshold"]), 0)
        fixed = set(SERVICES) - set(self.of("ScaledObject"))
        self.assertTrue(all(self.of("Deployment")[name]["spec"]["replicas"] for name in fixed))

    def test_kustomizations_name_every_file_beside_them(self):
        _, yaml = _modules()
        for folder in (OVERLAY, ROOT / "infra" / "kubernetes" / "base"):
            spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
            named = set(spec["resources"]) | {patch["path"] for patch in spec.get("patches", [])}
            beside = {file.name for file in folder.glob("*.yaml")} - {"kustomization.yaml"}
            self.assertEqual(beside, {name for name in named if not name.startswith("..")})


class Rendering(unittest.TestCase):
    def test_a_patch_is_laid_over_by_the_names_of_what_it_changes(self):
        under = {"containers": [{"name": "a", "image": "x", "env": [{"name": "A", "value": "1"}]}], "args": ["a"]}
        over = {"containers": [{"name": "a", "env": [{"name": "B", "value": "2"}]}], "args": ["b"], "new": {"c": 1}}
        both = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
        wanted = {"containers": [{"name": "a", "image": "x", "env": both}], "args": ["b"], "new": {"c": 1}}
        self.assertEqual(kustomize.merged(under, over), wanted)


def _modules():
    """What knows the schemas of Kubernetes's API, and what reads YAML."""
    return wheels.load("kubernetes-validate", "1.37.0", ROOT / ".local" / "parts", "kubernetes_validate", "yaml")


def _container(pod):
    [container] = pod["spec"]["containers"]
    return container


def _keys(service):
    """The settings that a service knows, from its code, and what the shipped tools name for whoever carries them out."""
    tools = [file.read_text() for file in (ROOT / "infra" / "agents" / "tools").glob("*.yaml")]
    named = {name for text in tools for name in re.findall(r"\{env:(\w+)\}", text)} if service == "tool-executor" else set()
    files = [ROOT / "shared" / "service" / "src" / "config" / "common.rs", ROOT / "services" / service / "src" / "config.rs"]
    return named | {f"ESC_{name.upper()}" for file in files for name in re.findall(r"^    pub ([a-z_]+):", file.read_text(), re.M)}


def _asks_artifact(service):
    sources = (ROOT / "services" / service / "src").rglob("*.rs")
    return any("common.artifact_url" in re.sub(r"\s", "", file.read_text()) for file in sources)


if __name__ == "__main__":
    unittest.main()
