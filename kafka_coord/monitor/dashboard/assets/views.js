// The views: which documents each one follows, and how it shows them.
import { actions, actionsOnMany } from "./actions.js";
import "./charts.js";
import {
  SEVERITY, STATE, VERDICT, ago, badge, clock, count, duration, exported, figure, h, partitions, path, plural, section, short, table, to,
} from "./dom.js";

const api = (...parts) => `/${parts.map(encodeURIComponent).join("/")}`;
const state = (name) => badge(name, STATE[name] ?? "none");
const verdictOf = (name, since = null) => [
  badge(name, VERDICT[name] ?? "none"), since && h("span", { class: "soft" }, " for ", duration(age(since), 0))];
const age = (iso) => (iso ? Date.now() - Date.parse(iso) : null);

/** The elected instance's broker and host, and how long it has been elected, or why no instance makes decisions. */
function elected(found) {
  if (found.undecided) return figure("no coordinator", found.undecided, "bad");
  const one = found.instances.find((instance) => instance.elected);
  const host = one?.host ? ` on ${one.host}` : "";
  return figure(`broker ${found.coordinator}`, `coordinates${host}, for ${duration(age(found.since), 0)}`);
}

/** The epoch, and whether it changed suspiciously often. */
function epoch(found, history) {
  const recent = (history?.elections ?? []).filter((one) => age(one.elected) < 3600e3).length;
  const often = recent > 3;
  return figure(count(found.epoch) ?? "–", often ? `epoch: ${recent} elections in the last hour` : "epoch", often ? "warn" : "");
}

const paused = (pause) => pause && h("p", { class: "trouble", role: "alert" },
  h("b", null, pause.everywhere === false ? "Paused" : "All groups are paused"),
  pause.by ? ` by ${pause.by}` : " (the operator's name cannot be read)", pause.since && [" since ", ago(pause.since)], pause.reason && `: ${pause.reason}`);

const ALL = ["error", "warning", "info", "ok"];

const findings = (found, least = ["error", "warning"], here = null) => {
  if (!found) return h("p", { class: "soft" }, "The doctor is checking…");
  const shown = found.filter((one) => least.includes(one.severity) || one.check === "pauses")
    .sort((one, other) => ALL.indexOf(one.severity) - ALL.indexOf(other.severity));
  if (!shown.length) return h("p", { class: "soft" }, "The doctor found nothing that needs attention.");
  return h("ul", { class: "findings" }, shown.map((one) => h("li", null,
    badge(one.severity, SEVERITY[one.severity]), " ", h("span", null, one.what),
    one.group && one.group !== here && [" ", to("see the group", "groups", one.group)],
    one.todo && h("div", { class: "todo" }, "→ ", one.todo))));
};

/** The doctor's findings about a group, if there are any, and a notice if there is no working coordinator. */
const attention = (name, known, about = () => true) => {
  const [cluster, mine] = [known["/cluster"], known[api("groups", name, "findings")]?.filter(about)];
  return [
    cluster?.undecided && h("p", { class: "trouble", role: "alert" }, h("b", null, "No working coordinator"),
      `: ${cluster.undecided}. `, to("The overview says what to do.")),
    mine?.length > 0 && section("Needs attention", findings(mine, ALL, name)),
  ];
};

/** What the server says of a partition of a topic that no member subscribes to. It counts in no total. */
const LEFT = "not subscribed";

/** The known lag, and how many partitions it leaves out. */
const lagOf = (row) => (row.lag !== null && row.lag_unknown ? `${short(row.lag)}, and ${row.lag_unknown} unknown` : short(row.lag));

/** How old the oldest record that waits is: "~" marks an age by the rate of the log, not by the record's timestamp. */
const ageOf = (row) => (row.lag_s === null || row.lag_s === undefined ? null
  : h("span", { title: row.lag_s_by ? `by the ${row.lag_s_by}` : null }, `${row.lag_s_by === "rate" ? "~" : ""}${duration(1000 * row.lag_s)}`));

/** The number of records that were deleted unread, if there are any. */
const goneOf = (gone) => gone > 0 && figure(short(gone), `unread ${plural(gone, "record")} ${gone === 1 ? "is" : "are"} gone`, "warn");

