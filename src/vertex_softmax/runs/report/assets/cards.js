// One card per input, a page of cards at a time; a card opens into a dialog with every ε.
const className = (k) => data.classes?.[k] ?? String(k);
const MARKS = ["●", "○", "✕", "✕"];
const perPage = 12;
let order = [], cardPage = 0;
const fooled = new Map(); // input → the attack with its example: at the smallest ε that has one
data.attacks.change.forEach((change, a) => {
  const input = data.attacks.input[a], before = fooled.get(input);
  if (change && (before === undefined || data.attacks.eps[a] < data.attacks.eps[before])) fooled.set(input, a);
});
const radiusAt = new Map();
data.radii?.input.forEach((input, k) => radiusAt.set(input * methods + data.radii.method[k], k));
const hasBounds = data.answers.input.length > 0;
const span = (() => { // what fills half of a bar
  const sizes = data.inputs.clean.map(Math.abs).sort((a, b) => a - b);
  return sizes[Math.floor(0.9 * (sizes.length - 1))] || 1;
})();
const longest = data.radii ? Math.max(...data.radii.certified, ...data.radii.fooled.map((x) => x ?? 0)) || 1 : 1;

const statusOf = (i, m) => {
  const a = answerAt(state.eps, i, m);
  return a < 0 ? -1 : data.answers.status[a];
};
function certifiedBy(i) {
  return data.methods.filter((_, m) => (hasBounds ? statusOf(i, m) === 0 : data.radii?.certified[radiusAt.get(i * methods + m)] > 0)).length;
}
function isFooled(i) {
  const a = hasBounds ? attackAt(state.eps, i) : -1;
  return hasBounds ? a >= 0 && data.attacks.margin[a] < 0 : data.radii !== null && data.radii.fooled[i] !== null;
}
const isWrong = (i) => data.inputs.wrong[i];

// The best word for an input, over all methods.
function chip(i) {
  const by = certifiedBy(i);
  if (isWrong(i)) return el("span", { class: "chip k3", text: "misclassified" });
  if (hasBounds && isFooled(i)) return el("span", { class: "chip k2", text: "fooled" });
  if (!hasBounds && data.radii) return el("span", { class: by ? "chip k0" : "chip k1", text: by ? `radius ${eps(bestRadius(i))}` : "not certified" });
  return by ? el("span", { class: "chip k0", text: by === methods ? "certified" : `certified by ${by} of ${methods}` }) : el("span", { class: "chip k1", text: "not certified" });
}

function thumbs(i, large) {
  const name = `input ${data.inputs.index[i]}`, attack = fooled.get(i);
  const made = [picture(i, "input", null, "input", `${name}, ${className(data.inputs.label[i])}`)];
  const there = attack !== undefined && (large || data.attacks.eps[attack] <= state.eps) && !isWrong(i);
  if (!there || !data.attacks.change[attack].most) return made;
  const change = data.attacks.change[attack], to = className(data.attacks.target[attack]), at = eps(data.eps[data.attacks.eps[attack]]);
  made.push(picture(i, "adversarial", attack, large ? `changed within ε = ${at}: answer ${to}` : `answer: ${to}`, `${name} changed within ε = ${at}: the network says ${to}`));
  made.push(picture(i, "change", attack, `change ± ${number(change.most)}`, `the change, amplified: full colour is plus or minus ${number(change.most)}`));
  return made;
}

// What became of the attack, in words.
function found(i) {
  const attack = fooled.get(i);
  if (isWrong(i)) return "Wrong without any change: there is nothing to certify.";
  if (!hasBounds || attackAt(state.eps, i) < 0) return null;
  if (isFooled(i)) return attack === undefined ? "The attack found a wrong answer; its example was not kept." : null;
  return `The attack found no wrong answer within ε = ${eps(data.eps[state.eps])}${attack === undefined ? "" : `, but one within ${eps(data.eps[data.attacks.eps[attack]])}`}.`;
}

// From the middle to the right: above 0. The line is the attack's margin, which no bound can pass.
function boundRow(i, m) {
  const method = data.methods[m], a = answerAt(state.eps, i, m);
  if (a < 0) return el("li", { class: "row" }, el("span", { class: "name", text: method.name }), el("span", { class: "soft", text: "not asked" }));
  const value = data.answers.bound[a], status = data.answers.status[a];
  const share = value === null ? -1 : Math.max(-1, Math.min(1, value / span));
  const fill = el("div", { class: `fill s${method.slot}${Math.abs(share) === 1 ? " cut" : ""}${share < 0 ? " below" : ""}` });
  fill.style.left = `${share < 0 ? 50 + 50 * share : 50}%`;
  fill.style.width = `${50 * Math.abs(share)}%`;
  const track = el("div", { class: "diverging", "aria-hidden": "true" }, fill);
  const attack = attackAt(state.eps, i);
  if (attack >= 0) {
    const line = el("div", { class: "limit" });
    line.style.left = `${50 + 50 * Math.max(-1, Math.min(1, data.attacks.margin[attack] / span))}%`;
    track.append(line);
  }
  return el("li", { class: `row ${status === 0 ? "yes" : ""}`, title: `${method.name}: bound ${bound(value)} to class ${className(data.answers.target[a])}, ${data.statuses[status]}` },
    el("span", { class: "name", text: method.name }), track, el("span", { class: "n", text: bound(value) }),
    el("span", { class: `sign k${status}`, role: "img", "aria-label": data.statuses[status], text: MARKS[status] }));
}

