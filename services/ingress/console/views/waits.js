// Everything that is suspended, and on what.
import { html } from "../html.js";
import { get, query } from "../api.js";
import { why, words } from "../format.js";
import { Ago, Empty, Trouble, useNow, usePolled } from "../ui.js";

const PAGE = 200;
const KINDS = ["timer", "task_result", "external", "operator_input"];

export function Waits({ parameters }) {
  const now = useNow();
  const { value, error } = usePolled(() => get(query("/v1/waits", { ...parameters, limit: PAGE })), JSON.stringify(parameters), 3000);
  const items = value?.items || [];
  return html`<div class="title"><h1>Waiting</h1>
      <nav class="tabs" aria-label="Kind"><a href="#/waiting" aria-current=${parameters.kind ? undefined : "page"}>all</a>
        ${KINDS.map((kind) => html`<a href="#/waiting?kind=${kind}" aria-current=${kind === parameters.kind ? "page" : undefined}>${words(kind)}</a>`)}</nav></div>
    <${Trouble} error=${error} />
    ${value && !items.length ? html`<${Empty}>Nobody waits.</${Empty}>` : null}
    ${items.length ? html`<div class="wide"><table class="list"><thead><tr><th>Run</th><th>Waits for</th><th>Why</th><th>Since</th><th>Until</th></tr></thead><tbody>
      ${items.map((wait) => html`<tr key="${wait.run_id}/${wait.kind}/${wait.leaf}">
        <td><a href="#/runs/${wait.run_id}">${wait.agent}</a> <small><code>${wait.run_id.slice(-12)}</code></small></td>
        <td><b>${words(wait.kind)}</b> ${wait.event_type || ""} ${wait.resource_key ? html`<code>${wait.resource_key}</code>` : ""} ${wait.where ? html`<code>${wait.where}</code>` : ""}</td>
        <td>${why(wait)}</td><td><${Ago} time=${wait.since} now=${now} /></td>
        <td>${wait.due || wait.deadline ? html`<${Ago} time=${wait.due || wait.deadline} now=${now} />` : "no limit"}</td></tr>`)}
    </tbody></table></div>` : null}
    <div class="pages">
      ${parameters.cursor ? html`<a href=${query("#/waiting", { kind: parameters.kind })}>Newest</a>` : null}
      ${value?.next ? html`<a href=${query("#/waiting", { kind: parameters.kind, cursor: value.next })}>Older</a>` : null}
    </div>`;
}
