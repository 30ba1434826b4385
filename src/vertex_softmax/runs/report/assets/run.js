// The page of a run: what there is is shown.
function epsChooser() {
  const select = $("eps");
  data.eps.forEach((e, k) => select.append(el("option", { value: k, text: eps(e) })));
  const show = () => {
    select.value = String(state.eps);
    $("eps-less").disabled = state.eps <= 0;
    $("eps-more").disabled = state.eps >= data.eps.length - 1;
  };
  select.addEventListener("change", () => choose("eps", Number(select.value)));
  $("eps-less").addEventListener("click", () => choose("eps", state.eps - 1));
  $("eps-more").addEventListener("click", () => choose("eps", state.eps + 1));
  on("eps", show);
  select.closest(".eps").hidden = false;
  show();
}

function answersTable() {
  const a = data.answers, margin = (i) => {
    const k = attackAt(a.eps[i], a.input[i]);
    return k < 0 ? null : data.attacks.margin[k];
  };
  sortableTable($("answers-table"), {
    caption: "All answers, one row per input, method and ε", name: "answers.csv", count: a.input.length,
    columns: [
      { title: "input", number: true, value: (i) => data.inputs.index[a.input[i]] },
      { title: "label", value: (i) => className(data.inputs.label[a.input[i]]) },
      { title: "method", value: (i) => data.methods[a.method[i]].name },
      { title: "ε", number: true, value: (i) => data.eps[a.eps[i]], text: (i) => eps(data.eps[a.eps[i]]) },
      { title: "verdict", value: (i) => data.statuses[a.status[i]], node: (i) => el("span", { class: `verdict k${a.status[i]}` }, el("span", { class: "sign", "aria-hidden": "true", text: MARKS[a.status[i]] }), ` ${data.statuses[a.status[i]]}`) },
      { title: "bound", number: true, value: (i) => a.bound[i], text: (i) => bound(a.bound[i]) },
      { title: "target", value: (i) => className(a.target[i]) },
      { title: "attack", number: true, value: margin, text: (i) => (margin(i) === null ? "–" : signed(margin(i))) },
      { title: "time", number: true, value: (i) => a.seconds[i], text: (i) => seconds(a.seconds[i]) },
      { title: "reason", wide: true, value: (i) => a.reasons[a.reason[i]] },
    ],
    filters: [
      { label: "Method", options: data.methods.map((m, k) => [String(k), m.name]), test: (i, key) => a.method[i] === Number(key) },
      { label: "ε", options: data.eps.map((e, k) => [String(k), eps(e)]), test: (i, key) => a.eps[i] === Number(key) },
      { label: "Verdict", options: data.statuses.map((s, k) => [String(k), s]), test: (i, key) => a.status[i] === Number(key) },
    ],
  });
}

function radiiTable() {
  const r = data.radii;
  sortableTable($("radii-table"), {
    caption: "All certified radii, one row per input and method", name: "radii.csv", count: r.input.length,
    columns: [
      { title: "input", number: true, value: (i) => data.inputs.index[r.input[i]] },
      { title: "label", value: (i) => className(data.inputs.label[r.input[i]]) },
      { title: "predicted", value: (i) => className(data.inputs.predicted[r.input[i]]) },
      { title: "method", value: (i) => data.methods[r.method[i]].name },
      { title: "certified", number: true, value: (i) => r.certified[i], text: (i) => radius(r.certified[i]) },
      { title: "refused", number: true, value: (i) => r.refused[i], text: (i) => radius(r.refused[i]) },
      { title: "fooled", number: true, value: (i) => r.fooled[r.input[i]], text: (i) => radius(r.fooled[r.input[i]]) },
      { title: "time", number: true, value: (i) => r.seconds[i], text: (i) => seconds(r.seconds[i]) },
    ],
    filters: [{ label: "Method", options: data.methods.map((m, k) => [String(k), m.name]), test: (i, key) => r.method[i] === Number(key) }],
  });
}

themeButton();
if ($("eps")) epsChooser();
attentionDetails();
if (whole && data.parts) {
  partBars($("bars"));
  if ($("patches")) patchCards();
  partsTable();
} else if (whole) {
  overviewBars();
  if ($("rates")) ratesChart();
  if ($("radii")) radiiChart();
  if ($("tightness")) tightnessChart();
  inputCards();
  if ($("slack")) slackView();
  if ($("answers-table")) answersTable();
  if ($("radii-table")) radiiTable();
}
document.documentElement.dataset.ready = "";
