// What each event means to a person: `{icon, kind, title, text?, block?, quiet?}`.
import { cut, duration, number, seconds, words } from "./format.js";

const args = (call) => cut(JSON.stringify(call?.arguments ?? {}), 160);
const text = (block) => block?.text ?? "";

const LINES = {
  "run.created": (d) => ({ icon: "●", kind: "run", title: "created", text: text(d.objective), more: d.input }),
  "run.queued": () => ({ icon: "…", kind: "run", title: "waits for admission" }),
  "run.runnable": (d) => ({
    icon: "☀", kind: "wake", title: d.wake ? `woken by ${words(d.wake)}` : "ready to begin", text: `turn ${d.number}`,
  }),
  "run.waiting": (d) => ({ icon: "☾", kind: "sleep", title: `sleeps until ${(d.kinds || []).map(words).join(" or ")}` }),
  "run.pause_requested": (d) => ({ icon: "‖", kind: "person", title: "is to be held", text: d.reason || "" }),
  "run.paused": () => ({ icon: "‖", kind: "person", title: "held" }),
  "run.resumed": () => ({ icon: "▶", kind: "person", title: "goes on" }),
  "run.cancel_requested": (d) => ({ icon: "■", kind: "person", title: "is to end", text: d.reason || "" }),
  "run.completed": (d) => ({ icon: "●", kind: "good", title: `completed: ${words(d.ending?.rule)}`, block: d.ending?.text }),
  "run.failed": (d) => ({ icon: "●", kind: "bad", title: `failed: ${words(d.ending?.rule)}`, block: d.ending?.text }),
  "run.cancelled": (d) => ({ icon: "●", kind: "idle", title: "cancelled", block: d.ending?.text }),
  "turn.completed": (d) => ({
    icon: "◆", kind: "model", title: `turn ${d.number}`, text: text(d.text), turn: d.number,
    facts: [d.model, `${number(d.usage?.input_tokens)} → ${number(d.usage?.output_tokens)} tokens`, d.model_ms !== undefined && `${d.model_ms} ms`],
  }),
  "turn.rejected": (d) => ({ icon: "◇", kind: "bad", title: "the answer was refused", text: (d.problems || []).join("; ") || words(d.reason) }),
  "turn.charged": (d) => ({ icon: "◇", kind: "idle", title: "paid for in vain", text: d.reason, facts: [`${number((d.usage?.input_tokens ?? 0) + (d.usage?.output_tokens ?? 0))} tokens`], quiet: true }),
  "turn.abandoned": (d) => ({ icon: "◇", kind: "idle", title: "turn given up", text: words(d.reason) }),
  "message.added": (d) => ({ icon: "✎", kind: "person", title: d.by ? `${d.by} writes` : "message", block: d.block || d.message || d.text }),
  "plan.updated": (d) => ({
    icon: "☰", kind: "model", title: `plan: ${(d.steps || []).filter((step) => step.status === "done").length} of ${(d.steps || []).length} done`,
    text: (d.steps || []).filter((step) => step.status === "in_progress").map((step) => step.title).join(", "),
    facts: [d.reason && `why: ${d.reason}`], quiet: !d.reason,
  }),
  "tool.requested": (d) => ({ icon: "→", kind: "tool", title: d.call?.tool, text: args(d.call), facts: [words(d.call?.effect)],
    output: d.call?.kind === "activity" ? d.call.call_id : undefined }),
  "tool.denied": (d) => ({ icon: "✕", kind: "bad", title: "denied", text: d.reason || text(d.block) || words(d.code) }),
  "tool.started": (d) => ({ icon: "▶", kind: "tool", title: "started", text: d.attempt > 1 ? `attempt ${d.attempt}` : "", quiet: true }),
  "tool.progressed": (d) => ({
    icon: d.asks ? "?" : d.attempt ? "↻" : "…", kind: d.attempt ? "bad" : "tool",
    title: d.asks ? "asks for something" : d.attempt ? `${d.attempt.dry_run ? "dry run" : "attempt"} ${d.attempt.number} failed (${words(d.attempt.code)})` : d.put_off ? `waits: ${words(d.reason || "later")}` : "goes on elsewhere",
    text: d.attempt?.said, block: d.asks, facts: [d.put_off && `put off until ${new Date(d.put_off).toLocaleTimeString()}`], quiet: !d.asks && !d.attempt && !d.put_off,
  }),
  "tool.completed": (d) => ({ icon: "✓", kind: "good", title: "done", block: d.result?.block, facts: [ms(d.result?.duration_ms)] }),
  "tool.failed": (d) => ({ icon: "✕", kind: "bad", title: `failed: ${words(d.failure?.code)}`, block: d.failure?.block, facts: [ms(d.failure?.duration_ms)] }),
  "tool.cancelled": () => ({ icon: "■", kind: "idle", title: "call cancelled" }),
  "tool.in_doubt": () => ({ icon: "?", kind: "bad", title: "in doubt: it may have happened, or not" }),
  "tool.reconciled": (d) => ({ icon: "✓", kind: "tool", title: `found out: ${words(d.outcome?.kind || d.outcome || "")}` }),
  "observation.recorded": (d) => ({
    icon: "◉", kind: "observe", title: words(d.observation?.phase), text: d.observation?.changed,
    facts: [d.observation?.decision && `to decide: ${d.observation.decision}`, d.observation?.counts && `${number(d.observation.counts.lines)} lines`],
    evidence: d.observation?.evidence,
  }),
  "wait.registered": (d) => ({ icon: "☾", kind: "sleep", title: "waits", text: d.wait?.why }),
  "wait.satisfied": (d) => ({ icon: "✓", kind: "wake", title: `what it waited for: ${words(d.kind)}`, quiet: true }),
  "wait.expired": () => ({ icon: "⏱", kind: "bad", title: "waited in vain: the deadline passed" }),
  "wait.cancelled": () => ({ icon: "■", kind: "idle", title: "waits no more", quiet: true }),
  "timer.set": (d) => ({ icon: "⏱", kind: "sleep", title: `timer (${words(d.purpose)})`, text: new Date(d.due).toLocaleString(), quiet: true }),
  "timer.fired": () => ({ icon: "⏱", kind: "wake", title: "timer fired", quiet: true }),
  "timer.cancelled": () => ({ icon: "⏱", kind: "idle", title: "timer cancelled", quiet: true }),
  "approval.requested": (d) => ({ icon: "?", kind: "person", title: "asks a person", block: d.approval?.question, approval: d.approval?.approval_id }),
  "approval.endorsed": (d) => ({ icon: "✓", kind: "person", title: `${d.by || "somebody"} agreed, and one more person is needed`, text: typeof d.reason === "string" ? d.reason : "", approval: d.approval_id }),
  "approval.granted": (d) => ({ icon: "✓", kind: "person", title: `${d.endorsed_by ? `${d.endorsed_by} and ` : ""}${d.by || "somebody"} agreed`, text: text(d.reason) || (typeof d.reason === "string" ? d.reason : "") }),
  "approval.denied": (d) => ({ icon: "✕", kind: "person", title: `${d.by || "somebody"} refused`, text: text(d.reason) || (typeof d.reason === "string" ? d.reason : "") }),
  "approval.expired": () => ({ icon: "⏱", kind: "bad", title: "nobody answered in time" }),
  "subagent.started": (d) => ({ icon: "⑂", kind: "tool", title: `child run started: ${d.spawn?.agent}`, run: d.child_id }),
  "subagent.completed": (d) => ({ icon: "⑂", kind: "good", title: "child run done", run: d.child_id, block: d.result }),
  "subagent.failed": (d) => ({ icon: "⑂", kind: "bad", title: "child run failed", run: d.child_id, block: d.reason }),
  "subagent.cancelled": (d) => ({ icon: "⑂", kind: "idle", title: "child run cancelled", run: d.child_id, block: d.reason }),
  "artifact.created": (d) => ({ icon: "▣", kind: "tool", title: d.artifact?.name, text: `version ${d.artifact?.version}`, artifact: d.artifact }),
  "artifact.updated": (d) => ({ icon: "▣", kind: "tool", title: d.artifact?.name, text: `version ${d.artifact?.version}`, artifact: d.artifact }),
  "external.matched": (d) => ({ icon: "⇥", kind: "wake", title: `event ${d.external?.event_type || ""}`, text: d.external?.resource_key }),
  "budget.exceeded": (d) => ({ icon: "!", kind: "bad", title: `budget used up: ${words(d.limit || d.rule)}` }),
  "run.forked": (d) => ({ icon: "⑂", kind: "person", title: `goes on from turn ${d.origin?.turn} of another run`, text: d.effects ? "with effects" : "effects are simulated", run: d.origin?.run_id }),
  "run.revised": (d) => ({ icon: "±", kind: "person", title: `revised by ${d.by || "somebody"}`, text: text(d.objective) || d.reason || "" }),
  "budget.changed": () => ({ icon: "±", kind: "person", title: "budget changed" }),
};

const ms = (value) => (value === undefined ? "" : duration(value / 1000));

/** An event as a line of the story. */
export function line(event) {
  const make = LINES[event.type];
  const told = make ? make(event.data) : { icon: "·", kind: "idle", title: words(event.type.replace(".", " ")) };
  return { facts: [], ...told, facts: (told.facts || []).filter(Boolean) };
}

/** Pauses of a second and more between events, in which nothing was running and nothing was paid for. */
export function gap(before, event) {
  if (!before) return null;
  const asleep = seconds(before.at, event.at);
  return asleep >= 1 ? asleep : null;
}
