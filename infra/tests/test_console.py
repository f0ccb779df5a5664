"""The console in a real browser: what people do there, and what happens to them when the line does."""

import hashlib
import hmac
import json
import os
import re
import subprocess
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from local import Problem
from local import browser, nats_client
from main_job.api import Api

from .own import ROOT, own_stack

LONG = bool(os.environ.get("ESC_TEST_LONG"))
# More than the console reads at once, and in the long form as many as a run of months.
MANY_EVENTS = 10_000 if LONG else 1_500

_TOOL = """\
name: console.send
description: Sends a word to the outside for good.
effect: destructive
idempotent: true
timeout: 60s
input:
  type: object
  required: [word]
  additionalProperties: false
  properties:
    word: {{ type: string, description: "What to send", x-matters: true }}
run:
  http:
    method: POST
    url: "{url}/send"
    body: {{ word: "{{word}}" }}
    allow_private: true
"""

_AGENTS = {
    "asker": "tools: [console.send]",
    "sleeper": "tools: []",
    "keeper": 'tools: []\ntriggers:\n  - on: shop.order\n    start: { input: "See to the order." }',
}

_HOOK = """\
scheme: hmac
secrets: [secret:CONSOLE_HOOK]
source: shop
hmac: { header: x-signature, event: x-event }
"""
_HOOK_SECRET = "a secret of the shop and us"

_SCENARIOS = {
    "asker": """\
name: asker
description: Wants to send a word, which a person must allow, and ends.
steps:
  - name: send
    when: {turn: 1}
    text: "I would send a word."
    calls: [{tool: console.send, arguments: {word: stranger}}]
  - name: end
    when: {turn: "2.."}
    calls: [{tool: complete, arguments: {summary: "The word is out."}}]
""",
    "keeper": """\
name: keeper
description: Is done at once.
steps:
  - name: end
    calls: [{tool: complete, arguments: {summary: "It is on its way."}}]
""",
    "sleeper": """\
name: sleeper
description: Waits for what does not come.
steps:
  - name: wait
    calls:
      - tool: wait_for
        arguments: {external: {source: nowhere, type: never, subject: "x"}, why: "It is quiet."}
""",
}


class Pictures(unittest.TestCase):
    def test_the_readme_shows_them_and_none_is_large(self):
        """`infra/screenshots` makes them anew."""
        shown = re.findall(r"\((services/ingress/screenshots/[\w.-]+)\)", (ROOT / "README.md").read_text())
        there = (ROOT / "services" / "ingress" / "screenshots").iterdir()
        self.assertEqual(sorted(shown), sorted(str(path.relative_to(ROOT)) for path in there))
        self.assertEqual(len(shown), 3)
        for path in shown:
            picture = (ROOT / path).read_bytes()
            self.assertEqual((picture[:4], picture[8:12]), (b"RIFF", b"WEBP"), path)
            self.assertLess(len(picture), 150_000, path)