const groupColumns = [
  ["Group", (row) => to(row.group, "groups", row.group)],
  ["State", (row) => state(row.state)],
  ["Generation", (row) => count(row.generation), "number"],
  ["Members", (row) => count(row.members), "number"],
  ["Partitions", (row) => count(row.partitions), "number"],
  ["Lag", (row) => (row.lag === undefined ? null : lagOf(row)), "number"],
  ["Behind", ageOf, "number"],
  ["Gone", (row) => count(row.gone) || null, "number"],
  ["Pending", (row) => count(row.pending) || null, "number"],
  ["Unreadable", (row) => count(row.unreadable) || null, "number"],
  ["Kind", (row) => row.kind],
  ["Assignor", (row) => row.assignor],
];

const laggingColumns = [
  ...groupColumns.slice(0, 2), ["Trend", (row) => verdictOf(row.verdict)], ...groupColumns.slice(2)];

const instanceColumns = [
  ["Broker", (row) => row.broker_id],
  ["", (row) => (row.elected ? badge("elected", "good") : null)],
  ["Host", (row) => row.host],
  ["Pid", (row) => row.pid, "number"],
  ["Release", (row) => row.release],
  ["Up", (row) => duration(age(row.started), 0)],
  ["Broker is up", (row) => (row.broker_up ? "yes" : badge("no", "bad"))],
  ["Addresses", (row) => Object.entries(row.endpoints).map(([name, at]) => `${name} ${at}`).join(", ") || null],
];

const actionColumns = [
  ["When", (row) => ago(row.at)],
  ["Who", (row) => row.by],
  ["Did", (row) => row.action],
  ["Why", (row) => row.reason],
  ["Change", (row) => (row.parts ? h("details", null, h("summary", null, row.change), h("ul", null, row.parts.map((one) =>
    h("li", null, to(one.group, "groups", one.group), one.change && `: ${one.change}`))))
    : [row.group !== undefined && [to(row.group, "groups", row.group), " "], row.change]), "text"],
];

const electionsChart = (history) => {
  const elections = history.elections.filter((one) => one.elected);
  if (!elections.length) return null;
  const x = elections.map((one) => Date.parse(one.elected) / 1000);
  const values = elections.map((one) => one.epoch);
  return h("time-chart", { data: {
    label: `Epochs over time; the last one is ${values.at(-1)}`,
    kind: "steps",
    x: [...x, Date.now() / 1000],
    series: [{ name: "epoch", values: [...values, values.at(-1)], colour: "--c3" }],
  } });
};

/** Which groups cannot be shown, and why. Whoever lists groups follows /overview for it. */
const missing = (known) => (known["/overview"]?.missing ?? []).map((text) => h("p", { class: "soft" }, text));

export function overview() {
  return {
    title: "Overview",
    paths: ["/overview", "/cluster/findings", "/cluster/history"],
    render(known) {
      const found = known["/overview"];
      if (!found) return h("p", { class: "soft" }, "Reading…");
      const worst = found.lagging[0];
      const total = found.rebalances.reduce((sum, [, many]) => sum + many, 0);
      const history = known["/cluster/history"];
      return [
        paused(found.paused),
        h("div", { class: "figures" },
          elected(found),
          epoch(found, history),
          figure(count(found.groups), plural(found.groups, "group")),
          Object.entries(found.states).map(([name, many]) => figure(count(many), name, STATE[name])),
          figure(worst ? short(worst.lag) : found.lag_unmeasured ? "…" : found.lag_unknown ? "unknown" : "0",
            [worst ? ["worst lag known, of ", to(worst.group, "groups", worst.group)] : "worst lag",
              found.lag_unknown > 0 && `, unknown for ${count(found.lag_unknown)} ${plural(found.lag_unknown, "partition")}`]),
          figure(count(total), `${plural(total, "rebalance")} in the last hour`)),
        found.groups_unread > 0 && h("p", { class: "soft" }, `still to be read: ${count(found.groups_unread)} ${plural(found.groups_unread, "group")}`),
        section("Needs attention", findings(known["/cluster/findings"])),
        found.troubled_count > 0 && section(`Groups not at rest: ${count(found.troubled_count)}`,
          table("Groups not at rest", groupColumns, found.troubled), exported("Groups not at rest", "/overview", "troubled")),
        found.lagging.length > 0 && section("Furthest behind", table("Furthest behind", laggingColumns, found.lagging),
          h("p", { class: "soft" }, "Measured group by group; the oldest value is from ", ago(found.lag_since), ".",
            found.lagging_count > found.lagging.length && ` ${count(found.lagging_count - found.lagging.length)} more groups lag.`),
          exported("Furthest behind", "/overview", "lagging")),
        h("div", { class: "pair" }, section("Rebalances per minute", h("time-chart", { data: {
          label: `Rebalances per minute: ${total} in the last hour`,
          kind: "bars",
          x: found.rebalances.map(([at]) => at / 1000),
          series: [{ name: "rebalances", values: found.rebalances.map(([, many]) => many || null), colour: "--c0" }],
        } })), history && section("Epochs", electionsChart(history))),
        section("Instances", table("Instances", instanceColumns, found.instances), exported("Instances", "/cluster", "instances")),
        missing(known),
      ];
    },
  };
}

