// What the model saw at a turn, what it answered, what was committed, and what it cost.
import { html, useState } from "../html.js";
import { get, idempotent, post } from "../api.js";
import { dollars, duration, number, when, words } from "../format.js";
import { line } from "../story.js";
import { Action, Block, Dialog, Empty, Trouble, Trust, usePolled } from "../ui.js";

function Manifest({ saw }) {
  const { sections, tokens, budget } = saw.manifest;
  return html`<h3>What it saw <small>${number(tokens)} of ${number(budget)} tokens · the least trusted of it: <${Trust} name=${saw.trust} /></small></h3>
    <table class="list"><thead><tr><th>Part</th><th>From</th><th class="number">Tokens</th><th>Share</th><th>Events</th><th>Left out</th></tr></thead><tbody>
    ${sections.map((part) => html`<tr><td>${words(part.name)}</td><td><${Trust} name=${part.trust} /></td><td class="number">${number(part.tokens)}</td>
      <td><progress class="bar" max=${tokens || 1} value=${part.tokens} aria-hidden="true"></progress></td>
      <td>${(part.seqs || []).join(", ")}</td><td>${part.cut ? `${part.cut}${part.why ? `: ${part.why}` : ""}` : part.why || ""}</td></tr>`)}
    </tbody></table>`;
}

/** What if? The turn once more, in a run of its own, with another word to it. */
function Fork({ run, turn }) {
  const [message, setMessage] = useState("");
  const [effects, setEffects] = useState(false);
  // The same key for every try of the same request: a lost answer starts no second fork.
  const [key, setKey] = useState(idempotent);
  const change = (set, value) => {
    set(value);
    setKey(idempotent());
  };
  const fork = async () => {
    const body = { turn: Number(turn), effects, ...(message.trim() ? { message: message.trim() } : {}) };
    const made = await post(`/v1/runs/${run}/fork`, body, key);
    location.hash = `#/runs/${made.run_id}`;
  };
  return html`<details class="fork"><summary>Take this turn anew in another run</summary>
    <p>A fork knows what this run knew before this turn. This run is not touched.</p>
    <label>What it is told <input value=${message} placeholder="nothing more" onInput=${(event) => change(setMessage, event.target.value)} /></label>
    <label><input type="checkbox" checked=${effects} onChange=${(event) => change(setEffects, event.target.checked)} /> its calls may change things outside</label>
    <p class="soft">${effects ? "It acts for real, by the same policies as any run." : "Calls that this run made have the results on record; no other that could be seen outside is made."}</p>
    <${Action} label="Fork" kind=${effects ? "danger" : "primary"} confirm=${effects ? "Start a fork whose calls change things outside?" : undefined} run=${fork} />
  </details>`;
}

export function Turn({ run, number: turn, may, onClose }) {
  const { value, error } = usePolled(() => get(`/v1/runs/${run}/turns/${turn}`), turn, 0);
  const usage = value?.cost;
  return html`<${Dialog} title="Turn ${turn}" onClose=${onClose}>
    <${Trouble} error=${error} />
    ${value ? html`
      <p>${words(value.status)} · opened ${when(value.opened_at)}${value.wake ? ` by ${words(value.wake)}` : ""}</p>
      ${value.saw ? html`<${Manifest} saw=${value.saw} />` : html`<${Empty}>It has no outcome yet.</${Empty}>`}
      ${value.answered ? html`<h3>What it answered <small>${value.answered.model} · ${words(value.answered.finish_reason)} · ${duration(value.answered.model_ms / 1000)}</small></h3>
        <${Block} block=${value.answered.text} />` : null}
      ${(value.rejected || []).map((answer) => html`<div class="trouble"><strong>refused</strong> ${(answer.problems || []).join("; ")}</div>`)}
      ${value.committed?.length ? html`<h3>What was committed</h3><ul>${value.committed.map((event) => {
        const told = line(event);
        return html`<li><code>${event.seq}</code> ${event.type}: ${told.title} ${told.text || ""}</li>`;
      })}</ul>` : null}
      ${usage ? html`<h3>What it cost</h3><p>${number(usage.input_tokens)} tokens read (${number(usage.cached_tokens)} from a cache), ${number(usage.output_tokens)} written, ${dollars(usage.cost_microusd / 1e6)}</p>` : null}
      ${may ? html`<${Fork} run=${run} turn=${turn} />` : null}`
      : null}
  </${Dialog}>`;
}
