"""The dashboards and alerts, against the metrics that the code reports: what asks for a name that nobody exports is silent."""

import json
import re
import unittest
from pathlib import Path

from local import wheels

ROOT = Path(__file__).resolve().parent.parent.parent
DASHBOARDS = sorted((ROOT / "infra" / "grafana" / "dashboards").glob("*.json"))
ALERTS = ROOT / "infra" / "otel" / "alerts.yml"

# What Prometheus itself says of each target.
BUILT_IN = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
# What the scrape adds to every metric (`infra/otel/prometheus.yml` sets `service`), and a histogram to its buckets.
ADDED = {"service", "instance", "job", "le"}
WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}

_USE = re.compile(r'\b(counter|gauge|histogram)!\(\s*"([a-z_0-9]+)"')
_PROCESS = re.compile(r'add\("(process_[a-z_]+)"')
# As an argument of the macro, as a pair for it, and as `Label::new` takes it.
_LABEL = re.compile(r'"([a-z_]+)"\s*=>|\(\s*"([a-z_]+)"\s*,')


def reported():
    """What the code reports: the names as the exporter gives them, each with the labels that may come with it."""
    metrics = {}
    for crate in ("shared", "services"):
        for path in sorted((ROOT / crate).glob("**/src/**/*.rs")):
            text = path.read_text()
            labels = {one or other for one, other in _LABEL.findall(text)} | ADDED
            for kind, name in _USE.findall(text):
                for exported in _exported(kind, name):
                    metrics.setdefault(exported, set()).update(labels)
            for name in _PROCESS.findall(text):
                metrics.setdefault(name, set()).update(ADDED)
    return metrics


def _exported(kind, name):
    if kind != "histogram":
        return [name]
    # Those with bounds (`shared/service/src/metrics.rs`) have buckets; the others are summaries.
    bounded = name.endswith(("_seconds", "_size"))
    return [f"{name}_sum", f"{name}_count", f"{name}_bucket" if bounded else name]


def asked(expression):
    """The metrics that an expression names, each with the labels that it selects by; and the labels that it groups by."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    grouped = set()
    for listed in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", text):
        grouped.update(re.findall(r"[a-zA-Z_]\w*", listed))
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    text = re.sub(r"\[[^\]]*\]", " ", text)
    metrics = {}
    for name, call, selected in re.findall(r"(?<![\w.$])([a-zA-Z_:]\w*)\s*(?:(\()|\{([^}]*)\})?", text):
        if not call and name not in WORDS:
            metrics.setdefault(name, set()).update(re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!=|!~|=)", selected))
    return metrics, grouped


def panels(dashboard):
    """All panels, also those within rows."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panels({"panels": panel.get("panels", [])})


def troubles(expression, metrics):
    """What is wrong with an expression."""
    named, grouped = asked(expression)
    if not named:
        return ["it names no metric"]
    found = [f"nobody reports `{name}`" for name in named if name not in metrics and name not in BUILT_IN]
    for name, selected in named.items():
        known = metrics.get(name, ADDED)
        found += [f"`{name}` has no label `{label}`" for label in sorted((selected | grouped) - known)]
    return found


class Expressions(unittest.TestCase):
    def test_every_one_is_promql_with_types_that_fit(self):
        [promql] = wheels.load("promql-parser", "0.11.0", ROOT / ".local" / "parts", "promql_parser")
        for wrong in ("sum(rate(a_total))", "rate(sum(a_total)[5m])", "a_total unless"):
            self.assertRaises(ValueError, promql.parse, wrong)
        expressions = re.findall(r"^ +expr: (\S.*\S)$", ALERTS.read_text(), re.M)
        for path in DASHBOARDS:
            found = [target["expr"] for panel in panels(json.loads(path.read_text())) for target in panel.get("targets", [])]
            expressions += [expression.replace("$__rate_interval", "1m") for expression in found]
        self.assertGreater(len(expressions), 30)
        for expression in expressions:
            with self.subTest(expression):
                promql.parse(expression)

    def test_names_and_labels_are_told_from_the_rest(self):
        told = asked('histogram_quantile(0.9, sum by (kind, le) (rate(a_seconds_bucket{x="by (no)", y=~"1e6"}[5m] offset 1h))) / 1e6')
        self.assertEqual(told, ({"a_seconds_bucket": {"x", "y"}}, {"kind", "le"}))
        self.assertEqual(asked("sum(a_total) by (b) > bool max(c) or up == 0")[0].keys(), {"a_total", "c", "up"})

    def test_what_nobody_reports_is_found(self):
        metrics = {"a_total": {"kind", "service"}}
        self.assertEqual(troubles("rate(a_total[1m])", metrics), [])
        self.assertEqual(troubles("sum by (kind) (rate(a_total[1m]))", metrics), [])
        self.assertEqual(troubles("rate(b_total[1m])", metrics), ["nobody reports `b_total`"])
        self.assertEqual(troubles('sum by (sort) (a_total{of="x"})', metrics), ["`a_total` has no label `of`", "`a_total` has no label `sort`"])
        self.assertEqual(troubles("1 + 1", metrics), ["it names no metric"])


