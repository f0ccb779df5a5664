// What runs cost, and whether waking the model was worth it.
import { html } from "../html.js";
import { get } from "../api.js";
import { dollars, number } from "../format.js";
import { Bars, Empty, Trouble, usePolled } from "../ui.js";

const RUNS = 200;

function sum(runs, by) {
  const sums = new Map();
  for (const run of runs) {
    const row = sums.get(by(run)) || { runs: 0, tokens: 0, cost: 0, turns: 0, calls: 0, cached: 0, read: 0 };
    row.runs += 1;
    row.tokens += run.usage.input_tokens + run.usage.output_tokens;
    row.read += run.usage.input_tokens;
    row.cached += run.usage.cached_tokens;
    row.cost += run.usage.cost_usd;
    row.turns += run.usage.turns;
    row.calls += run.usage.tool_calls;
    sums.set(by(run), row);
  }
  return [...sums].sort((a, b) => b[1].cost - a[1].cost || b[1].tokens - a[1].tokens);
}

export function Costs() {
  const { value, error } = usePolled(() => get(`/v1/runs?limit=${RUNS}`), "costs", 10000);
  const runs = value?.items || [];
  if (value && !runs.length) return html`<h1>Costs</h1><${Empty}>No runs yet.</${Empty}>`;
  const dearest = [...runs].sort((a, b) => b.usage.input_tokens + b.usage.output_tokens - a.usage.input_tokens - a.usage.output_tokens).slice(0, 15);
  return html`<h1>Costs</h1><p>Of the newest ${number(runs.length)} runs.</p><${Trouble} error=${error} />
    <div class="wide"><table class="list"><thead><tr><th>Agent</th><th class="number">Runs</th><th class="number">Turns</th><th class="number">Tool calls</th><th class="number">Tokens</th><th class="number">From a cache</th><th class="number">Tokens a turn</th><th class="number">Cost</th></tr></thead><tbody>
      ${sum(runs, (run) => run.agent).map(([agent, row]) => html`<tr><th scope="row">${agent}</th><td class="number">${number(row.runs)}</td><td class="number">${number(row.turns)}</td>
        <td class="number">${number(row.calls)}</td><td class="number">${number(row.tokens)}</td><td class="number">${row.read ? Math.round((100 * row.cached) / row.read) : 0}%</td>
        <td class="number">${number(Math.round(row.tokens / Math.max(1, row.turns)))}</td><td class="number">${dollars(row.cost)}</td></tr>`)}
    </tbody></table></div>
    <${Bars} caption="Tokens of the largest runs" show=${number} items=${dearest.map((run) => ({ label: run.objective || run.run_id.slice(-12), title: run.run_id, href: `#/runs/${run.run_id}`, value: run.usage.input_tokens + run.usage.output_tokens }))} />`;
}
