// The page of a sweep: verdicts, time, bounds, and every instance.
const found = data.instances, many = found.model.length;
const base = (path) => path.split("/").at(-1);
const names = data.models.map(base).every((name, k, all) => all.indexOf(name) === k) ? data.models.map(base) : data.models;
const decided = (i) => found.status[i] < 2;
const KINDS = ["k0", "k2", "k1", "k4", "k3"], SIGNS = ["●", "✕", "○", "◷", "!"];
const LANES = [0, 5, 2, 3, 4];
const slotOf = (k) => k % 8;

function modelBars() {
  const rows = names.map((name, m) => {
    const counts = data.statuses.map(() => 0);
    for (let i = 0; i < many; i++) if (found.model[i] === m) counts[found.status[i]]++;
    const all = counts.reduce((a, b) => a + b, 0);
    const track = el("div", { class: "track", "aria-hidden": "true" }, counts.map((n, k) => {
      const part = el("div", { class: `part ${KINDS[k]} s0`, title: `${data.statuses[k]}: ${count(n)}` });
      part.style.width = `${(100 * n) / all}%`;
      return n ? part : null;
    }));
    const words = counts.map((n, k) => (n ? `${count(n)} ${data.statuses[k]}` : "")).filter(Boolean).join(", ");
    return el("li", { "aria-label": `${name}: ${words}` }, el("span", { class: "name", text: name }), track, el("b", { class: "value", text: `${count(counts[0] + counts[1])} of ${count(all)}` }));
  });
  $("bars").append(el("p", { class: "soft", text: "Instances decided" }), el("ul", { class: "bars" }, rows),
    el("ul", { class: "key", "aria-hidden": "true" }, data.statuses.map((word, k) => el("li", null, el("span", { class: `part ${KINDS[k]} s0` }), word))));
}

function timeChart() {
  const times = (m) => found.seconds.filter((_, i) => decided(i) && (m < 0 || found.model[i] === m)).sort((a, b) => a - b);
  const lines = [...(names.length > 1 ? [{ name: "all models", slot: 0, kind: "best", step: true, times: times(-1) }] : []),
    ...names.slice(0, 40).map((name, m) => ({ name, slot: slotOf(m + (names.length > 1 ? 1 : 0)), step: true, times: times(m) }))];
  const all = times(-1), most = all.length;
  if (!most) {
    $("time-readout").textContent = "No instance is decided.";
    return;
  }
  const min = Math.max(1e-3, all[0] / 1.5), longest = Math.max(all.at(-1), ...found.timeout.map((x) => x ?? 0)), max = longest * 1.1;
  const points = (ts) => [{ x: min, y: 0 }, ...ts.map((t, k) => ({ x: Math.max(min, t), y: k + 1 })), { x: max, y: ts.length }];
  const series = lines.map((l) => ({ ...l, points: points(l.times) }));
  const stops = Array.from({ length: 121 }, (_, k) => min * (longest / min) ** (k / 120));
  let at = 120;
  const within = (ts, t) => ts.filter((x) => x <= t).length;
  const tell = (k) => lines.filter((l) => !state.hidden.has(l.name)).map((l) => ({ ...l, text: `${count(within(l.times, stops[k] * 1.000001))}` }));
  const chart = lineChart($("time-chart"), {
    label: "Step chart: instances decided against the seconds each may take, one line per model.", slider: "seconds for each instance",
    x: { min, max, log: true, title: "seconds for each instance (logarithmic)" }, y: { min: 0, max: most * 1.05, title: "instances decided" },
    series, stops, at: () => at, choose: (k) => { at = k; chart.show(); }, tell, stopText: (k) => `within ${seconds(stops[k])}`,
    said: (k) => { $("time-readout").textContent = `Within ${seconds(stops[k])} each: ${tell(k).map((l) => `${l.name} ${l.text}`).join(", ") || "no line is shown"}.`; },
  });
  legend($("time-legend"), lines, chart.redraw);
}

