"use strict";
// Shows what /events sends once a second. Names are written as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const STALE_MS = 3000;      // age above which what is shown is said to be old
const SILENT_MS = 5000;     // time without an event, after which the connection is made anew
const HISTORY = 120;        // points of a line of rates
const DRAWN = 24;           // rows of the picture; the tables have more
const byId = (id) => document.getElementById(id);

// An element with attributes, and children that are elements or texts.
function make(space, name, attributes, ...children) {
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const html = (name, attributes, ...children) => make(null, name, attributes, ...children);
const svg = (name, attributes, ...children) => make(SVG, name, attributes, ...children);

function number(value) {
  if (value === null || value === undefined) return "-";
  for (const prefix of ["", "k", "M", "G", "T"]) {
    if (value < 999.5) return value.toFixed(prefix === "" || value >= 99.95 ? 0 : 1) + prefix;
    value /= 1000;
  }
  return value.toFixed(0) + "P";
}

function span(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

const mebibytes = (bytes) => `${Math.round(bytes / 1048576)} MiB`;
const short = (text, length) => (text.length > length ? text.slice(0, Math.max(1, length - 1)) + "…" : text);

// --- the connection ---

let source = null;          // EventSource
let last = null;            // last event, with a picture
let received = 0;           // time of its picture, by this machine's clock
let alive = 0;              // time of the last event or beat
let connection = "connecting";
let failure = null;         // reason of the gateway
let restarted = 0;          // time at which a restart was noticed
let retry = 0;
const histories = new Map();

async function begin() {
  const token = location.hash.slice(1);
  if (token) {
    // The secret leaves the address bar and the history.
    history.replaceState(null, "", location.pathname);
    try {
      const reply = await fetch("/session", { method: "POST", body: token });
      if (!reply.ok) return refuse((await reply.text()).trim());
    } catch (error) {
      connection = "the page's server does not answer";
    }
  }
  connect();
  results();
}

function refuse(why) {
  connection = why;
  show();
}

function connect() {
  clearTimeout(retry);
  if (source) source.close();
  alive = Date.now();
  const wanted = byId("gateway").value;
  source = new EventSource(wanted ? `/events?gateway=${encodeURIComponent(wanted)}` : "/events");
  source.onopen = () => { connection = null; show(); };
  source.onmessage = (message) => { heard(); event(JSON.parse(message.data)); };
  source.addEventListener("beat", heard);
  source.onerror = lost;
}

function heard() {
  connection = null;
  alive = Date.now();
}

// A refusal ends an EventSource for good, and it does not say why.
async function lost() {
  if (source.readyState !== EventSource.CLOSED) {
    connection = "the page's server does not answer";
    return show();
  }
  try {
    const reply = await fetch("/results");
    connection = reply.ok ? "16 pages are open already; close one of them" : (await reply.text()).trim();
  } catch (error) {
    connection = "the page's server does not answer";
  }
  show();
  clearTimeout(retry);
  retry = setTimeout(connect, 2000);
}

function event(now) {
  gateways(now.gateways, now.gateway);
  failure = now.failure;
  if (now.picture) {
    const at = Date.now() - now.age_ms;
    const before = last && last.gateway === now.gateway ? last.picture : null;
    if (!before) histories.clear();
    if (before && before.started_ms !== now.picture.started_ms) {
      restarted = Date.now();
      histories.clear();
    }
    const isNew = !before || Math.abs(at - received) > 50;
    last = now;
    received = at;
    if (isNew) draw(now.picture);
  } else if (!last || last.gateway !== now.gateway) {
    last = null;
  }
  show();
}

function gateways(names, shown) {
  const select = byId("gateway");
  const known = [...select.options].map((option) => option.value);
  const all = shown && !names.includes(shown) ? [...names, shown] : names;
  if (known.join("\n") !== all.join("\n")) {
    const chosen = select.value || shown;
    select.replaceChildren(...all.map((name) => html("option", { value: name }, name)));
    if (all.includes(chosen)) select.value = chosen;
  }
}

// The line of state, also between events: the age of what is shown.
function show() {
  const age = last ? Math.max(0, Date.now() - received) : null;
  const isStale = age !== null && age > STALE_MS;
  let text = "", isBad = true;
  if (connection) text = connection;
  else if (failure) text = failure;
  else if (isStale) text = "the gateway does not answer";
  else isBad = false;
  if (last) {
    const seconds = Math.floor(age / 1000);
    text = isBad ? `as of ${span(seconds)} ago: ${text}` : `live, ${seconds} s old`;
    if (!isBad && Date.now() - restarted < 30000) text += "; the gateway was started anew";
  } else if (!isBad) text = "connecting";
  const state = byId("state");
  // A reader of the screen says what changes; the seconds are no news.
  state.setAttribute("aria-live", isBad ? "polite" : "off");
  if (state.textContent !== text) state.textContent = text;
  state.className = isBad ? "bad" : "";
  document.body.className = isBad && last ? "stale" : "";
}
// A connection may be gone without a word, such as after the machine slept.
function tick() {
  const limit = source && source.readyState === EventSource.OPEN ? SILENT_MS : 3 * SILENT_MS;
  if (source && source.readyState !== EventSource.CLOSED && Date.now() - alive > limit) {
    connection = "the page's server does not answer";
    connect();
  }
  show();
}
setInterval(tick, 500);
document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
byId("gateway").addEventListener("change", () => { last = null; failure = null; clearPacket(); connect(); });

// --- links, tunnels and drops ---

function draw(picture) {
  const limit = picture.memory_limit ? ` of ${mebibytes(picture.memory_limit)}` : "";
  const busy = picture.workers.filter((worker) => worker.busy !== null);
  const workers = busy.map((worker) => `worker ${worker.worker} ${Math.round(100 * worker.busy)} % busy`).join(", ");
  byId("about").textContent = `${picture.version}, up ${span(picture.up_secs)}, memory ${mebibytes(picture.memory)}${limit}, ${picture.sas} SAs` +
    (workers ? `, ${workers}` : "");
  for (const link of picture.links) note(`link ${link.name}`, sum(link));
  for (const tunnel of picture.tunnels || []) note(`tunnel ${endsOf(tunnel)}`, sum(tunnel));
  topology(picture);
  tables(picture);
  if (!performance.getEntriesByName("first-picture").length) performance.mark("first-picture");
}

const sum = (row) => (row.received === null ? null : row.received + (row.sent || 0));
const endsOf = (tunnel) => `${tunnel.local || "-"} > ${tunnel.remote || "-"} ${tunnel.reqid}`;
const nameOf = (tunnel) => tunnel.name || tunnel.remote || "any peer";

function note(key, value) {
  if (value === null) return;
  const line = histories.get(key) || [];
  line.push(value);
  if (line.length > HISTORY) line.shift();
  histories.set(key, line);
}

function sparkline(key) {
  const line = histories.get(key) || [];
  const most = Math.max(1, ...line);
  const points = line.map((value, at) => `${(120 - (line.length - 1 - at)).toFixed(0)},${(19 - 18 * value / most).toFixed(1)}`);
  return svg("svg", { viewBox: "0 0 120 20", "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
}

function row(isBad, ...cells) {
  const cell = (content) => (content instanceof Node && content.nodeName === "TD" ? content : html("td", {}, content));
  return html("tr", { class: isBad ? "bad" : null }, ...cells.map(cell));
}

function fill(id, rows, columns, none, more) {
  const all = rows.length ? rows : [html("tr", {}, html("td", { colspan: columns }, none))];
  if (more) all.push(html("tr", {}, html("td", { colspan: columns }, `and ${more} more`)));
  byId(id).replaceChildren(...all);
}

function tables(picture) {
  const links = picture.links.map((link) => {
    const kind = link.on ? `${link.kind} on ${link.on}` : link.kind;
    const state = link.up ? "up" : `down${link.why_down ? `: ${link.why_down}` : ""}`;
    return row(!link.up || link.drop_rate > 0, html("td", {}, link.name, " ", html("span", { class: "key" }, kind)), html("td", { class: "text" }, state), number(link.received),
      number(link.sent), link.per_call === null ? "-" : link.per_call.toFixed(1), number(link.drop_rate), sparkline(`link ${link.name}`));
  });
  fill("links", links, 7, "no links", picture.more_links);
  const tunnels = (picture.tunnels || []).map((tunnel) => row(tunnel.fault !== null,
    html("td", {}, nameOf(tunnel), " ", html("span", { class: "key" }, `${endsOf(tunnel).replace(/ \d+$/, "")} reqid ${tunnel.reqid}`)),
    html("td", { class: "text" }, tunnel.fault || "up"), number(tunnel.received), number(tunnel.sent),
    tunnel.ends_ms === null ? "-" : span(Math.floor(tunnel.ends_ms / 1000)), sparkline(`tunnel ${endsOf(tunnel)}`)));
  const none = picture.tunnels ? "no SAs, and no policy needs any" : "too many SAs or policies to ask for";
  for (const policy of picture.without_sa) {
    if (policy.template) continue; // Its tunnel is there.
    const selector = policy.selector;
    tunnels.push(row(true, `${selector.src} > ${selector.dst} dir ${policy.dir}`, html("td", { class: "text" }, "no SA"), "-", "-", "-", ""));
  }
  fill("tunnels", tunnels, 6, none, picture.more_tunnels);
  const drops = [...picture.drops].sort((a, b) => (b.rate || 0) - (a.rate || 0) || b.count - a.count).map((drop) => {
    const words = html("td", { class: "text" }, drop.cause || "", " ", html("span", { class: "key" }, drop.remedy || ""));
    return row(drop.rate > 0, drop.reason, drop.link || "-", number(drop.rate), String(drop.count), words);
  });
  fill("drops", drops, 5, "no packet has been dropped", picture.more_drops);
}

// Columns of the picture: links, bridges, routing and tunnels, as far as there are any.
function topology(picture) {
  const image = byId("topology");
  const width = Math.max(320, image.parentElement.clientWidth);
  const bridges = picture.links.filter((link) => link.kind === "bridge");
  const links = picture.links.filter((link) => link.kind !== "bridge" && link.kind !== "vrf").slice(0, DRAWN);
  // Ports of a bridge are beside one another, below links that are routed.
  links.sort((a, b) => (a.bridge || "").localeCompare(b.bridge || ""));
  const tunnels = (picture.tunnels || []).slice(0, DRAWN);
  const routed = links.filter((link) => !link.bridge);
  const domains = [...new Set([...routed, ...bridges].map((link) => link.vrf || ""))];
  for (const link of picture.links) if (link.kind === "vrf" && !domains.includes(link.name)) domains.push(link.name);
  if (tunnels.length && !domains.includes("")) domains.push("");
  const columns = [links.map((link) => ({ key: `link ${link.name}`, link })), bridges.map((link) => ({ key: `bridge ${link.name}`, link })),
    domains.sort().map((vrf) => ({ key: `vrf ${vrf}`, vrf })), tunnels.map((tunnel) => ({ key: `tunnel ${endsOf(tunnel)}`, tunnel }))];
  const used = columns.filter((column) => column.length);
  if (!used.length) return image.replaceChildren();
  const gap = width < 560 ? 24 : 70, boxWidth = Math.min(210, (width - 8 - gap * (used.length - 1)) / used.length);
  const step = (width - 8 - boxWidth) / Math.max(1, used.length - 1);
  const boxHeight = 52, pitch = 66, height = Math.max(...used.map((column) => column.length)) * pitch + 8;
  const places = new Map();
  used.forEach((column, x) => column.forEach((item, y) => {
    const top = (height - column.length * pitch) / 2 + y * pitch + (pitch - boxHeight) / 2;
    places.set(item.key, { x: used.length === 1 ? 4 : 4 + x * step, y: top });
  }));
  let lowest = -pitch;
  for (const { key, link } of columns[1]) {
    const ports = links.filter((port) => port.bridge === link.name).map((port) => places.get(`link ${port.name}`).y);
    const place = places.get(key);
    if (ports.length) place.y = Math.max(lowest + pitch, (Math.min(...ports) + Math.max(...ports)) / 2);
    lowest = place.y;
  }
  const flows = [], boxes = [], letters = Math.floor(boxWidth / 7.4);
  const flow = (from, to, row, isBad) => {
    const [a, b] = [places.get(from), places.get(to)];
    if (!a || !b) return;
    const rate = sum(row), middle = (a.x + boxWidth + b.x) / 2;
    const way = `M${a.x + boxWidth} ${a.y + boxHeight / 2} C${middle} ${a.y + boxHeight / 2} ${middle} ${b.y + boxHeight / 2} ${b.x} ${b.y + boxHeight / 2}`;
    const wide = rate > 0 ? Math.min(14, 1.5 + 1.6 * Math.log10(1 + rate / 1000)) : 1;
    flows.push(svg("path", { d: way, class: `flow${isBad ? " bad" : rate > 0 ? "" : " idle"}`, "stroke-width": wide.toFixed(1), "data-from": from,
      "data-rate": rate === null ? null : Math.round(rate) }));
  };
  const box = (key, isBad, name, lines) => {
    const { x, y } = places.get(key);
    const texts = lines.map((line, at) => svg("text", { class: "dim", x: x + 7, y: y + 31 + 14 * at }, short(line, Math.floor(boxWidth / 6.6))));
    boxes.push(svg("g", { class: isBad ? "bad" : null, "data-key": key }, svg("title", {}, [name, ...lines].join(", ")),
      svg("rect", { class: "box", x, y, width: boxWidth, height: boxHeight, rx: 5 }), svg("text", { x: x + 7, y: y + 16 }, short(name, letters)), ...texts));
  };
  for (const { key, link } of [...columns[0], ...columns[1]]) {
    const isBad = !link.up || link.drop_rate > 0;
    const rates = `in ${number(link.received)} out ${number(link.sent)}`;
    const state = !link.up ? `${link.kind} down` : link.drop_rate > 0 ? `drops ${number(link.drop_rate)}/s` : link.kind;
    box(key, isBad, link.name, [rates, state]);
    flow(key, link.bridge ? `bridge ${link.bridge}` : `vrf ${link.vrf || ""}`, link, isBad);
  }
  for (const { key, vrf } of columns[2]) {
    const device = picture.links.find((link) => link.kind === "vrf" && link.name === vrf);
    box(key, device ? !device.up : false, vrf || "routing", [vrf ? (device && !device.up ? "VRF down" : "VRF") : "main tables"]);
  }
  for (const { key, tunnel } of columns[3]) {
    const isBad = tunnel.fault !== null;
    box(key, isBad, nameOf(tunnel), [`in ${number(tunnel.received)} out ${number(tunnel.sent)}`, isBad ? `down: ${tunnel.fault}` : `to ${tunnel.remote || "any peer"}`]);
    flow("vrf ", key, tunnel, isBad);
  }
  image.setAttribute("viewBox", `0 0 ${width} ${height}`);
  image.replaceChildren(...flows, ...boxes);
}
addEventListener("resize", () => { if (last) topology(last.picture); });

// --- one packet's way ---

// Stages of the picture in ARCHITECTURE.md: name, words, column and row. Those without a name are in no trace.
const STAGES = [
  ["", "link", 0, 0], ["", "GRO", 1, 0], ["input", "IP input", 2, 0], ["hook", "hooks", 3, 0], ["ila", "ILA", 4, 0], ["route", "route", 5, 0],
  ["local", "local", 6, 0], ["up", "host side", 7, 0], ["decrypt", "ESP: decrypt", 6, 1], ["forward", "forward", 5, 1], ["hand-over", "other worker", 3, 1],
  ["reject", "reject", 1, 1], ["drop", "drop", 0, 1], ["output", "output", 1, 2], ["policy", "policy", 2, 2], ["encrypt", "ESP: encrypt", 2, 3],
  ["transmit", "MTU, transmit", 3, 2], ["resolve", "neighbour", 4, 2], ["queued", "queue, send", 5, 2], ["", "link", 6, 2],
];
const EDGES = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [6, 8], [5, 9], [13, 14], [14, 15], [14, 16], [16, 17], [17, 18], [18, 19]];
// From forward to output, from decrypt back to GRO, and from encrypt back to output.
const BENDS = ["M674 157 L674 184 L186 184 L186 212", "M848 137 L857 137 L857 10 L186 10 L186 22", "M256 327 L186 327 L186 252"];

let packets = new Map();
let aborter = null, playing = 0;

function center(stage) {
  return { x: 64 + stage[2] * 122, y: 42 + stage[3] * 95 };
}

function picturePath() {
  const lines = EDGES.map(([from, to]) => {
    const [a, b] = [center(STAGES[from]), center(STAGES[to])];
    const way = a.y === b.y ? `M${a.x + 52} ${a.y} L${b.x - 52} ${b.y}` : `M${a.x} ${a.y + 20} L${b.x} ${b.y - 20}`;
    return svg("path", { class: "edge", d: way });
  });
  const boxes = STAGES.map((stage) => {
    const { x, y } = center(stage);
    return svg("g", { "data-step": stage[0] || null }, svg("rect", { class: "box", x: x - 52, y: y - 20, width: 104, height: 40, rx: 5 }),
      svg("text", { x, y: y - 3, "text-anchor": "middle" }, stage[1]), svg("text", { class: "dim detail", x, y: y + 13, "text-anchor": "middle" }),
      svg("text", { class: "number", x: x + 40, y: y - 24 }));
  });
  byId("path").replaceChildren(...BENDS.map((bend) => svg("path", { class: "edge", d: bend })), ...lines, ...boxes);
}

const stageOf = (step) => document.querySelector(`#path [data-step="${CSS.escape(step.step.split(" ")[0])}"]`);

function geometry(step) {
  if (!step.len) return "";
  const gso = step.gso ? `, ${step.gso.segs} segments of ${step.gso.size} (${step.gso.kind})` : "";
  return `${step.len} bytes: ${step.head} in the head, ${step.slots} slots, ${step.children} children, ${step.truesize} of memory, checksum ${step.csum}` +
    gso + (step.fragment ? ", fragment" : "");
}

function clearPacket() {
  clearTimeout(playing);
  for (const stage of document.querySelectorAll("#path g")) {
    stage.setAttribute("class", "");
    for (const text of stage.querySelectorAll(".detail, .number")) text.textContent = "";
  }
  byId("steps").replaceChildren();
}

// Lights the stages one after the other.
function play(steps, from) {
  if (from === 0) clearPacket();
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  for (let at = from; at < steps.length; at++) {
    const step = steps[at], stage = stageOf(step), isEnd = step.step === "drop" || step.step === "reject";
    const ms = ((step.time - steps[0].time) * 1000).toFixed(3);
    const words = [step.step, step.dev, step.detail].filter((word) => word !== null).join(" ");
    byId("steps").append(html("li", { class: isEnd ? "bad" : null }, `${words} `, html("span", { class: "dim" }, `+${ms} ms ${geometry(step)}`)));
    if (stage) {
      document.querySelectorAll("#path .now").forEach((other) => other.classList.remove("now"));
      stage.setAttribute("class", isEnd ? "lit bad now" : "lit now");
      stage.querySelector(".detail").textContent = step.len ? `${step.len} B${step.gso ? ` ${step.gso.segs}x${step.gso.size}` : ""}` : short(step.detail || "", 15);
      stage.querySelector(".number").textContent += `${stage.querySelector(".number").textContent ? "," : ""}${at + 1}`;
    }
    if (!isStill && at + 1 < steps.length) {
      playing = setTimeout(() => play(steps, at + 1), 150);
      return;
    }
  }
}

// Steps behind a wait come as a packet of the same number.
function packet(line) {
  const known = packets.get(line.packet);
  const steps = known ? known.concat(line.steps) : line.steps;
  packets.set(line.packet, steps);
  const select = byId("packet");
  if (!known) {
    const flow = line.steps.map((step) => step.flow).find((text) => text);
    select.append(html("option", { value: String(line.packet) }, `${line.packet}${flow ? `: ${flow}` : ""}`));
    select.disabled = false;
  }
  if (packets.size === 1) {
    clearTimeout(playing);
    play(steps, 0);
  }
}

function tracing(isOn, text, isBad) {
  byId("start").disabled = isOn;
  byId("stop").disabled = !isOn;
  byId("trace-state").textContent = text;
  byId("trace-state").className = isBad ? "bad" : "";
}

async function trace(submit) {
  submit.preventDefault();
  packets = new Map();
  clearPacket();
  byId("packet").replaceChildren();
  byId("packet").disabled = true;
  aborter = new AbortController();
  tracing(true, "waiting for a packet", false);
  const asked = { gateway: byId("gateway").value, filter: byId("filter").value, packets: Number(byId("packets").value) };
  let end = "the trace has broken off", isBad = true;
  try {
    const reply = await fetch("/trace", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked), signal: aborter.signal });
    if (reply.ok) {
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = "";;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines.filter((text) => text).map((text) => JSON.parse(text))) {
          if (line.steps) packet(line);
          if (line.end) [end, isBad] = [line.end, false];
          if (line.error) [end, isBad] = [line.error, true];
        }
      }
    } else end = (await reply.text()).trim();
  } catch (error) {
    if (error.name === "AbortError") [end, isBad] = ["stopped", false];
  }
  tracing(false, end, isBad);
}

byId("trace").addEventListener("submit", trace);
byId("stop").addEventListener("click", () => aborter && aborter.abort());
byId("packet").addEventListener("change", () => { clearTimeout(playing); play(packets.get(Number(byId("packet").value)) || [], 0); });

// --- results ---

async function results() {
  try {
    const reply = await fetch("/results");
    if (!reply.ok) return;
    const rows = await reply.json();
    byId("results-section").hidden = rows.length === 0;
    byId("results").replaceChildren(...rows.map((result, at) => html("figure", {}, html("figcaption", {}, result.name),
      result.error ? html("p", { class: "bad" }, result.error) : html("img", { src: `/results/${at}.svg`, alt: result.text }))));
  } catch (error) {
    // The line of state says that the server does not answer.
  }
}

picturePath();
begin();