const AT_ONCE = 100;
const SORTS = { name: "Name", state: "State", members: "Members", lag: "Lag", "lag-s": "Behind" };

/** The list of groups. What it shows stands in the address: #/groups?search=etl&state=Stable&sort=lag-s&skip=100 */
export function groups() {
  const given = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const wanted = Object.fromEntries(["search", "state", "sort", "skip"].map((name) => [name, given.get(name) ?? ""]));
  const written = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
  const here = `/groups?${written({ ...wanted, limit: String(AT_ONCE + 1) })}`; // one more tells whether there are more
  const all = `/groups?${written({ ...wanted, skip: "", limit: "1000000" })}`;
  const address = (change) => `#/groups?${written({ ...wanted, skip: "", ...change })}`;
  const first = Number(wanted.skip) || 0;
  const choice = (title, names, name) => h("div", { class: "ranges", role: "group", "aria-label": title }, names.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(wanted[name] === value), onclick: () => { location.hash = address({ [name]: value }); } }, text)));
  return {
    title: "Groups",
    paths: [here, "/cluster", "/overview"],
    render(known) {
      const found = known[here];
      const more = found?.length > AT_ONCE;
      return [
        paused(known["/cluster"]?.paused),
        choice("State", ["", ...Object.keys(STATE)].map((name) => [name, name || "All"]), "state"),
        choice("Order", Object.entries(SORTS).map(([name, text]) => [name === "name" ? "" : name, text]), "sort"),
        h("form", { role: "search", onsubmit: (event) => {
          event.preventDefault();
          location.hash = address({ search: event.target.elements.filter.value.trim() });
        } }, h("input", { type: "search", name: "filter", value: wanted.search, placeholder: "Name contains", "aria-label": "Filter by name" })),
        found && actionsOnMany(found.slice(0, AT_ONCE)),
        section("Groups", found ? table("Groups", groupColumns, found.slice(0, AT_ONCE), "no such group") : "Reading…",
          found && (first > 0 || more) && h("p", { class: "soft" }, `${count(first + 1)} to ${count(first + Math.min(found.length, AT_ONCE))} `,
            first > 0 && h("a", { href: address({ skip: first > AT_ONCE ? String(first - AT_ONCE) : "" }) }, "previous"), " ",
            more && h("a", { href: address({ skip: String(first + AT_ONCE) }) }, "next")),
          exported("Groups", all)),
        missing(known),
      ];
    },
  };
}

const marksOf = (history) => (history ?? []).filter((one) => one.decided_at).map((one) => ({
  at: Date.parse(one.decided_at),
  text: `generation ${one.generation}: ${one.reason}`,
  bad: one.causes.some((cause) => ["member-evicted", "member-expired", "grace-ended"].includes(cause)),
}));

