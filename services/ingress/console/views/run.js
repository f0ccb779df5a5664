// One run, live: its story on the left, how it stands on the right.
import { html, useEffect, useReducer, useState } from "../html.js";
import { follow, get, idempotent, post, query } from "../api.js";
import { bytes, dollars, duration, number, seconds, when, words } from "../format.js";
import { Action, Ago, Empty, Meter, Status, Trouble, Trust, useNow } from "../ui.js";
import { Artifact } from "./artifact.js";
import { Beginning } from "./beginning.js";
import { Economics } from "./economics.js";
import { Output } from "./output.js";
import { Turn } from "./turn.js";
import { Why } from "./why.js";
import { Timeline } from "./timeline.js";

const PAGE = 1000;
const ENDED = ["completed", "failed", "cancelled"];
const START = { run: undefined, events: [], draft: "", state: "connecting", error: undefined };

/** How the page stands after something was heard. Events come in order and once each, whatever the line does. */
function step(now, [what, value]) {
  switch (what) {
    case "run": return { ...now, run: value, error: undefined };
    case "earlier": return { ...now, events: [...value, ...now.events] };
    case "events": {
      const last = now.events.at(-1)?.seq || 0;
      const fresh = value.filter((event) => event.seq > last);
      const turned = fresh.some((event) => event.type.startsWith("turn."));
      return fresh.length ? { ...now, events: [...now.events, ...fresh], draft: turned ? "" : now.draft } : now;
    }
    case "draft": return { ...now, draft: value };
    case "delta": {
      const bytes = new TextEncoder().encode(now.draft).length;
      // A piece that does not fit on to what is here belongs to another model call: it begins anew.
      if (value.text === undefined) return now;
      return { ...now, draft: value.offset === bytes ? now.draft + value.text : value.text };
    }
    case "state": return { ...now, state: value };
    case "error": return { ...now, error: value };
  }
  return now;
}

/** The run and its events: the newest page first, then whatever comes. */
function useRun(id) {
  const [page, tell] = useReducer(step, START);
  useEffect(() => {
    let stop = () => {};
    let over = false;
    let reading;
    // Events come many at a time; the run's own state is read again when they have settled.
    const read = () => {
      clearTimeout(reading);
      reading = setTimeout(() => get(`/v1/runs/${id}`).then((run) => tell(["run", run])).catch(() => {}), 150);
    };
    (async () => {
      try {
        const run = await get(`/v1/runs/${id}`);
        const after = Math.max(0, run.seq - PAGE);
        const { items } = await get(query(`/v1/runs/${id}/events`, { after, limit: PAGE }));
        if (over) return;
        tell(["run", run]);
        tell(["events", items]);
        if (ENDED.includes(run.status)) return tell(["state", "ended"]);
        stop = follow(id, items.at(-1)?.seq ?? run.seq, {
          snapshot: (shot) => {
            tell(["run", shot]);
            tell(["draft", (shot.draft?.blocks || []).at(-1)?.text || ""]);
          },
          event: (event) => {
            tell(["events", [event]]);
            read();
          },
          delta: (delta) => tell(["delta", delta]),
          state: (state) => tell(["state", state]),
        });
      } catch (error) {
        tell(["error", error]);
      }
    })();
    return () => {
      over = true;
      clearTimeout(reading);
      stop();
    };
  }, [id]);
  const earlier = async () => {
    const first = page.events[0].seq;
    const after = Math.max(0, first - 1 - PAGE);
    const { items } = await get(query(`/v1/runs/${id}/events`, { after, limit: Math.min(PAGE, first - 1 - after) }));
    tell(["earlier", items.filter((event) => event.seq < first)]);
  };
  return { ...page, earlier };
}


const isOperator = (who) => who.roles.some((role) => role === "operator" || role === "admin");
const isUser = (who) => isOperator(who) || who.roles.includes("user");

function Controls({ run, who }) {
  const [text, setText] = useState("");
  const operator = isOperator(who);
  if (!isUser(who) || ENDED.includes(run.status)) return null;
  const act = (verb) => () => post(`/v1/runs/${run.run_id}/${verb}`, {});
  const send = async () => {
    await post(`/v1/runs/${run.run_id}/messages`, { text }, idempotent());
    setText("");
  };
  return html`<section class="controls" aria-label="Control">
    <textarea rows="2" aria-label="Message to the run" placeholder="Write to the run" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    <div class="row">
      <${Action} label="Send" kind="primary" disabled=${!text.trim()} run=${send} />
      ${operator && run.status !== "paused" ? html`<${Action} label="Hold" run=${act("pause")} />` : null}
      ${operator && run.status === "paused" ? html`<${Action} label="Let go on" run=${act("resume")} />` : null}
      <${Action} label="Cancel the run" kind="danger" confirm="Cancel this run? What it has started is stopped." run=${act("cancel")} />
    </div>
  </section>`;
}

/** What exactly one condition of a wait is about. */
function Wanted({ wait, now }) {
  const on = wait.condition;
  if (!on) return null;
  if (wait.met) return html`<small>has come; the others have not</small>`;
  if (on.kind === "timer") return html`<small>due <${Ago} time=${on.due} now=${now} /></small>`;
  if (on.kind === "external") return html`<code>${on.type} of ${on.source}:${on.subject}</code>${on.where ? html` where <code>${on.where}</code>` : ""}`;
  return null;
}

