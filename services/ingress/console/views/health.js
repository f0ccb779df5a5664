// Whether all is well: alarms, what was lost, what is frozen, and what could not be handled.
import { html, useState } from "../html.js";
import { get, post, put } from "../api.js";
import { cut, number, when, words } from "../format.js";
import { Action, Ago, Empty, Status, Trouble, useNow, usePolled } from "../ui.js";

function Alerts({ now }) {
  const { value, error } = usePolled(() => get("/v1/alerts"), "alerts", 5000);
  const items = value?.items || [];
  return html`<section aria-label="Alarms"><h2>Services that are watched</h2><${Trouble} error=${error} />
    ${value && !items.length ? html`<${Empty}>No alarm so far. An agent's <code>watch</code> says what is one.</${Empty}>` : null}
    ${items.map((alert) => html`<article class="card ${alert.state === "firing" ? "open" : ""}" key="${alert.service}/${alert.agent}/${alert.rule}">
      <header><h3>${alert.service}: ${words(alert.rule)} <${Status} name=${alert.state === "firing" ? "failed" : "completed"} /></h3>
        <small>since <${Ago} time=${alert.since} now=${now} />, watched by ${alert.agent}</small></header>
      <p>${alert.what}</p></article>`)}</section>`;
}

function Gaps({ now }) {
  const { value, error } = usePolled(() => get("/v1/signals/gaps?limit=50"), "gaps", 15000);
  const items = value?.items || [];
  return html`<section aria-label="Gaps"><h2>Signals known to be missing</h2><${Trouble} error=${error} />
    ${value && !items.length ? html`<${Empty}>None.</${Empty}>` : null}
    ${items.length ? html`<div class="wide"><table class="list"><thead><tr><th>Service</th><th>When</th><th class="number">Messages</th><th>Why</th></tr></thead><tbody>
      ${items.map((gap) => html`<tr><td>${gap.service || "unknown"}</td><td><${Ago} time=${gap.to} now=${now} /> <small>${when(gap.from)}</small></td><td class="number">${number(gap.messages)}</td><td>${gap.why}</td></tr>`)}
    </tbody></table></div>` : null}</section>`;
}

function Freeze({ may, now }) {
  const { value, error, again } = usePolled(() => get("/v1/freeze"), "freeze", 4000);
  const [form, setForm] = useState({ scope: "tenant", reason: "" });
  const set = (scope, on, reason) => async () => {
    await put("/v1/freeze", { scope, on, ...(reason ? { reason } : {}) });
    again();
  };
  const frozen = (value?.items || []).filter((item) => item.on);
  const change = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  return html`<section aria-label="Kill switch"><h2>Kill switch</h2><${Trouble} error=${error} />
    ${value && !frozen.length ? html`<${Empty}>Nothing is frozen.</${Empty}>` : null}
    ${frozen.map((item) => html`<div class="trouble" key=${item.scope}><strong>${item.scope} is frozen</strong>
      <span>by ${item.by} <${Ago} time=${item.at} now=${now} />${item.reason ? `: ${item.reason}` : ""}</span>
      ${may ? html`<${Action} label="Lift it" confirm=${`Let ${item.scope} act again?`} run=${set(item.scope, false)} />` : null}</div>`)}
    ${may ? html`<div class="row">
      <label>Scope <input value=${form.scope} list="scopes" onInput=${change("scope")} /></label>
      <datalist id="scopes"><option>tenant</option><option>agent:</option><option>tool:</option><option>all</option></datalist>
      <label>Reason <input value=${form.reason} onInput=${change("reason")} /></label>
      <${Action} label="Freeze" kind="danger" confirm=${`No effect starts in "${form.scope}" until it is lifted.`} disabled=${!form.scope.trim()} run=${set(form.scope.trim(), true, form.reason.trim())} />
    </div>` : null}</section>`;
}

/** Only admins see dead letters, and publish them again. */
function DeadLetters({ now }) {
  const { value, error, again } = usePolled(() => get("/v1/dlq?limit=50"), "dlq", 10000);
  const items = value?.items || [];
  const redrive = (filter) => async () => {
    const { redriven } = await post("/v1/dlq:redrive", { filter });
    again();
    if (!redriven) throw new Error("It was not published again: it is gone, or was too large to be kept whole.");
  };
  return html`<section aria-label="Dead letters"><h2>Dead letters</h2>
    ${error?.status === 403 ? html`<${Empty}>Admins see what could not be handled.</${Empty}>` : html`<${Trouble} error=${error} />`}
    ${value && !items.length ? html`<${Empty}>None: everything could be handled.</${Empty}>` : null}
    ${items.length ? html`<div class="wide"><table class="list"><thead><tr><th>Consumer</th><th>What</th><th>Why</th><th>When</th><th><span class="visually-hidden">What to do</span></th></tr></thead><tbody>
      ${items.map((letter) => html`<tr key=${letter.seq}><td>${letter.consumer}</td><td><code>${letter.subject}</code></td><td>${cut(letter.reason, 300)}</td><td><${Ago} time=${letter.at} now=${now} /></td>
        <td><${Action} label="Again" about=${`${letter.subject}, letter ${letter.seq}`} run=${redrive({ seqs: [letter.seq] })} /></td></tr>`)}
    </tbody></table></div>` : null}</section>`;
}

export function Health({ who }) {
  const now = useNow(5000);
  const may = who.roles.some((role) => role === "operator" || role === "admin");
  return html`<h1>Health</h1>
    <${Alerts} now=${now} /><${Freeze} may=${may} now=${now} /><${DeadLetters} now=${now} /><${Gaps} now=${now} />`;
}