const consumersOf = (found, timeline) => [...new Set([
  ...found.members.map((one) => one.consumer),
  ...(timeline?.partitions ?? []).flatMap((one) => one.spans.map(([name]) => name)),
])].sort();

const lanes = (group, found, timeline, history, only = () => true) => timeline && h("owner-lanes", { data: {
  lanes: timeline.partitions.map((one) => ({
    label: `${one.topic} ${one.partition}`,
    href: path("groups", group, "partitions", one.topic, one.partition),
    spans: one.spans.filter(only),
  })).filter((one) => one.spans.length),
  who: consumersOf(found, timeline),
  since: Date.parse(timeline.since),
  marks: marksOf(history),
  linked: (name) => path("groups", group, "consumers", name),
} });

const lagChart = (lag, marks) => {
  const last = lag.samples.at(-1);
  return h("time-chart", { data: {
    label: `Lag of ${lag.group}: ${last ? short(last[1]) : "unknown"} records`,
    kind: "line",
    x: lag.samples.map(([at]) => at / 1000),
    series: [{ name: "records behind", values: lag.samples.map(([, value]) => value), colour: "--c0", fill: true }],
    marks: marks.map((mark) => ({ at: mark.at / 1000 })),
  } });
};

/** The verdict on a group, and for how many of its partitions it is unknown. */
const judged = (lag) => {
  const verdict = lag.verdict === "unknown" ? "trend unknown" : lag.verdict;
  return lag.verdict_unknown ? `${verdict} (unknown for ${lag.verdict_unknown} of ${lag.partitions.length} partitions)` : verdict;
};

const memberColumns = (group) => [
  ["Consumer", (row) => to(row.consumer, "groups", group, "consumers", row.consumer)],
  ["", (row) => (row.registered ? null : badge("gone", "bad"))],
  ["Owns", (row) => partitions(row.owned), "text"],
  ["Stopping", (row) => partitions(row.stopping)],
  ["Pending", (row) => row.pending.map((one) => h("div", null, `${one.type} ${partitions(one.partitions) ?? ""}, `, ago(one.since)))],
  ["Channel", (row) => row.channel],
  ["Host", (row) => row.address ?? row.host],
  ["Rack", (row) => row.rack],
  ["Client", (row) => [row.client, row.software].filter(Boolean).join(", ") || null],
  ["Last heard", (row) => (row.heard_ms_ago === null ? null : `${duration(row.heard_ms_ago)} ago`)],
  ["Since", (row) => ago(row.since)],
];

const moves = (one) => Object.entries(one.moves).map(([name, move]) =>
  h("li", null, h("b", null, name), move.gained && ` gains ${move.gained}`, move.lost && ` loses ${move.lost}`));

const decisionColumns = [
  ["Gen.", (row) => row.generation],
  ["Decided", (row) => ago(row.decided_at)],
  ["Cause", (row) => h("details", null, h("summary", null, row.reason || row.causes.join(", ")), h("ul", null, moves(row))), "text"],
  ["Moved", (row) => count(row.moved), "number"],
  ["Stopped after", (row) => duration(row.stopped_ms), "number"],
  ["Settled after", (row) => duration(row.settled_ms), "number"],
  ["Members", (row) => row.members, "number"],
  ["Assignor", (row) => row.assignor],
  ["Epoch", (row) => row.epoch, "number"],
];

const newestFirst = (rows) => [...(rows ?? [])].reverse();

