"use strict";
// Everything is decoded when it is first looked at: the index at the start, a chunk of trajectories when one is opened.
const $ = (id) => document.getElementById(id);
const ORIGINS = ["prompt", "model", "tool", "separator"];
const MODEL = 1;
const ROW = 26;
let index, at = -1, mode = "origin", shown = [], current = null, pass = 0, token = -1;
const chunks = new Map();
const filters = new Set();

async function unpack(text) {
  const raw = atob(text.trim());
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

async function chunk(number) {
  if (!chunks.has(number)) {
    const buffer = await unpack($("c" + number).textContent);
    const size = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    const start = 4 + Math.ceil(size / 4) * 4;
    const found = { head, ints: new Int32Array(buffer, start), floats: new Float32Array(buffer, start) };
    if (chunks.size > 24) chunks.delete(chunks.keys().next().value);
    chunks.set(number, found);
  }
  return chunks.get(number);
}

// ---- the list ------------------------------------------------------------------------------------------------

const FLAGS = {
  wrong: (c, i) => c.verdict[i] !== "correct" && !c.failed[i],
  void: (c, i) => c.void[i],
  truncated: (c, i) => c.truncated[i],
  "timed out": (c, i) => c.timed_out[i],
  "tool failed": (c, i) => c.tool_failures[i] > 0,
  "not in loss": (c, i) => c.split[i] === "train" && c.filters[i].length > 0,
  failed: (c, i) => c.failed[i],
};
const SORTS = {
  "as recorded": null,
  "highest ratio": (c, i) => c.max_abs_log_ratio[i],
  "most gated": (c, i) => c.gated[i] + c.clipped[i],
  "highest reward": (c, i) => c.reward[i] ?? -1e9,
  "lowest reward": (c, i) => -(c.reward[i] ?? 1e9),
  "highest advantage": (c, i) => c.advantage[i] ?? -1e9,
  "lowest advantage": (c, i) => -(c.advantage[i] ?? 1e9),
  longest: (c, i) => c.length[i],
  "most calls": (c, i) => c.tool_calls[i],
};

function choose() {
  const c = index.columns, words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const split = $("split").value, step = $("step").value, tests = [...filters].map((name) => FLAGS[name]);
  shown = [];
  for (let i = 0; i < c.key.length; i++) {
    if (split && c.split[i] !== split) continue;
    if (step !== "" && String(c.step[i]) !== step) continue;
    if (!tests.every((test) => test(c, i))) continue;
    if (words.length && !words.every((word) => index.haystack[i].includes(word))) continue;
    shown.push(i);
  }
  const value = SORTS[$("sort").value];
  if (value) shown.sort((a, b) => value(c, b) - value(c, a) || a - b);
  $("count").textContent = `${shown.length} of ${c.key.length}`;
  $("rows").style.height = shown.length * ROW + "px";
  draw();
}

function cells(i) {
  const c = index.columns, right = c.verdict[i] === "correct";
  const number = (x, digits = 2) => (x === null || x === undefined ? "" : (+x).toFixed(digits));
  return [[c.key[i]], [c.split[i]], [c.step[i] ?? ""], [index.questions[c.question[i]]],
    [`${c.answer[i] ?? "-"} / ${c.gold[i]}`, right ? "right" : "wrong"], [c.stop[i] ?? "", c.void[i] || c.truncated[i] || c.failed[i] ? "odd" : ""],
    [number(c.reward[i])], [number(c.advantage[i])], [c.tool_calls[i] + (c.tool_failures[i] ? ` (${c.tool_failures[i]}✗)` : "")],
    [c.length[i]], [c.max_abs_log_ratio[i] ? number(c.max_abs_log_ratio[i], 4) : ""], [c.gated[i] + c.clipped[i] || ""]];
}

function draw() {
  const box = $("scroll"), first = Math.max(0, Math.floor(box.scrollTop / ROW) - 10);
  const last = Math.min(shown.length, first + Math.ceil((box.clientHeight || 800) / ROW) + 20);
  const rows = document.createDocumentFragment();
  for (let place = first; place < last; place++) {
    const row = document.createElement("div");
    row.className = "row" + (shown[place] === at ? " on" : "");
    row.style.top = place * ROW + "px";
    row.dataset.i = shown[place];
    for (const [text, style] of cells(shown[place])) {
      const cell = document.createElement("span");
      cell.textContent = text;
      if (style) cell.className = style;
      row.append(cell);
    }
    rows.append(row);
  }
  $("rows").replaceChildren(rows);
}

// ---- colours -------------------------------------------------------------------------------------------------

const shade = (name, strength) => `rgba(var(--${name}), ${Math.min(Math.max(strength, 0), 0.9).toFixed(3)})`;
const both = (value, size) => (value > 0 ? shade("hot", value / size) : shade("cold", -value / size));
const REASON_COLOURS = [null, ["good", 0.28], ["hot", 0.75], ["cold", 0.75], ["hot", 0.4], ["cold", 0.4], ["hot", 0.55], ["cold", 0.55], ["cold", 0.3], ["cold", 0.3]];
const MODES = {
  origin: { help: "who wrote the token: prompt, model (sampled), tool output, separator" },
  trained: { help: "green: pushes the policy; red: sampled, but clipped or gated; grey: sampled, not in the loss; plain: nobody sampled it",
    colour: (t, k) => (!t.inLoss ? "rgba(128,128,128,.35)" : t.q.reason && t.q.reason[k] > 1 ? shade("hot", 0.55) : shade("good", 0.4)) },
  advantage: { help: "red: pushed up (positive advantage); blue: pushed down", colour: (t) => both(t.advantage || 0, 2) },
  "log-prob": { help: "the sampler's log-probability: the stronger, the more surprising", colour: (t, k) => shade("cold", -t.q.logp_mu[k] / 5), needs: "logp_mu" },
  ratio: { help: "ratio in front of the advantage: red above 1, blue below (full at ±0.3 nats)", colour: (t, k) => both(t.q.log_ratio[k], 0.3), needs: "log_ratio" },
  prefix: { help: "prefix log-ratio L_t within its window: red near or above the upper bound, blue near or below the lower", needs: "prefix_log_ratio",
    colour: (t, k) => { const l = t.q.prefix_log_ratio[k], hi = t.q.window_upper[k], lo = t.q.window_lower[k]; return l > 0 ? shade("hot", isFinite(hi) ? (l > hi ? 0.9 : 0.55 * l / hi) : l / 0.5) : shade("cold", isFinite(lo) ? (l < lo ? 0.9 : 0.55 * l / lo) : -l / 0.5); } },
  budget: { help: "CPPO: weighted divergence of the token against what is left of the prefix's budget; full red: over it", needs: "budget",
    colour: (t, k) => { const used = budgetUsed(t, k); return used > 1 ? shade("hot", 0.9) : shade("hot", 0.5 * used); } },
  reason: { help: "", needs: "reason", colour: (t, k) => { const c = REASON_COLOURS[t.q.reason[k]]; return c && shade(c[0], c[1]); } },
  weights: { help: "version of the weights that sampled the token, oldest blue to newest red", colour: (t, k) => { const v = t.versions, lo = Math.min(...v), hi = Math.max(...v); return hi > lo ? both((2 * (v[k] - lo)) / (hi - lo) - 1, 1.2) : shade("good", 0.25); } },
};
const budgetUsed = (t, k) => Math.abs(t.q.position_weight[k] * t.q.divergence[k]) / Math.max(t.q.budget[k], 1e-12);

// ---- one trajectory ------------------------------------------------------------------------------------------

async function open(i) {
  at = i;
  const c = index.columns, data = await chunk(c.chunk[i]);
  if (at !== i) return;
  const raw = data.head[c.row[i]], take = ([start, n], kind) => data[kind].subarray(start, start + n);
  const quantities = (q) => Object.fromEntries(Object.entries(q).map(([name, span]) => [name, take(span, "floats")]));
  pass = Math.min(pass, Math.max(raw.passes.length - 1, 0));
  const chosen = raw.passes[pass];
  current = { raw, ids: take(raw.ids, "ints"), versions: Array.from(take(raw.versions, "ints")), advantage: c.advantage[i],
    inLoss: c.split[i] === "train" && c.filters[i].length === 0, q: { ...quantities(raw.sampler), ...(chosen ? quantities(chosen.q) : {}) }, update: chosen };
  current.methods = Object.entries(raw.methods || {}).map(([name, q]) => [name, { ...current, q: { ...current.q, ...quantities(q) } }]);
  token = -1;
  page(i);
}

function page(i) {
  const c = index.columns, place = shown.indexOf(i);
  $("key").textContent = c.key[i];
  $("place").textContent = `${c.split[i]}, step ${c.step[i] ?? "-"}` + (place >= 0 ? `; ${place + 1} of ${shown.length}` : "");
  $("question").textContent = index.questions[c.question[i]];
  const facts = [[`answer ${c.answer[i] ?? "none"}, gold ${c.gold[i]}`, c.verdict[i] === "correct" ? "right" : "wrong"], [c.verdict[i] || "no verdict"], [`end: ${c.stop[i]}`],
    [`reward ${c.reward[i] ?? "none"}`], ...Object.entries(current.raw.parts).filter((p) => p[1]).map((p) => [`${p[0]} ${p[1]}`]), [`advantage ${c.advantage[i] === null ? "none" : c.advantage[i].toFixed(4)}`],
    ...c.filters[i].map((f) => [`not in the loss: ${f}`, "odd"]), [`${c.length[i]} tokens, ${c.sampled_tokens[i]} sampled`], [`${current.raw.seconds.toFixed(2)} s`], [current.raw.verifier],
    [current.raw.why], [current.raw.error, "odd"]];
  $("facts").replaceChildren(...facts.filter((f) => f[0]).map(([text, style]) => Object.assign(document.createElement("span"), { className: "tag " + (style || ""), textContent: text })));
  modes();
  paint();
  walk();
  turns();
}

function modes() {
  const names = Object.keys(MODES).filter((name) => !MODES[name].needs || current.q[MODES[name].needs]);
  if (!names.includes(mode)) mode = "origin";
  $("modes").replaceChildren(...names.map((name, n) => button(`${n + 1} ${name}`, name === mode, () => setMode(name))));
  const passes = current.raw.passes;
  $("options").replaceChildren(...(passes.length > 1 ? passes.map((p, n) => button(`update ${p.n + 1}`, n === pass, () => { pass = n; open(at); })) : []));
  const update = current.update ? `; as update ${current.update.n + 1} of the step saw it` : "";
  $("legend").replaceChildren(...(mode === "reason" ? reasonLegend() : mode === "origin" ? originLegend() : [MODES[mode].help + update]));
}

function swatch(text, style, colour) {
  const tag = Object.assign(document.createElement("span"), { className: "tag " + style, textContent: text });
  if (colour) tag.style.background = colour;
  return tag;
}
const originLegend = () => ORIGINS.map((name, n) => swatch(n === MODEL ? "model (sampled)" : name, name));
function reasonLegend() {
  const counts = new Map();
  for (const [, view] of [["", current], ...current.methods]) for (const r of view.q.reason || []) counts.set(r, (counts.get(r) || 0) + 1);
  return [...counts.keys()].sort().map((r) => swatch(`${index.reasons[r].name}: ${index.reasons[r].text} (${counts.get(r)})`, "", REASON_COLOURS[r] && shade(...REASON_COLOURS[r])));
}

const button = (text, on, act) => { const b = document.createElement("button"); b.textContent = text; b.className = on ? "on" : ""; b.onclick = act; return b; };

function setMode(name) {
  mode = name;
  remember();
  if (current) { modes(); paint(); }
}

function paint() {
  const columns = [["", current], ...current.methods];
  $("columns").replaceChildren(...columns.map(([name, view]) => {
    const box = document.createElement("div");
    if (current.methods.length) box.append(Object.assign(document.createElement("h3"), { textContent: name || "as recorded" }));
    box.append(current.ids.length ? tokens(view) : text());
    return box;
  }));
}

function tokens(view) {
  const box = Object.assign(document.createElement("div"), { className: "tokens" }), colour = MODES[mode].colour;
  box.view = view;
  let i = 0, k = 0;
  for (const [origin, n] of view.raw.segments) {
    for (let j = 0; j < n; j++, i++) {
      const span = document.createElement("span");
      const piece = index.pieces[view.ids[i]] ?? `<${view.ids[i]}>`;
      if (mode === "origin") span.className = ORIGINS[origin];
      span.dataset.i = i;
      if (origin === MODEL) {
        span.dataset.k = k;
        if (colour) { const c = colour(view, k); if (c) span.style.background = c; }
        k++;
      } else if (mode !== "origin") span.style.opacity = 0.55;
      piece.split("\n").forEach((part, n, all) => {
        span.append(part);
        if (n < all.length - 1) { const mark = document.createElement("span"); mark.className = "line"; mark.textContent = "↵"; span.append(mark, "\n"); }
      });
      box.append(span);
    }
  }
  return box;
}

function text() {
  const box = Object.assign(document.createElement("div"), { className: "tokens" });
  for (const turn of current.raw.turns) {
    box.append(Object.assign(document.createElement("span"), { className: "model", textContent: turn.text }), "\n");
    if (turn.observation !== null) box.append(Object.assign(document.createElement("span"), { className: "tool", textContent: turn.observation }), "\n");
  }
  return box;
}

const show = (x) => (x === undefined ? "" : !isFinite(x) ? (x > 0 ? "∞" : "-∞") : Math.abs(x) >= 1e-3 || x === 0 ? (+x).toFixed(4) : (+x).toExponential(2));

function numbers(view, i, k) {
  const q = view.q, rows = [["token", `${i} (id ${view.ids[i]})`]];
  let seen = 0;
  for (const [origin, n] of view.raw.segments) { seen += n; if (i < seen) { rows.push(["origin", ORIGINS[origin]]); break; } }
  if (k === undefined) return [...rows, ["trained", "no: nobody sampled it"]];
  rows.push(["model token t", k + 1], ["weights", view.versions[k]], ["log p sampler", show(q.logp_mu[k])]);
  const line = (label, name) => q[name] && rows.push([label, show(q[name][k])]);
  if (!view.inLoss) return [...rows, ["trained", "no: not in the loss"]];
  line("log p snapshot", "logp_old"); line("log p policy", "logp"); line("entropy", "entropy"); line("ratio", "ratio"); line("log ratio", "log_ratio");
  line("prefix log ratio", "prefix_log_ratio");
  if (q.window_upper && isFinite(q.window_upper[k])) rows.push(["its window", `${show(q.window_lower[k])} ... ${show(q.window_upper[k])}`]);
  line("divergence", "divergence"); line("position weight", "position_weight"); line("budget left", "budget");
  if (q.budget) rows.push(["budget used", q.budget[k] <= 0 ? "nothing was left" : (100 * budgetUsed(view, k)).toFixed(1) + " %"]);
  line("gate", "gate"); line("mismatch weight", "weight"); line("loss", "loss");
  rows.push(["advantage", show(view.advantage)]);
  if (q.reason) { const r = index.reasons[q.reason[k]]; rows.push(["verdict", r ? r.name : q.reason[k]]); }
  return rows;
}

function tip(span, x, y) {
  const view = span.closest(".tokens").view;
  if (!view) return;
  const k = span.dataset.k === undefined ? undefined : +span.dataset.k;
  const table = document.createElement("table");
  for (const pair of numbers(view, +span.dataset.i, k)) { const row = table.insertRow(); for (const value of pair) row.insertCell().textContent = value; }
  $("tip").replaceChildren(table);
  $("tip").hidden = false;
  const box = $("tip").getBoundingClientRect();
  $("tip").style.left = (x + 40 + box.width > innerWidth ? Math.max(x - box.width - 20, 4) : x + 32) + "px";
  $("tip").style.top = Math.max(8, Math.min(y + 18, innerHeight - box.height - 8)) + "px";
}

function walk() {
  const q = current.q, l = q.prefix_log_ratio;
  if (!l || l.length < 2) return $("walk").replaceChildren();
  const finite = [...l, ...q.window_upper, ...q.window_lower].filter(isFinite);
  let lo = Math.min(...finite, 0), hi = Math.max(...finite, 0);
  if (hi - lo < 1e-9) { lo -= 0.01; hi += 0.01; }
  const W = 900, H = 110, x = (k) => 50 + (k / (l.length - 1)) * (W - 60), y = (v) => 8 + ((hi - v) / (hi - lo)) * (H - 26);
  const line = (values, style) => { const points = Array.from(values).map((v, k) => (isFinite(v) ? `${x(k).toFixed(1)},${y(v).toFixed(1)}` : "")).filter(Boolean).join(" "); return `<polyline class="${style}" points="${points}"/>`; };
  const marks = q.reason ? Array.from(q.reason).map((r, k) => (r > 1 ? `<circle class="s1" cx="${x(k).toFixed(1)}" cy="${y(l[k]).toFixed(1)}" r="2.2"/>` : "")).join("") : "";
  $("walk").innerHTML = `<svg viewBox="0 0 ${W} ${H}"><line class="grid" x1="50" x2="${W - 10}" y1="${y(0)}" y2="${y(0)}"/>${line(q.window_upper, "bound")}${line(q.window_lower, "bound")}${line(l, "s0")}${marks}` +
    `<text x="44" y="${y(hi) + 4}" text-anchor="end">${hi.toPrecision(2)}</text><text x="44" y="${y(lo)}" text-anchor="end">${lo.toPrecision(2)}</text><text x="50" y="${H - 4}">prefix log-ratio by model token, its window dashed, clipped or gated tokens marked</text></svg>`;
}

function turns() {
  $("turns").replaceChildren(...current.raw.turns.map((turn, n) => {
    const box = Object.assign(document.createElement("div"), { className: "turn" }), o = turn.outcome;
    const tags = [`turn ${n + 1}`, `ended by ${turn.finish}`, turn.void && "void", turn.answer !== null && `answer ${turn.answer}`, `generated in ${turn.generate_seconds.toFixed(2)} s`];
    if (o) tags.push(`tool: ${o.status}`, `exit ${o.exit_code ?? "-"}`, o.signal && `signal ${o.signal}`, `wall ${o.wall_ms.toFixed(0)} ms`, `cpu ${o.cpu_ms.toFixed(0)} ms`, `queue ${o.queue_ms.toFixed(0)} ms`, o.tier, o.state && `session ${o.state}`, o.retries && `${o.retries} retries`, (o.stdout_truncated || o.stderr_truncated) && "output truncated");
    for (const tag of tags.filter(Boolean)) box.append(Object.assign(document.createElement("span"), { className: "tag", textContent: tag }));
    const block = (title, text) => text && box.append(Object.assign(document.createElement("div"), { className: "soft", textContent: title }), Object.assign(document.createElement("pre"), { textContent: text }));
    block("program", turn.code); block("what the model saw", turn.observation);
    if (o) { if (o.stdout !== turn.observation) block("stdout", o.stdout); block("stderr", o.stderr); }
    return box;
  }));
}

// ---- moving about --------------------------------------------------------------------------------------------

function view(name) {
  for (const section of document.querySelectorAll("section")) section.classList.toggle("on", section.id === name);
  for (const link of document.querySelectorAll("nav a")) link.classList.toggle("on", link.dataset.view === name || (name === "trajectory" && link.dataset.view === "list"));
  $("tip").hidden = true;
  if (name === "list") draw();
}

function remember() {
  if (at >= 0 && $("trajectory").classList.contains("on")) history.replaceState(null, "", `#t=${at}&c=${encodeURIComponent(mode)}`);
}

async function route() {
  const hash = decodeURIComponent(location.hash.slice(1)), asked = new URLSearchParams(hash);
  if (asked.get("theme")) document.documentElement.dataset.theme = asked.get("theme");
  for (const name of (asked.get("filter") || "").split(",")) if (FLAGS[name]) filters.add(name);
  if (asked.get("sort")) $("sort").value = asked.get("sort");
  if (asked.get("search")) $("search").value = asked.get("search");
  flags();
  choose();
  if (asked.get("c") && MODES[asked.get("c")]) mode = asked.get("c");
  if (asked.has("t")) {
    await open(Math.min(+asked.get("t"), index.columns.key.length - 1));
    view("trajectory");
    if (asked.get("hover")) focusToken(+asked.get("hover"));
  } else view(["list", "config"].includes(hash.split("&")[0]) ? hash.split("&")[0] : "overview");
  document.body.dataset.ready = "yes";
}

const go = (i) => { location.hash = `t=${i}&c=${encodeURIComponent(mode)}`; };
function step(by) {
  const place = shown.indexOf(at) + by;
  if (place >= 0 && place < shown.length) go(shown[place]);
}

function focusToken(n) {
  const spans = document.querySelectorAll("#columns .tokens > span");
  if (!spans.length) return;
  token = Math.min(Math.max(n, 0), spans.length - 1);
  document.querySelectorAll(".tokens .at").forEach((s) => s.classList.remove("at"));
  const span = spans[token];
  span.classList.add("at");
  span.scrollIntoView({ block: "nearest" });
  const box = span.getBoundingClientRect();
  tip(span, box.left, box.top);
}

function nextStopped(by) {
  const spans = [...document.querySelectorAll("#columns > div:first-child .tokens > span")], reason = current && current.q.reason;
  for (let n = token + by; reason && n >= 0 && n < spans.length; n += by) if (spans[n].dataset.k !== undefined && reason[+spans[n].dataset.k] > 1) return focusToken(n);
}

function flags() {
  $("filters").replaceChildren(...Object.keys(FLAGS).map((name) => button(name, filters.has(name), () => { filters.has(name) ? filters.delete(name) : filters.add(name); flags(); choose(); })));
}

function theme() {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
}

const KEYS = { j: () => step(1), k: () => step(-1), n: () => nextStopped(1), p: () => nextStopped(-1), d: theme, o: () => { location.hash = "overview"; }, l: () => { location.hash = "list"; },
  Escape: () => { location.hash = "list"; }, "?": () => $("keys").showModal(), ArrowRight: () => focusToken(token + 1), ArrowLeft: () => focusToken(token - 1) };

function keyboard(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT"].includes(event.target.tagName)) { if (event.key === "Escape") event.target.blur(); return; }
  if (event.key === "/") { location.hash = "list"; setTimeout(() => $("search").focus()); event.preventDefault(); return; }
  const inPage = $("trajectory").classList.contains("on");
  if (/^[1-9]$/.test(event.key) && inPage) { const b = $("modes").children[+event.key - 1]; if (b) b.click(); return; }
  if (!inPage && ["ArrowRight", "ArrowLeft", "n", "p"].includes(event.key)) return;
  if (!inPage && at < 0 && event.key === "j" && shown.length) { go(shown[0]); return; }
  if (KEYS[event.key]) { KEYS[event.key](); event.preventDefault(); }
}

async function begin() {
  if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
  index = JSON.parse(new TextDecoder().decode(await unpack($("index").textContent)));
  const c = index.columns, options = (values, all) => [new Option(all, ""), ...values.map((v) => new Option(v, v))];
  index.haystack = c.key.map((key, i) => `${key} ${index.questions[c.question[i]]} ${c.answer[i]} ${c.gold[i]} ${c.stop[i]} ${c.source[i]}`.toLowerCase());
  $("total").textContent = `(${c.key.length})`;
  $("split").replaceChildren(...options([...new Set(c.split)], "all sets"));
  $("step").replaceChildren(...options([...new Set(c.step)].filter((s) => s !== null).sort((a, b) => a - b), "all steps"));
  $("sort").replaceChildren(...Object.keys(SORTS).map((name) => new Option(name, name)));
  for (const id of ["search", "split", "step", "sort"]) $(id).oninput = () => { $("scroll").scrollTop = 0; choose(); };
  $("scroll").onscroll = draw;
  $("rows").onclick = (event) => { const row = event.target.closest(".row"); if (row) go(+row.dataset.i); };
  $("columns").onmouseover = (event) => { const span = event.target.closest(".tokens > span"); if (span && span.dataset.i) tip(span, event.clientX, event.clientY); };
  $("columns").onmouseleave = () => { $("tip").hidden = true; };
  $("back").onclick = KEYS.Escape; $("previous").onclick = () => step(-1); $("next").onclick = () => step(1);
  $("theme").onclick = theme; $("help").onclick = KEYS["?"];
  addEventListener("keydown", keyboard);
  addEventListener("hashchange", route);
  addEventListener("resize", draw);
  await route();
}
begin().catch((error) => { document.body.dataset.ready = "failed"; document.body.prepend(String(error)); });
