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

const topicsOf = (value) => value("topics").split(/\s+/).filter(Boolean);
const TOPICS = () => field("Topics (flights, or flights:0,3-5; empty for all)", "topics");
const tick = (text, name, attributes) => h("label", null, h("input", { type: "checkbox", name, ...attributes }), ` ${text}`);

/** What a dry run shows: sentences, and the offsets that would change, those with a note first. */
function shown(found) {
  const rows = found.rows ?? [];
  const first = [...rows.filter((row) => row.note), ...rows.filter((row) => !row.note)].slice(0, 100);
  const total = (name) => rows.reduce((sum, row) => sum + (row[name] ?? 0), 0);
  const unknown = rows.filter((row) => row.repeated === null).length;
  const deletes = rows.length > 0 && rows.every((row) => row.new_offset === null);
  return [
    found.rule && h("p", null, `Rule: ${found.rule}`),
    found.effects?.length > 0 && h("ul", null, found.effects.map((text) => h("li", null, text))),
    rows.length > 0 && h("p", null, deletes
      ? `Then consumers read ${count(total("repeated"))} records again (auto.offset.reset earliest), or never read ${count(total("skipped"))} (latest)`
      : `${count(total("repeated"))} records are read again, and ${count(total("skipped"))} are never read`,
    unknown > 0 ? `; unknown for ${count(unknown)} ${plural(unknown, "partition")}.` : "."),
    rows.length > 0 && table("Change", [
      ["Partition", (row) => `${row.topic} ${row.partition}`],
      ["Now", (row) => count(row.current_offset), "number"],
      ["Then", (row) => count(row.new_offset), "number"],
      ["Read again", (row) => count(row.repeated), "number"],
      ["Never read", (row) => count(row.skipped), "number"],
      ["Owner", (row) => row.owner],
      ["Note", (row) => row.note],
    ], first),
    rows.length > 100 && h("p", { class: "soft" }, `and ${count(rows.length - 100)} more`),
  ];
}

/**
 * Asks for what an action needs, shows its dry run, and carries it out once it is confirmed.
 *
 * `path` is where to, or makes it of the form's values, and `body` makes the request's body. `final` is the name to type before what cannot be undone.
 * `also` returns more of the second dialog for a dry run, and `confirm` confirms it.
 */
function askThenShow({ title, path, content, body, verb, final, also = () => null, confirm }) {
  ask(title, [content, reason()], "Show the change", async (value, values) => {
    const asked = { ...body(value, values), reason: value("reason"), dry_run: true };
    const to = typeof path === "string" ? path : path(value);
    const found = await post(to, asked);
    // after this dialog has closed, so that the next one keeps the focus
    setTimeout(() => show(found, asked, to));
  });
  const show = (found, asked, to) => {
    const noted = (found.rows ?? []).filter((row) => row.note).length;
    const act = confirm ?? ((first) => post(to, first));
    ask(`${title}?`, [
      shown(found),
      noted > 0 && h("div", { class: "trouble" }, tick(`Accept the ${plural(noted, "note")}: ${count(noted)} ${
        plural(noted, "offset")} will not be what the rule asks for (--accept-notes)`, "accept_notes", { required: true })),
      also(found, asked),
      final && field(`This cannot be undone. Type ${final} to confirm`, "name", { required: true, spellcheck: "false" }),
    ], verb, async (value) => {
      const first = { confirm: found.confirm, accept_notes: value("accept_notes") === "on", name: value("name") };
      const done = await act(first, value, found, asked, show);
      return done && said(done);
    });
  };
}

const RULES = [
  ["to-earliest", "to the first record"], ["to-latest", "to the end"], ["to-time", "to a time (UTC), or a duration ago"],
  ["shift-by", "by a number of records"], ["to-offset", "to an offset"], ["to-current", "to the committed offset"],
  ["from-group", "to the offsets of another group"], ["undo", "to the offsets of before the last change by an operator"],
];

