// The output of an activity as it comes: the end of it, and more while the call is open.
import { html, useEffect, useRef, useState } from "../html.js";
import { getText } from "../api.js";
import { bytes } from "../format.js";
import { Dialog, Empty, Trouble } from "../ui.js";

/** So much of the end is kept on the page. */
const KEPT = 256 * 1024;
const EVERY_MS = 1500;

/** Reads on from where it was, as long as the page is open. */
function useOutput(call) {
  const [state, set] = useState({ text: "", read: 0, error: undefined, looked: false });
  useEffect(() => {
    let over = false;
    let timer;
    let read = 0;
    const look = async () => {
      try {
        const text = document.hidden ? "" : await getText(`/v1/signals/${call}?from=${read}`);
        if (over) return;
        read += new TextEncoder().encode(text).length;
        set((old) => ({ text: (old.text + text).slice(-KEPT), read, error: undefined, looked: true }));
      } catch (error) {
        if (!over) set((old) => ({ ...old, error, looked: true }));
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
  const end = useRef();
  useEffect(() => {
    const box = end.current;
    // Whoever scrolled back to read is left there.
    if (box && box.scrollHeight - box.scrollTop - box.clientHeight < 200) box.scrollTop = box.scrollHeight;
  }, [text]);
  return html`<${Dialog} title="Output" onClose=${onClose}>
    <p><small>call <code>${call}</code> · ${bytes(read)} · from outside, so not to be believed by itself</small></p>
    ${error?.status === 404 ? html`<${Empty}>Nothing is archived yet.</${Empty}>` : html`<${Trouble} error=${error} />`}
    ${looked && !text && !error ? html`<${Empty}>No output so far.</${Empty}>` : null}
    ${text ? html`<pre class="output block untrusted" ref=${end} tabindex="0" aria-label="Output of the call">${text}</pre>` : null}
  </${Dialog}>`;
}
