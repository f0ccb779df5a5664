// The agents, what they may use, and the version that new runs start with.
import { html, useState } from "../html.js";
import { get } from "../api.js";
import { when } from "../format.js";
import { Empty, Json, Trouble, usePolled } from "../ui.js";

/** Past versions too: a run keeps the one that it started with. */
function Versions({ name, digest }) {
  const { value, error } = usePolled(() => get(`/v1/agents/${name}/versions`), `${name}/${digest}`, 0);
  return html`<${Trouble} error=${error} /><ul class="plainlist">${(value?.items || []).map((version) => html`<li key=${version.digest}>
    <details><summary><code>${version.digest.slice(0, 12)}</code> first put in ${when(version.created_at)}${version.head ? ": new runs start with it" : ""}</summary><${Json} value=${version.spec} /></details></li>`)}</ul>`;
}

function Past({ agent }) {
  const [open, setOpen] = useState(false);
  return html`<details onToggle=${(event) => event.target === event.currentTarget && setOpen(event.target.open)}><summary>Its versions</summary>
    ${open ? html`<${Versions} name=${agent.name} digest=${agent.digest} />` : null}</details>`;
}

export function Agents({ parameters }) {
  const { value, error } = usePolled(() => get("/v1/agents"), "agents", 10000);
  const only = parameters.agent;
  const agents = (value?.items || []).filter((agent) => !only || agent.name === only);
  return html`<div class="title"><h1>Agents</h1>${only ? html`<a href="#/agents">all of them</a>` : null}</div><${Trouble} error=${error} />
    ${value && !value.items.length ? html`<${Empty}>None yet: <code>esc agents apply FILE</code>.</${Empty}>` : null}
    ${value && only && !agents.length ? html`<${Empty}>There is no agent <code>${only}</code> any more.</${Empty}>` : null}
    ${agents.map((agent) => html`<article class="card" key=${agent.name} aria-label=${agent.name}>
      <header><h2>${agent.name}</h2><small><code>${agent.digest.slice(0, 12)}</code>${agent.changed_at ? ` · put in ${when(agent.changed_at)} by ${agent.changed_by}` : ""} · <a href="#/runs?agent=${agent.name}">its runs</a></small></header>
      <p>${(agent.spec.tools || []).map((tool) => html`<code class="chip">${tool}</code> `)}</p>
      ${(agent.spec.triggers || []).map((trigger) => html`<p>wakes on <code>${trigger.on}</code>${trigger.where ? html` where <code>${trigger.where}</code>` : ""}</p>`)}
      <details><summary>Its whole definition</summary><${Json} value=${agent.spec} /></details>
      <${Past} agent=${agent} />
    </article>`)}`;
}
