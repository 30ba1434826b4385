// Where the slack is: a bar for every op, and of an attention its heads, rows and keys.
function slackView() {
  const slack = data.slack, host = $("slack-view");
  const parts = [...slack.attentions.map((a, k) => ({ name: a.name, op: "attention", slack: a.sum, block: k })), ...slack.others.map((o) => ({ ...o, block: -1 }))];
  const most = Math.max(...parts.map((p) => p.slack), 0) || 1, all = slack.total;
  const detail = el("div", { id: "slack-detail" });
  const bars = el("ul", { class: "bars slack-bars" }, parts.map((p) => {
    const fill = el("div", { class: `part ${p.block >= 0 ? "attention" : "other"}` });
    fill.style.width = `${(100 * Math.max(0, p.slack)) / most}%`;
    const name = p.block >= 0 ? el("button", { type: "button", class: "pick", "aria-pressed": "false", "data-block": p.block, onclick: () => show(p.block), title: "Show its heads" }, p.name) : p.name;
    return el("li", null, el("span", { class: "name" }, name, el("small", { class: "soft", text: p.name === p.op ? "" : ` ${p.op}` })),
      el("div", { class: "track bare", "aria-hidden": "true" }, fill), el("b", { class: "value", text: `${number(p.slack)}${all > 0 ? ` · ${percent(Math.max(0, p.slack) / all, 1)}` : ""}` }));
  }));
  const sum = parts.reduce((s, p) => s + p.slack, 0);
  const off = Math.abs(sum - all) > 0.01 * Math.max(Math.abs(all), 1e-12) ? ` These parts add up to ${number(sum)}, not to ${number(all)}.` : "";
  host.append(el("div", { class: "panel" }, el("h3", { text: "By op" }), el("p", { class: "soft", text: `Slack, and its share of all. ${slack.attentions.length ? "Choose an attention to see its heads." : ""}${off}` }), bars), detail);

  let maps = [];
  on("theme", () => { if (maps.length) again(); });
  let again = () => {};
  function show(block, head) {
    const part = slack.attentions[block], rows = floats(part.row_slack);
    const perHead = Array.from({ length: part.heads }, (_, h) => rows.subarray(h * part.rows, (h + 1) * part.rows).reduce((a, b) => a + b, 0));
    const chosen = head ?? perHead.indexOf(Math.max(...perHead));
    again = () => show(block, chosen);
    for (const button of host.querySelectorAll("button.pick")) button.setAttribute("aria-pressed", String(button.dataset.block === String(block)));
    const left = el("div"), right = el("div");
    const heads = perHead.map((v, h) => el("button", { type: "button", class: "head", "aria-pressed": String(h === chosen), "data-head": h,
      "aria-label": `Head ${h + 1}: slack ${number(v)}; show its scores`, onclick: () => pick(h) }, `${h + 1}`));
    const pick = (h) => {
      show(block, h);
      detail.querySelector(`button.head[data-head="${h}"]`)?.focus();
    };
    detail.replaceChildren(el("div", { class: "panel two" },
      el("div", null, el("h3", { text: `${part.name}: slack by head and row` }),
        el("p", { class: "soft", text: "A row is one query position. Dark cells (bright ones on dark) are where the bound of that head and row lies furthest below its value. Choose a head to see its scores." }), left),
      el("div", null, el("h3", { text: `Head ${chosen + 1}: how far its scores can move` }),
        el("p", { class: "soft", text: "Each cell is a score between a query (row) and a key (column): the width of the interval in which it was bounded. Wide scores make loose rows." }), right)));
    const widths = floats(part.score_width).subarray(chosen * part.rows * part.keys, (chosen + 1) * part.rows * part.keys);
    maps = [
      heatMap(left, { rows: part.heads, columns: part.rows, values: rows, most: rows.reduce((a, b) => Math.max(a, b), 0), cell: 34, label: `Slack of ${part.heads} heads and ${part.rows} rows`,
        rowTitle: "heads", columnTitle: "rows (queries)", rowNames: heads, picked: pick, tell: (r, c) => `head ${r + 1}, row ${c + 1}: slack ${number(rows[r * part.rows + c])}` }),
      heatMap(right, { rows: part.rows, columns: part.keys, values: widths, most: widths.reduce((a, b) => Math.max(a, b), 0), cell: 22, label: `Widths of ${part.rows} × ${part.keys} scores of head ${chosen + 1}`,
        rowTitle: "rows (queries)", columnTitle: "keys", tell: (r, c) => `row ${r + 1}, key ${c + 1}: width ${number(widths[r * part.keys + c])}` }),
    ];
  }
  if (slack.attentions.length) {
    const sums = slack.attentions.map((a) => a.sum);
    show(sums.indexOf(Math.max(...sums)));
  }
}
