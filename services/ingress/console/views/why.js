// From an effect back to the outside events that it came from.
import { html } from "../html.js";
import { get } from "../api.js";
import { clock, words } from "../format.js";
import { Dialog, Trouble, usePolled } from "../ui.js";

/** A person, or an event by its coordinates. */
function told({ kind, name, event }) {
  if (kind === "operator") return html`<b>${name}</b> had a say`;
  return html`<b>${event.event_type}</b> from <b>${event.source}</b> <code>${event.resource_key}</code> <small>id <code>${event.id}</code></small>`;
}

export function Why({ run, seq, onClose }) {
  const { value, error } = usePolled(() => get(`/v1/runs/${run}/why/${run}-${seq}`), seq, 0);
  return html`<${Dialog} title="Why did event ${seq} happen?" onClose=${onClose}>
    <${Trouble} error=${error} />
    ${value ? html`<ol class="chain">${value.chain.map((link) => html`<li>
      <p><time datetime=${link.at}>${clock(link.at)}</time> <b>${link.type}</b> <small>by ${link.service}, event ${link.seq}</small></p>
      <p>${link.summary}</p>
      ${(link.because || []).map((cause) => html`<p class="because">${words(cause.how)} event ${cause.seq}</p>`)}
    </li>`)}</ol>
    ${value.origins.length ? html`<h3>From outside</h3><ul class="origins">${value.origins.map((origin) => html`<li>${told(origin)} <small>event ${origin.seq}</small></li>`)}</ul>` : null}
    ${value.truncated ? html`<p class="soft">There is more than is shown.</p>` : null}` : null}
  </${Dialog}>`;
}
