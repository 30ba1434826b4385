// A table of any length: sorted by the buttons in its head, filtered, and drawn one page at a time.
// spec: caption, name (of the CSV file), count, columns [{title, number, value(i), text(i), node(i)}], filters [{label, options, test(i, key)}], note
function sortableTable(host, spec) {
  const collator = new Intl.Collator("en", { numeric: true });
  const chosen = spec.filters.map(() => "");
  let words = [], column = -1, direction = 1, page = 0, size = 50;
  let shown = Array.from({ length: spec.count }, (_, i) => i);
  let texts = null;

  const said = (c, i) => (c.text ? c.text(i) : String(c.value(i) ?? ""));
  const known = (text) => text.toLowerCase().replaceAll("−", "-");
  const textOf = (i) => (texts[i] ??= known(spec.columns.map((c) => said(c, i)).join(" ")));

  const total = el("output", { class: "count", "aria-live": "polite" });
  const search = el("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "words or numbers" });
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      words = known(search.value).split(/\s+/).filter(Boolean);
      refresh();
    }, 120);
  });
  const bar = el("div", { class: "controls" }, labelled("Only rows with", search),
    spec.filters.map((filter, k) => labelled(filter.label, selection([["", "all"], ...filter.options], "", (value) => { chosen[k] = value; refresh(); }))),
    total);

  const heads = spec.columns.map((c, k) => el("th", { scope: "col", class: c.number ? "n" : "", "aria-sort": "none" },
    el("button", { type: "button", class: "sort", onclick: () => sortBy(k) }, el("span", { text: c.title }), el("span", { class: "arrow", "aria-hidden": "true" }))));
  const body = el("tbody");
  const caption = el("caption", { class: "hidden", text: spec.caption });
  const table = el("table", { class: "sortable" }, caption, el("thead", null, el("tr", null, heads)), body);
  const scroll = el("div", { class: "scroll", role: "region", "aria-label": spec.caption, tabindex: 0 }, table);
  const pages = el("div", { class: "pager" });
  const saying = el("span", { class: "soft", "aria-live": "polite" });
  const foot = el("div", { class: "controls foot" },
    labelled("Rows a page", selection([["50", "50"], ["200", "200"], ["1000", "1,000"]], "50", (value) => { size = Number(value); page = 0; render(); })), pages,
    el("span", { class: "control" }, el("button", { type: "button", text: "Copy as CSV", onclick: copy }), el("button", { type: "button", text: "Download CSV", onclick: download }), saying));
  host.append(bar, scroll, foot);

  function sortBy(k) {
    const numbers = spec.columns[k].number;
    direction = column === k ? -direction : 1;
    column = k;
    heads.forEach((th, j) => th.setAttribute("aria-sort", j !== k ? "none" : direction > 0 ? "ascending" : "descending"));
    const values = Array.from({ length: spec.count }, (_, i) => spec.columns[k].value(i));
    const missing = (v) => v === null || v === undefined || v === "";
    shown.sort((a, b) => {
      const [u, v] = [values[a], values[b]];
      if (missing(u) || missing(v)) return missing(u) - missing(v) || a - b; // what is missing stays last
      return direction * (numbers ? u - v : collator.compare(u, v)) || a - b;
    });
    page = 0;
    render();
  }

  function refresh() {
    texts ??= new Array(spec.count);
    shown = [];
    for (let i = 0; i < spec.count; i++) {
      if (spec.filters.every((f, k) => chosen[k] === "" || f.test(i, chosen[k])) && words.every((w) => textOf(i).includes(w))) shown.push(i);
    }
    page = 0;
    if (column >= 0) {
      direction = -direction;
      sortBy(column);
    } else render();
  }

  function render() {
    const many = Math.max(1, Math.ceil(shown.length / size));
    page = Math.min(page, many - 1);
    body.replaceChildren(...shown.slice(page * size, (page + 1) * size).map((i) => el("tr", null,
      spec.columns.map((c, k) => el(k ? "td" : "th", { class: c.number ? "n" : c.wide ? "wide" : "", scope: k ? null : "row" }, c.node ? c.node(i) : said(c, i))))));
    if (!shown.length) body.append(el("tr", null, el("td", { colspan: spec.columns.length, class: "soft", text: "No row is left: change the filters." })));
    total.textContent = shown.length === spec.count ? some(spec.count, "row") : `${count(shown.length)} of ${some(spec.count, "row")}`;
    pager(pages, page, many, (to) => { page = to; render(); scroll.scrollTop = 0; });
  }

  // Text that a spreadsheet would take for a formula gets a quote in front.
  function csv() {
    const cell = (value) => (typeof value === "number" ? String(value) : `"${String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`);
    const rows = [spec.columns.map((c) => cell(c.title)), ...shown.map((i) => spec.columns.map((c) => cell(c.value(i))))];
    return rows.map((row) => row.join(",")).join("\r\n") + "\r\n";
  }
  async function copy() {
    const text = csv();
    try {
      await navigator.clipboard.writeText(text);
      saying.textContent = `${some(shown.length, "row")} copied`;
    } catch {
      saying.textContent = "This browser does not let the page copy: use Download CSV.";
    }
  }
  function download() {
    const link = el("a", { download: spec.name, href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    saying.textContent = `${spec.name}: ${some(shown.length, "row")}`;
  }
  render();
}
