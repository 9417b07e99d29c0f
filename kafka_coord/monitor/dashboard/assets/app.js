// The page: picks the view for an address and follows its documents, runs the search, and shows the connection's state.
import { look } from "./actions.js";
import { h, show, to } from "./dom.js";
import { follow, get, remember } from "./live.js";
import * as views from "./views.js";

const VIEWS = [
  [/^$/, views.overview],
  [/^groups$/, views.groups],
  [/^groups\/([^/]+)$/, views.group],
  [/^groups\/([^/]+)\/partitions\/([^/]+)\/([^/]+)$/, views.partition],
  [/^groups\/([^/]+)\/consumers\/([^/]+)$/, views.consumer],
  [/^topics\/([^/]+)$/, views.topic],
  [/^cluster$/, views.cluster],
];
const CONNECTION = {
  live: ["live", "up to date; changes appear automatically"],
  lost: ["no connection", "this instance does not answer; looking for another one"],
  resting: ["resting", "a hidden page is not updated"],
};

const page = document.getElementById("page");
const live = document.getElementById("live");
let leave = () => {};

function said(state) {
  const [text, title] = CONNECTION[state];
  if (state === "live" && live.className === "lost") look(); // a restarted instance has lost its logins
  live.textContent = text;
  live.title = title;
  live.className = state;
}

function go() {
  leave();
  const address = location.hash.replace(/^#\/?/, "").split("?")[0];
  const [pattern, view] = VIEWS.find(([one]) => one.test(address)) ?? VIEWS[0];
  let names;
  try {
    names = (pattern.exec(address) ?? []).slice(1).map(decodeURIComponent);
  } catch {
    names = []; // not an address that this page created
  }
  const { title, paths, render } = view(...names);
  document.title = `${title} · kafka-coord`;
  for (const link of document.querySelectorAll("nav a")) {
    const at = link.getAttribute("href").replace(/^#\/?/, "");
    const here = at === address || (at && address.startsWith(`${at}/`));
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page.replaceChildren(h("h1", null, title), h("p", { class: "soft" }, "Reading…"));
  let known = {}, troubles = {}, planned = false;
  const draw = () => {
    planned = false;
    const cluster = known["/cluster"] ?? known["/overview"];
    if (cluster) remember(cluster.instances);
    const wrong = Object.entries(troubles).map(([at, text]) =>
      h("p", { class: "trouble", role: "alert" }, `${text}`, h("span", { class: "soft" }, ` (${at})`)));
    show(page, [h("h1", null, title), wrong, render(known, draw)]);
  };
  const plan = (documents, wrong) => {
    known = documents;
    troubles = wrong;
    if (!planned) requestAnimationFrame(draw);
    planned = true;
  };
  const closed = follow(paths, plan, said);
  const clockwork = setInterval(() => Object.keys(known).length && draw(), 5000); // for "3 min ago"
  leave = () => {
    closed();
    clearInterval(clockwork);
  };
}

addEventListener("hashchange", () => {
  go();
  scrollTo(0, 0);
  page.focus({ preventScroll: true });
});

// --- search -------------------------------------------------------------------------------------------------------

const field = document.getElementById("search");
const hits = document.getElementById("hits");
let asked = 0;

function close() {
  hits.hidden = true;
  field.setAttribute("aria-expanded", "false");
}

async function search() {
  const wanted = field.value.trim();
  if (!wanted) return close();
  const number = ++asked;
  const found = await get(`/search?search=${encodeURIComponent(wanted)}`);
  if (number !== asked || !found) return;
  const links = [
    ...found.groups.map((one) => [to(one, "groups", one), "group"]),
    ...found.consumers.map((one) => [to(one.consumer, "groups", one.group, "consumers", one.consumer), ["consumer of", one.group, one.client, one.host && `on ${one.host}`].filter(Boolean).join(" ")]),
    ...found.topics.map((one) => [to(one, "topics", one), "topic"]),
  ];
  hits.replaceChildren(...(links.length
    ? [...links.map(([link, kind]) => h("li", { role: "option" }, link, h("span", { class: "soft" }, ` ${kind}`))),
      ...(found.left_out ? [h("li", { class: "soft" }, `and ${found.left_out} more: type more of the name`)] : [])]
    : [h("li", { class: "soft" }, "no name contains this text")]));
  hits.hidden = false;
  field.setAttribute("aria-expanded", "true");
}

field.addEventListener("input", search);
field.form.addEventListener("submit", (event) => {
  event.preventDefault();
  hits.querySelector("a")?.click();
});
hits.addEventListener("click", () => {
  field.value = "";
  close();
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target.tagName !== "INPUT") {
    event.preventDefault();
    field.focus();
  } else if (event.key === "Escape") {
    close();
    field.blur();
  } else if (["ArrowDown", "ArrowUp"].includes(event.key) && !hits.hidden) {
    const links = [...hits.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
    (links[at] ?? field).focus();
  }
});
addEventListener("click", (event) => {
  if (!field.form.contains(event.target)) close();
});

go();
