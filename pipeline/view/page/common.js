/* What both pages need: elements, numbers as text, the data, the tooltip. Texts from files only ever become text nodes. */
const byId = (id) => document.getElementById(id);

function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  for (const child of children) node.append(child);
  return node;
}

const integerFormat = new Intl.NumberFormat('en-US');
const integerText = (value) => integerFormat.format(value);

// Half to even, as the reports of the commands round.
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  const low = Math.floor(scaled);
  const rounded = scaled - low === 0.5 && low % 2 === 0 ? low : Math.round(scaled);
  return (rounded / 10 ** digits).toFixed(digits);
}

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    ++unit;
  }
  return unit === 0 ? `${integerText(value)} B` : `${fixed(value, value < 10 ? 2 : 1)} ${units[unit]}`;
}

const plural = (count, one, many) => `${integerText(count)} ${count === 1 ? one : many || one + 's'}`;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

async function inflated(text) {
  if (typeof DecompressionStream === 'undefined') {
    throw new Error('This browser cannot decompress the data of the page. Use one from 2023 or later, or write the page with --plain.');
  }
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; ++i) bytes[i] = packed.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'))).text();
}

async function readData() {
  const node = byId('data');
  const text = node.textContent;
  const json = node.type === 'application/json' ? text : await inflated(text);
  node.remove();
  return JSON.parse(json);
}

/* Shows what kept the page from being drawn. */
function showFailure(error) {
  document.body.replaceChildren(el('div', 'failure', `This page cannot be shown: ${error.message}`));
}

function showTip(x, y, ...parts) {
  const tip = byId('tip');
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const gap = 14;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + gap + width > innerWidth ? x - gap - width : x + gap;
  const top = y + gap + height > innerHeight ? y - gap - height : y + gap;
  const inside = (value, size, most) => clamp(value, 8, Math.max(8, most - size - 8));
  tip.style.transform = `translate(${inside(left, width, innerWidth)}px, ${inside(top, height, innerHeight)}px)`;
}

function hideTip() {
  byId('tip').hidden = true;
}

/* Lines of a tooltip: the first is bold, empty ones are left out. */
function tipPart(first, ...lines) {
  const part = el('div', 'part', el('b', '', first));
  for (const line of lines) if (line) part.append(el('div', '', line));
  return part;
}

/* A canvas of `height` CSS pixels, as wide as its parent, sharp on any screen. */
function sizedContext(canvas, height) {
  const width = Math.max(1, Math.floor(canvas.parentElement.clientWidth));
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width };
}

const cssValue = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/* A font of the canvases, in root sizes. */
const canvasFont = (size, weight = 400) => `${weight} ${(size * rootSize()).toFixed(1)}px system-ui, sans-serif`;
const rootSize = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

/* Figures at the top of a page: [name, value, what else there is to say]. */
function fillFigures(figures) {
  const items = figures.map(([name, value, more]) => el('li', '', el('span', 'muted', name), el('b', '', value), el('span', 'muted', more)));
  byId('figures').replaceChildren(...items);
}

/* A test of texts: a glob when there is '*' or '?', else a part of the text. */
function matcherOf(query) {
  const wanted = query.trim().toLowerCase();
  if (!/[*?]/.test(wanted)) return (text) => text.toLowerCase().includes(wanted);
  const escaped = wanted.replace(/[.+^${}()|[\]\\]/g, '\\$&').replace(/\*/g, '.*').replace(/\?/g, '.');
  const pattern = new RegExp(`^${escaped}$`);
  return (text) => pattern.test(text.toLowerCase());
}

/* Calls `draw` when the window or the colour scheme changes, at most once a frame. */
function onLookChange(draw) {
  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
  addEventListener('resize', later);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', later);
}

function press(buttons, chosen) {
  for (const button of buttons) button.setAttribute('aria-pressed', String(button === chosen));
}