export function group(name) {
  const [here, of] = [api("groups", name), (part) => api("groups", name, part)];
  return {
    title: name,
    paths: [here, of("findings"), of("history"), of("actions"), of("timeline"), of("lag"), "/cluster"],
    render(known) {
      const found = known[here];
      if (!found) return h("p", { class: "soft" }, "Reading…");
      const [history, lag, timeline] = [known[of("history")], known[of("lag")], known[of("timeline")]];
      const trends = new Map((lag?.partitions ?? []).map((one) => [`${one.topic} ${one.partition}`, one]));
      const most = Math.max(1, ...found.offsets.map((one) => (one.holding === LEFT ? 0 : one.lag ?? 0)));
      const oldest = Math.max(0, ...found.members.flatMap((one) => one.pending.map((command) => age(command.since))));
      const last = history?.at(-1);
      const unowned = found.offsets.filter((one) => one.owner === null && one.holding !== LEFT).length;
      return [
        h("p", { class: "lead" }, state(found.state), " ", lag && badge(judged(lag), VERDICT[lag.verdict]), " ", h("span", null, found.status)),
        paused(found.paused),
        attention(name, known),
        actions(name, found),
        found.requests.length > 0 && h("p", { class: "trouble" }, "Waiting: ", found.requests.map((one) =>
          h("span", null, `${one.type} by ${one.by ?? "unknown"}, `, ago(one.since), one.reason && ` (${one.reason})`, " "))),
        h("div", { class: "figures" },
          figure(count(found.generation) ?? "–", last ? ["generation, ", ago(last.decided_at)] : "generation"),
          figure(count(found.member_count), plural(found.member_count, "member")),
          figure(count(found.offsets.length), `${plural(found.offsets.length, "partition")}${unowned ? `, ${unowned} without an owner` : ""}`, unowned && found.member_count ? "bad" : ""),
          figure(short(found.lag), found.lag_unknown ? `records behind, unknown for ${found.lag_unknown} partitions` : "records behind"),
          figure(ageOf(found) ?? "unknown", `behind in time${found.lag_s_by ? `, by the ${found.lag_s_by}` : ""}`),
          figure(short(found.worst_lag), `behind in the worst partition${found.lag_unknown ? " known" : ""}`),
          goneOf(found.gone),
          figure(count(found.pending), `pending ${plural(found.pending, "command")}${found.pending ? `, the oldest for ${duration(oldest, 0)}` : ""}`, found.pending ? "warn" : "")),
        section("Owners over time", timeline && !timeline.partitions.length
          ? h("p", { class: "soft" }, "No partition has an owner, and no earlier owner is recorded.") : lanes(name, found, timeline, history),
          timeline?.left_out > 0 && h("p", { class: "soft" }, `${timeline.left_out} more partitions are left out.`)),
        lag && section("Lag", lagChart(lag, marksOf(history)),
          h("p", { class: "soft" }, lag.note ?? "Sampled every 5 s while a page is open, and by the lag metrics. A dashed line marks a rebalance.")),
        section("Partitions", table("Partitions", [
          ["Partition", (row) => to(`${row.topic} ${row.partition}`, "groups", name, "partitions", row.topic, String(row.partition)), "name"],
          ["Owner", (row) => (row.holding === LEFT ? badge(LEFT, "none") : row.owner === null ? badge("no owner", "bad") : to(row.owner, "groups", name, "consumers", row.owner))],
          ["", (row) => (row.holding === "stopping" ? badge("stopping", "busy") : null)],
          ["Committed", (row) => count(row.committed_offset), "number"],
          ["Start", (row) => count(row.start_offset), "number"],
          ["End", (row) => count(row.end_offset), "number"],
          ["Lag", (row) => row.lag === null ? null : [row.lag > 0 && row.holding !== LEFT && h("meter", { min: 0, max: most, value: row.lag, "aria-hidden": "true" }), short(row.lag)], "number lag"],
          ["Behind", ageOf, "number"],
          ["Gone", (row) => count(row.gone) || null, "number"],
          ["Trend", (row) => {
            const trend = trends.get(`${row.topic} ${row.partition}`);
            return row.holding === LEFT ? null : verdictOf(trend?.verdict ?? "unknown", trend?.since);
          }],
          ["Last commit", (row) => ago(row.committed_at)],
        ], found.offsets), exported("Partitions", here, "offsets")),
        section("Members", table("Members", memberColumns(name), found.members, "no members"), exported("Members", here, "members")),
        section("Rebalances", table("Rebalances", decisionColumns, newestFirst(history),
          { managed: "none recorded", native: "the brokers record none" }[found.kind]
            ?? `The groups log records them: kafka-coord groups history ${quoted(name)}`),
        exported("Rebalances", of("history"))),
        section("Operator actions", table("Operator actions", actionColumns, newestFirst(known[of("actions")]), "none recorded"),
          exported("Operator actions", of("actions"))),
        found.unreadable.length > 0 && section("Unreadable", table("Unreadable", [
          ["Znode", (row) => row.path], ["Why", (row) => row.reason]], found.unreadable), exported("Unreadable", here, "unreadable")),
        section("Settings", h("p", { class: "soft" }, [
          found.kind,
          found.assignor && `assignor ${found.assignor}`,
          found.rebalance_timeout_ms && `rebalance timeout ${duration(found.rebalance_timeout_ms)}`,
          found.offsets_retention_ms && `offsets kept for ${duration(found.offsets_retention_ms)}`,
          found.lag_warning_ms !== null && `a warning of lag after ${duration(found.lag_warning_ms)}`,
          found.coordinator !== null && `coordinated by broker ${found.coordinator}`,
        ].filter(Boolean).join("; "))),
      ];
    },
  };
}

