// The output of an activity as it comes: the end of it, and more while the call is open.
import { html, useEffect, useRef, useState } from "../html.js";
import { getBytes, query } from "../api.js";
import { bytes } from "../format.js";
import { Dialog, Empty, Trouble } from "../ui.js";

/** So much of the end is kept on the page. */
const KEPT = 256 * 1024;
const EVERY_MS = 1500;

/** How far an answer goes: from where it begins, over what was never archived of it. */
function end(headers, length) {
  const gaps = (headers.get("esc-gaps") || "").split(",").filter(Boolean).map((gap) => gap.split("-").map(Number));
  return Number(headers.get("esc-offset")) + length + gaps.reduce((sum, [from, to]) => sum + to - from, 0);
}

/** Begins near the end, and reads on from where it was, as long as the page is open. */
function useOutput(call) {
  const [state, set] = useState({ text: "", read: 0, error: undefined, looked: false });
  useEffect(() => {
    let over = false;
    let timer;
    let read;
    const decoder = new TextDecoder();
    const look = async () => {
      try {
        if (!document.hidden) {
          const { headers, bytes } = await getBytes(query(`/v1/signals/${call}`, read === undefined ? { tail: KEPT } : { from: read }));
          if (over) return;
          read = end(headers, bytes.length);
          // A letter that was cut in two is shown when all of it is here.
          const text = decoder.decode(bytes, { stream: true });
          set((old) => ({ text: (old.text + text).slice(-KEPT), read, error: undefined, looked: true }));
        }
      } catch (error) {
        // Once there was something, nothing more is no trouble.
        const isTrouble = error.status !== 404 || read === undefined;
        if (!over) set((old) => ({ ...old, error: isTrouble ? error : undefined, looked: true }));
      }
      if (!over) timer = setTimeout(look, EVERY_MS);
    };
    look();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [call]);
  return state;
}

export function Output({ call, onClose }) {
  const { text, read, error, looked } = useOutput(call);
  const box = useRef();
  useEffect(() => {
    const shown = box.current;
    // Whoever scrolled back to read is left there.
    if (shown && shown.scrollHeight - shown.scrollTop - shown.clientHeight < 200) shown.scrollTop = shown.scrollHeight;
  }, [text]);
  return html`<${Dialog} title="Output" onClose=${onClose}>
    <p><small>call <code>${call}</code> · ${bytes(read)} · from outside, so not to be believed by itself</small></p>
    ${error?.status === 404 ? html`<${Empty}>Nothing is archived yet.</${Empty}>` : html`<${Trouble} error=${error} />`}
    ${looked && !text && !error ? html`<${Empty}>No output so far.</${Empty}>` : null}
    ${text ? html`<pre class="output block untrusted" ref=${box} tabindex="0" aria-label="Output of the call">${text}</pre>` : null}
  </${Dialog}>`;
}
