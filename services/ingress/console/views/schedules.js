// What is started by the clock: when next, and what became of the last times.
import { html, useState } from "../html.js";
import { del, get, post } from "../api.js";
import { when, words } from "../format.js";
import { Action, Ago, Empty, Json, Status, Trouble, Trust, useNow, usePolled } from "../ui.js";

/** What became of the latest times. */
function Firings({ name, now }) {
  const { value, error } = usePolled(() => get(`/v1/schedules/${name}/firings?limit=20`), name, 5000);
  if (!value) return html`<${Trouble} error=${error} />`;
  if (!value.items.length) return html`<${Empty}>It has not fired yet.</${Empty}>`;
  return html`<${Trouble} error=${error} /><div class="wide"><table class="list"><caption class="visually-hidden">Latest times of ${name}</caption>
    <thead><tr><th>Time</th><th>What became of it</th><th>Run</th></tr></thead><tbody>
    ${value.items.map((firing) => html`<tr key=${firing.fire_at}><td><${Ago} time=${firing.fire_at} now=${now} /> <small>${when(firing.fire_at)}</small></td>
      <td>${words(firing.state)}${firing.kind === "regular" ? "" : ` (${words(firing.kind)})`} ${firing.note ? html`<small>${firing.note}</small>` : ""}</td>
      <td>${firing.run_id ? html`<a href="#/runs/${firing.run_id}"><code>${firing.run_id.slice(-12)}</code></a> ${firing.run_status ? html`<${Status} name=${firing.run_status} />` : ""}` : ""}</td></tr>`)}
    </tbody></table></div>`;
}

function Schedule({ schedule, now, may, again }) {
  const [open, setOpen] = useState(false);
  const { name, spec } = schedule;
  const act = (verb) => async () => {
    await post(`/v1/schedules/${name}/${verb}`);
    again();
  };
  const remove = async () => {
    await del(`/v1/schedules/${name}`);
    again();
  };
  return html`<article class="card" aria-label=${name}>
    <header><h2>${name} ${schedule.paused ? html`<${Status} name="paused" />` : ""}</h2>
      <small>by ${schedule.made_by} <${Trust} name=${schedule.trust} /> · changed <${Ago} time=${schedule.changed_at} now=${now} /></small></header>
    ${spec.description ? html`<p>${spec.description}</p>` : null}
    <p><code>${spec.cron}</code> ${spec.time_zone} · ${spec.start ? html`starts <b>${spec.start.agent}</b>` : html`publishes <code>${spec.publish?.type}</code>`}</p>
    <p>${schedule.next.length ? html`Next: ${schedule.next.slice(0, 3).map((time) => html`<${Ago} time=${time} now=${now} /> <small>(${when(time)})</small> `)}` : "It will not fire."}</p>
    <details onToggle=${(event) => setOpen(event.target.open)}><summary>Latest times and its whole definition</summary>
      ${open ? html`<${Firings} name=${name} now=${now} /><${Json} value=${spec} />` : null}</details>
    ${may ? html`<div class="row">
      <${Action} label=${schedule.paused ? "Let it go on" : "Hold"} run=${act(schedule.paused ? "resume" : "pause")} />
      <${Action} label="Delete" kind="danger" confirm=${`Delete the schedule ${name}? Runs that it started go on.`} run=${remove} /></div>` : null}
  </article>`;
}

export function Schedules({ who }) {
  const now = useNow(5000);
  const { value, error, again } = usePolled(() => get("/v1/schedules"), "schedules", 5000);
  const may = who.roles.some((role) => role === "operator" || role === "admin");
  return html`<h1>Schedules</h1><${Trouble} error=${error} />
    ${value && !value.items.length ? html`<${Empty}>None yet: <code>esc schedules apply FILE</code>.</${Empty}>` : null}
    ${(value?.items || []).map((schedule) => html`<${Schedule} key=${schedule.name} schedule=${schedule} now=${now} may=${may} again=${again} />`)}`;
}
