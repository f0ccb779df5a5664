// Numbers, times and names for people.

const UNITS = [["d", 86400], ["h", 3600], ["m", 60]];

/** A length of time, in seconds, such as `2h 5m`, `9.9s`, `122ms`. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 0.001) return "0ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)}s`;
  const parts = [];
  let rest = Math.round(seconds);
  for (const [name, size] of UNITS) {
    if (rest >= size) {
      parts.push(`${Math.floor(rest / size)}${name}`);
      rest %= size;
    }
  }
  if (rest && parts.length < 2) parts.push(`${rest}s`);
  return parts.slice(0, 2).join(" ");
}

export const seconds = (from, to) => (new Date(to) - new Date(from)) / 1000;

/** How long ago, or how far off. */
export function ago(time, now = Date.now()) {
  const past = (now - new Date(time)) / 1000;
  if (Math.abs(past) < 2) return "just now";
  return past > 0 ? `${duration(past)} ago` : `in ${duration(-past)}`;
}

export function clock(time) {
  const date = new Date(time);
  const text = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return `${text}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export const when = (time) => (time ? new Date(time).toLocaleString() : "");
export const number = (value) => (value ?? 0).toLocaleString("en-US");

export function bytes(count) {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = -1;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

export const dollars = (value) => `$${(value ?? 0).toFixed(value && value < 0.01 ? 4 : 2)}`;
export const words = (name) => String(name ?? "").replaceAll("_", " ");

/** Why a run pauses; where it only awaits its open calls or questions it has not said so itself. */
export const why = (wait) =>
  wait.why || { task_result: "a call that is under way", operator_input: "a person's answer" }[wait.kind] || "";

export function cut(text, limit) {
  return text && text.length > limit ? `${text.slice(0, limit - 1)}…` : text || "";
}