function radiusRow(i, m) {
  const method = data.methods[m], k = radiusAt.get(i * methods + m);
  if (k === undefined) return null;
  const value = data.radii.certified[k], fill = el("div", { class: `fill s${method.slot}` });
  fill.style.left = "0";
  fill.style.width = `${(100 * value) / longest}%`;
  const track = el("div", { class: "diverging plain", "aria-hidden": "true" }, fill);
  if (data.radii.fooled[i] !== null && !isWrong(i)) {
    const line = el("div", { class: "limit" });
    line.style.left = `${(100 * data.radii.fooled[i]) / longest}%`;
    track.append(line);
  }
  return el("li", { class: `row ${value > 0 ? "yes" : ""}` }, el("span", { class: "name", text: method.name }), track, el("span", { class: "n", text: eps(value) }), el("span"));
}

function factsOf(i) {
  const facts = [["label", className(data.inputs.label[i])], ["predicted", className(data.inputs.predicted[i])], ["clean margin", signed(data.inputs.clean[i])]];
  const attack = hasBounds ? attackAt(state.eps, i) : -1;
  const best = data.methods.map((_, m) => answerAt(state.eps, i, m)).filter((a) => a >= 0 && data.answers.bound[a] !== null)
    .sort((a, b) => data.answers.bound[b] - data.answers.bound[a])[0];
  if (best !== undefined) facts.push(["worst target", className(data.answers.target[best])]);
  if (attack >= 0) facts.push(["attack margin", signed(data.attacks.margin[attack])]);
  if (data.radii && !isWrong(i)) facts.push(["fooled at", data.radii.fooled[i] === null ? "–" : `ε = ${eps(data.radii.fooled[i])}`]);
  return facts;
}

function factList(i) {
  const said = found(i);
  return el("div", null, el("dl", { class: "card-facts" }, factsOf(i).map(([key, value]) => el("div", null, el("dt", { text: key }), el("dd", { text: value })))),
    said ? el("p", { class: "found", text: said }) : null);
}

const sentenceOf = (i) => (data.inputs.text ? el("p", { class: "said" }, el("bdi", { text: data.inputs.text[i] })) : null);

function card(i) {
  const index = data.inputs.index[i], pictures = thumbs(i, false);
  return el("li", { class: "card", "data-input": i },
    el("div", { class: "card-head" }, el("h3", null, el("button", { type: "button", class: "open", "aria-haspopup": "dialog", onclick: () => openDetail(i) }, `Input ${index}`)), chip(i)),
    sentenceOf(i),
    el("div", { class: `card-top ${pictures.length > 1 ? "" : "beside"}` }, el("div", { class: "thumbs" }, pictures), factList(i)),
    hasBounds ? el("ul", { class: "rows" }, data.methods.map((_, m) => boundRow(i, m))) : null,
    data.radii ? el("ul", { class: "rows" }, data.methods.map((_, m) => radiusRow(i, m))) : null);
}

const FILTERS = {
  all: ["all inputs", () => true],
  differ: ["on which the methods differ", (i) => certifiedBy(i) > 0 && certifiedBy(i) < methods],
  every: ["certified by every method", (i) => certifiedBy(i) === methods],
  none: ["certified by none", (i) => certifiedBy(i) === 0 && !isWrong(i)],
  fooled: ["fooled by the attack", (i) => isFooled(i) && !isWrong(i)],
  wrong: ["misclassified", isWrong],
};
const bestBound = (i) => Math.max(...data.methods.map((_, m) => {
  const a = answerAt(state.eps, i, m);
  return a < 0 || data.answers.bound[a] === null ? -Infinity : data.answers.bound[a];
}));
const bestRadius = (i) => Math.max(...data.methods.map((_, m) => data.radii.certified[radiusAt.get(i * methods + m)] ?? -1));
const SORTS = {
  index: ["their order", (i) => i],
  clean: ["smallest clean margin", (i) => data.inputs.clean[i]],
  best: [hasBounds ? "lowest best bound" : "smallest radius", (i) => (hasBounds ? bestBound(i) : data.radii ? bestRadius(i) : i)],
};