class Outside:
    """What a run sends to the outside is kept here."""

    def __init__(self):
        self.received = []
        outside = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outside.received.append(json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}"))
                data = b"{}"
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Console(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            program = browser.chromium()
            browser.playwright(ROOT / ".local" / "tools")
        except Problem as problem:
            raise unittest.SkipTest(str(problem))
        from playwright.sync_api import expect, sync_playwright

        expect.set_options(timeout=60_000)
        cls.expect = staticmethod(expect)
        cls.outside = Outside()
        cls.addClassCleanup(cls.outside.server.shutdown)
        cls.start_stack()
        driver = sync_playwright().start()
        cls.addClassCleanup(driver.stop)
        cls.browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        cls.addClassCleanup(cls.browser.close)

    @classmethod
    def start_stack(cls):
        # The programs as the tests before this have built them.
        os.environ.setdefault("ESC_PROFILE", "dev")
        stack = cls.stack = own_stack(cls, "console")
        state = stack.state
        for kind in ("agents", "tools", "scenarios", "hooks"):
            (state / "agents" / kind).mkdir(parents=True)
        (state / "agents" / "hooks" / "orders.yaml").write_text(_HOOK)
        (state / "agents" / "tools" / "console.send.yaml").write_text(_TOOL.format(url=cls.outside.url))
        for name, more in _AGENTS.items():
            text = f"name: {name}\nmodel: scripted:{name}\ninstructions: Do as the script says.\n{more}\n"
            (state / "agents" / "agents" / f"{name}.yaml").write_text(text)
        for name, text in _SCENARIOS.items():
            (state / "agents" / "scenarios" / f"{name}.yaml").write_text(text)
        stack.start_parts()
        stack.migrate()
        settings = {
            "ESC_AGENTS_DIR": str(state / "agents"), "ESC_LOG": "warn", "ESC_SECRET_CONSOLE_HOOK": _HOOK_SECRET,
            "ESC_TRACE_URL": "http://traces.invalid/trace/{trace_id}",
        }
        stack.start_services(env=settings)
        files = sorted((state / "agents" / "agents").glob("*.yaml"))
        stack.esc("agents", "apply", *map(str, files), env=stack.env())
        cls.api = Api(stack.env())

    def setUp(self):
        self.troubles = []
        self.context = self.browser.new_context()
        self.addCleanup(self.context.close)
        self.context.set_default_timeout(60_000)

    def page(self):
        """A page of a person who has signed in."""
        page = self.context.new_page()
        host = urlsplit(self.stack.env()["ESC_URL"]).netloc
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("request", lambda asked: urlsplit(asked.url).netloc == host or self.troubles.append(asked.url))
        page.goto(self.stack.env()["ESC_URL"] + "/")
        token = page.get_by_label(re.compile("token", re.I))
        page.locator("nav[aria-label=Pages], form").first.wait_for()
        if token.count():
            token.fill(self.stack.env()["ESC_TOKEN"])
            token.press("Enter")
        page.get_by_role("navigation", name="Pages").wait_for()
        return page

    def tearDown(self):
        self.assertEqual(self.troubles, [], "no script failed, and nobody else was asked for anything")

    def start(self, agent):
        return self.api.post("/v1/runs", {"agent": agent, "input": f"Go, {agent}."})["run_id"]

    def wait(self, run, status):
        deadline = time.monotonic() + 60
        while self.api.run(run)["status"] != status:
            self.assertLess(time.monotonic(), deadline, self.api.run(run))
            time.sleep(0.05)

    def seqs(self, page):
        """The numbers of the events on the page, in their order."""
        ids = page.locator("li.entry[id]").evaluate_all("all => all.map((one) => one.id)")
        return [int(one[1:]) for one in ids]

    def logged(self, run):
        return [event["seq"] for event in self.api.events(run)]

    def test_a_run_is_started_watched_and_allowed_with_an_edit(self):
        page = self.page()
        page.get_by_role("button", name="Start a run").click()
        form = page.get_by_role("dialog")
        form.get_by_label("Agent").select_option("asker")
        form.get_by_label("Input").fill("Send a word.")
        form.get_by_role("button", name="Start", exact=True).click()
        self.expect(page.get_by_text("asks a person")).to_be_visible()
        run = re.search(r"#/runs/([\w-]+)", page.url)[1]

        other = self.page()
        other.get_by_role("link", name=re.compile("Approvals")).click()
        card = other.locator("article.card", has_text="console.send")
        self.expect(card.get_by_role("cell", name="stranger")).to_be_visible()
        card.get_by_role("button", name="Edit the arguments").click()
        card.get_by_label("Arguments, as they shall be").fill('{"word": "friend"}')
        card.get_by_role("button", name="Approve as edited").click()
        self.expect(card).to_have_count(0)

        # The first page saw it happen without being asked to look again.
        self.expect(page.locator(".ending.completed")).to_be_visible()
        self.assertEqual(self.outside.received, [{"word": "friend"}])
        self.assertEqual(self.seqs(page), self.logged(run))

    def test_a_run_that_sleeps_says_what_for_and_can_be_cancelled(self):
        run = self.start("sleeper")
        self.wait(run, "waiting")
        page = self.page()
        page.get_by_role("link", name="Waiting").click()
        self.expect(page.get_by_text("It is quiet.").first).to_be_visible()
        page.goto(f"{self.stack.env()['ESC_URL']}/#/runs/{run}")
        self.expect(page.get_by_text("nothing runs, nothing is paid for")).to_be_visible()
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Cancel the run").click()
        self.expect(page.locator(".title .status")).to_have_text("cancelled")
        self.wait(run, "cancelled")

    def test_a_turn_is_taken_anew_in_a_fork_which_says_what_it_is(self):
        run = self.start("sleeper")
        self.wait(run, "waiting")
        page = self.page()
        page.goto(f"{self.stack.env()['ESC_URL']}/#/runs/{run}")
        page.get_by_role("link", name="what it saw").click()
        turn = page.get_by_role("dialog", name="Turn 1")
        turn.get_by_text("Take this turn anew").click()
        turn.get_by_label("What it is told").fill("Mind the gap.")
        turn.get_by_role("button", name="Fork", exact=True).click()

        beginning = page.get_by_role("region", name="How it began")
        self.expect(beginning).to_contain_text("effects are simulated")
        self.expect(beginning).to_contain_text("operator")
        self.expect(page.locator("li.entry", has_text="goes on from turn 1 of another run")).to_be_visible()
        fork = re.search(r"#/runs/([\w-]+)", page.url)[1]
        self.assertNotEqual(fork, run)
        self.assertEqual(self.api.run(fork)["origin"], {"run_id": run, "turn": 1, "effects": False})
        beginning.get_by_role("link", name="turn 1").click()
        self.expect(page.get_by_role("dialog", name="Turn 1")).to_be_visible()
        self.assertIn(run, page.url, "it leads back to the run that it goes on from")
        self.expect(page.get_by_role("region", name="How it began")).not_to_contain_text("Fork of")

    def test_a_run_that_a_webhook_began_says_so_and_leads_there(self):
        body = json.dumps({"subject": "orders/7", "data": {"hook": "not this one"}}).encode()
        signature = hmac.new(_HOOK_SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": "application/json", "X-Event": "order", "X-Signature": signature}
        url = f"{self.stack.env()['ESC_URL']}/v1/hooks/orders"
        with urlopen(Request(url, data=body, headers=headers), timeout=60) as answer:
            self.assertEqual(answer.status, 202)
        deadline = time.monotonic() + 60
        while not (runs := self.api.runs("keeper")):
            self.assertLess(time.monotonic(), deadline, "the webhook began no run")
            time.sleep(0.05)
        page = self.page()
        page.goto(f"{self.stack.env()['ESC_URL']}/#/runs/{runs[0]['run_id']}")
        beginning = page.get_by_role("region", name="How it began")
        self.expect(beginning).to_contain_text("shop:orders/7")
        self.expect(beginning).to_contain_text("by the webhook orders")
        beginning.get_by_role("link", name="shop.order").click()
        why = page.get_by_role("dialog", name=re.compile("Why did event 1"))
        self.expect(why.locator(".origins")).to_contain_text("shop.order from shop")
        why.get_by_role("button", name="Close").click()
        beginning.get_by_role("link", name="keeper").click()
        self.expect(page.get_by_role("article")).to_have_count(1)
        self.expect(page.get_by_role("article", name="keeper")).to_contain_text("wakes on shop.order")

    def test_two_tabs_a_reload_and_a_lost_line_show_every_event_once(self):
        run = self.start("sleeper")
        self.wait(run, "waiting")
        first, second = self.page(), self.page()
        for page in (first, second):
            page.goto(f"{self.stack.env()['ESC_URL']}/#/runs/{run}")
            self.expect(page.locator(".line.live")).to_be_visible()
        self.api.post(f"/v1/runs/{run}/messages", {"text": "one"})
        for page in (first, second):
            self.expect(page.locator("li.entry", has_text="one").first).to_be_visible()
        second.reload()
        # A slow line, then none at all; meanwhile things happen.
        network = self.context.new_cdp_session(first)
        network.send("Network.enable")
        slow = {"latency": 400, "downloadThroughput": 20_000, "uploadThroughput": 20_000}
        network.send("Network.emulateNetworkConditions", {"offline": False, **slow})
        self.api.post(f"/v1/runs/{run}/messages", {"text": "two"})
        self.expect(first.locator("li.entry", has_text="two").first).to_be_visible()
        self.stack.restart("ingress")
        self.api.post(f"/v1/runs/{run}/messages", {"text": "three"})
        for page in (first, second):
            self.expect(page.locator("li.entry", has_text="three").first).to_be_visible(timeout=120_000)
        last = self.logged(run)[-1]
        for page in (first, second):
            self.expect(page.locator(f"#e{last}")).to_be_attached(timeout=120_000)
            seqs = self.seqs(page)
            self.assertEqual(seqs, self.logged(run)[: len(seqs)])

    def test_a_long_run_opens_at_its_end_and_goes_back_to_its_start(self):
        run = self.start("sleeper")
        self.wait(run, "waiting")
        self.api.post(f"/v1/runs/{run}/pause", {})
        self.wait(run, "paused")
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda number: self.api.post(f"/v1/runs/{run}/messages", {"text": f"word {number}"}), range(MANY_EVENTS)))
        logged = self.logged(run)
        page = self.page()
        page.goto(f"{self.stack.env()['ESC_URL']}/#/runs/{run}")
        self.expect(page.locator(f"#e{logged[-1]}")).to_be_attached()
        self.assertLess(len(self.seqs(page)), len(logged), "not all at once")
        for _ in range(MANY_EVENTS):
            # What was read is drawn first; then more is read, which by itself draws nothing.
            drawn = page.get_by_role("button", name=re.compile("^Show .* more of"))
            if drawn.count():
                shown = len(self.seqs(page))
                drawn.click()
                self.expect(page.locator("li.entry[id]")).not_to_have_count(shown)
            elif page.get_by_role("button", name="Show earlier events").count():
                page.get_by_role("button", name="Show earlier events").click()
                drawn.or_(page.locator("#e1")).first.wait_for()
            else:
                break
        self.assertEqual(self.seqs(page), logged)

    def test_a_run_says_where_its_trace_is_and_what_waking_it_cost(self):
        run = self.start("sleeper")
        self.wait(run, "waiting")
        trace = self.api.run(run)["trace_id"]
        page = self.page()
        page.goto(f"{self.stack.env()['ESC_URL']}/#/runs/{run}")
        self.expect(page.get_by_role("link", name=trace)).to_have_attribute("href", f"http://traces.invalid/trace/{trace}")
        self.expect(page.get_by_role("complementary")).to_contain_text("never of nowhere:x")
        page.get_by_role("link", name="what waking cost and saved").click()
        figures = page.get_by_role("dialog", name="What waking cost and saved")
        self.expect(figures.get_by_role("row", name=re.compile("^lines read"))).to_contain_text("0")
        figures.get_by_role("button", name="Close").click()
        page.get_by_role("link", name="Costs").click()
        self.expect(page.get_by_role("region", name="Waking").get_by_role("link").first).to_be_visible()
        self.api.post(f"/v1/runs/{run}/cancel", {})
        words = [str(self.stack.program("esc")), "tail", "--trace", run]
        told = subprocess.run(words, env={**os.environ, **self.stack.env()}, capture_output=True, text=True, timeout=60)
        self.assertEqual(told.returncode, 1, "it was cancelled, which is no good end")
        self.assertIn(f"trace {trace}  http://traces.invalid/trace/{trace}", told.stdout.splitlines()[0])

    def test_an_agent_shows_its_versions(self):
        page = self.page()
        page.get_by_role("link", name="Agents").click()
        card = page.get_by_role("article", name="sleeper")
        card.get_by_text("Its versions").click()
        self.expect(card.get_by_text("new runs start with it")).to_be_visible()

    def test_a_dead_letter_is_read_and_published_again(self):
        subject = "in.default.shop.order"
        user, password = "publisher", self.stack.credentials.nats["publisher"]
        nats_client.request(self.stack.ports["nats"], user, password, subject, "no event", seconds=60)
        page = self.page()
        page.get_by_role("link", name="Health").click()
        letters = page.get_by_role("region", name="Dead letters")
        again = letters.get_by_role("button", name=re.compile("^Again: in.default.shop.order"))
        self.expect(again).to_have_count(1)
        first = again.get_attribute("aria-label")
        again.click()
        # It is still no event: it comes back under another number.
        self.expect(letters.get_by_role("button", name=first)).to_have_count(0)
        self.expect(again).to_have_count(1)

    def test_every_page_opens_by_keyboard_and_names_its_fields(self):
        page = self.page()
        page.keyboard.press("Tab")
        self.expect(page.get_by_text("Skip to the content")).to_be_focused()
        pages = page.get_by_role("navigation", name="Pages").get_by_role("link")
        for number in range(pages.count()):
            link = pages.nth(number)
            link.focus()
            page.keyboard.press("Enter")
            self.expect(link).to_have_attribute("aria-current", "page")
            self.expect(page.get_by_role("heading", level=1)).to_be_visible()
            page.wait_for_load_state("networkidle")
            self.assertEqual(page.get_by_role("alert").all_text_contents(), [], link.text_content())
            unnamed = page.locator("input, select, textarea, button").evaluate_all(
                "all => all.filter((one) => !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim())).length"
            )
            self.assertEqual(unnamed, 0, link.text_content())

    def test_the_kill_switch_is_thrown_and_lifted(self):
        page = self.page()
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("link", name="Health").click()
        page.get_by_label("Scope").fill("agent:asker")
        page.get_by_label("Reason").fill("a test")
        page.get_by_role("button", name="Freeze").click()
        self.expect(page.get_by_text("agent:asker is frozen")).to_be_visible()
        page.get_by_role("button", name="Lift it").click()
        self.expect(page.get_by_text("Nothing is frozen.")).to_be_visible()


if __name__ == "__main__":
    unittest.main()
