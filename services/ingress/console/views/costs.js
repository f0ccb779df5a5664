// What runs cost, and whether waking the model was worth it.
import { html } from "../html.js";
import { get, query } from "../api.js";
import { dollars, number } from "../format.js";
import { Bars, Empty, Trouble, usePolled } from "../ui.js";

/** Of so many of the newest runs the largest are looked at closely. */
const RUNS = 200;
const LOOKED_AT = 8;
const DAY_MS = 86_400_000;
const SINCE = [["", "ever"], ["1", "a day"], ["7", "a week"], ["30", "a month"]];

const tokens = (usage) => usage.input_tokens + usage.output_tokens;

/** What all runs of each agent cost. */
function ByAgent({ days }) {
  const since = () => (days ? new Date(Date.now() - days * DAY_MS).toISOString() : undefined);
  const { value, error } = usePolled(() => get(query("/v1/costs", { since: since() })), days || "", 10000);
  const agents = value?.items || [];
  if (value && !agents.length) return html`<${Empty}>No runs since then.</${Empty}>`;
  if (!value) return html`<${Trouble} error=${error} />`;
  return html`<${Trouble} error=${error} />
    <p>${dollars(value.cost_usd)} in all.</p>
    <div class="wide"><table class="list"><thead><tr><th>Agent</th><th class="number">Runs</th><th class="number">Turns</th><th class="number">Tokens</th><th class="number">From a cache</th><th class="number">Tokens a turn</th><th class="number">Cost</th></tr></thead><tbody>
      ${agents.map((row) => html`<tr key=${row.agent}><th scope="row">${row.agent}</th><td class="number">${number(row.runs)}</td><td class="number">${number(row.turns)}</td>
        <td class="number">${number(tokens(row))}</td><td class="number">${row.input_tokens ? Math.round((100 * row.cached_tokens) / row.input_tokens) : 0}%</td>
        <td class="number">${number(Math.round(tokens(row) / Math.max(1, row.turns)))}</td><td class="number">${dollars(row.cost_usd)}</td></tr>`)}
    </tbody></table></div>
    <${Bars} caption="Cost by agent" show=${dollars} items=${agents.map((row) => ({ label: row.agent, value: row.cost_usd, href: `#/runs?agent=${row.agent}` }))} />`;
}

/** What waking cost the largest runs, and how little of what came in reached their models. */
function Waking({ runs }) {
  const ids = runs.map((run) => run.run_id);
  const read = () => Promise.all(ids.map((id) => get(`/v1/runs/${id}/economics`)));
  const { value, error } = usePolled(read, ids.join(), 0);
  const rows = (value || []).map((figures, index) => ({ figures, run: runs.find((run) => run.run_id === ids[index]) })).filter(({ run }) => run);
  const label = (run) => run.objective || run.run_id.slice(-12);
  const href = (run) => `#/runs/${run.run_id}?economics=1`;
  return html`<${Trouble} error=${error} />
    ${rows.length ? html`<div class="wide"><table class="list"><caption class="visually-hidden">Waking in the largest runs</caption>
      <thead><tr><th>Run</th><th class="number">Lines read</th><th class="number">Observations</th><th class="number">Wakes asked for</th><th class="number">Wakes</th><th class="number">In vain</th><th class="number">Tokens a wake</th></tr></thead><tbody>
      ${rows.map(({ run, figures }) => html`<tr key=${run.run_id}><th scope="row"><a href=${href(run)}>${label(run)}</a></th><td class="number">${number(figures.signals)}</td><td class="number">${number(figures.observations)}</td>
        <td class="number">${number(figures.wake_requests)}</td><td class="number">${number(figures.wakes_total)}</td><td class="number">${number(figures.false_wakes)}</td><td class="number">${number(figures.tokens_per_wake)}</td></tr>`)}
    </tbody></table></div>
    <${Bars} caption="Tokens a wake" show=${number} items=${rows.map(({ run, figures }) => ({ label: label(run), title: run.run_id, href: href(run), value: figures.tokens_per_wake || 0 }))} />` : null}`;
}

export function Costs({ parameters }) {
  const { value, error } = usePolled(() => get(`/v1/runs?limit=${RUNS}`), "costs", 30000);
  const runs = value?.items || [];
  if (value && !runs.length) return html`<h1>Costs</h1><${Empty}>No runs yet.</${Empty}>`;
  const largest = [...runs].sort((a, b) => tokens(b.usage) - tokens(a.usage));
  const days = parameters.days || "";
  return html`<div class="title"><h1>Costs</h1><nav class="tabs" aria-label="Since">${SINCE.map(([key, label]) => html`<a href="#/costs${key ? `?days=${key}` : ""}" aria-current=${key === days ? "page" : undefined}>${label}</a>`)}</nav></div>
    <${ByAgent} days=${days} />
    <section aria-label="The largest runs"><h2>The largest of the newest ${number(runs.length)} runs</h2><${Trouble} error=${error} />
      <${Bars} caption="Tokens of the largest runs" show=${number} items=${largest.slice(0, 15).map((run) => ({ label: run.objective || run.run_id.slice(-12), title: run.run_id, href: `#/runs/${run.run_id}`, value: tokens(run.usage) }))} />
    </section>
    <section aria-label="Waking"><h2>Was it worth waking them?</h2>${largest.length ? html`<${Waking} runs=${largest.slice(0, LOOKED_AT)} />` : null}</section>`;
}