function askReset(group, managed) {
  const path = on(group, "reset-offsets");
  const owned = (found) => found.rows.some((row) => row.owner);
  askThenShow({
    title: `Reset offsets of ${group}`,
    path,
    content: [
      TOPICS(),
      h("label", null, "Rule", h("select", { name: "rule" }, RULES.map(([name, text]) => h("option", { value: name }, text)))),
      field("Value (2026-01-31T12:00:00 in UTC, or with its own zone: …+02:00; PT2H, -100, another group, …)", "value"),
    ],
    body: (value) => {
      const [rule, given] = [value("rule"), value("value").trim()];
      const number = ["shift-by", "to-offset"].includes(rule) && /^[+-]?\d+$/.test(given);
      return { rule, topics: topicsOf(value), value: number ? Number(given) : given };
    },
    verb: "Reset",
    also: (found, asked) => owned(found) && (managed && !asked.pause
      ? h("div", { class: "trouble" }, tick("Consumers own these partitions: pause the group, evict the owners, reset, and resume (--pause)", "pause"))
      : !asked.pause && h("p", { class: "trouble" }, "Consumers own these partitions, so the reset will be refused: stop them first.")),
    confirm: async (first, value, found, asked, show) => {
      if (value("pause") !== "on") return post(path, first);
      const paused = { ...asked, pause: true };
      const again = await post(path, paused);
      const same = JSON.stringify(again.rows.map((row) => row.new_offset)) === JSON.stringify(found.rows.map((row) => row.new_offset));
      if (same) return post(path, { ...first, confirm: again.confirm });
      setTimeout(() => show(again, paused)); // the log has moved on: look again
      return null;
    },
  });
}

const askCopy = (group) => askThenShow({
  title: `Copy offsets of ${group}`,
  path: (value) => on(value("to").trim(), "reset-offsets"),
  content: [field("To the group (created, as managed, if it does not exist)", "to", { required: true }), TOPICS()],
  body: (value) => ({ rule: "from-group", value: group, topics: topicsOf(value), create: true }),
  verb: "Copy",
});

const KINDS = [
  ["managed", "managed: the elected coordinator assigns the partitions"],
  ["client-assigned", "client-assigned: a member assigns them"],
  ["native", "native: the brokers coordinate the group"],
];
const TO = (now) => h("label", null, "To", h("select", { name: "to" },
  KINDS.filter(([name]) => name !== now).map(([name, text]) => h("option", { value: name }, text))));

const askMove = (group, found) => askThenShow({
  title: `Move ${group}`,
  path: on(group, "convert"),
  content: TO(found.kind),
  body: (value) => ({ to: value("to") }),
  verb: "Move",
});

/** Moves the groups one by one, and says how far it is. */
function askMoveMany(rows) {
  const progress = h("p", { role: "status" });
  askThenShow({
    title: "Move several groups",
    path: "/actions/convert",
    content: [TO(null), choose("Groups", "groups", rows.map((row) => row.group))],
    body: (value, values) => ({ to: value("to"), groups: values.getAll("groups") }),
    verb: "Move",
    also: () => progress,
    confirm: async (first, value, found, asked) => {
      const refused = [];
      for (const [at, group] of asked.groups.entries()) {
        progress.textContent = `${at} of ${asked.groups.length} are moved; moving ${group}`;
        await post(on(group, "convert"), { to: asked.to, reason: asked.reason }).catch((error) => refused.push(error.message));
      }
      const moved = asked.groups.length - refused.length;
      return { answers: [{ message: `${moved} of ${asked.groups.length} groups are ${asked.to} now` }], notes: refused };
    },
  });
}

function choose(legend, name, values, ticked = () => false) {
  const all = h("button", { type: "button", onclick: () => {
    for (const one of box.querySelectorAll("input")) one.checked = true;
  } }, "All");
  const box = h("fieldset", null, h("legend", null, legend), values.length > 2 && all,
    values.map((one) => tick(one, name, { value: one, checked: ticked(one) })));
  return box;
}

