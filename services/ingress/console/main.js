// The shell: who is signed in, where one is, and what waits for a decision.
import { html, render, useEffect, useState } from "./html.js";
import { get, signOut, whenSignedOut, whoAmI } from "./api.js";
import { usePolled } from "./ui.js";
import { Agents } from "./views/agents.js";
import { Approvals } from "./views/approvals.js";
import { Costs } from "./views/costs.js";
import { Health } from "./views/health.js";
import { Run } from "./views/run.js";
import { Runs } from "./views/runs.js";
import { Schedules } from "./views/schedules.js";
import { SignIn } from "./views/sign-in.js";
import { Waits } from "./views/waits.js";

const PAGES = [
  ["runs", "Runs", Runs],
  ["waiting", "Waiting", Waits],
  ["approvals", "Approvals", Approvals],
  ["agents", "Agents", Agents],
  ["schedules", "Schedules", Schedules],
  ["costs", "Costs", Costs],
  ["health", "Health", Health],
];

/** Where the address says to be: `#/runs/ID?tab=...`. */
function place() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, id] = path.split("/").map(decodeURIComponent);
  return { page: page || "runs", id, parameters: Object.fromEntries(new URLSearchParams(search)) };
}

function usePlace() {
  const [at, set] = useState(place());
  useEffect(() => {
    const moved = () => set(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}

function Shell({ who, onSignOut }) {
  const at = usePlace();
  const open = usePolled(() => get("/v1/approvals?state=open&limit=100"), "approvals", 4000);
  const count = open.value?.items.length || 0;
  const [, name, Page] = PAGES.find(([key]) => key === at.page) || PAGES[0];
  useEffect(() => {
    document.title = `${count ? `(${count}) ` : ""}${at.id ? "Run" : name} · Escapement`;
  }, [count, name, at.id]);
  const out = async () => {
    await signOut().catch(() => {});
    onSignOut();
  };
  return html`
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/runs">Escapement</a>
      <nav aria-label="Pages">
        ${PAGES.map(([key, label]) => html`<a href="#/${key}" aria-current=${key === at.page ? "page" : undefined}>${label}
          ${key === "approvals" && count > 0 ? html` <span class="count" aria-label="${count} open">${count}</span>` : null}</a>`)}
      </nav>
      <div class="who"><span title="roles: ${who.roles.join(", ")}">${who.name}</span>
        <button class="plain" onClick=${out}>Sign out</button></div>
    </header>
    <main id="content" tabindex="-1">
      ${at.page === "runs" && at.id ? html`<${Run} key=${at.id} id=${at.id} parameters=${at.parameters} who=${who} />`
        : html`<${Page} key=${at.page} parameters=${at.parameters} who=${who} />`}
    </main>`;
}

function App() {
  const [who, setWho] = useState();
  useEffect(() => {
    whenSignedOut(() => setWho(null));
    whoAmI().then(setWho, () => setWho(null));
  }, []);
  if (who === undefined) return null;
  return who ? html`<${Shell} who=${who} onSignOut=${() => setWho(null)} />` : html`<${SignIn} onDone=${setWho} />`;
}

render(html`<${App} />`, document.getElementById("app"));
