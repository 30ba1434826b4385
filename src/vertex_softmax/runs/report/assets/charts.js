// Charts as SVG: drawn anew for every width, so that text keeps its size; read by pointer and by keyboard.
const SHAPES = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  (r) => `M0 ${-1.3 * r}L${1.3 * r} 0 0 ${1.3 * r} ${-1.3 * r} 0Z`,
  (r) => `M${-0.9 * r} ${-0.9 * r}H${0.9 * r}V${0.9 * r}H${-0.9 * r}Z`,
  (r) => `M0 ${-1.2 * r}L${1.15 * r} ${0.9 * r}H${-1.15 * r}Z`,
  (r) => `M0 ${1.2 * r}L${1.15 * r} ${-0.9 * r}H${-1.15 * r}Z`,
  (r) => `M${-1.2 * r} ${-0.4 * r}H${-0.4 * r}V${-1.2 * r}H${0.4 * r}V${-0.4 * r}H${1.2 * r}V${0.4 * r}H${0.4 * r}V${1.2 * r}H${-0.4 * r}V${0.4 * r}H${-1.2 * r}Z`,
  (r) => `M${-1.2 * r} 0L${-0.6 * r} ${-r}H${0.6 * r}L${1.2 * r} 0 ${0.6 * r} ${r}H${-0.6 * r}Z`,
  (r) => `M${-0.5 * r} ${-1.2 * r}H${0.5 * r}V${1.2 * r}H${-0.5 * r}Z`,
];
const mark = (slot, x, y, r = 4) => draw("path", { d: SHAPES[slot % SHAPES.length](r), transform: `translate(${x} ${y})`, class: "dot" });

function swatch(slot, kind = "", step = false) {
  return draw("svg", { class: `swatch ${kind} s${slot}`, viewBox: "0 0 26 12", width: 26, height: 12, "aria-hidden": "true" },
    draw("path", { d: "M1 6H25", class: "line" }), kind || step ? null : mark(slot, 13, 6, 3.6));
}

// A scale from values to pixels, with its ticks and the way back.
function scale({ min, max, log = false }, from, to) {
  const f = log ? Math.log : (x) => x;
  const a = f(min), b = f(max) === f(min) ? f(min) + 1 : f(max);
  const made = (x) => from + ((to - from) * (f(x) - a)) / (b - a);
  made.back = (p) => {
    const y = a + ((b - a) * (p - from)) / (to - from);
    return log ? Math.exp(y) : y;
  };
  made.ticks = (wanted) => (log ? logTicks(min, max, wanted) : linearTicks(min, max, wanted));
  return made;
}
function linearTicks(min, max, wanted) {
  const raw = (max - min) / Math.max(1, wanted) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((k) => k * power >= raw * 0.999);
  const ticks = [];
  for (let k = Math.ceil(min / step - 1e-9); k * step <= max + step * 1e-9; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}
function logTicks(min, max, wanted) {
  const low = Math.ceil(Math.log10(min) - 1e-9), high = Math.floor(Math.log10(max) + 1e-9);
  if (high - low < 1) {
    const found = [1, 2, 3, 5, 7, 10, 20, 30, 50, 70].map((k) => k * 10 ** (low - 1)).filter((x) => x >= min * 0.999 && x <= max * 1.001);
    return found.length ? found : [min, max];
  }
  const every = Math.max(1, Math.ceil((high - low + 1) / wanted));
  const ticks = [];
  for (let k = low; k <= high; k += every) ticks.push(10 ** k);
  return ticks;
}
const tickText = (x) => number(x).replace(/(\.\d*?)0+(?=$|e)/, "$1").replace(/\.(?=$|e)/, "");

// A drawing that is made again when its width changes, with a box for what is pointed at.
function canvas(host, label, paint) {
  const svg = draw("svg", { class: "chart", role: "img", "aria-label": label });
  const tip = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
  host.classList.add("chart-host");
  host.append(svg, tip);
  let width = 0;
  const redraw = () => {
    if (!width) return;
    svg.replaceChildren();
    const height = paint(svg, width);
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(name, value);
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now && now !== width) {
      width = now;
      redraw();
    }
  }).observe(host);
  const point = (x, y, lines) => {
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines);
    tip.style.left = `${Math.max(4, Math.min(width - tip.offsetWidth - 4, x + 14 + tip.offsetWidth > width ? x - tip.offsetWidth - 14 : x + 14))}px`;
    tip.style.top = `${Math.max(0, y)}px`;
  };
  return { svg, redraw, point, label: (text) => svg.setAttribute("aria-label", text) };
}

