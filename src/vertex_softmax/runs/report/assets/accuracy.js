// The page of a proof about all inputs: the map of its groups.
function groupsMap() {
  const { rows, columns, inputs, proved, right } = data;
  const missing = inputs.map((n, k) => (n ? (n - proved[k]) / n : 0));
  const tell = (r, c) => {
    const k = r * columns + c, where = `${data.row} ${r}, ${data.column} ${c}`;
    if (!inputs[k]) return `${where}: no inputs`;
    const known = right === null ? "" : `, ${count(inputs[k] - right[k])} wrong`;
    return `${where}: ${count(proved[k])} of ${count(inputs[k])} proved right${known}`;
  };
  const map = heatMap($("groups-map"), {
    rows, columns, values: missing, most: Math.max(...missing), cell: 14, square: true, tell, rowTitle: data.row, columnTitle: data.column, from: 0,
    ends: ["all proved", `${percent(Math.max(...missing), 1000)} not proved`],
    label: "Share of every group that is not proved",
  });
  on("theme", map.paint);
}

themeButton();
groupsMap();
document.documentElement.dataset.ready = "";
