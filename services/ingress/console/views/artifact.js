// What a run made: text and pictures are shown, anything else can be had as a file.
import { html } from "../html.js";
import { getText, query } from "../api.js";
import { bytes } from "../format.js";
import { Dialog, Empty, Trouble, Trust, usePolled } from "../ui.js";

const SHOWN_BYTES = 512 * 1024;

const isText = (type) => /^text\/|json|xml|yaml|markdown|javascript/.test(type);
// Not SVG: it is a program as well.
const isPicture = (type) => /^image\/(png|jpeg|gif|webp)$/.test(type);

function Text({ path }) {
  const { value, error } = usePolled(() => getText(path), path, 0);
  return html`<${Trouble} error=${error} />${value === undefined ? null : value ? html`<pre class="block" tabindex="0">${value}</pre>` : html`<${Empty}>It is empty.</${Empty}>`}`;
}

export function Artifact({ artifact, onClose }) {
  const { artifact_id: id, version, name, media_type: type, bytes: size } = artifact;
  const path = query(`/v1/artifacts/${id}/content`, { version });
  const small = size <= SHOWN_BYTES;
  return html`<${Dialog} title=${name} onClose=${onClose}>
    <p><small>version ${version} · ${bytes(size)} · ${type} · <code>${artifact.digest.slice(0, 12)}</code></small> <${Trust} name=${artifact.trust} />
      <a href=${path} download=${name}>save it</a></p>
    ${isPicture(type) ? html`<img class="preview" src=${path} alt=${name} />` : small && isText(type) ? html`<${Text} path=${path} />`
      : html`<${Empty}>${small ? "It can't be shown here." : "It is too large to be shown here."}</${Empty}>`}
  </${Dialog}>`;
}
