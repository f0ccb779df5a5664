// What waking a run's model cost, and what it saved.
import { html } from "../html.js";
import { get } from "../api.js";
import { bytes, dollars, number, words } from "../format.js";
import { Bars, Dialog, Trouble, usePolled } from "../ui.js";

/** The figures as bars: how little of what came in reached the model. */
function Figures({ value }) {
  const wakes = Object.entries(value.wakes).map(([kind, count]) => ({ label: `woken by ${words(kind)}`, value: count }));
  return html`<${Bars} caption="From signals to wakes" show=${number} items=${[
      { label: "lines read", value: value.signals },
      { label: "observations", value: value.observations },
      { label: "of them to decide", value: value.decisions },
      { label: "wakes asked for", value: value.wake_requests },
      { label: "wakes", value: value.wakes_total },
    ]} />
    ${wakes.length ? html`<${Bars} caption="Wakes by kind" show=${number} items=${wakes} />` : null}`;
}

export function Economics({ run, onClose }) {
  const { value, error } = usePolled(() => get(`/v1/runs/${run}/economics`), run, 0);
  return html`<${Dialog} title="What waking cost and saved" onClose=${onClose}>
    <${Trouble} error=${error} />
    ${value ? html`<p>${number(value.turns)} turns took ${number(value.tokens)} tokens, ${dollars(value.cost_microusd / 1e6)}${value.tokens_per_wake ? `: ${number(value.tokens_per_wake)} tokens a wake` : ""}.
        ${number(value.signals)} lines (${bytes(value.signal_bytes)}) were read for it without a model.</p>
      <p>${number(value.coalesced)} wakes were gathered into others, ${number(value.suppressed)} things were noticed and woke nobody, ${number(value.false_wakes)} turns changed nothing.</p>
      <${Figures} value=${value} />
      ${Object.keys(value.controls).length ? html`<h3>What its controls did</h3><table class="list"><thead><tr><th>Control</th><th class="number">Times</th><th class="number">To effect</th><th class="number">Tokens</th><th class="number">Cost</th></tr></thead><tbody>
        ${Object.entries(value.controls).map(([name, did]) => html`<tr><th scope="row">${name}</th><td class="number">${number(did.times)}</td><td class="number">${number(did.effective)}</td><td class="number">${number(did.tokens)}</td><td class="number">${dollars(did.cost_microusd / 1e6)}</td></tr>`)}
      </tbody></table>` : null}` : null}
  </${Dialog}>`;
}
