// The story of a run, event by event, with the gaps in which it slept.
import { html, useState } from "../html.js";
import { clock, duration, seconds } from "../format.js";
import { gap, line } from "../story.js";
import { Block, Json, Trust } from "../ui.js";

/** So many events are drawn at once; the rest is one button away. */
const DRAWN = 400;

function Entry({ event, run }) {
  const [open, setOpen] = useState(false);
  const told = line(event);
  return html`<li class="entry ${told.kind} ${told.quiet ? "quiet" : ""}" id="e${event.seq}">
    <time datetime=${event.at}>${clock(event.at)}</time>
    <span class="icon" aria-hidden="true">${told.icon}</span>
    <div>
      <p><b>${told.title}</b> ${told.text ? html`<span class="told">${told.text}</span>` : null}
        ${told.facts.map((fact) => html` <small>${fact}</small>`)}
        ${told.turn ? html` <a href="#/runs/${run}?turn=${told.turn}">what it saw</a>` : null}
        ${told.output ? html` <a href="#/runs/${run}?output=${told.output}">output</a>` : null}
        ${told.artifact ? html` <a href="#/runs/${run}?artifact=${told.artifact.artifact_id}">look at it</a>` : null}
        ${told.approval ? html` <a href="#/approvals">decide</a>` : null}
        ${told.run ? html` <a href="#/runs/${told.run}">open</a>` : null}
        <span class="tools"><a href="#/runs/${run}?why=${event.seq}" aria-label="Why did ${event.type} happen?">why</a>
          <button class="plain" aria-expanded=${open} aria-label="Details of ${event.type}" onClick=${() => setOpen(!open)}>${open ? "less" : "more"}</button></span></p>
      ${told.block && !told.quiet ? html`<${Block} block=${told.block} />` : null}
      ${(told.evidence || []).map((piece) => html`<figure class="block untrusted"><pre>${piece.excerpt}</pre>
        <figcaption><${Trust} name="untrusted" /> ${piece.from_line !== undefined ? `from line ${piece.from_line + 1}` : "evidence"}</figcaption></figure>`)}
      ${open ? html`<${Json} value=${event} />` : null}
    </div>
  </li>`;
}

export function Timeline({ events, run, draft, asleep, now }) {
  const [limit, setLimit] = useState(DRAWN);
  const shown = events.slice(-limit);
  const hidden = events.length - shown.length;
  const last = events.at(-1);
  const sleeping = asleep && last ? seconds(last.at, new Date(now)) : 0;
  return html`
    ${hidden > 0 ? html`<button onClick=${() => setLimit(limit + DRAWN)}>Show ${Math.min(hidden, DRAWN)} more of ${hidden} earlier</button>` : null}
    <ol class="timeline">
      ${shown.map((event, index) => {
        const asleepFor = gap(shown[index - 1], event);
        return [
          asleepFor ? html`<li class="gap" key="g${event.seq}"><span>${duration(asleepFor)} of quiet</span></li>` : null,
          html`<${Entry} key=${event.seq} event=${event} run=${run} />`,
        ];
      })}
      ${draft ? html`<li class="entry model draft" aria-live="off"><time></time><span class="icon" aria-hidden="true">◆</span><div><p><b>writes</b></p><pre>${draft}</pre></div></li>` : null}
      ${sleeping > 1 ? html`<li class="gap now"><span>asleep for ${duration(sleeping)}: nothing runs, nothing is paid for</span></li>` : null}
    </ol>`;
}
