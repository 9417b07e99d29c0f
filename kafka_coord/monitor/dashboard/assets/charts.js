// Two elements that draw what their `data` says: <time-chart> with uPlot, <owner-lanes> as a table of bars.
import { clock, distinct, duration, h, moment, short, show, utc } from "./dom.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HEIGHT = 190;
const FONT = "12px system-ui, sans-serif";
const WINDOW_MS = 1800e3;

/** Formats a tick as 17:05, as 17:05:30 between full minutes, or as the date where a day begins; the first one says UTC. */
function timeOfDay(at, before) {
  const [day, time] = utc(at);
  return before && utc(before)[0] !== day ? day : `${time.replace(/:00$/, "")}${before ? "" : " UTC"}`;
}

/** data: {label, x: [s], series: [{name, values, colour, fill}], kind: "line" | "bars" | "steps", marks: [{at, text}]}. A line shows the last half hour. */
class TimeChart extends HTMLElement {
  #plot = null;
  #data = null;
  #size = new ResizeObserver(() => this.#plot?.setSize({ width: this.clientWidth, height: HEIGHT }));
  #dark = matchMedia("(prefers-color-scheme: dark)");
  #again = () => this.#draw(true);

  connectedCallback() {
    this.setAttribute("role", "img");
    this.#size.observe(this);
    this.#dark.addEventListener("change", this.#again);
    this.#draw(true);
  }
  disconnectedCallback() {
    this.#size.disconnect();
    this.#dark.removeEventListener("change", this.#again);
    this.#plot?.destroy();
    this.#plot = null;
  }
  get data() {
    return this.#data;
  }
  set data(data) {
    const before = this.#data;
    this.#data = data;
    this.setAttribute("aria-label", data.label);
    if (this.isConnected) this.#draw(before?.series.length !== data.series.length || before.x.length < 3);
  }

