// Login and actions, if the server has operators. Dialogs live outside the page element, which is redrawn all the time.
import { count, h, plural, table } from "./dom.js";
import { CSRF, MOVED } from "./live.js";

const API = "/api/v1";

const login = document.getElementById("login");
const told = document.getElementById("told");
let session = { actions: false, operator: null };

async function post(path, body) {
  const answer = await fetch(`${API}${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": localStorage.getItem(CSRF) ?? "" },
    body: JSON.stringify(body),
  }).catch(() => {
    throw new Error("This instance does not answer. The group's history shows whether the action took effect. The page is looking for another instance.");
  });
  const found = await answer.json().catch(() => ({}));
  if (answer.status === 401 && path !== "/login") await look();
  if (!answer.ok) throw new Error(found.error ?? `the server answered with status ${answer.status}`);
  return found;
}

function tell(text) {
  told.textContent = text;
  told.hidden = !text;
}

/** Opens a dialog. `act` receives the form's values and returns a message for the page, or nothing if it opens another dialog. */
function ask(title, content, verb, act) {
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const go = h("button", { type: "submit", class: "go" }, verb);
  const box = h("dialog", { "aria-label": title, onclose: () => box.remove() },
    h("form", { onsubmit: async (event) => {
      event.preventDefault();
      const values = new FormData(event.target);
      go.disabled = true;
      trouble.hidden = true;
      try {
        const message = await act((name) => values.get(name) ?? "", values);
        if (message) tell(message);
        box.close();
      } catch (error) {
        trouble.textContent = error.message;
        trouble.hidden = false;
      }
      go.disabled = false;
    } }, h("h2", null, title), content, trouble,
    h("div", { class: "ranges" }, go, h("button", { type: "button", onclick: () => box.close() }, "Cancel"))));
  document.body.append(box);
  box.showModal();
}

const field = (label, name, attributes) =>
  h("label", null, label, h("input", { name, autocomplete: "off", ...attributes }));
const reason = () => field("Reason (recorded in the history)", "reason", { required: true, maxlength: 1000 });

/** Checks whether someone is logged in here, and updates the login button. */
export async function look() {
  const before = session.operator;
  const answer = await fetch(`${API}/session`).catch(() => null);
  session = answer?.ok ? await answer.json() : { actions: false, operator: null };
  if (!localStorage.getItem(CSRF)) session.operator = null;
  login.hidden = !session.actions;
  login.textContent = session.operator ? `Log out ${session.operator}` : "Log in";
  if (before && !session.operator && session.actions) tell("Your login has ended. Log in again to act.");
  if (session.operator !== before) dispatchEvent(new HashChangeEvent("hashchange"));
}

login.onclick = async () => {
  if (session.operator) {
    await post("/logout", {}).catch((error) => tell(error.message));
    localStorage.removeItem(CSRF);
    await look();
    tell("Logged out.");
    return;
  }
  ask("Log in", [field("Token", "token", { type: "password" }),
    h("p", { class: "soft" }, "Without a token, your browser's certificate identifies you.")], "Log in", async (value) => {
    const found = await post("/login", { token: value("token") });
    localStorage.setItem(CSRF, found.csrf);
    await look();
    return `Logged in as ${found.operator}.`;
  });
};

const on = (group, action) => `/groups/${encodeURIComponent(group)}/${action}`;
const said = (found) => [...found.answers.map((one) => one.message || one.result), ...found.notes].join("; ");

const RULES = [
  ["to-earliest", "to the first record"], ["to-latest", "to the end"], ["to-time", "to a time (UTC), or a duration ago"],
  ["shift-by", "by a number of records"], ["to-offset", "to an offset"], ["to-current", "to the committed offset"],
];

function askReset(group, managed) {
  ask(`Reset offsets of ${group}`, [
    field("Topics (flights, or flights:0,3-5; empty for all)", "topics"),
    h("label", null, "Rule", h("select", { name: "rule" }, RULES.map(([name, text]) => h("option", { value: name }, text)))),
    field("Value (2026-01-31T12:00:00 in UTC, or with its own zone: …+02:00; PT2H, -100, …)", "value"),
    managed && h("label", null, h("input", { type: "checkbox", name: "pause" }),
      " While consumers run: pause the group, evict the owners, reset, resume (--pause)"),
    reason(),
  ], "Show the change", async (value) => {
    const rule = value("rule");
    const given = value("value").trim();
    const pause = value("pause") === "on";
    const found = await post(on(group, "reset-offsets"), {
      rule, pause, reason: value("reason"),
      topics: value("topics").split(/\s+/).filter(Boolean),
      value: ["shift-by", "to-offset"].includes(rule) && /^[+-]?\d+$/.test(given) ? Number(given) : given,
    });
    setTimeout(confirmReset, 0, group, found, managed, pause); // after this dialog has closed, so that the next one keeps the focus
  });
}

function confirmReset(group, found, managed, pause) {
  const many = found.rows.length;
  const noted = found.rows.filter((row) => row.note);
  const shown = [...noted, ...found.rows.filter((row) => !row.note)].slice(0, 100);
  ask(`Reset ${many} ${plural(many, "offset")} of ${group}?`, [
    h("p", null, `Rule: ${found.rule}`),
    table("Change", [
      ["Partition", (row) => `${row.topic} ${row.partition}`],
      ["Now", (row) => count(row.current_offset), "number"],
      ["Then", (row) => count(row.new_offset), "number"],
      ["Owner", (row) => row.owner],
      ["Note", (row) => row.note],
    ], shown),
    many > 100 && h("p", { class: "soft" }, `and ${count(many - 100)} more`),
    noted.length > 0 && h("label", { class: "trouble" },
      h("input", { type: "checkbox", name: "accept_notes", required: true }),
      ` Accept the ${plural(noted.length, "note")}: ${count(noted.length)} ${plural(noted.length, "offset")} will not be what the rule asks for (--accept-notes)`),
    !pause && found.rows.some((row) => row.owner) && h("p", { class: "trouble" },
      `Consumers own these partitions, so the reset will be refused: stop them${managed ? ", or start again and tick --pause" : " first"}.`),
  ], "Reset", async (value) => said(await post(on(group, "reset-offsets"), {
    confirm: found.confirm, accept_notes: value("accept_notes") === "on",
  })));
}

function askEvict(group, members) {
  ask(`Evict from ${group}`, [
    h("fieldset", null, h("legend", null, "Consumers"), members.map((one) =>
      h("label", null, h("input", { type: "checkbox", name: "consumers", value: one.consumer }), ` ${one.consumer}`))),
    reason(),
  ], "Evict", async (value, values) =>
    said(await post(on(group, "evict"), { consumers: values.getAll("consumers"), reason: value("reason") })));
}

/** Returns the buttons for operator actions on this group, or null if no one is logged in. */
export function actions(group, found) {
  if (!session.operator) return null;
  const managed = found.kind === "managed";
  const simple = (title, action) => h("button", { type: "button", onclick: () =>
    ask(`${title} ${group}`, reason(), title, async (value) => said(await post(on(group, action), { reason: value("reason") }))) }, title);
  return h("div", { class: "ranges", role: "group", "aria-label": "Actions" },
    managed && (found.paused?.everywhere === false ? simple("Resume", "resume") : simple("Pause", "pause")),
    managed && simple("Rebalance", "rebalance"),
    h("button", { type: "button", onclick: () => askEvict(group, found.members) }, "Evict…"),
    h("button", { type: "button", onclick: () => askReset(group, managed) }, "Reset offsets…"));
}

/** Looks up the session. After a failover, tells the user that the login does not carry over. */
async function arrive() {
  const moved = location.search === MOVED;
  if (moved) history.replaceState(null, "", location.pathname + location.hash);
  await look();
  if (moved && !session.operator) tell("The instance where you were logged in does not answer; this is another one. "
    + (session.actions ? "Log in again to act." : "It has no operators, so the dashboard is read-only here."));
}

arrive();
