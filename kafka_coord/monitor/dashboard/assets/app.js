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

/** Returns the view at an address, or null. */
function viewAt(address) {
  const [pattern, view] = VIEWS.find(([one]) => one.test(address)) ?? [];
  if (!view) return null;
  try {
    return view(...pattern.exec(address).slice(1).map(decodeURIComponent));
  } catch (error) {
    if (error instanceof URIError) return null; // this page has not written this address
    throw error;
  }
}

function go() {
  leave();
  const address = location.hash.replace(/^#\/?/, "").split("?")[0];
  const view = viewAt(address);
  const title = view?.title ?? "No such page";
  document.title = `${title} · kafka-coord`;
  for (const link of document.querySelectorAll("nav a")) {
    const at = link.getAttribute("href").replace(/^#\/?/, "");
    const here = at === address || (at && address.startsWith(`${at}/`));
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  page.replaceChildren(h("h1", null, title), h("p", { class: "soft" }, "Reading…"));
  leave = () => {};
  if (!view) return show(page, [h("h1", null, title), h("p", null, `There is no page at #/${address}; `, to("the overview"), " leads to all pages.")]);
  const { paths, render } = view;
  let known = {}, troubles = {}, planned = false;
  const draw = () => {
    planned = false;
    const cluster = known["/cluster"] ?? known["/overview"];
    if (cluster) remember(cluster.instances);
    const missing = troubles[paths[0]] && !known[paths[0]]; // then nothing else is worth saying
    const texts = [...new Set(missing ? [troubles[paths[0]]] : Object.values(troubles))];
    const wrong = texts.map((text) => h("p", { class: "trouble", role: "alert" }, text));
    show(page, [h("h1", null, title), wrong, !missing && render(known, draw)]);
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
const told = document.getElementById("found"); // read aloud
let asked = 0;

function close() {
  hits.hidden = true;
  told.textContent = "";
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
  const soft = [
    !links.length && "no name contains this text", found.left_out && `and ${found.left_out} more: type more of the name`, ...found.notes];
  hits.replaceChildren(...links.map(([link, kind]) => h("li", null, link, h("span", { class: "soft" }, ` ${kind}`))),
    ...soft.filter(Boolean).map((text) => h("li", { class: "soft" }, text)));
  hits.hidden = false;
  const many = links.length + (found.left_out ?? 0);
  told.textContent = many ? `${many} found: ${links.slice(0, 3).map(([link, kind]) => `${link.textContent}, ${kind}`).join("; ")}` : "no name contains this text";
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
