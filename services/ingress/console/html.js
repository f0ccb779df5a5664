// One place that names the libraries: `html` is JSX as a tagged template, so that nothing has to be compiled.
import { h, render, Fragment } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { render, Fragment };
export { useState, useEffect, useRef, useMemo, useCallback, useReducer } from "./vendor/hooks.js";
export const html = htm.bind(h);
