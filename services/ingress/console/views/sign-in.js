// The door: an API token for a session.
import { html, useState } from "../html.js";
import { Trouble } from "../ui.js";
import { signIn } from "../api.js";

export function SignIn({ onDone }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState();
  const submit = async (event) => {
    event.preventDefault();
    try {
      onDone(await signIn(token.trim()));
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<main class="door">
    <h1>Escapement</h1>
    <form onSubmit=${submit}>
      <label for="token">API token</label>
      <input id="token" type="password" autocomplete="current-password" required autofocus value=${token}
        onInput=${(event) => setToken(event.target.value)} />
      <button class="primary">Sign in</button>
      <${Trouble} error=${error} />
      <p>The local stack keeps one in <code>.local/env</code> as <code>ESC_TOKEN</code>. The browser holds it in a cookie that
      no script can read.</p>
    </form>
  </main>`;
}
