// Builds elements from values, never from markup: whatever a name contains, it stays text.

/** Returns an element. `data` and keys that begin with "on" are set as properties, all others as attributes. */
export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "data" || key.startsWith("on")) element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Makes the children of `parent` equal to `wanted`. Keeps nodes of the same kind, so focus, selection and scrolling survive. */
export function show(parent, wanted) {
  const nodes = wanted.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
  nodes.forEach((node, at) => {
    const old = parent.childNodes[at];
    const made = typeof node === "string" || typeof node === "number" ? document.createTextNode(node) : node;
    if (!old) parent.append(made);
    else if (!morph(old, made)) old.replaceWith(made);
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}

/** Makes `old` equal to `made`, and returns false if their kinds differ. Custom elements draw their own content from `data`. */
function morph(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName) return false;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== made.nodeValue) old.nodeValue = made.nodeValue;
    return true;
  }
  if (old.getAttribute("id") !== made.getAttribute("id")) return false;
  if (old.nodeName.includes("-")) {
    old.data = made.data;
    return true;
  }
  for (const { name } of [...old.attributes]) {
    if (!made.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  old.onclick = made.onclick;
  old.oninput = made.oninput;
  old.onsubmit = made.onsubmit;
  show(old, [...made.childNodes]);
  return true;
}

/** Returns a table that scrolls if it is too wide, and becomes cards on a phone. `columns` are [title, of(row), class]. */
export function table(caption, columns, rows, empty = "none") {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  const cells = (row) => columns.map(([title, of, kind]) =>
    h("td", { class: kind, "data-title": title }, of(row) ?? h("span", { class: "soft empty" }, title ? "–" : "")));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null,
      h("thead", null, h("tr", null, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", null, rows.map((row) => h("tr", null, cells(row))))));
}

/** Returns links to a table of one of the API's documents, as CSV and as JSON. */
export function exported(title, document, name = "") {
  const at = (format) => `/api/v1${document}${document.includes("?") ? "&" : "?"}${new URLSearchParams({ format, table: name })}`;
  const file = title.toLowerCase().replaceAll(" ", "-");
  return h("p", { class: "soft exported" }, "Export: ", ["CSV", "JSON"].map((kind) => [
    h("a", { href: at(kind.toLowerCase()), download: `${file}.${kind.toLowerCase()}`, "aria-label": `${title} as ${kind}` }, kind), " "]));
}

export const section = (title, ...content) =>
  h("section", { "aria-label": title }, h("h2", null, title), ...content);

export const badge = (text, kind) => h("span", { class: `badge ${kind}` }, text);

export const figure = (value, name, kind = "") =>
  h("div", { class: `figure ${kind}` }, h("b", null, value), h("span", null, name));

/** "group" for one, "groups" for any other number. */
export const plural = (value, noun) => (value === 1 ? noun : `${noun}s`);

export const count = (value) => value === null || value === undefined ? null : value.toLocaleString("en");

/** 1.2 k, 3.4 M */
export function short(value) {
  if (value === null || value === undefined) return "unknown";
  const [unit, size] = [["G", 1e9], ["M", 1e6], ["k", 1e3]].find(([, least]) => value >= 10 * least) ?? ["", 1];
  return unit ? `${(value / size).toFixed(value / size < 100 ? 1 : 0)} ${unit}` : count(value);
}

/** 850 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h */
export function duration(ms, digits = 1) {
  if (ms === null || ms === undefined) return null;
  if (ms < 1000 && digits) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${digits ? (ms / 1000).toFixed(digits) : Math.floor(ms / 1000)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.floor(ms / 1000) % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Returns a time in ms since 1970, or null if it is none: anyone may have written it. */
export const moment = (ms) => (ms > 0 && ms < 253_402_300_800_000 ? ms : null);

/** Returns a moment's day and time of day in UTC, the zone of all times here: ["2026-01-31", "12:00:00"]. */
export const utc = (ms) => new Date(moment(ms) ?? 0).toISOString().slice(0, 19).split("T");

/** Formats a time of day with its zone, and with the date unless it is today. */
export function clock(ms) {
  const [day, time] = utc(ms);
  return day === utc(Date.now())[0] ? `${time} UTC` : `${day} ${time} UTC`;
}

/** Returns an element that says how long ago a moment (ISO 8601) is. */
export function ago(iso) {
  if (!iso) return null;
  const ms = Date.parse(iso);
  return h("time", { datetime: iso, title: iso }, `${duration(Math.max(0, Date.now() - ms), 0)} ago`);
}

/** Returns a link within the dashboard. Escapes the parts of its path. */
export const to = (text, ...parts) => h("a", { href: path(...parts) }, text);
export const path = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** Returns a label of at most `room` characters for each name, so that different names have different labels: shortened
 * in the middle, or else with what differs instead of what names have in common. */
export function distinct(names, room) {
  const labels = new Map();
  const cut = (text) => (text.length <= room ? text : `${text.slice(0, Math.ceil(room / 2) - 1)}…${text.slice(-Math.floor(room / 2))}`);
  const place = (some, written) => {
    const alike = new Map();
    for (const name of some) alike.set(cut(written(name)), [...(alike.get(cut(written(name))) ?? []), name]);
    for (const [label, group] of alike) {
      if (group.length === 1) labels.set(group[0], label);
      else {
        let shared = 0;
        while (group.every((one) => shared < one.length && one[shared] === group[0][shared])) shared++;
        place(group, (name) => `…${name.slice(shared)}`);
      }
    }
  };
  place(new Set(names), (name) => name);
  const often = new Map();
  for (const label of labels.values()) often.set(label, (often.get(label) ?? 0) + 1);
  return new Map([...labels].map(([name, label]) => [name, often.get(label) > 1 ? name : label]));
}

/** Formats {"flights": "0-3,7", "routes": "1"} as "flights 0-3,7, routes 1". */
export const partitions = (found) =>
  Object.entries(found ?? {}).map(([topic, numbers]) => `${topic} ${numbers}`).join(", ") || null;

export const STATE = { Stable: "good", Rebalancing: "busy", Paused: "warn", Empty: "none", Dead: "bad" };
export const VERDICT = {
  "keeping up": "good", behind: "warn", rewound: "warn", stalled: "bad", stopped: "bad", unknown: "none",
};
export const SEVERITY = { error: "bad", warning: "warn", info: "none", ok: "good" };
