// The board of runs: what each does, and what each suspended one waits for.
import { html, useState } from "../html.js";
import { get, idempotent, post, query } from "../api.js";
import { dollars, number, why, words } from "../format.js";
import { Ago, Dialog, Empty, Status, Trouble, useNow, usePolled } from "../ui.js";

const STATUSES = ["queued", "runnable", "running", "waiting", "paused", "cancelling", "completed", "failed", "cancelled"];
const WAKES = ["timer", "task_result", "external", "operator_input"];
const PAGE = 50;

/** The filter is the address, so that a view can be kept and sent. */
function go(parameters) {
  location.hash = query("#/runs", parameters);
}

function Filter({ now, set }) {
  const change = (name) => (event) => set({ ...now, [name]: event.target.value });
  const choice = (name, label, values) => html`<label>${label}
    <select value=${now[name] || ""} onChange=${change(name)}>
      <option value="">any</option>
      ${values.map((value) => html`<option value=${value}>${words(value)}</option>`)}
    </select></label>`;
  return html`<form class="filter" role="search" onSubmit=${(event) => event.preventDefault()}>
    ${choice("status", "Status", STATUSES)} ${choice("wake", "Waits for", WAKES)}
    <label>Agent <input value=${now.agent || ""} onChange=${change("agent")} /></label>
    <label>Search <input type="search" value=${now.q || ""} onChange=${change("q")} placeholder="words, or how an id begins" /></label>
  </form>`;
}

function Row({ run, waits, now }) {
  const waiting = waits.filter((wait) => wait.run_id === run.run_id);
  return html`<tr>
    <td><a href="#/runs/${run.run_id}">${run.objective || html`<i>no objective</i>`}</a>
      <small>${run.agent} · <code>${run.run_id.slice(-12)}</code></small></td>
    <td><${Status} name=${run.status} /></td>
    <td>${waiting.map((wait) => html`<div class="waits"><b>${words(wait.kind)}</b> ${why(wait)}
        ${wait.resource_key ? html` <code>${wait.resource_key}</code>` : ""}
        ${wait.due || wait.deadline ? html` <small>${wait.due ? "due" : "until"} <${Ago} time=${wait.due || wait.deadline} now=${now} /></small>` : ""}</div>`)}
      ${!waiting.length && run.status === "waiting" ? run.wake_kinds.map(words).join(", ") : ""}</td>
    <td class="number">${number(run.usage.turns)}</td>
    <td class="number">${number(run.usage.input_tokens + run.usage.output_tokens)}</td>
    <td class="number">${dollars(run.usage.cost_usd)}</td>
    <td><${Ago} time=${run.updated_at} now=${now} /></td>
  </tr>`;
}

function NewRun({ onClose }) {
  const agents = usePolled(() => get("/v1/agents"), "agents", 0);
  const [form, setForm] = useState({ agent: "", input: "" });
  const [error, setError] = useState();
  // The same key for every try of the same words: a second click or a lost answer starts no second run.
  const [key, setKey] = useState(idempotent);
  const change = (name) => (event) => {
    setForm({ ...form, [name]: event.target.value });
    setKey(idempotent());
  };
  const names = agents.value?.items.map((agent) => agent.name) || [];
  const start = async (event) => {
    event.preventDefault();
    try {
      const run = await post("/v1/runs", { agent: form.agent || names[0], input: form.input }, key);
      onClose();
      location.hash = `#/runs/${run.run_id}`;
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<${Dialog} title="Start a run" onClose=${onClose}>
    <form onSubmit=${start}>
      <label>Agent <select value=${form.agent} onChange=${change("agent")}>${names.map((name) => html`<option>${name}</option>`)}</select></label>
      <label>Input <textarea rows="6" required value=${form.input} onInput=${change("input")}></textarea></label>
      <button class="primary">Start</button>
      <${Trouble} error=${error || agents.error} />
    </form>
  </${Dialog}>`;
}

export function Runs({ parameters, who }) {
  const now = useNow(5000);
  const [starting, setStarting] = useState(false);
  const key = JSON.stringify(parameters);
  const runs = usePolled(() => get(query("/v1/runs", { ...parameters, limit: PAGE })), key, 3000);
  const waits = usePolled(() => get("/v1/waits?limit=500"), "waits", 3000);
  const items = runs.value?.items || [];
  const mayStart = !who.roles.every((role) => role === "viewer");
  return html`
    <div class="title"><h1>Runs</h1>
      ${mayStart && html`<button class="primary" onClick=${() => setStarting(true)}>Start a run</button>`}</div>
    <${Filter} now=${parameters} set=${(next) => go({ ...next, cursor: "" })} />
    <${Trouble} error=${runs.error} />
    ${runs.value && !items.length ? html`<${Empty}>No run is like this. <code>esc run AGENT "INPUT"</code> starts one, and so does an event that an agent's trigger fits.</${Empty}>` : null}
    ${items.length ? html`<div class="wide"><table class="list">
      <thead><tr><th>Run</th><th>Status</th><th>Waits for</th><th class="number">Turns</th><th class="number">Tokens</th><th class="number">Cost</th><th>Changed</th></tr></thead>
      <tbody>${items.map((run) => html`<${Row} key=${run.run_id} run=${run} waits=${waits.value?.items || []} now=${now} />`)}</tbody>
    </table></div>` : null}
    <div class="pages">
      ${parameters.cursor ? html`<button onClick=${() => go({ ...parameters, cursor: "" })}>Newest</button>` : null}
      ${runs.value?.next ? html`<button onClick=${() => go({ ...parameters, cursor: runs.value.next })}>Older</button>` : null}
    </div>
    ${starting ? html`<${NewRun} onClose=${() => setStarting(false)} />` : null}`;
}
