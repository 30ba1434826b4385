// Elements, numbers, what is chosen, and the theme. Data reach the page as text and attribute values only.
const SVG = document.querySelector("svg").namespaceURI;
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function build(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (tag, props, ...children) => build(document.createElement(tag), props, children);
const draw = (tag, props, ...children) => build(document.createElementNS(SVG, tag), props, children);

// Numbers as people read them. A number that is not 0 never looks like 0, and none loses its sign.
function number(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e5 || size < 1e-3) text = x.toExponential(1).replace("e+", "e");
  else if (size >= 1000) text = Math.round(x).toLocaleString("en");
  else text = size >= 100 ? x.toFixed(1) : size >= 0.1 ? x.toFixed(2) : x.toPrecision(2);
  return text.replaceAll("-", "−");
}
const signed = (x) => (x > 0 ? "+" : "") + number(x);
const bound = (x) => (x === null ? "−∞" : signed(x));
const plain = (x) => (x === null || x === undefined ? "" : String(Number(x.toPrecision(6))));
const eps = (x) => plain(x).replaceAll("-", "−");
const radius = (x) => (x === null || x === undefined ? "–" : eps(x)); // rounded already, so that it claims no more than the run
const count = (n) => n.toLocaleString("en");

const some = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function seconds(x) {
  if (x === null || x === undefined) return "–";
  if (x < 0.9995) return `${x < 0.01 ? Number((1000 * x).toPrecision(2)) : Math.round(1000 * x)} ms`;
  return x < 100 ? `${Number(x.toPrecision(3))} s` : `${count(Math.round(x))} s`;
}

// "100 %" is said of all and "0 %" of none.
function percent(share, whole) {
  if (share === null || share === undefined) return "–";
  const digits = whole > 100 ? 1 : 0;
  const text = (100 * share).toFixed(digits);
  if (share < 1 && Number(text) === 100) return `> ${(100 - 10 ** -digits).toFixed(digits)} %`;
  if (share > 0 && Number(text) === 0) return `< ${(10 ** -digits).toFixed(digits)} %`;
  return `${text} %`;
}

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const signedBytes = (text) => new Int8Array(bytes(text).buffer);
const floats = (text) => new Float32Array(bytes(text).buffer);

// What is chosen, and who wants to know of it.
const state = { eps: data.chosen ?? 0, hidden: new Set() };
const listeners = {};
function on(what, act) {
  (listeners[what] ??= []).push(act);
}
function choose(what, value) {
  state[what] = value;
  for (const act of listeners[what] ?? []) act(value);
}

// Light and dark: as the system says, until the button is used.
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";

function themeButton() {
  const button = $("theme");
  const show = () => {
    button.textContent = isDark() ? "☀" : "☾";
    button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
    button.title = button.getAttribute("aria-label");
  };
  try {
    const kept = localStorage.getItem("vertex-theme");
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  } catch { /* where nothing can be kept, nothing is */ }
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("vertex-theme", theme);
    } catch { /* as above */ }
    show();
    choose("theme", theme);
  });
  prefersDark.addEventListener("change", () => { show(); choose("theme", isDark() ? "dark" : "light"); });
  button.hidden = false;
  show();
}

// A row of controls: a label and what it labels.
let controls = 0;
function labelled(text, control) {
  control.id ||= `control-${++controls}`;
  return el("span", { class: "control" }, el("label", { for: control.id, text }), control);
}
function selection(options, value, act) {
  const select = el("select", { onchange: () => act(select.value) });
  for (const [key, text] of options) select.append(el("option", { value: key, text, selected: key === value }));
  return select;
}

// Where one is in a long list, and how to go on.
function pager(host, page, pages, go) {
  host.replaceChildren();
  if (pages < 2) return;
  const button = (text, label, to) => el("button", {
    type: "button", text, "aria-label": label, disabled: to < 0 || to >= pages || to === page, onclick: () => {
      go(to);
      const again = [...host.querySelectorAll("button")].find((b) => b.textContent === text && !b.disabled);
      (again ?? host.querySelector("button:not(:disabled)"))?.focus();
    },
  });
  host.append(
    button("«", "First page", 0), button("‹", "Previous page", page - 1),
    el("span", { text: `page ${count(page + 1)} of ${count(pages)}` }),
    button("›", "Next page", page + 1), button("»", "Last page", pages - 1),
  );
}