/** Returns the name as a shell takes it: anyone may have chosen it. */
const quoted = (name) => (/^[\w.-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\"'\"'")}'`);

export function partition(name, topic, number) {
  const here = api("groups", name, "partitions", topic, number);
  const history = api("groups", name, "history");
  return {
    title: `${topic} ${number} of ${name}`,
    paths: [here, history, api("groups", name, "findings"), "/cluster"],
    render(known) {
      const found = known[here];
      if (!found) return h("p", { class: "soft" }, "Reading…");
      const x = found.samples.map(([at]) => at / 1000);
      const moved = (known[history] ?? []).filter((one) =>
        Object.values(one.moves).some((move) => within(move, topic, Number(number))));
      const chart = (title, at, colour) => h("time-chart", { data: {
        label: title, kind: "line", x, marks: moved.map((one) => ({ at: Date.parse(one.decided_at) / 1000 })),
        series: [{ name: title, values: found.samples.map((one) => one[at]), colour, fill: at === 2 }],
      } });
      return [
        h("p", { class: "lead" }, found.holding === LEFT ? "Partition" : verdictOf(found.verdict, found.since),
          " of group ", to(name, "groups", name), found.holding === LEFT ? ", " : ", owner ",
          found.holding === LEFT ? badge(LEFT, "none") : found.owner === null ? badge("no owner", "bad") : to(found.owner, "groups", name, "consumers", found.owner)),
        attention(name, known),
        h("div", { class: "figures" },
          figure(count(found.committed_offset) ?? "none",
            found.committed_at ? ["committed offset, ", ago(found.committed_at)] : "committed offset"),
          figure(count(found.start_offset) ?? "unknown", "start offset"),
          figure(count(found.end_offset) ?? "unknown", "end offset"),
          figure(short(found.lag), "records behind"),
          figure(ageOf(found) ?? "unknown", `behind in time${found.lag_s_by ? `, by the ${found.lag_s_by}` : ""}`),
          goneOf(found.gone)),
        section("Owners", h("owner-lanes", { data: {
          lanes: [{ label: `${topic} ${number}`, href: path("groups", name), spans: found.spans }],
          who: [...new Set(found.spans.map(([who]) => who))].sort(),
          since: Math.min(Date.now(), ...found.spans.map((span) => span[1] ?? Date.now())),
          marks: marksOf(moved),
          linked: (who) => path("groups", name, "consumers", who),
        } })),
        section("Records behind", chart("records behind", 2, "--c0")),
        section("Committed offset", chart("committed offset", 1, "--c2")),
        section("Rebalances that moved this partition", table("Rebalances that moved this partition", decisionColumns, newestFirst(moved), "none recorded")),
      ];
    },
  };
}

/** Returns whether a move, such as "flights[0-3,7] routes[1]", contains this partition. */
const within = (move, topic, number) => [move.gained, move.lost].some((text) =>
  (text ?? "").split(" ").some((part) => part.startsWith(`${topic}[`) &&
    part.slice(topic.length + 1, -1).split(",").some((range) => {
      const [first, last = first] = range.split("-").map(Number);
      return first <= number && number <= last;
    })));