function axes(svg, box, x, y, spec) {
  const middle = (box.left + box.right) / 2;
  const grid = draw("g", { class: "axes", "aria-hidden": "true" });
  for (const tick of y.ticks(spec.y.wanted ?? 5)) {
    const at = y(tick);
    grid.append(draw("path", { class: "grid", d: `M${box.left} ${at}H${box.right}` }),
      draw("text", { x: box.left - 8, y: at + 4, class: "end", text: (spec.y.format ?? tickText)(tick) }));
  }
  const ticks = spec.x.ticks ?? x.ticks(Math.max(2, Math.floor((box.right - box.left) / 90)));
  let last = -Infinity;
  for (const tick of ticks) {
    const at = x(tick), text = (spec.x.format ?? tickText)(tick), half = 3.6 * text.length;
    grid.append(draw("path", { class: "tick", d: `M${at} ${box.bottom}v5` }));
    if (at - half < last + 6) continue;
    last = at + half;
    grid.append(draw("text", { x: at, y: box.bottom + 19, class: "middle", text }));
  }
  grid.append(draw("path", { class: "base", d: `M${box.left} ${box.bottom}H${box.right}` }),
    draw("text", { x: middle, y: box.bottom + 38, class: "middle title", text: spec.x.title }),
    draw("text", { x: box.left, y: box.top - 12, class: "title", text: spec.y.title }));
  svg.append(grid);
}

function path(points, x, y, step) {
  let d = "", before = null;
  for (const p of points) {
    if (p.y === null) before = null;
    else {
      d += before === null ? `M${x(p.x)} ${y(p.y)}` : step ? `H${x(p.x)}V${y(p.y)}` : `L${x(p.x)} ${y(p.y)}`;
      before = p;
    }
  }
  return d;
}

