// Small parts that every page is made of.
import { html, useEffect, useRef, useState } from "./html.js";
import { ago, when, words } from "./format.js";

const STATUS = {
  running: "active", runnable: "active", queued: "idle", waiting: "asleep", paused: "held", cancelling: "held",
  completed: "good", failed: "bad", cancelled: "idle", open: "held", granted: "good", denied: "bad", expired: "idle",
};

export const Status = ({ name }) => html`<span class="status ${STATUS[name] || "idle"}">${words(name)}</span>`;

/** Where words came from decides what they may do: it is shown wherever they are. */
export const Trust = ({ name }) =>
  name ? html`<span class="trust ${name}" title="where this came from: ${name}">${name}</span>` : null;

/** A text with its origin. What came from outside is set apart, so that nobody takes it for the system's own words. */
export const Block = ({ block }) =>
  block?.text
    ? html`<figure class="block ${block.trust}"><pre>${block.text}</pre>
        <figcaption><${Trust} name=${block.trust} /> ${block.source}</figcaption></figure>`
    : null;

export const Ago = ({ time, now }) => html`<time datetime=${time} title=${when(time)}>${ago(time, now)}</time>`;

export const Json = ({ value }) => html`<pre class="json">${JSON.stringify(value, null, 2)}</pre>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** What went wrong, with what to do about it. */
export const Trouble = ({ error }) =>
  error
    ? html`<div class="trouble" role="alert"><strong>${error.message}</strong>
        ${error.remedy && html`<span>${error.remedy}</span>`}</div>`
    : null;

/** A value that is read now, again every `every` ms while the page is seen, and whenever `key` changes. */
export function usePolled(read, key, every = 5000) {
  const [state, set] = useState({ value: undefined, error: undefined });
  const [turn, again] = useState(0);
  useEffect(() => {
    let over = false;
    let timer;
    const look = async () => {
      if (!document.hidden) {
        try {
          const value = await read();
          if (!over) set({ value, error: undefined });
        } catch (error) {
          if (!over) set((old) => ({ value: old.value, error }));
        }
      }
      if (!over && every) timer = setTimeout(look, every);
    };
    look();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [key, turn]);
  return { ...state, again: () => again((count) => count + 1) };
}

/** The time, now and then, for what says how long ago. */
export function useNow(every = 1000) {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), every);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** A button that does something once, and says if it could not. `about` tells it from others of its name. */
export function Action({ label, about, run, kind = "", confirm, disabled }) {
  const [state, set] = useState({});
  const act = async () => {
    if (confirm && !window.confirm(confirm)) return;
    set({ busy: true });
    try {
      await run();
      set({});
    } catch (error) {
      set({ error });
    }
  };
  return html`<span class="action">
    <button class=${kind} aria-label=${about ? `${label}: ${about}` : undefined} disabled=${disabled || state.busy} aria-busy=${!!state.busy} onClick=${act}>${label}</button>
    <${Trouble} error=${state.error} />
  </span>`;
}

/** A panel above the page; Escape or a click beside it closes it, and the focus goes back to where it was. */
export function Dialog({ title, onClose, children }) {
  const box = useRef();
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  const beside = (click) => click.target === box.current && onClose();
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose} onClick=${beside}>
    <header><h2>${title}</h2><button class="plain" aria-label="Close" onClick=${onClose}>✕</button></header>
    <div class="body">${children}</div>
  </dialog>`;
}

/** How much of a limit is used. */
export function Meter({ label, used, limit, show = (value) => value }) {
  const share = limit ? Math.min(1, used / limit) : 0;
  return html`<div class="meter">
    <span>${label}</span><span>${show(used)}${limit ? html`<small> of ${show(limit)}</small>` : ""}</span>
    ${limit ? html`<progress max="1" value=${share} class=${share > 0.9 ? "bad" : ""} aria-label=${label}></progress>` : null}
  </div>`;
}

/** Bars side by side, each `{label, value, title}`; the table behind them is what a screen reader reads. */
export function Bars({ items, caption, show = (value) => value }) {
  const most = Math.max(1e-9, ...items.map((item) => item.value));
  return html`<table class="bars"><caption>${caption}</caption><tbody>
    ${items.map((item) => html`<tr title=${item.title || ""}>
      <th scope="row">${item.href ? html`<a href=${item.href}>${item.label}</a>` : item.label}</th>
      <td><progress class="bar" max=${most} value=${item.value} aria-hidden="true"></progress></td><td class="value">${show(item.value)}</td></tr>`)}
  </tbody></table>`;
}