export function consumer(name, who) {
  const [here, of] = [api("groups", name), (part) => api("groups", name, part)];
  return {
    title: who,
    paths: [here, of("findings"), of("history"), of("timeline"), "/cluster"],
    render(known) {
      const found = known[here];
      if (!found) return h("p", { class: "soft" }, "Reading…");
      const member = found.members.find((one) => one.consumer === who);
      const history = known[of("history")];
      const timeline = known[of("timeline")];
      const about = (history ?? []).filter((one) => Object.hasOwn(one.moves, who) || one.reason.split(/[ ,]/).includes(who));
      const owned = found.offsets.filter((one) => one.owner === who);
      if (!member && !about.length && history && timeline && !consumersOf(found, timeline).includes(who)) {
        return h("p", null, "Group ", to(name, "groups", name), ` has no consumer ${who}.`);
      }
      const behind = owned.map((one) => one.lag);
      const unknown = behind.filter((one) => one === null).length;
      return [
        h("p", { class: "lead" }, "Consumer of ", to(name, "groups", name), " ",
          member?.registered ? badge("registered", "good") : badge("gone", "bad")),
        attention(name, known, (one) => one.what.split(/[ ,:;]/).includes(who)),
        member && h("div", { class: "figures" },
          figure(count(behind.length), `${plural(behind.length, "partition")} owned`),
          figure(unknown ? "unknown" : short(behind.reduce((sum, one) => sum + one, 0)),
            unknown ? `records behind, in ${unknown} of ${behind.length} partitions` : "records behind"),
          goneOf(owned.reduce((sum, one) => sum + one.gone, 0)),
          figure(count(member.pending.length), `pending ${plural(member.pending.length, "command")}`, member.pending.length ? "warn" : ""),
          figure(member.since ? duration(age(member.since), 0) : "–", "registered for")),
        member && section("Member", table("Member", [
          ...memberColumns(name).slice(1),
          ["Subscribes to", (row) => row.subscription],
          ["Mode", (row) => row.mode],
          ["Capacity", (row) => row.capacity, "number"],
          ["Should own", (row) => partitions(row.target)],
        ], [member])),
        section("Partitions over time", lanes(name, found, timeline, about, ([one]) => one === who)),
        section("Rebalances of this consumer", table("Rebalances of this consumer", decisionColumns, newestFirst(about), "none recorded")),
      ];
    },
  };
}

const readerColumns = [
  ["Group", (row) => to(row.group, "groups", row.group)],
  ["Kind", (row) => row.kind],
  ["", (row) => (row.offsets.every((one) => one.holding === LEFT) ? badge(LEFT, "none") : null)],
  ["Consumers", (row) => count(new Set(row.offsets.map((one) => one.owner).filter(Boolean)).size), "number"],
  ["Without an owner", (row) => count(row.offsets.filter((one) => one.owner === null && one.holding !== LEFT).length) || null, "number"],
  ["Lag", lagOf, "number"],
  ["Behind", ageOf, "number"],
  ["Gone", (row) => count(row.gone) || null, "number"],
];

/** A topic: its partitions, and who reads it, of every kind of group. */
export function topic(name) {
  const here = api("topics", name);
  return {
    title: name,
    paths: [here, "/cluster"],
    render(known) {
      const found = known[here];
      if (!found) return h("p", { class: "soft" }, "Reading…");
      const rows = found.groups.flatMap((group) => group.offsets.map((one) => ({ ...one, group: group.group })));
      return [
        h("div", { class: "figures" },
          figure(count(found.partitions.length), plural(found.partitions.length, "partition")),
          figure(count(found.groups.length), plural(found.groups.length, "group")),
          found.groups.length > 0 && figure(ageOf(found.groups[0]) ?? "unknown", ["behind at most, ", to(found.groups[0].group, "groups", found.groups[0].group)])),
        found.unmeasured > 0 && h("p", { class: "soft" }, `still to be read: ${count(found.unmeasured)} ${plural(found.unmeasured, "group")}`),
        found.notes.map((text) => h("p", { class: "soft" }, text)),
        section("Groups", table("Groups", readerColumns, found.groups, "no group reads this topic"), exported("Groups", here, "groups")),
        section("Who reads which partition", table("Who reads which partition", [
          ["Partition", (row) => to(String(row.partition), "groups", row.group, "partitions", name, String(row.partition)), "number"],
          ["Group", (row) => to(row.group, "groups", row.group)],
          ["Owner", (row) => (row.holding === LEFT ? badge(LEFT, "none") : row.owner === null ? badge("no owner", "bad") : to(row.owner, "groups", row.group, "consumers", row.owner))],
          ["Committed", (row) => count(row.committed_offset), "number"],
          ["Lag", (row) => (row.lag === null ? null : short(row.lag)), "number"],
          ["Behind", ageOf, "number"],
        ], rows.sort((one, other) => one.partition - other.partition)), exported("Who reads which partition", here, "groups.offsets")),
        section("Partitions", table("Partitions", [
          ["Partition", (row) => row.partition, "number"],
          ["Start", (row) => count(row.start_offset), "number"],
          ["End", (row) => count(row.end_offset), "number"],
        ], found.partitions), exported("Partitions", here, "partitions")),
      ];
    },
  };
}