  #draw(anew) {
    if (!this.#data) return;
    const { x, series } = this.#data;
    const values = [x, ...series.map((one) => one.values)];
    if (this.#plot && !anew) this.#plot.setData(values);
    else {
      this.#plot?.destroy();
      this.#plot = new uPlot(this.#options(), values, this);
      this.#plot.over.addEventListener("mouseleave", () => setTimeout(() => this.#told()));
    }
    setTimeout(() => this.#told()); // uPlot draws, and empties the legend, after this task
  }

  /** Shows the last values in the legend, unless the mouse points at others. */
  #told() {
    if (this.#plot && !this.#plot.over.matches(":hover")) this.#plot.setLegend({ idx: this.#data.x.length - 1 });
  }

  #options() {
    const { kind, series, x } = this.#data;
    const paths = { bars: uPlot.paths.bars({ size: [0.8, 24] }), steps: uPlot.paths.stepped({ align: 1 }) }[kind];
    const axis = {
      stroke: colour("--soft"), grid: { stroke: colour("--faint"), width: 1 }, ticks: { show: false }, size: 26, font: FONT,
    };
    const times = (_, found) => found.map((at, n) => timeOfDay(at * 1000, found[n - 1] * 1000));
    const range = (_, __, most) => [0, Math.max(1, most * 1.1)];
    return {
      width: this.clientWidth,
      height: HEIGHT,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      padding: [8, 22, 0, 0],
      cursor: { points: { size: 7 }, drag: { x: false } },
      legend: { show: kind !== "bars" && x.length > 0 },
      scales: { x: { time: true, range: () => this.#extent() }, y: { range } },
      axes: [{ ...axis, space: 76, values: times }, { ...axis, size: 58, values: (_, found) => found.map((v) => (v % 1 ? "" : short(v))) }],
      hooks: { draw: [(plot) => this.#marks(plot)] },
      series: [
        { label: "time", value: (_, v) => (v === null ? "–" : clock(v * 1000)) },
        ...series.map((one) => ({
          label: one.name,
          stroke: colour(one.colour),
          fill: one.fill || kind === "bars" ? `${colour(one.colour)}30` : undefined,
          width: 1.8,
          points: { show: x.length < 3, size: 6 },
          paths,
          value: (_, v) => (v === null ? "–" : short(v)),
        })),
      ],
    };
  }

  #extent() {
    const { x, kind } = this.#data;
    const last = Math.max(Date.now() / 1000, x.at(-1) ?? 0);
    const first = kind === "line" ? Math.max(x[0] ?? last, last - WINDOW_MS / 1000) : x[0] ?? last;
    return [Math.min(first, last - 60), last];
  }

  /** Draws a dashed line at each moment in `marks`. */
  #marks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--soft");
    ctx.setLineDash([3, 4]);
    for (const { at } of this.#data.marks ?? []) {
      const x = Math.round(plot.valToPos(at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
}

const RANGES = [["5 min", 300e3], ["30 min", WINDOW_MS], ["3 h", 10800e3], ["all", Infinity]];

/** data: {lanes: [{label, href, spans: [[who, from, to]]}], who: [names], since, marks: [{at, text, bad}], linked(who)} */
class OwnerLanes extends HTMLElement {
  #data = null;
  #range = WINDOW_MS;
  #timer = null;

  connectedCallback() {
    this.#draw();
  }
  disconnectedCallback() {
    clearTimeout(this.#timer);
  }
  get data() {
    return this.#data;
  }
  set data(data) {
    this.#data = data;
    if (this.isConnected) this.#draw();
  }

  #draw() {
    clearTimeout(this.#timer);
    if (!this.#data) return;
    const now = Date.now();
    const { who } = this.#data;
    const since = moment(this.#data.since) ?? now;
    const marks = this.#data.marks.filter((mark) => moment(mark.at));
    const lanes = this.#data.lanes.map((lane) => ({
      ...lane, spans: lane.spans.map(([name, start, end]) => [name, moment(start), moment(end)]) }));
    const begins = lanes.flatMap((lane) => lane.spans.map((span) => span[1] ?? since));
    const earliest = Math.min(now - 60e3, ...begins, ...marks.map((mark) => mark.at));
    const from = Math.max(earliest, now - this.#range);
    const share = (at) => (100 * (Math.min(now, Math.max(from, at)) - from)) / (now - from);
    const there = new Set(lanes.flatMap((lane) => lane.spans.filter(([, , end]) => (end ?? now) >= from).map(([name]) => name)));
    const looks = new Map(who.map((name, at) => [name, `c${at % 8}`]));
    const [labels, names] = [distinct(lanes.map((lane) => lane.label), this.clientWidth < 640 ? 15 : 26), distinct(who, 12)];
    const drawn = (lane) => this.#lane(lane, from, now, since, share, { label: labels.get(lane.label), looks, names });
    show(this, [
      h("div", { class: "ranges", role: "group", "aria-label": "Time shown" },
        RANGES.map(([name, range]) =>
          h("button", { type: "button", "aria-pressed": String(this.#range === range), onclick: () => this.#choose(range) }, name))),
      h("ul", { class: "legend" }, who.filter((name) => there.has(name)).map((name) =>
        h("li", null, h("i", { class: looks.get(name) }), h("a", { href: this.#data.linked(name) }, name)))),
      h("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "Owners by partition" }, h("div", { class: "lanes" },
        lanes.map(drawn),
        this.#axis(from, now, share),
        h("div", { class: "over", "aria-hidden": "true" }, marks.filter((mark) => mark.at >= from).map((mark) =>
          this.#placed(h("i", { class: mark.bad ? "mark bad" : "mark", title: `${clock(mark.at)}: ${mark.text}` }), share(mark.at)))))),
    ]);
    this.#place();
    this.#timer = setTimeout(() => this.#draw(), Math.max(1000, (now - from) / 300));
  }

  #choose(range) {
    this.#range = range;
    this.#draw();
  }

  #lane(lane, from, now, since, share, { label, looks, names }) {
    const shown = lane.spans.filter(([, , end]) => (end ?? now) >= from);
    const told = shown.map(([name, start, end]) => `${name} from ${clock(start ?? since)} to ${end ? clock(end) : "now"}`);
    return h("div", { class: "lane" },
      h("a", { class: "name", href: lane.href, title: lane.label }, label),
      h("div", { class: "track", role: "img", "aria-label": told.join(", ") || "no owner" },
        shown.map(([name, start, end], at) => {
          const left = share(start ?? since);
          const length = duration((end ?? now) - (start ?? since));
          const text = `${lane.label}: ${told[at]} (${start ? "" : "at least "}${length})`;
          return this.#placed(h("i", { class: `bar ${looks.get(name) ?? "c-none"}`, title: text }, names.get(name) ?? name), left, share(end ?? now) - left);
        })));
  }

  #axis(from, now, share) {
    const steps = [10, 30, 60, 300, 600, 1800, 3600, 10800, 43200, 86400, 604800].map((s) => s * 1000);
    const step = steps.find((one) => (now - from) / one <= 8) ?? Math.ceil((now - from) / 8);
    const ticks = [];
    for (let at = Math.ceil(from / step) * step; at < now; at += step) ticks.push(at);
    return h("div", { class: "lane axis", "aria-hidden": "true" }, h("span", { class: "name" }),
      h("div", { class: "track" }, ticks.map((at, n) => this.#placed(h("span", { class: "tick" }, timeOfDay(at, n ? at - step : null)), share(at)))));
  }

  /** Records a position in data attributes, because the page's policy forbids style attributes; #place() applies it. */
  #placed(element, left, width) {
    element.setAttribute("data-left", left.toFixed(3));
    if (width !== undefined) element.setAttribute("data-width", Math.max(0.15, width).toFixed(3));
    return element;
  }
  #place() {
    for (const element of this.querySelectorAll("[data-left]")) {
      element.style.left = `${element.dataset.left}%`;
      element.style.width = element.dataset.width ? `${element.dataset.width}%` : "";
    }
  }
}

customElements.define("time-chart", TimeChart);
customElements.define("owner-lanes", OwnerLanes);
