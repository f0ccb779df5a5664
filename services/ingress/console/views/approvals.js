// What a person is asked: the action, where its arguments came from, and what may be said to it.
import { html, useRef, useState } from "../html.js";
import { get, idempotent, post, query } from "../api.js";
import { cut, words } from "../format.js";
import { Action, Ago, Block, Empty, Status, Trouble, Trust, useNow, usePolled } from "../ui.js";

/** Where an argument came from, and each part of it that has an origin of its own. */
function origins(approval, name) {
  const pointer = `/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`;
  const own = approval.origins.filter((item) => item.pointer === pointer || item.pointer.startsWith(`${pointer}/`));
  return own.map((item) => ({ ...item, part: item.pointer.slice(pointer.length + 1) }));
}

function Origin({ origin }) {
  return html`<div title=${origin.rule}>${origin.part ? html`<code>${origin.part}</code> ` : ""}<${Trust} name=${origin.trust} /> <small>${origin.source}${origin.matters ? "" : ", which does not decide"}</small></div>`;
}

/** The first of two people who agreed, if the question takes two. */
const first = (approval) => (approval.endorsements || [])[0];

function Arguments({ approval }) {
  const rows = Object.entries(approval.arguments || {});
  if (!rows.length) return null;
  return html`<table class="list arguments"><thead><tr><th>Argument</th><th>Value</th><th>From</th></tr></thead><tbody>
    ${rows.map(([name, value]) => {
      const from = origins(approval, name);
      return html`<tr><th scope="row">${name}</th><td><pre>${typeof value === "string" ? value : JSON.stringify(value, null, 2)}</pre></td>
        <td>${from.length ? from.map((origin) => html`<${Origin} origin=${origin} />`) : html`<${Trust} name=${approval.trust} />`}</td></tr>`;
    })}</tbody></table>`;
}

/** What the model said when it asked, and what it had before it. */
function Background({ approval }) {
  if (!approval.said && !approval.evidence.length) return null;
  return html`<details><summary>What led to it</summary>
    ${approval.said ? html`<h3>What the model said</h3><${Block} block=${approval.said} />` : null}
    ${approval.evidence.length ? html`<h3>What it had before it</h3>${approval.evidence.map((block) => html`<${Block} block=${block} />`)}` : null}
  </details>`;
}

/** Who has agreed where two people have to, and to what. */
function People({ approval, now }) {
  if (approval.people_needed < 2) return null;
  const agreed = first(approval);
  const missing = approval.people_missing > 1 ? "Two people have to agree." : "One more person is needed.";
  return html`<p class="people">${agreed ? html`<b>${agreed.by}</b> agreed <${Ago} time=${agreed.at} now=${now} />${agreed.reason ? `: ${agreed.reason}` : "."} ` : ""}
      ${approval.state === "open" ? html`<b>${missing}</b>` : ""}</p>
    ${agreed && agreed.arguments ? html`<p><b>${agreed.by}</b> changed the arguments to</p><pre>${JSON.stringify(agreed.arguments, null, 2)}</pre>` : null}`;
}

