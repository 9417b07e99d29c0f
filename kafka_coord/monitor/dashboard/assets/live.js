// Keeps documents from the API up to date through server-sent events, and finds another instance if this one is gone.

const API = "/api/v1";
const LOST_MS = 3000;
const SIBLINGS = "siblings";
export const CSRF = "kafka-coord-csrf"; // not in a cookie, which a browser also sends to other ports of this host
export const MOVED = "?moved"; // tells the next instance's page that someone was logged in here

/** Applies the server's changes (kafka_coord/monitor/dashboard/live.py) and returns the new document. */
export function applied(document, changes) {
  for (const [path, value, how] of changes) {
    if (!path.length) {
      if (how !== "append") document = value;
      else document.push(...value);
      continue;
    }
    let at = document;
    for (const key of path.slice(0, -1)) at = at[key];
    const last = path.at(-1);
    if (how === "append") at[last].push(...value);
    else if (value === undefined) delete at[last];
    else Object.defineProperty(at, last, { value, writable: true, enumerable: true, configurable: true }); // "__proto__" is a name
  }
  return document;
}

/** Follows these paths. Calls `changed(documents, troubles)` after every change and `said(state)` when the connection's state changes. */
export function follow(paths, changed, said) {
  let source, lost, closed = false, documents = {}, troubles = {};
  const query = paths.map((path) => `path=${encodeURIComponent(path)}`).join("&");

  const told = (kind) => (event) => {
    const cut = event.data.indexOf("\n");
    const { path } = JSON.parse(event.data.slice(0, cut));
    const value = JSON.parse(event.data.slice(cut + 1));
    if (kind === "trouble") troubles[path] = value;
    else {
      delete troubles[path];
      documents[path] = kind === "change" ? applied(documents[path], value) : value;
    }
    changed(documents, troubles);
  };

  const begin = () => {
    if (closed || source) return;
    source = new EventSource(`${API}/events?${query}`);
    for (const kind of ["document", "change", "trouble"]) source.addEventListener(kind, told(kind));
    source.onopen = () => {
      clearTimeout(lost);
      lost = null;
      said("live");
    };
    source.onerror = () => {
      said("lost");
      if (source.readyState === EventSource.CLOSED) { // the server refused, and EventSource will not retry
        end();
        setTimeout(begin, 2000);
      }
      lost ??= setTimeout(look, LOST_MS);
    };
  };
  const end = () => {
    source?.close();
    source = null;
  };
  const look = async () => {
    lost = null;
    if (closed || source?.readyState === EventSource.OPEN) return;
    const found = await another();
    if (found) location.replace(`${found}/dashboard/${localStorage.getItem(CSRF) ? MOVED : ""}${location.hash}`);
    else lost = setTimeout(look, LOST_MS);
  };
  const seen = () => { // a hidden page holds no connection
    if (document.hidden) {
      end();
      said("resting");
    } else begin();
  };
  document.addEventListener("visibilitychange", seen);
  seen();
  return () => {
    closed = true;
    clearTimeout(lost);
    end();
    document.removeEventListener("visibilitychange", seen);
  };
}

/** Remembers the addresses of the other instances. */
export function remember(instances) {
  const addresses = instances.flatMap((one) => ["https", "http"].filter((scheme) => one.endpoints[scheme])
    .map((scheme) => `${scheme}://${one.endpoints[scheme]}`));
  sessionStorage.setItem(SIBLINGS, JSON.stringify(addresses.filter((one) => one !== location.origin)));
}

/** Returns the address of an instance that answers, or null. */
async function another() {
  const addresses = JSON.parse(sessionStorage.getItem(SIBLINGS) ?? "[]");
  const asked = addresses.map(async (address) => {
    await fetch(`${address}/health`, { mode: "no-cors", signal: AbortSignal.timeout(2000) });
    return address;
  });
  return Promise.any(asked).catch(() => null);
}

export async function get(path) {
  const answer = await fetch(`${API}${path}`);
  return answer.ok ? answer.json() : null;
}