function Side({ run, now }) {
  const { usage, budget } = run;
  const tokens = usage.input_tokens + usage.output_tokens;
  return html`<aside>
    <section><h2>Waits for</h2>
      ${run.waits.length ? html`<ul class="plainlist">${run.waits.map((wait) => html`<li><b>${words(wait.kind)}</b> ${wait.why} <${Wanted} wait=${wait} now=${now} />
        ${wait.until ? html` <small>gives up <${Ago} time=${wait.until} now=${now} /></small>` : ""}</li>`)}</ul>` : html`<${Empty}>Nothing.</${Empty}>`}</section>
    ${run.plan.length ? html`<section><h2>Plan</h2><ol class="plan">${run.plan.map((item) => html`<li class=${item.status}><span class="visually-hidden">${words(item.status)}: </span>${item.title}</li>`)}</ol></section>` : null}
    ${run.acceptance.length ? html`<section><h2>Done means</h2><ul>${run.acceptance.map((item) => html`<li>${item.text || item}</li>`)}</ul></section>` : null}
    <section><h2>Spent</h2>
      <${Meter} label="Turns" used=${usage.turns} limit=${budget.turns} show=${number} />
      <${Meter} label="Tokens" used=${tokens} limit=${budget.tokens} show=${number} />
      <${Meter} label="Cost" used=${usage.cost_usd} limit=${budget.cost_usd} show=${dollars} />
      <${Meter} label="Tool calls" used=${usage.tool_calls} limit=${budget.tool_calls} show=${number} />
      ${budget.wall ? html`<p><small>may take ${budget.wall}</small></p>` : null}
      <p><a href="#/runs/${run.run_id}?economics=1">what waking cost and saved</a></p></section>
    ${run.artifacts.length ? html`<section><h2>Artifacts</h2><ul class="plainlist">${run.artifacts.map((item) => html`<li>
        <a href="#/runs/${run.run_id}?artifact=${item.artifact_id}">${item.name}</a>
        <small> v${item.version} · ${bytes(item.bytes)}</small> <${Trust} name=${item.trust} /></li>`)}</ul></section>` : null}
    <section><h2>Facts</h2><dl>
      <dt>Run</dt><dd><code>${run.run_id}</code></dd>
      <dt>Trace</dt><dd>${run.trace_url ? html`<a href=${run.trace_url} target="_blank" rel="noopener noreferrer"><code>${run.trace_id}</code></a>` : html`<code>${run.trace_id}</code>`}</dd>
      <dt>Agent</dt><dd><a href="#/agents?agent=${run.agent}">${run.agent}</a> <code>${run.agent_digest.slice(0, 12)}</code></dd>
      <dt>Started</dt><dd>${when(run.created_at)}</dd>
    </dl></section>
    <${Beginning} run=${run} />
  </aside>`;
}

export function Run({ id, parameters, who }) {
  const page = useRun(id);
  const now = useNow();
  const { run } = page;
  if (!run) return page.error ? html`<${Trouble} error=${page.error} />` : html`<p aria-busy="true">Loading …</p>`;
  const back = `#/runs/${id}`;
  const artifact = run.artifacts.find((item) => item.artifact_id === parameters.artifact);
  const lived = seconds(run.created_at, ENDED.includes(run.status) ? run.updated_at : new Date(now));
  const line = { live: "live", lost: "the line is lost: trying again", ended: "" }[page.state] || "";
  return html`
    <div class="title run"><div><h1>${run.objective.text || run.agent}</h1>
      <p><${Status} name=${run.status} /> ${run.agent} · ${duration(lived)} · ${number(run.seq)} events
        <span class="line ${page.state}" role="status">${line}</span></p></div></div>
    ${run.ending ? html`<div class="ending ${run.ending.outcome}"><b>${words(run.ending.rule)}</b> ${run.ending.text?.text}</div>` : null}
    <div class="split">
      <section aria-label="Timeline">
        ${page.events[0]?.seq > 1 ? html`<${Action} label="Show earlier events" run=${page.earlier} />` : null}
        <${Timeline} events=${page.events} run=${id} draft=${page.draft} asleep=${run.status === "waiting"} now=${now} />
        <${Controls} run=${run} who=${who} />
      </section>
      <${Side} run=${run} now=${now} />
    </div>
    ${parameters.turn ? html`<${Turn} run=${id} number=${parameters.turn} may=${isUser(who)} onClose=${() => (location.hash = back)} />` : null}
    ${parameters.economics ? html`<${Economics} run=${id} onClose=${() => (location.hash = back)} />` : null}
    ${parameters.output ? html`<${Output} call=${parameters.output} onClose=${() => (location.hash = back)} />` : null}
    ${artifact ? html`<${Artifact} artifact=${artifact} onClose=${() => (location.hash = back)} />` : null}
    ${parameters.why ? html`<${Why} run=${id} seq=${parameters.why} onClose=${() => (location.hash = back)} />` : null}`;
}
