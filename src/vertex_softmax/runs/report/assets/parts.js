// Parts that move alone: the overview's bars, the maps of an image's patches, and the table of all radii.
function partBars(host) {
  const found = data.parts, most = Math.max(...found.medians.map((x) => x ?? 0)) || 1;
  const what = found.kind === "patches" ? "patches" : "words";
  host.replaceChildren(el("p", { class: "soft", text: `Median certified radius of single ${what}; those of a misclassified input count as 0` }),
    el("ul", { class: "bars" }, data.methods.map((method, m) => {
      const part = el("div", { class: `part k0 s${method.slot}` });
      part.style.width = `${(100 * (found.medians[m] ?? 0)) / most}%`;
      return el("li", null, el("span", { class: "name", text: method.name }), el("div", { class: "track bare", "aria-hidden": "true" }, part), el("b", { class: "value", text: radius(found.medians[m]) }));
    })));
}

const patchesPerPage = 6;
function patchCards() {
  let page = 0, maps = [];
  const render = () => {
    const pages = Math.max(1, Math.ceil(whole / patchesPerPage));
    maps = [];
    const shown = Array.from({ length: Math.min(patchesPerPage, whole - page * patchesPerPage) }, (_, k) => page * patchesPerPage + k);
    $("patch-cards").replaceChildren(...shown.map((i) => patchCard(i, maps)));
    pager($("patch-pager"), page, pages, (to) => { page = to; render(); $("patches").scrollIntoView(); });
  };
  on("theme", () => { for (const map of maps) map.paint(); });
  render();
}

function patchCard(i, maps) {
  const found = data.parts, best = found.best[i], { rows, columns } = found;
  const known = best.flat().filter((x) => x > 0), name = `Input ${data.inputs.index[i]}`;
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [1, 1];
  // equal steps of colour for equal factors; the first colour is left for 0, and what was never fooled has the last
  const share = (x) => (x > 0 ? (high > low ? 0.15 + (0.85 * Math.log(x / low)) / Math.log(high / low) : 1) : 0);
  const tell = (r, c) => {
    const [certified, fooled] = best[r * columns + c];
    return `row ${r + 1}, column ${c + 1}: certified up to ε = ${radius(certified)}, ${fooled === null ? "never fooled" : `fooled at ε = ${radius(fooled)}`}`;
  };
  const map = (title, column) => {
    const host = el("div");
    const values = best.map((pair) => (pair[column] === null ? column : share(pair[column])));
    maps.push(heatMap(host, { rows, columns, values, most: 1, cell: 44, square: true, least: true, ends: ["0", `${eps(high)} (logarithmic)`], tell,
      label: `${name}: ${title} of every patch`, rowTitle: "row", columnTitle: "column" }));
    return el("div", null, el("h4", { text: title }), host);
  };
  const wrongly = isWrong(i) ? el("span", { class: "chip k3", text: "misclassified" }) : el("span", { class: "chip k0", text: `label: ${className(data.inputs.label[i])}` });
  return el("li", { class: "panel" },
    el("div", { class: "card-head" }, el("h3", { text: name }), wrongly),
    el("div", { class: "patch-row" }, el("div", { class: "thumbs" }, picture(i, "input", null, "input", `${name}, ${className(data.inputs.label[i])}`)),
      map("certified up to ε", 0), map("fooled at ε", 1)),
    pairTable(i, name));
}

// The numbers of both maps, made at the first click.
function pairTable(i, name) {
  const found = data.parts, { rows, columns } = found, host = el("div");
  const details = el("details", null, el("summary", { text: "The same as a table" }), host);
  details.addEventListener("toggle", () => {
    if (!details.open || host.hasChildNodes()) return;
    const cell = ([certified, fooled]) => el("td", { class: "n" }, radius(certified), el("span", { class: "soft", text: fooled === null ? " – not fooled" : ` – ${radius(fooled)}` }));
    host.append(el("p", { class: "soft", text: "In every cell: certified up to this ε – fooled at this ε." }),
      el("div", { class: "scroll", role: "region", "aria-label": `${name}: radii of all patches`, tabindex: 0 }, el("table", { class: "plain pair-table" },
        el("thead", null, el("tr", null, el("th", { scope: "col", text: "row" }), Array.from({ length: columns }, (_, c) => el("th", { scope: "col", class: "n", text: `column ${c + 1}` })))),
        el("tbody", null, Array.from({ length: rows }, (_, r) => el("tr", null, el("th", { scope: "row", text: String(r + 1) }), Array.from({ length: columns }, (_, c) => cell(found.best[i][r * columns + c]))))))));
  });
  return details;
}

function partsTable() {
  const r = data.parts, place = (i) => r.places[r.part[i]];
  const columns = r.kind === "patches"
    ? [{ title: "row", number: true, value: (i) => Math.floor(place(i) / r.columns) + 1 }, { title: "column", number: true, value: (i) => (place(i) % r.columns) + 1 }]
    : [{ title: "position", number: true, value: place }, { title: "word", value: (i) => r.words[r.input[i]]?.[place(i)] ?? "" }];
  sortableTable($("parts-table"), {
    caption: "All certified radii of parts, one row per input, part and method", name: "parts.csv", count: r.input.length,
    columns: [
      { title: r.kind === "patches" ? "input" : "sentence", number: true, value: (i) => data.inputs.index[r.input[i]] },
      ...columns,
      { title: "method", value: (i) => data.methods[r.method[i]].name },
      { title: "certified", number: true, value: (i) => r.certified[i], text: (i) => radius(r.certified[i]) },
      { title: "refused", number: true, value: (i) => r.refused[i], text: (i) => radius(r.refused[i]) },
      { title: "fooled", number: true, value: (i) => r.fooled[i], text: (i) => radius(r.fooled[i]) },
      { title: "time", number: true, value: (i) => r.seconds[i], text: (i) => seconds(r.seconds[i]) },
    ],
    filters: [{ label: "Method", options: data.methods.map((m, k) => [String(k), m.name]), test: (i, key) => r.method[i] === Number(key) }],
  });
}