function Decide({ approval, done, who }) {
  const question = approval.kind === "question";
  const agreed = first(approval);
  const mine = agreed && agreed.by === who.name;
  const [edited, setEdited] = useState();
  const [reason, setReason] = useState("");
  const [always, setAlways] = useState(false);
  // The same key for every try of the same answer.
  const sent = useRef({});
  const decide = (decision) => async () => {
    const body = { decision };
    if (decision === "approve" && always && edited === undefined) body.always = true;
    if (reason.trim()) body.reason = reason.trim();
    // What the other person has agreed to, by its digest: numbers beyond 2^53 would not come back as they were.
    if (decision === "approve" && agreed && edited === undefined) body.as_endorsed = agreed.digest;
    if (decision === "approve" && edited !== undefined) {
      try {
        body.arguments = JSON.parse(edited);
      } catch (error) {
        throw new Error(`The arguments are not JSON: ${error.message}`);
      }
    }
    const words = JSON.stringify(body);
    if (sent.current.words !== words) sent.current = { words, key: idempotent() };
    await post(`/v1/approvals/${approval.approval_id}`, body, sent.current.key);
    done();
  };
  return html`<div class="decide">
    ${edited === undefined ? null : html`<label>Arguments, as they shall be
      <textarea class="code" rows="8" spellcheck="false" value=${edited} onInput=${(event) => setEdited(event.target.value)}></textarea></label>`}
    <label>${question ? "Answer" : "Reason"} <input value=${reason} placeholder=${question ? "what the run is told" : "the run is told it too"} onInput=${(event) => setReason(event.target.value)} /></label>
    ${approval.may_be_standing && edited === undefined ? html`<label><input type="checkbox" checked=${always} onChange=${(event) => setAlways(event.target.checked)} /> and all calls of this shape from now on</label>` : null}
    <div class="row">
      ${mine ? null : html`<${Action} label=${question ? "Yes" : edited !== undefined ? "Approve as edited" : agreed && agreed.arguments ? `Approve as ${agreed.by} changed it` : "Approve"} kind="primary" run=${decide("approve")} />`}
      <${Action} label=${question ? "No" : "Deny"} kind="danger" run=${decide("deny")} />
      ${question || (agreed && edited === undefined) || !approval.arguments ? null : html`<button onClick=${() => setEdited(edited === undefined ? JSON.stringify(approval.arguments, null, 2) : undefined)}>${edited === undefined ? "Edit the arguments" : "As they were"}</button>`}
    </div>
  </div>`;
}

function Card({ approval, now, done, may, who }) {
  return html`<article class="card ${approval.state}" aria-label=${approval.question}>
    <header><h2>${approval.tool ? html`<code>${approval.tool}</code>` : "A question"} <${Status} name=${approval.state} /></h2>
      <small><a href="#/runs/${approval.run_id}">its run</a> · asked <${Ago} time=${approval.requested_at} now=${now} />
        ${approval.state === "open" ? html` · answered for by itself <${Ago} time=${approval.expires_at} now=${now} />` : ""}</small></header>
    <p class="question">${cut(approval.question, 2000)} <${Trust} name=${approval.trust} /></p>
    <${Arguments} approval=${approval} />
    <${Background} approval=${approval} />
    ${approval.reasons.length ? html`<ul class="reasons">${approval.reasons.map((reason) => html`<li>${reason}</li>`)}</ul>` : null}
    <${People} approval=${approval} now=${now} />
    ${approval.state === "open" && may ? html`<${Decide} approval=${approval} done=${done} who=${who} />` : null}
    ${approval.decided_by ? html`<p><b>${approval.decided_by}</b> ${words(approval.state)} it <${Ago} time=${approval.decided_at} now=${now} />${approval.reason ? `: ${approval.reason}` : ""}</p>` : null}
  </article>`;
}

export function Approvals({ parameters, who }) {
  const state = parameters.state || "open";
  const now = useNow(5000);
  const { value, error, again } = usePolled(() => get(query("/v1/approvals", { state: state === "all" ? "" : state, limit: 100 })), state, 3000);
  const may = who.roles.some((role) => role === "operator" || role === "admin");
  return html`<div class="title"><h1>Approvals</h1>
      <nav class="tabs" aria-label="Which">${["open", "granted", "denied", "expired", "all"].map((name) => html`<a href="#/approvals?state=${name}" aria-current=${name === state ? "page" : undefined}>${name}</a>`)}</nav></div>
    <${Trouble} error=${error} />
    ${value && !value.items.length ? html`<${Empty}>Nothing here. A call that a policy wants a person for waits on this page, and so does a run's question.</${Empty}>` : null}
    ${(value?.items || []).map((approval) => html`<${Card} key=${approval.approval_id} approval=${approval} now=${now} done=${again} may=${may} who=${who} />`)}`;
}
