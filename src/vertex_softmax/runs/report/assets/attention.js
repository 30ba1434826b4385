// Softmax rows of a sentence: a map of one head, and the row that is chosen as a table, with the range of every weight.
const WHOLE = 65535;
const weightsOf = (text) => {
  const raw = bytes(text);
  return new Uint16Array(raw.buffer, raw.byteOffset, raw.length / 2);
};
const weight = (x) => (x === 0 ? "0" : x / WHOLE < 0.0005 ? "< 0.001" : (x / WHOLE).toFixed(3));

function attentionView(host, rows) {
  const words = rows.words, now = { layer: 0, head: 0, row: 0 };
  const named = (k, n, what) => (words.length === n ? `“${words[k]}”` : `${what} ${k + 1}`);
  const area = el("div"), table = el("div", { class: "rows-table" });
  let map = null;
  on("theme", () => map?.paint());
  const heads = el("span");
  const show = () => {
    const layer = rows.layers[now.layer], size = layer.rows * layer.keys, from = now.head * size;
    const cut = (text) => (text === null ? null : weightsOf(text).subarray(from, from + size));
    const at = cut(layer.weights), low = cut(layer.lower), high = cut(layer.upper);
    const ranged = (k) => (low ? `, between ${weight(low[k])} and ${weight(high[k])}` : "");
    const pick = (row) => {
      now.row = Math.min(row, layer.rows - 1);
      rowTable(table, layer, now.row, { at, low, high, named });
    };
    map = heatMap(area, {
      rows: layer.rows, columns: layer.keys, values: [...at].map((x) => x / WHOLE), most: 1, cell: 26, picked: pick,
      label: `Softmax weights of head ${now.head + 1} of ${layer.name}`, rowTitle: "query", columnTitle: "key",
      tell: (r, c) => `${named(r, layer.rows, "query")} looks at ${named(c, layer.keys, "key")}: ${weight(at[r * layer.keys + c])}${ranged(r * layer.keys + c)}`,
    });
    pick(now.row);
  };
  const headChoice = () => {
    const options = Array.from({ length: rows.layers[now.layer].heads }, (_, k) => [String(k), String(k + 1)]);
    heads.replaceChildren(labelled("Head", selection(options, String(now.head), (value) => { now.head = Number(value); show(); })));
  };
  const layers = rows.layers.map((layer, k) => [String(k), `${k + 1}: ${layer.name}`]);
  const text = rows.about ? ` While ${rows.about}, no weight leaves its range: a bound, computed in float64.` : "";
  host.replaceChildren(
    el("p", { class: "soft", text: `Each row is the softmax of one query: how much it takes of every key.${text} Choose a row by a click, or by Enter.` }),
    el("div", { class: "controls" }, labelled("Layer", selection(layers, "0", (value) => { now.layer = Number(value); now.head = 0; headChoice(); show(); })), heads),
    area, table);
  headChoice();
  show();
}

function rowTable(host, layer, row, { at, low, high, named }) {
  const line = (c) => {
    const k = row * layer.keys + c, percents = (x) => `${(100 * x) / WHOLE}%`;
    const track = el("span", { class: "range", "aria-hidden": "true" });
    if (low) {
      const span = el("span", { class: "span" });
      span.style.left = percents(low[k]);
      span.style.width = percents(high[k] - low[k]);
      track.append(span);
    }
    const mark = el("span", { class: "at" });
    mark.style.left = percents(at[k]);
    track.append(mark);
    return el("tr", null, el("th", { scope: "row" }, el("bdi", { text: named(c, layer.keys, "key") })), el("td", { class: "n", text: weight(at[k]) }),
      low ? [el("td", { class: "n", text: weight(low[k]) }), el("td", { class: "n", text: weight(high[k]) })] : null, el("td", null, track));
  };
  const name = `The row of ${named(row, layer.rows, "query")}`;
  host.replaceChildren(el("h4", null, el("bdi", { text: name })),
    el("div", { class: "scroll", role: "region", "aria-label": name, tabindex: 0 }, el("table", { class: "plain" },
      el("thead", null, el("tr", null, el("th", { scope: "col", text: "key" }), el("th", { scope: "col", class: "n", text: "weight" }),
        low ? [el("th", { scope: "col", class: "n", text: "at least" }), el("th", { scope: "col", class: "n", text: "at most" })] : null, el("th", { scope: "col", text: "0 to 1" }))),
      el("tbody", null, Array.from({ length: layer.keys }, (_, c) => line(c))))));
}

// What is behind a click is made at the first click.
function attentionDetails() {
  for (const details of document.querySelectorAll("details.attention")) {
    details.addEventListener("toggle", () => {
      const host = details.querySelector("div");
      if (details.open && !host.hasChildNodes()) attentionView(host, data.attention[Number(details.dataset.rows)]);
    });
  }
}
function attentionOf(i) {
  const k = data.attention.findIndex((rows) => rows.input === i);
  if (k < 0) return null;
  const host = el("div"), details = el("details", { class: "attention" }, el("summary", { text: "Attention rows" }), host);
  details.addEventListener("toggle", () => { if (details.open && !host.hasChildNodes()) attentionView(host, data.attention[k]); });
  return details;
}