const unassigned = (found) => section("Unassigned partitions", found ? [
  table("Unassigned partitions", [
    ["Group", (row) => to(row.group, "groups", row.group)], ["State", (row) => state(row.state)],
    ["Partitions", (row) => partitions(row.partitions), "text"], ["Number", (row) => count(row.count), "number"],
    ["Why", (row) => row.why, "text"], ["For at least", (row) => duration(age(row.since), 0)],
  ], found.groups),
  exported("Unassigned partitions", "/cluster/unassigned", "groups"),
  found.left_out > 0 && h("p", { class: "soft" },
    `${count(found.left_out)} more ${plural(found.left_out, "group")} may have unassigned partitions.`),
] : h("p", { class: "soft" }, "Reading the groups…"));

export function cluster() {
  return {
    title: "Cluster",
    paths: ["/cluster", "/overview", "/cluster/unassigned", "/cluster/history", "/cluster/requests", "/cluster/findings", "/topics"],
    render(known) {
      const [found, history] = [known["/cluster"], known["/cluster/history"]];
      if (!found) return h("p", { class: "soft" }, "Reading…");
      return [
        paused(found.paused),
        h("div", { class: "figures" }, elected(found), epoch(found, history),
          figure(count(found.brokers.length), `${plural(found.brokers.length, "broker")}: ${found.brokers.join(", ") || "none"}`, found.brokers.length ? "" : "bad"),
          figure(count(found.topics), plural(found.topics, "topic")), figure(count(found.groups), `managed ${plural(found.groups, "group")}`)),
        section("Instances", table("Instances", instanceColumns, found.instances), exported("Instances", "/cluster", "instances")),
        unassigned(known["/cluster/unassigned"]),
        missing(known),
        section("Waiting requests", table("Waiting requests", [
          ["Request", (row) => row.request], ["Type", (row) => row.type], ["Group", (row) => row.group], ["By", (row) => row.by],
          ["Since", (row) => ago(row.since)], ["Reason", (row) => row.reason]], known["/cluster/requests"] ?? []),
          exported("Waiting requests", "/cluster/requests")),
        section("The doctor's findings", findings(known["/cluster/findings"], ALL), exported("Findings", "/cluster/findings")),
        history && section("Elections", electionsChart(history), table("Elections", [
          ["Epoch", (row) => row.epoch], ["Broker", (row) => row.broker_id], ["Host", (row) => row.host],
          ["Elected", (row) => ago(row.elected)], ["Ended", (row) => ago(row.ended)], ["Why", (row) => row.why],
        ], newestFirst(history.elections)), exported("Elections", "/cluster/history", "elections")),
        history && section("Operator actions", table("Operator actions", actionColumns, newestFirst(history.actions), "none recorded"),
          exported("Operator actions", "/cluster/history", "actions")),
        section("Topics", table("Topics", [
          ["Topic", (row) => to(row.topic, "topics", row.topic)], ["Partitions", (row) => count(row.partitions), "number"], ["Changed", (row) => ago(row.changed)],
        ], known["/topics"] ?? []), exported("Topics", "/topics")),
      ];
    },
  };
}