class Dashboards(unittest.TestCase):
    def test_there_are_some_and_code_reports_something(self):
        self.assertTrue(DASHBOARDS)
        metrics = reported()
        self.assertIn("engine_submit_seconds_bucket", metrics)
        self.assertNotIn("engine_batch_commands_bucket", metrics, "it has no bounds")
        self.assertIn("consumer", metrics["bus_consumed_messages_total"])

    def test_every_panel_asks_for_what_is_reported(self):
        metrics, wrong = reported(), []
        for path in DASHBOARDS:
            for panel in panels(json.loads(path.read_text())):
                for target in panel.get("targets", []):
                    place = f"{path.name}, `{panel['title']}`"
                    wrong += [f"{place}: {trouble} in `{target['expr']}`" for trouble in troubles(target["expr"], metrics)]
        self.assertEqual(wrong, [])

    def test_panels_can_be_told_apart(self):
        for path in DASHBOARDS:
            ids = [panel["id"] for panel in panels(json.loads(path.read_text()))]
            self.assertEqual(len(ids), len(set(ids)), path.name)


class Alerts(unittest.TestCase):
    def setUp(self):
        self.rules = ALERTS.read_text().split("      - alert: ")[1:]

    def test_every_alert_asks_for_what_is_reported_and_says_what_to_do(self):
        metrics, names = reported(), []
        for rule in self.rules:
            names.append(rule.split("\n")[0])
            expression = re.search(r"^ +expr: (\S.*\S)$", rule, re.M)[1]
            self.assertEqual(troubles(expression, metrics), [], names[-1])
            for opening, closing in ("()", "[]", "{}"):
                self.assertEqual(expression.count(opening), expression.count(closing), names[-1])
            self.assertRegex(rule, r'(?m)^ +summary: "', names[-1])
            self.assertRegex(rule, r'(?m)^ +remedy: "', names[-1])
            self.assertRegex(rule, r"severity: (page|ticket) ", names[-1])
        self.assertEqual(len(names), len(set(names)))
        self.assertGreater(len(names), 5)

    def test_each_has_a_case_in_which_it_is_raised_and_one_in_which_it_is_not(self):
        # `promtool` plays them (infra/otel/README.md); nobody is to forget one.
        cases = (ALERTS.parent / "alerts.test.yml").read_text()
        for rule in self.rules:
            name = rule.split("\n")[0]
            played = re.findall(rf"alertname: {name}\b(?: \}})?\n(\s+exp_alerts:)?", cases)
            self.assertTrue(any(played), name)
            self.assertIn("", played, name)

    def test_what_is_counted_seldom_shows_from_the_start(self):
        """An increase is a difference: of a counter that first shows with its first failure there is none."""
        code = "".join(path.read_text() for crate in ("shared", "services") for path in sorted((ROOT / crate).glob("**/src/**/*.rs")))
        shown = set(re.findall(r'announce\(&metrics::counter!\(\s*"(\w+)"', code)) | set(re.findall(r'\w+: counter!\(\s*"(\w+)"', code))
        seldom = {name for rule in self.rules for name in re.findall(r"increase\((\w+)[\[{]", rule)}
        self.assertLessEqual(seldom, shown)
        self.assertGreater(len(seldom), 4)

    def test_prometheus_is_given_them(self):
        self.assertIn("/etc/prometheus/alerts.yml", (ROOT / "infra" / "otel" / "prometheus.yml").read_text())
        self.assertIn("./infra/otel/alerts.yml:/etc/prometheus/alerts.yml:ro", (ROOT / "docker-compose.yml").read_text())


if __name__ == "__main__":
    unittest.main()
