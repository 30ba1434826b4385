// The overview's bars, the rates against ε, the radii, and tightness against time.
const whole = data.inputs.index.length;
const wrong = data.inputs.wrong.filter(Boolean).length;
const ofWhole = (share) => (share === null ? "not asked about every input" : `${percent(share, whole)} (${count(Math.round(share * whole))} of ${count(whole)})`);

// Where an answer stands: [ε][input][method] → its place in data.answers, or −1.
const methods = data.methods.length;
const places = new Int32Array(data.eps.length * whole * methods).fill(-1);
data.answers.input.forEach((input, a) => { places[(data.answers.eps[a] * whole + input) * methods + data.answers.method[a]] = a; });
const answerAt = (e, input, method) => places[(e * whole + input) * methods + method];
const attacked = new Int32Array(data.eps.length * whole).fill(-1);
data.attacks.input.forEach((input, a) => { attacked[data.attacks.eps[a] * whole + input] = a; });
const attackAt = (e, input) => attacked[e * whole + input];

// One bar per method at the chosen ε: what is certified, what is open, what is ruled out.
function overviewBars() {
  const host = $("bars");
  if (!data.answers.input.length) return radiusBars(host);
  const kinds = data.statuses;
  const show = () => {
    const rows = data.methods.map((method, m) => {
      const counts = kinds.map(() => 0);
      for (let i = 0; i < whole; i++) {
        const a = answerAt(state.eps, i, m);
        if (a >= 0) counts[data.answers.status[a]]++;
      }
      const asked = counts.reduce((x, y) => x + y, 0);
      const rate = data.rates[m][state.eps];
      const track = el("div", { class: "track", "aria-hidden": "true" }, counts.map((n, k) => {
        const part = el("div", { class: `part k${k} s${method.slot}`, title: `${kinds[k]}: ${count(n)}` });
        part.style.width = `${(100 * n) / Math.max(1, whole)}%`;
        return n ? part : null;
      }));
      const words = counts.map((n, k) => (n ? `${count(n)} ${kinds[k]}` : "")).filter(Boolean).join(", ");
      return el("li", { "aria-label": `${method.name}: ${asked ? words : "not asked"}` },
        el("span", { class: "name", text: method.name }), track, el("b", { class: "value", text: asked < whole ? `${count(counts[0])} of ${count(asked)}` : percent(rate, whole) }));
    });
    const key = el("ul", { class: "key", "aria-hidden": "true" }, kinds.map((kind, k) => el("li", null, keyed(k), kind)));
    host.replaceChildren(el("p", { class: "soft", text: `${some(whole, "input")} at ε = ${eps(data.eps[state.eps])}` }), el("ul", { class: "bars" }, rows), key);
  };
  on("eps", show);
  show();
}

// The swatch of a verdict in a key; verified bars have the colours of their methods, so that it has all of these.
function keyed(k) {
  if (k > 0) return el("span", { class: `part k${k}` });
  const slots = [...new Set(data.methods.map((method) => method.slot))];
  return el("span", { class: "slots" }, slots.map((slot) => el("span", { class: `part k0 s${slot}` })));
}

function radiusBars(host) {
  if (!data.radii) return;
  const most = Math.max(...data.radii.summary.map((s) => s?.median ?? 0)) || 1;
  host.replaceChildren(el("p", { class: "soft", text: `Median certified radius over ${some(whole, "input")}; a misclassified one counts as 0` }),
    el("ul", { class: "bars" }, data.methods.map((method, m) => {
      const found = data.radii.summary[m]?.median;
      const part = el("div", { class: `part k0 s${method.slot}` });
      part.style.width = `${(100 * (found ?? 0)) / most}%`;
      return el("li", null, el("span", { class: "name", text: method.name }), el("div", { class: "track bare", "aria-hidden": "true" }, part), el("b", { class: "value", text: radius(found) }));
    })));
}