// One lane per model; marks that would lie on one another go apart upwards and downwards.
function boundsChart() {
  const shown = [...found.model.keys()].filter((i) => found.bound[i] !== null);
  $("bounds-readout").textContent = "No instance has a finite bound.";
  if (!shown.length) return;
  const sorted = shown.map((i) => found.bound[i]).sort((a, b) => a - b), pick = (q) => sorted[Math.round(q * (sorted.length - 1))];
  const room = Math.max(3 * (pick(0.9) - pick(0.1)), Math.abs(pick(0.1)), Math.abs(pick(0.9))) || 1; // what lies further out is put on the edge
  const low = Math.max(Math.min(0, sorted[0]), Math.min(0, pick(0.1)) - room), high = Math.min(Math.max(0, sorted.at(-1)), Math.max(0, pick(0.9)) + room);
  const outside = shown.filter((i) => found.bound[i] < low || found.bound[i] > high).length;
  $("bounds-readout").textContent = `${count(shown.length)} of ${count(many)} instances have a finite bound; ${count(shown.filter((i) => found.bound[i] > 0).length)} lie above 0.`
    + (outside ? ` ${count(outside)} further out ${outside === 1 ? "is" : "are"} drawn at the edge.` : "");
  const pad = 0.04 * (high - low) || 1;
  const chart = canvas($("bounds-chart"), `Strip chart: the worst bounds of ${shown.length} instances. The table below has the numbers.`, (svg, width) => {
    const lane = 58, height = 34 + lane * names.length + 48;
    const box = { left: 14, right: width - 14, top: 30, bottom: height - 48 };
    const x = scale({ min: low - pad, max: high + pad }, box.left, box.right);
    axes(svg, box, x, Object.assign(() => 0, { ticks: () => [] }), { x: { title: "worst bound" }, y: { title: "" } });
    svg.append(draw("path", { d: `M${x(0)} ${box.top}V${box.bottom}`, class: "rule zero" }));
    names.forEach((name, m) => {
      const middle = box.top + lane * m + 36, taken = new Map();
      svg.append(draw("text", { x: box.left, y: middle - 22, class: "title", text: name }), draw("path", { d: `M${box.left} ${middle + 22}H${box.right}`, class: "grid" }));
      for (const i of shown) {
        if (found.model[i] !== m) continue;
        const at = x(Math.max(low, Math.min(high, found.bound[i]))), key = Math.round(at / 9), n = taken.get(key) ?? 0;
        taken.set(key, n + 1);
        const y = middle + Math.max(-13, Math.min(17, (n % 2 ? 1 : -1) * Math.ceil(n / 2) * 8)) + 2;
        const dot = draw("g", { class: `mark-${KINDS[found.status[i]]}` }, mark(LANES[found.status[i]], at, y, 4));
        dot.addEventListener("pointerenter", () => chart.point(at, Math.max(0, y - 70), [el("p", { class: "tip-title", text: base(found.spec[i]) }), el("p", { text: `${data.statuses[found.status[i]]}, bound ${bound(found.bound[i])}, ${seconds(found.seconds[i])}` })]));
        dot.addEventListener("pointerleave", () => chart.point());
        svg.append(dot);
      }
    });
    return height;
  });
  $("bounds-readout").before(el("ul", { class: "key", "aria-hidden": "true" }, data.statuses.map((word, k) => el("li", null,
    draw("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", class: `mark-${KINDS[k]}` }, mark(LANES[k], 0, 0, 4.5)), word))));
}

function instancesTable() {
  sortableTable($("instances-table"), {
    caption: "All instances", name: "instances.csv", count: many,
    columns: [
      { title: "model", value: (i) => data.models[found.model[i]], text: (i) => names[found.model[i]] },
      { title: "property", value: (i) => found.spec[i], text: (i) => base(found.spec[i]) },
      { title: "verdict", value: (i) => data.statuses[found.status[i]], node: (i) => el("span", { class: `verdict ${KINDS[found.status[i]]}` }, el("span", { class: "sign", "aria-hidden": "true", text: SIGNS[found.status[i]] }), ` ${data.statuses[found.status[i]]}`) },
      { title: "bound", number: true, value: (i) => found.bound[i], text: (i) => (found.bound[i] === null ? "–" : signed(found.bound[i])) },
      { title: "time", number: true, value: (i) => found.seconds[i], text: (i) => seconds(found.seconds[i]) },
      { title: "timeout", number: true, value: (i) => found.timeout[i], text: (i) => seconds(found.timeout[i]) },
      { title: "stage", value: (i) => found.stage[i] },
      { title: "reason", wide: true, value: (i) => found.reason[i] },
    ],
    filters: [
      { label: "Model", options: names.map((name, k) => [String(k), name]), test: (i, key) => found.model[i] === Number(key) },
      { label: "Verdict", options: data.statuses.map((word, k) => [String(k), word]), test: (i, key) => found.status[i] === Number(key) },
    ],
  });
}

themeButton();
if (many) {
  modelBars();
  timeChart();
  boundsChart();
  instancesTable();
}
document.documentElement.dataset.ready = "";
