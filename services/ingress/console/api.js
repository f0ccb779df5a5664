// The HTTP API as the console uses it: JSON in, JSON out, RFC 9457 problems as errors, live runs as event streams.

/** What the API refused, in its own words. */
export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || `The server answered ${status}`);
    this.status = status;
    this.code = body?.code;
    this.remedy = body?.remedy;
    this.field = body?.field;
  }
}

let onSignedOut = () => {};

/** Says what to do when the session is over. */
export function whenSignedOut(callback) {
  onSignedOut = callback;
}

/** Sends a request. What is not an answer of success is thrown as a `Problem`. */
async function send(method, path, body, headers) {
  const options = { method, headers, credentials: "same-origin" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Problem(0, { detail: "The server can't be reached. It is tried again by itself." });
  }
  if (response.ok) return response;
  if (response.status === 401 && path !== "/v1/session") onSignedOut();
  const answer = parsed(await response.text(), response);
  throw new Problem(response.status, typeof answer === "object" ? answer : { detail: answer });
}

function parsed(text, response) {
  return text && response.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text;
}

async function call(method, path, body, headers = {}) {
  const response = await send(method, path, body, { accept: "application/json", ...headers });
  return parsed(await response.text(), response);
}

export const get = (path) => call("GET", path);
/** A content as text, whatever its type. */
export const getText = (path) => send("GET", path, undefined, {}).then((response) => response.text());
/** A content as it is, with what its headers say of it. */
export async function getBytes(path) {
  const response = await send("GET", path, undefined, {});
  return { headers: response.headers, bytes: new Uint8Array(await response.arrayBuffer()) };
}
export const post = (path, body, headers) => call("POST", path, body ?? {}, headers);
export const put = (path, body) => call("PUT", path, body);
export const del = (path) => call("DELETE", path);

/** A path with its query; what is empty is left out. */
export function query(path, parameters) {
  const words = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return words.length ? `${path}?${new URLSearchParams(words)}` : path;
}

/** A key that makes a repeated request harmless. */
export const idempotent = () => ({ "idempotency-key": crypto.randomUUID() });

/** Signs in with an API token; the browser then holds it in a cookie that no script can read. */
export const signIn = (token) => call("POST", "/v1/session", undefined, { authorization: `Bearer ${token}` });
export const signOut = () => del("/v1/session");
export const whoAmI = () => get("/v1/session");

// The names of all events: an `EventSource` hears only those that it was told of.
const TYPES =
  "run.created run.queued run.runnable run.waiting run.pause_requested run.paused run.resumed run.cancel_requested " +
  "run.completed run.failed run.cancelled run.forked run.revised run.changed turn.completed turn.rejected turn.charged turn.abandoned message.added plan.updated " +
  "tool.requested tool.authorized tool.denied tool.started tool.progressed tool.completed tool.failed tool.cancelled " +
  "tool.in_doubt tool.reconciled observation.recorded wait.registered wait.satisfied wait.expired wait.cancelled " +
  "timer.set timer.fired timer.cancelled approval.requested approval.endorsed approval.granted approval.denied approval.expired " +
  "subagent.started subagent.completed subagent.failed subagent.cancelled artifact.created artifact.updated " +
  "context.compacted context.reset budget.reserved budget.committed budget.exceeded budget.changed trust.declassified " +
  "memory.written memory.deleted external.received external.matched action.recorded";

/**
 * Follows a run: `on.snapshot(run)`, `on.event(event)`, `on.delta(delta)`, `on.state("live" | "lost" | "ended")`. Resumes by
 * itself behind the last event that it had, without a gap or a repeat. Returns what ends it.
 */
export function follow(run, after, on) {
  let source;
  let last = after;
  let ended = false;
  let timer;
  const open = () => {
    source = new EventSource(query(`/v1/runs/${run}/stream`, { last_event_id: last }));
    source.onopen = () => on.state("live");
    source.addEventListener("snapshot", (message) => on.snapshot(JSON.parse(message.data)));
    source.addEventListener("delta", (message) => on.delta(JSON.parse(message.data)));
    source.addEventListener("resume", () => again(0));
    for (const type of TYPES.split(" ")) {
      source.addEventListener(type, (message) => {
        const event = JSON.parse(message.data);
        if (event.seq <= last) return;
        last = event.seq;
        on.event(event);
        if (["run.completed", "run.failed", "run.cancelled"].includes(event.type)) stop("ended");
      });
    }
    source.onerror = () => {
      if (ended) return;
      on.state("lost");
      // The browser comes again by itself, unless the answer was one that it takes for final.
      if (source.readyState === EventSource.CLOSED) again(2000);
    };
  };
  const again = (pause) => {
    source.close();
    clearTimeout(timer);
    if (!ended) timer = setTimeout(open, pause);
  };
  const stop = (state) => {
    ended = true;
    clearTimeout(timer);
    source.close();
    if (state) on.state(state);
  };
  open();
  return () => stop();
}