let patterns = 0;
function hatched(svg) {
  const id = `hatch-${++patterns}`;
  svg.append(draw("defs", null, draw("pattern", { id, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    draw("path", { d: "M0 0V7", class: "hatch" }))));
  return `url(#${id})`;
}

// Lines over one axis. `stops` are the places on it that can be chosen; left and right arrows go from one to the next.
// spec: label, x, y, series [{name, slot, points, step, kind}], ceiling (points, step), stops, at(), choose(i), tell(i) → [{slot, kind, name, text}]
function lineChart(host, spec) {
  let x, y, box, cursor, hovered = null;
  const chart = canvas(host, spec.label, (svg, width) => {
    const height = width < 560 ? 300 : 380;
    box = { left: 50, right: width - 14, top: 30, bottom: height - 48 };
    x = scale(spec.x, box.left + 6, box.right - 6);
    y = scale(spec.y, box.bottom, box.top);
    axes(svg, box, x, y, spec);
    if (spec.ceiling) {
      const edge = path(spec.ceiling.points, x, y, spec.ceiling.step), ends = spec.ceiling.points;
      const area = `${edge}L${x(ends.at(-1).x)} ${y(spec.y.max)}H${x(ends[0].x)}Z`;
      svg.append(draw("path", { d: area, class: "ruled-out" }), draw("path", { d: area, fill: hatched(svg) }),
        draw("path", { d: edge, class: "line ceiling" }));
    }
    for (const one of spec.series.filter((s) => !state.hidden.has(s.name))) {
      const group = draw("g", { class: `series s${one.slot} ${one.kind ?? ""}` }, draw("path", { d: path(one.points, x, y, one.step), class: "line" }));
      if (!one.step) for (const p of one.points) if (p.y !== null) group.append(mark(one.slot, x(p.x), y(p.y)));
      svg.append(group);
    }
    cursor = draw("path", { class: "cursor" });
    svg.append(cursor);
    show();
    return height;
  });
  const slider = el("div", { class: "over", tabindex: 0, role: "slider", "aria-label": spec.slider, "aria-valuemin": 0, "aria-valuemax": spec.stops.length - 1 });
  host.append(slider);
  function show() {
    const i = hovered ?? spec.at(), at = x(spec.stops[i]);
    cursor.setAttribute("d", `M${at} ${box.top}V${box.bottom}`);
    const lines = spec.tell(i), chosen = spec.at();
    slider.setAttribute("aria-valuenow", chosen);
    slider.setAttribute("aria-valuetext", `${spec.stopText(chosen)}: ${spec.tell(chosen).map((l) => `${l.name} ${l.text}`).join(", ")}`);
    const open = hovered !== null || document.activeElement === slider;
    chart.point(at, box.top + 6, open ? [el("p", { class: "tip-title", text: spec.stopText(i) }),
      ...lines.map((l) => el("p", null, swatch(l.slot, l.kind ?? "", l.step), el("span", { text: l.name }), el("b", { text: l.text })))] : null);
    spec.said(chosen);
  }
  const nearest = (event) => {
    const p = event.clientX - host.getBoundingClientRect().left;
    let best = 0;
    spec.stops.forEach((s, i) => { if (Math.abs(x(s) - p) < Math.abs(x(spec.stops[best]) - p)) best = i; });
    return best;
  };
  const keys = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
  slider.addEventListener("keydown", (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    hovered = null; // the pointer may rest on the chart
    spec.choose(Math.max(0, Math.min(spec.stops.length - 1, spec.at() + keys[event.key])));
  });
  slider.addEventListener("pointermove", (event) => { hovered = nearest(event); show(); });
  slider.addEventListener("pointerleave", () => { hovered = null; show(); });
  slider.addEventListener("click", (event) => spec.choose(nearest(event)));
  slider.addEventListener("focus", () => x && show());
  slider.addEventListener("blur", () => x && show());
  return { redraw: chart.redraw, show: () => x && show() };
}

// Points with names. spec(): label, x, y, points [{name, slot, x, y, text, below}], lines [{y, text, kind}]
function scatterChart(host, spec) {
  const chart = canvas(host, "", (svg, width) => {
    const made = spec();
    chart.label(made.label);
    const height = made.height ?? (width < 560 ? 320 : 380);
    const box = { left: 58, right: width - 14, top: 30, bottom: height - 48 };
    const x = scale(made.x, box.left + 24, box.right - 24), y = scale(made.y, box.bottom - 16, box.top + 10);
    axes(svg, box, x, y, made);
    for (const line of made.lines) {
      svg.append(draw("path", { d: `M${box.left} ${y(line.y)}H${box.right}`, class: `rule ${line.kind}` }),
        draw("text", { x: box.right, y: y(line.y) - 6, class: `end note ${line.kind}`, text: line.text }));
    }
    const notes = made.lines.map((line) => ({ left: box.right - 6.2 * line.text.length, right: box.right, top: y(line.y) - 18, bottom: y(line.y) + 2 }));
    const labels = placed(made.points.map((p) => ({ p, x: x(p.x), y: p.below ? box.bottom - 10 : y(p.y), width: 7.4 * p.name.length })), box, notes);
    for (const { p, at, text } of labels) {
      const group = draw("g", { class: `point s${p.slot}`, tabindex: 0, role: "img", "aria-label": `${p.name}: ${p.text}` },
        draw("circle", { cx: at.x, cy: at.y, r: 16, class: "hit" }), p.below ? draw("path", { d: "M-5 -5H5L0 5Z", transform: `translate(${at.x} ${at.y})`, class: "dot" }) : mark(p.slot, at.x, at.y, 6),
        draw("text", { x: text.x, y: text.y, text: p.name }));
      const tell = () => chart.point(at.x, Math.min(at.y - 8, height - 90), [el("p", { class: "tip-title", text: p.name }), el("p", null, el("span", { text: p.text }))]);
      for (const [event, act] of [["pointerenter", tell], ["focus", tell], ["pointerleave", () => chart.point()], ["blur", () => chart.point()]]) group.addEventListener(event, act);
      svg.append(group);
    }
    return height;
  });
  chart.svg.setAttribute("role", "group");
  return chart;
}

// Each label stands right of its mark, or left of, above or below it: where it meets the fewest others.
function placed(points, box, notes) {
  const taken = [...notes, ...points.map((q) => ({ left: q.x - 9, right: q.x + 9, top: q.y - 9, bottom: q.y + 9 }))];
  return points.map((q) => {
    const half = q.width / 2;
    const places = [[q.x + 12, q.y + 4], [q.x - 12 - q.width, q.y + 4], [q.x - half, q.y - 13], [q.x - half, q.y + 22]];
    const best = places.map(([left, base]) => {
      const area = { left, right: left + q.width, top: base - 11, bottom: base + 3 };
      const outside = area.left < box.left || area.right > box.right || area.bottom > box.bottom || area.top < box.top;
      const met = taken.filter((t) => t.left < area.right && area.left < t.right && t.top < area.bottom && area.top < t.bottom).length;
      return { area, x: left, y: base, cost: met + (outside ? 10 : 0) };
    }).reduce((a, b) => (b.cost < a.cost ? b : a));
    taken.push(best.area);
    return { p: q.p, at: q, text: best };
  });
}

// Buttons that show and hide what has their name.
function legend(host, items, redraw) {
  host.classList.add("legend");
  host.setAttribute("role", "group");
  host.setAttribute("aria-label", "Show or hide");
  for (const item of items) {
    const button = el("button", { type: "button", "aria-pressed": String(!state.hidden.has(item.name)), onclick: () => {
      const hide = !state.hidden.delete(item.name);
      if (hide) state.hidden.add(item.name);
      button.setAttribute("aria-pressed", String(!hide));
      redraw();
      choose("hidden", state.hidden);
    } }, swatch(item.slot, "", item.step), el("span", { text: item.name }));
    host.append(button);
  }
}