const askEvict = (group, members) => askThenShow({
  title: `Evict from ${group}`,
  path: on(group, "evict"),
  content: choose("Consumers", "consumers", members.map((one) => one.consumer)),
  body: (value, values) => ({ consumers: values.getAll("consumers") }),
  verb: "Evict",
});

const SETTINGS = [
  ["assignor", "Assignor"], ["rebalance_timeout_ms", "Rebalance timeout in ms"],
  ["offsets_retention_ms", "Offsets are kept for, in ms"], ["lag_warning_ms", "Warn when the oldest waiting record is older than, in ms"],
];

const askSettings = (group, found) => askThenShow({
  title: `Settings of ${group}`,
  path: on(group, "settings"),
  content: [
    h("p", { class: "soft" }, "An empty field changes nothing. Write default to restore the default."),
    SETTINGS.map(([name, text]) => field(text, name, { placeholder: found[name] !== null ? `now ${found[name]}` : null })),
  ],
  body: (value) => Object.fromEntries(SETTINGS.map(([name]) => [name, value(name).trim()]).filter(([, given]) => given)
    .map(([name, given]) => [name, given === "default" ? null : /^\d+$/.test(given) ? Number(given) : given])),
  verb: "Change",
});

const askDeleteOffsets = (group) => askThenShow({
  title: `Delete offsets of ${group}`,
  path: on(group, "delete-offsets"),
  content: TOPICS(),
  body: (value) => ({ topics: topicsOf(value) }),
  verb: "Delete",
  final: group,
});

const askDelete = (group) => askThenShow({
  title: `Delete ${group}`,
  path: on(group, "delete"),
  body: () => ({}),
  verb: "Delete",
  final: group,
  confirm: async (first) => {
    const done = await post(on(group, "delete"), first);
    location.hash = "#/groups";
    return done;
  },
});

const act = (title, ask) => h("button", { type: "button", onclick: ask }, title);

/** Returns the buttons for operator actions on this group, or null if no one is logged in. */
export function actions(group, found) {
  if (!session.operator) return null;
  const managed = found.kind === "managed";
  const simple = (title, action) => act(title, () =>
    ask(`${title} ${group}`, reason(), title, async (value) => said(await post(on(group, action), { reason: value("reason") }))));
  return h("div", { class: "ranges", role: "group", "aria-label": "Actions" },
    managed && (found.paused?.everywhere === false ? simple("Resume", "resume") : simple("Pause", "pause")),
    managed && simple("Rebalance", "rebalance"),
    act("Evict…", () => askEvict(group, found.members)),
    act("Move…", () => askMove(group, found)),
    managed && act("Settings…", () => askSettings(group, found)),
    act("Reset offsets…", () => askReset(group, managed)),
    act("Copy offsets…", () => askCopy(group)),
    act("Delete offsets…", () => askDeleteOffsets(group)),
    act("Delete group…", () => askDelete(group)),
    !managed && h("p", { class: "soft" }, `Only managed groups can be paused, rebalanced and given settings. Move… makes this ${found.kind} group managed.`));
}

/** Returns the buttons for actions on several of these groups, or null if no one is logged in. */
export function actionsOnMany(rows) {
  const managed = rows.filter((row) => row.kind === "managed");
  if (!session.operator || !rows.length) return null;
  const several = (title, action, ticked) => act(`${title} several…`, () => askThenShow({
    title: `${title} several groups`,
    path: `/actions/${action}`,
    content: choose("Groups", "groups", managed.map((row) => row.group), ticked),
    body: (value, values) => ({ groups: values.getAll("groups") }),
    verb: title,
  }));
  const paused = new Set(managed.filter((row) => row.state === "Paused").map((row) => row.group));
  return h("div", { class: "ranges", role: "group", "aria-label": "Actions on several groups" },
    managed.length > 0 && several("Pause", "pause"),
    managed.length > 0 && several("Resume", "resume", (name) => paused.has(name)),
    act("Move several…", () => askMoveMany(rows)));
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