function ratesChart() {
  const known = data.eps.filter((e) => e > 0);
  const log = known.length === data.eps.length && known.at(-1) / known[0] > 40;
  const pad = data.eps.length > 1 ? 0 : data.eps[0] / 2 || 0.5;
  const points = (values) => values.map((y, k) => ({ x: data.eps[k], y }));
  const series = data.methods.map((method, m) => ({ ...method, points: points(data.rates[m]), kind: method.slot === 0 ? "best" : "" }));
  const shown = () => series.filter((s) => !state.hidden.has(s.name));
  const ceiling = data.ceiling.every((y) => y !== null) ? { points: points(data.ceiling) } : null;
  const tell = (k) => {
    const lines = shown().map((s) => ({ name: s.name, slot: s.slot, text: percent(s.points[k].y, whole), at: s.points[k].y ?? -1 })).sort((a, b) => b.at - a.at);
    if (data.ceiling[k] !== null) lines.unshift({ name: "not fooled", slot: 0, kind: "ceiling", text: percent(data.ceiling[k], whole) });
    return lines;
  };
  const chart = lineChart($("rates-chart"), {
    label: "Line chart: the share of inputs certified against ε, one line per method. The table below has the numbers.",
    slider: "ε that is shown",
    x: { min: data.eps[0] - pad, max: data.eps.at(-1) + pad, log, title: "ε, how far an input may change", format: eps, ticks: data.eps.length <= 24 ? data.eps : undefined },
    y: { min: 0, max: 1, title: "certified inputs", format: (y) => `${Math.round(100 * y)} %` },
    series, ceiling, stops: data.eps,
    at: () => state.eps, choose: (k) => choose("eps", k), tell, stopText: (k) => `ε = ${eps(data.eps[k])}`,
    said: (k) => {
      const lines = shown().map((s) => `${s.name} ${ofWhole(s.points[k].y)}`);
      const left = data.ceiling[k] === null ? "" : ` The attack leaves at most ${ofWhole(data.ceiling[k])}.`;
      $("rates-readout").textContent = `At ε = ${eps(data.eps[k])}: ${lines.join(", ") || "no method is shown"}.${left}`;
    },
  });
  legend($("rates-legend"), data.methods, chart.redraw);
  on("eps", chart.show);
}

// Certified accuracy as a step function of the radii, and what the attack leaves.
function radiiChart() {
  const found = data.radii;
  const all = [...found.certified, ...found.fooled.filter((x) => x !== null)];
  const max = 1.04 * (Math.max(...all) || 1);
  const steps = (ends, start) => {
    const sorted = [...ends].sort((a, b) => a - b), points = [{ x: 0, y: start / whole }];
    sorted.forEach((end, k) => points.push({ x: end, y: (start - k - 1) / whole }));
    const last = points.at(-1);
    return [...points, { x: Math.max(max, last.x), y: last.y }];
  };
  const certified = data.methods.map((_, m) => found.certified.filter((r, k) => found.method[k] === m && r > 0));
  const series = data.methods.map((method, m) => ({ ...method, step: true, kind: method.slot === 0 ? "best" : "", points: found.whole[m] ? steps(certified[m], certified[m].length) : [] }));
  const ends = found.fooled.filter((x, i) => x !== null && !data.inputs.wrong[i]);
  const ceiling = { step: true, points: steps(ends, whole - wrong) };
  const stops = Array.from({ length: 201 }, (_, k) => (max * k) / 200);
  const share = (m, e) => (found.whole[m] ? certified[m].filter((r) => r >= e).length / whole : null);
  const left = (e) => (whole - wrong - ends.filter((x) => x <= e).length) / whole;
  const gaps = stops.map((e) => { // of the best above the middle one
    const shares = data.methods.map((_, m) => share(m, e)).filter((s) => s !== null).sort((a, b) => a - b);
    return shares.length > 1 ? shares.at(-1) - shares[(shares.length - 1) >> 1] : shares[0] ?? 0;
  });
  let at = gaps.indexOf(Math.max(...gaps));
  const tell = (k) => [{ name: "not fooled", slot: 0, kind: "ceiling", text: percent(left(stops[k]), whole) },
    ...data.methods.map((method, m) => ({ ...method, step: true, at: share(m, stops[k]) ?? -1, text: percent(share(m, stops[k]), whole) }))
      .filter((l) => !state.hidden.has(l.name)).sort((a, b) => b.at - a.at)];
  const chart = lineChart($("radii-chart"), {
    label: "Step chart: the share of inputs whose certified radius is at least ε, one line per method.",
    slider: "ε that is read", x: { min: 0, max, title: "ε, how far an input may change" },
    y: { min: 0, max: 1, title: "certified inputs", format: (y) => `${Math.round(100 * y)} %` },
    series, ceiling, stops, at: () => at, choose: (k) => { at = k; chart.show(); }, tell,
    stopText: (k) => `ε = ${number(stops[k])}`,
    said: (k) => { $("radii-readout").textContent = `At ε = ${number(stops[k])}: ${tell(k).map((l) => `${l.name} ${l.text}`).join(", ")}.`; },
  });
  legend($("radii-legend"), series, chart.redraw);
}

