// How a run began: by a person, an event, a webhook, a schedule, or from another run.
import { html } from "../html.js";
import { get } from "../api.js";
import { number, when } from "../format.js";
import { usePolled } from "../ui.js";

const Run = ({ id, at = "" }) => html`<a href="#/runs/${id}${at}"><code>${id.slice(-12)}</code></a>`;

/** The webhook that delivered the event: one of its own attributes, which stand at the margin of the text and no data does. */
const hook = (input) => input?.text?.match(/^ {2}"hook": "([^"\\\n]+)",?$/m)?.[1];

function Fork({ origin }) {
  return html`<dt>Fork of</dt><dd><${Run} id=${origin.run_id} />, from <a href="#/runs/${origin.run_id}?turn=${origin.turn}">turn ${origin.turn}</a>,
    ${origin.effects ? "with effects" : "effects are simulated"}</dd>`;
}

function Event({ run, input }) {
  const { event_type: type, source, resource_key: key } = run.trigger;
  const through = hook(input);
  const gathered = run.metadata.events;
  return html`<dt>Event</dt><dd><a href="#/runs/${run.run_id}?why=1">${type}</a> <code>${key}</code></dd>
    <dt>From</dt><dd>${source}${through ? html`, by the webhook <code>${through}</code>` : ""}${gathered ? `, the last of ${number(gathered)} events` : ""}</dd>
    <dt>Trigger</dt><dd>of the agent <a href="#/agents?agent=${encodeURIComponent(run.agent)}">${run.agent}</a></dd>`;
}

function Schedule({ run }) {
  const { schedule, scheduled_for: due } = run.metadata;
  return html`<dt>Schedule</dt><dd><a href="#/schedules">${schedule}</a>${due ? html` <small>for ${when(due)}</small>` : ""}</dd>`;
}

export function Beginning({ run }) {
  // Its first event, which the page may not have read: it opens at the end of a long run.
  const first = usePolled(() => get(`/v1/runs/${run.run_id}/events?limit=1`), run.run_id, 0).value?.items[0];
  const by = first?.cause.operator;
  // Labels are the caller's own: only what the scheduler began was begun by a schedule.
  const scheduled = first?.cause.service === "scheduler" && run.metadata.schedule;
  return html`<section aria-label="How it began"><h2>How it began</h2><dl>
    ${run.origin ? html`<${Fork} origin=${run.origin} />` : null}
    ${run.parent ? html`<dt>Child of</dt><dd><${Run} id=${run.parent.run_id} /></dd>` : null}
    ${run.trigger && !run.origin ? html`<${Event} run=${run} input=${first?.data.input} />` : null}
    ${scheduled ? html`<${Schedule} run=${run} />` : null}
    ${by ? html`<dt>By</dt><dd>${by}</dd>` : null}
  </dl></section>`;
}
