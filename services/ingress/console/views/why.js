// From an effect back to the outside events that it came from.
import { html } from "../html.js";
import { get } from "../api.js";
import { clock, words } from "../format.js";
import { Dialog, Trouble, usePolled } from "../ui.js";

export function Why({ run, seq, onClose }) {
  const { value, error } = usePolled(() => get(`/v1/runs/${run}/why/${run}-${seq}`), seq, 0);
  return html`<${Dialog} title="Why did event ${seq} happen?" onClose=${onClose}>
    <${Trouble} error=${error} />
    ${value ? html`<ol class="chain">${value.chain.map((link) => html`<li>
      <p><time datetime=${link.at}>${clock(link.at)}</time> <b>${link.type}</b> <small>by ${link.service}, event ${link.seq}</small></p>
      <p>${link.summary}</p>
      ${(link.because || []).map((cause) => html`<p class="because">${words(cause.how)} ${cause.seq ? html`event ${cause.seq}` : cause.external ? html`<code>${cause.external.source || ""} ${cause.external.id || ""}</code>` : ""}</p>`)}
    </li>`)}</ol>` : null}
  </${Dialog}>`;
}