// The axis of bounds: a method that is far below all others would flatten them; it is put at the foot, with its number.
function reach(values, others) {
  const sorted = [...values].sort((a, b) => a - b), top = Math.max(...sorted, ...others);
  while (sorted.length > 2 && sorted[1] - sorted[0] > 3 * (top - sorted[1] + 1e-12)) sorted.shift();
  const min = Math.min(...sorted, ...others), room = 0.06 * (top - min) || Math.abs(top) / 2 || 0.5;
  return { min: min - room, max: top + room, least: sorted[0] };
}

function tightnessChart() {
  const bounds = data.answers.input.length > 0;
  let of = "median";
  const spec = () => {
    const found = data.methods.map((method, m) => ({ ...method, all: bounds ? data.tightness[m][state.eps] : data.radii.summary[m] }))
      .filter((p) => p.all !== null && !state.hidden.has(p.name));
    const values = found.map((p) => p.all[of]).filter((v) => v !== null);
    const attack = bounds ? data.attack_margin[state.eps][of] : null;
    const lines = bounds ? [{ y: 0, text: "above 0: certified", kind: "zero" }] : [];
    if (attack !== null) lines.push({ y: attack, text: `attack ${signed(attack)}: no bound can lie above`, kind: "attack" });
    const y = values.length ? reach(values, lines.map((l) => l.y)) : { min: -1, max: 1, least: 0 };
    const points = found.map((p) => {
      const v = p.all[of], said = bounds ? bound(v) : radius(v);
      const infinite = p.all.infinite ? `; not finite on ${count(p.all.infinite)} of ${count(p.all.asked)} inputs` : "";
      const below = v === null || v < y.least;
      return { name: below ? `${p.name} ${said}` : p.name, slot: p.slot, x: Math.max(p.all.seconds, 1e-6), y: v, below, said: `${p.name} ${said} in ${seconds(p.all.seconds)}`,
        text: `${of} ${bounds ? "bound" : "radius"} ${said}${infinite}, ${seconds(p.all.seconds)} per input` };
    });
    const times = points.map((p) => p.x);
    $("tightness-readout").textContent = points.length ? `${bounds ? `At ε = ${eps(data.eps[state.eps])}, ` : ""}${of} ${bounds ? "bound" : "radius"} and mean time per input: ${points.map((p) => p.said).join(", ")}.` : "No method is shown.";
    return { points, lines, y: { ...y, title: bounds ? `${of} bound on the margin` : `${of} certified radius` },
      label: `Scatter chart of ${points.length} methods: ${of} ${bounds ? "bound" : "radius"} against mean seconds per input.`,
      x: { min: Math.min(...times) / 1.6, max: Math.max(...times) * 2.2, log: true, title: "mean time per input (logarithmic)", format: seconds } };
  };
  $("tightness-text").textContent = bounds
    ? "How high a bound each method proves on the margin of the right class, and how long it takes for it: higher is tighter, further left is faster. Misclassified inputs are among those counted; their margins are below 0."
    : "How large a radius each method certifies, and how long the search for it takes: higher is better, further left is faster.";
  const chart = scatterChart($("tightness-chart"), spec);
  $("tightness-of").addEventListener("change", (event) => { of = event.target.value; chart.redraw(); });
  on("eps", chart.redraw);
  on("hidden", chart.redraw);
}