function inputCards() {
  let filter = "all", sort = "index";
  const total = el("output", { class: "count", "aria-live": "polite" });
  const arrange = () => {
    const key = new Map();
    order = [...data.inputs.index.keys()].filter(FILTERS[filter][1]);
    for (const i of order) key.set(i, SORTS[sort][1](i));
    order.sort((a, b) => key.get(a) - key.get(b) || a - b);
    total.textContent = order.length === whole ? some(whole, "input") : `${count(order.length)} of ${some(whole, "input")}`;
  };
  const render = () => {
    const pages = Math.max(1, Math.ceil(order.length / perPage));
    cardPage = Math.min(cardPage, pages - 1);
    $("cards").replaceChildren(...order.slice(cardPage * perPage, (cardPage + 1) * perPage).map(card));
    if (!order.length) $("cards").append(el("li", { class: "soft", text: "No input is left: choose others above." }));
    pager($("cards-pager"), cardPage, pages, (to) => { cardPage = to; render(); $("inputs").scrollIntoView(); });
  };
  const again = () => { arrange(); render(); };
  const options = (of) => Object.entries(of).map(([key, [text]]) => [key, text]);
  $("inputs-controls").append(labelled("Show", selection(options(FILTERS), filter, (value) => { filter = value; cardPage = 0; again(); })),
    labelled("in order of", selection(options(SORTS), sort, (value) => { sort = value; cardPage = 0; again(); })), total);
  $("inputs-controls").hidden = false;
  const step = about.step > 1 ? ` Pictures show every ${about.step}${about.step === 2 ? "nd" : about.step === 3 ? "rd" : "th"} row and column.` : "";
  $("inputs-text").textContent = (hasBounds
    ? `A bar to the right is a bound above 0: that method certifies the input. The upright line is the lowest margin that the attack reached; no bound can pass it. Bars end at ± ${number(span)}.`
    : data.radii ? "A bar is the certified radius; the upright line is the smallest ε at which the attack fooled the network, which no radius can pass." : "The inputs of this run.")
    + (fooled.size ? " Where the attack found a wrong answer, the changed input stands beside the input, and the change itself in colours." : "") + step;
  on("eps", again);
  again();
}

function openDetail(i) {
  const dialog = $("detail"), at = order.indexOf(i);
  const move = (by) => el("button", { type: "button", disabled: order[at + by] === undefined, text: by < 0 ? "‹ previous" : "next ›", onclick: () => {
    openDetail(order[at + by]);
    const again = [...dialog.querySelectorAll(".detail-head button")].filter((b) => !b.disabled);
    (again.find((b) => b.textContent === (by < 0 ? "‹ previous" : "next ›")) ?? again[0])?.focus();
  } });
  dialog.replaceChildren(el("div", null,
    el("div", { class: "detail-head" }, el("h3", { id: "detail-title", text: `Input ${data.inputs.index[i]}` }), chip(i),
      el("span", { class: "control" }, move(-1), move(1), el("button", { type: "button", text: "Close", onclick: () => dialog.close() }))),
    sentenceOf(i),
    el("div", { class: "thumbs large" }, thumbs(i, true)),
    factList(i),
    hasBounds ? everyEps(i) : null,
    data.radii ? el("ul", { class: "rows" }, data.methods.map((_, m) => radiusRow(i, m))) : null,
    hasBounds ? reasonsOf(i) : null, attentionOf(i)));
  if (!dialog.open) dialog.showModal();
}

function everyEps(i) {
  const cell = (m, e) => {
    const a = answerAt(e, i, m);
    if (a < 0) return el("td", { class: "n", text: "–" });
    const status = data.answers.status[a];
    return el("td", { class: `n ${e === state.eps ? "now" : ""}` }, bound(data.answers.bound[a]), " ", el("span", { class: `sign k${status}`, role: "img", "aria-label": data.statuses[status], text: MARKS[status] }));
  };
  const row = (name, cells) => el("tr", null, el("th", { scope: "row", text: name }), cells);
  const margins = data.eps.map((_, e) => attackAt(e, i));
  return el("div", { class: "scroll", role: "region", "aria-label": "Bounds at every ε", tabindex: 0 }, el("table", { class: "plain" },
    el("thead", null, el("tr", null, el("th", { scope: "col", text: "bound" }), data.eps.map((e, k) => el("th", { scope: "col", class: `n ${k === state.eps ? "now" : ""}`, text: `ε = ${eps(e)}` })))),
    el("tbody", null, data.methods.map((method, m) => row(method.name, data.eps.map((_, e) => cell(m, e)))),
      margins.some((a) => a >= 0) ? row("attack’s margin", margins.map((a) => el("td", { class: "n", text: a < 0 ? "–" : signed(data.attacks.margin[a]) }))) : null)));
}

function reasonsOf(i) {
  const said = data.methods.map((method, m) => [method.name, answerAt(state.eps, i, m)])
    .filter(([, a]) => a >= 0 && data.answers.reasons[data.answers.reason[a]]).map(([name, a]) => `${name}: ${data.answers.reasons[data.answers.reason[a]]}`);
  return said.length ? el("div", null, el("h4", { text: `What the methods say at ε = ${eps(data.eps[state.eps])}` }), el("ul", { class: "reasons" }, said.map((text) => el("li", { text })))) : null;
}
