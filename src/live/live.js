// What the live figures share; each output has a copy in its own scope. A figure's own file defines
// `build(data)`: controls, stage, and `update()`, which redraws and returns a sentence to read out.

const holder = document.createElement("div");
holder.innerHTML = "<svg></svg>";
const SVG = holder.firstChild.namespaceURI;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
const make = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}) => fill(document.createElementNS(SVG, tag), attributes, []);

const range = (count) => Array.from({ length: count }, (_, i) => i);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const fixed = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
const clamp = (index, last) => Math.min(Math.max(index, 0), last);
const largest = (values) => values.indexOf(Math.max(...values));

// As `src.functional.masked_softmax`: without an allowed key all are 0.
function softmax(scores, allowed = scores.map(() => true)) {
  const top = Math.max(...scores.filter((_, i) => allowed[i]));
  const raw = scores.map((score, i) => (allowed[i] ? Math.exp(score - top) : 0));
  const total = sum(raw) || 1;
  return raw.map((value) => value / total);
}

// Controls: a change bubbles up as "input" and makes the figure update.
const changed = (node) => node.dispatchEvent(new Event("input", { bubbles: true }));

function slider(label, values, start, show = String) {
  const said = make("b", { "aria-hidden": "true" });
  const last = values.length - 1;
  const input = make("input", { type: "range", min: 0, max: last, autocomplete: "off" });
  const put = (index) => {
    input.value = clamp(index, last);
    said.textContent = show(values[input.value]);
    input.setAttribute("aria-valuetext", said.textContent);
  };
  input.addEventListener("input", () => put(input.value));
  put(start);
  return {
    node: make("label", {}, make("span", {}, label, " ", said), input),
    put,
    get index() { return Number(input.value); },
    get value() { return values[input.value]; },
  };
}

// A choice among names; hidden where there is only one.
function select(label, names) {
  const options = names.map((name, i) => make("option", { value: i }, name));
  const input = make("select", { autocomplete: "off" }, ...options);
  const node = make("label", names.length > 1 ? {} : { hidden: "" }, label, " ", input);
  return { node, get index() { return Number(input.value); } };
}

const part = (text) => make("p", { class: "part" }, text);

// Buttons of which one is chosen: Tab reaches it, arrows, Home and End move.
function choices(label, faces, hover = false) {
  let index = 0;
  const mark = (chosen) => {
    index = clamp(chosen, faces.length - 1);
    buttons.forEach((item, i) => {
      item.setAttribute("aria-checked", i === index);
      item.tabIndex = i === index ? 0 : -1;
    });
  };
  const choose = (chosen) => { mark(chosen); changed(node); };
  const buttons = faces.map((face, i) => make("button", {
    type: "button", role: "radio", onclick: () => choose(i),
    onpointermove: (event) => hover && event.pointerType === "mouse" && i !== index && choose(i),
  }, face));
  const onkeydown = (event) => {
    const goal = {
      ArrowRight: index + 1, ArrowDown: index + 1, ArrowLeft: index - 1, ArrowUp: index - 1,
      Home: 0, End: faces.length - 1,
    }[event.key];
    if (goal === undefined) return;
    event.preventDefault();
    choose(goal);
    buttons[index].focus();
  };
  const node = make("div", { role: "radiogroup", "aria-label": label, onkeydown }, ...buttons);
  mark(0);
  return { node, buttons, mark, get index() { return index; } };
}

// A token on a ground as dark as its weight; black letters keep a contrast of 4.7 on the darkest.
function shade(node, token, weight) {
  node.className = "token";
  node.style.setProperty("--weight", weight);
  node.replaceChildren(token, make("small", {}, fixed(weight)));
}

// A table of named rows; `set` takes its columns. A number becomes a bar.
function table(headings, names) {
  const heads = headings.map((text) => make("th", { scope: "col" }, text));
  const rows = names.map((name) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...heads.slice(1).map(() => make("td"))));
  const set = (...columns) => columns.forEach((column, c) => column.forEach((value, r) => {
    const cell = rows[r].cells[c + 1];
    cell.textContent = value;
    if (typeof value !== "number") return;
    cell.textContent = fixed(value);
    cell.className = heads[c + 1].className = "bar";
    cell.style.setProperty("--weight", value);
  }));
  const head = make("thead", {}, make("tr", {}, ...heads));
  return { node: make("table", {}, head, make("tbody", {}, ...rows)), set };
}

// The drawing of a plot stretches; lines, dots and letters keep their size.
function plot(label, [left, right], [low, high], { height = 220, seek } = {}) {
  const across = (x) => (100 * (x - left)) / (right - left);
  const down = (y) => (100 * (high - y)) / (high - low);
  const svg = draw("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img",
    "aria-label": label });
  const paths = {};
  const put = (kind, parts) => {
    paths[kind] ??= svg.appendChild(draw("path", { class: kind }));
    paths[kind].setAttribute("d", parts.join(""));
  };
  const each = (xs, ys, path) =>
    xs.map((x, i) => path(across(x).toFixed(2), down(ys[i]).toFixed(2), i));
  const ticks = (from, to, place, axis) => make("div", { class: axis, "aria-hidden": "true" },
    ...steps(from, to).map((value) =>
      make("span", { style: `--at:${place(value)}%` }, String(value).replace("-", "−"))));
  put("rule", [...steps(low, high).map((y) => `M0 ${down(y)}H100`),
    ...steps(left, right).map((x) => `M${across(x)} 0V100`)]);
  if (seek) {
    svg.onpointerdown = svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect();
      seek(left + ((event.clientX - box.left) / box.width) * (right - left));
      changed(svg);
    };
  }
  return {
    node: make("div", { class: "plot", style: `--height:${height}px` },
      ticks(low, high, down, "y"), svg, ticks(left, right, across, "x")),
    line: (kind, xs, ys) => put(kind, each(xs, ys, (x, y, i) => `${i ? "L" : "M"}${x} ${y}`)),
    dots: (kind, xs, ys) => put(kind, each(xs, ys, (x, y) => `M${x} ${y}h.001`)),
    stems: (kind, xs, ys) => put(kind, each(xs, ys, (x, y) => `M${x} ${down(0)}V${y}`)),
  };
}

function steps(from, to) {
  const rough = (to - from) / 5;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  const first = Math.ceil(from / step);
  return range(Math.floor(to / step) - first + 1).map((i) => +((first + i) * step).toPrecision(6));
}

const legend = (kinds) => make("p", { class: "legend" }, ...Object.entries(kinds).map(
  ([kind, text]) => make("span", {}, make("i", { class: kind }), text)));

// Put a figure in place of its sentence; a shadow root keeps the page's styles off.
function start(id, style, data, build) {
  for (const host of document.querySelectorAll(`#${id} > div:not([data-ready])`)) {
    const { controls, stage, update } = build(data);
    const [title, , caption] = host.cloneNode(true).children;
    const said = make("p", { "aria-live": "polite" });
    const card = make("div", { class: "card" },
      title, make("div", { class: "controls" }, ...controls), ...stage, said, caption);
    const tell = () => {
      const words = update();
      if (words !== said.textContent) said.textContent = words;
    };
    card.addEventListener("input", tell);
    card.addEventListener("keydown", (event) => event.stopPropagation()); // not the page
    host.attachShadow({ mode: "open" }).append(make("style", {}, style), card);
    host.dataset.ready = "";
    host.style = "all: initial; display: block";
    tell();
  }
}
