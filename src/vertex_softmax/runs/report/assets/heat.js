// A heat map of numbers ≥ 0: read by pointer, and by arrow keys when it has the focus.
const RAMPS = {
  light: [[249, 247, 240], [209, 229, 222], [132, 190, 185], [45, 139, 144], [8, 88, 107], [9, 42, 66]],
  dark: [[24, 30, 38], [19, 58, 74], [16, 100, 112], [48, 150, 143], [139, 203, 170], [244, 240, 200]],
};
function ramp(share) {
  const colours = RAMPS[isDark() ? "dark" : "light"];
  const at = Math.max(0, Math.min(1, share || 0)) * (colours.length - 1), k = Math.min(colours.length - 2, Math.floor(at));
  return colours[k].map((c, j) => Math.round(c + (colours[k + 1][j] - c) * (at - k)));
}

// spec: rows, columns, values, most, label, rowTitle, columnTitle, tell(r, c), cell (greatest height of a cell), rowNames, picked(r),
//       least (the smallest is told in place of the largest), square (cells are), ends (what the colours' ends stand for),
//       from (the first row and column's number; 1 unless it is said)
function heatMap(host, spec) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const cursor = el("div", { class: "cell", hidden: true });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  let row = 0, column = 0;
  const from = spec.from ?? 1;
  const largest = spec.values.reduce((best, v, i) => ((spec.least ? v < spec.values[best] : v > spec.values[best]) ? i : best), 0);
  const extreme = spec.least ? "Smallest" : "Largest";
  const summary = `${spec.label}. ${extreme}: ${spec.tell(Math.floor(largest / spec.columns), largest % spec.columns)}. Arrow keys move from cell to cell.`;
  const area = el("div", { class: "map", tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-label": summary }, canvas, cursor);
  const paint = () => {
    canvas.width = spec.columns;
    canvas.height = spec.rows;
    const context = canvas.getContext("2d"), image = context.createImageData(spec.columns, spec.rows);
    spec.values.forEach((v, i) => image.data.set([...ramp(spec.most > 0 ? v / spec.most : 0), 255], 4 * i));
    context.putImageData(image, 0, 0);
  };
  const height = Math.max(spec.rows === 1 ? 28 : 60, Math.min(420, spec.rows * spec.cell));
  if (spec.square) area.style.aspectRatio = `${spec.columns} / ${spec.rows}`;
  else area.style.height = `${height}px`;
  const show = (say) => {
    cursor.hidden = false;
    for (const [name, at, of] of [["left", column, spec.columns], ["top", row, spec.rows]]) cursor.style[name] = `${(100 * at) / of}%`;
    cursor.style.width = `${100 / spec.columns}%`;
    cursor.style.height = `${100 / spec.rows}%`;
    if (say) readout.textContent = spec.tell(row, column);
  };
  const rest = () => {
    cursor.hidden = document.activeElement !== area;
    if (cursor.hidden) readout.textContent = `${extreme}: ${spec.tell(Math.floor(largest / spec.columns), largest % spec.columns)}`;
  };
  const under = (event) => {
    const box = area.getBoundingClientRect();
    column = Math.max(0, Math.min(spec.columns - 1, Math.floor(((event.clientX - box.left) / box.width) * spec.columns)));
    row = Math.max(0, Math.min(spec.rows - 1, Math.floor(((event.clientY - box.top) / box.height) * spec.rows)));
    show(true);
  };
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };
  area.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" || event.key === " ") && spec.picked) {
      event.preventDefault();
      spec.picked(row);
    }
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    row = Math.max(0, Math.min(spec.rows - 1, row + move[0]));
    column = Math.max(0, Math.min(spec.columns - 1, column + move[1]));
    show(true);
  });
  area.addEventListener("pointermove", under);
  area.addEventListener("pointerleave", rest);
  area.addEventListener("focus", () => show(true));
  area.addEventListener("blur", rest);
  if (spec.picked) area.addEventListener("click", (event) => { under(event); spec.picked(row); });
  const names = spec.rowNames ? el("div", { class: "row-names" }, spec.rowNames) : null;
  if (names) names.style.height = `${height}px`;
  host.replaceChildren(
    el("div", { class: "map-title soft" }, el("span", { text: `↓ ${spec.rowTitle} ${from} to ${from + spec.rows - 1}` }), el("span", { text: `${spec.columnTitle} ${from} to ${from + spec.columns - 1} →` })),
    el("div", { class: "map-row" }, names, area), ramps(spec.ends ?? ["0", number(spec.most)]), readout);
  paint();
  rest();
  return { paint: () => { paint(); paintRamp(host.querySelector(".ramp")); } };
}

function paintRamp(canvas) {
  const context = canvas.getContext("2d"), image = context.createImageData(64, 1);
  for (let i = 0; i < 64; i++) image.data.set([...ramp(i / 63), 255], 4 * i);
  context.putImageData(image, 0, 0);
}

// What the colours mean.
function ramps([low, high]) {
  const canvas = el("canvas", { class: "ramp", width: 64, height: 1, "aria-hidden": "true" });
  paintRamp(canvas);
  return el("p", { class: "ramps soft" }, el("span", { text: low }), canvas, el("span", { text: high }));
}
