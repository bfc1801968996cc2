// Creates elements without markup: every text is a text node, so no name or error becomes HTML.
//
//     h("button", { class: "quiet", onclick: load }, "Load ", h("b", {}, name))

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `null` and `undefined` attributes and children are left out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Add children: elements, texts, numbers, and lists of them. */
export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Replace the children. */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** Set a text only if it changed, to not disturb selections and screen readers. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Show or hide. */
export function setShown(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/** Announce a text to screen readers. */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) place.textContent = text;
}

let counter = 0;

/** A unique id. */
export function freshId(word) {
  counter += 1;
  return `${word}-${counter}`;
}
