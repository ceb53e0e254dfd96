/* Tensors as rows and layers as columns. A row is a name without its layer; names of experts share one, and a cell has all their tensors. */
const mostGridRows = 400;
const noLayer = -1;

const layerInName = /(^|\.)(layers|layer|blocks|block|h)\.(\d{1,9})(?=\.)/;
const expertsInName = /(^|\.)(experts|local_experts)\.\d{1,9}(?=\.|$)/;

/* {row, layer} of a tensor; the name of a model's tensor begins with its layer. */
function placeOf(name, layer) {
  const begin = layer === undefined ? -1 : name.indexOf(`.${layer}.`);
  if (begin > 0) {
    const [axis, rest] = [name.slice(0, begin), name.slice(begin + String(layer).length + 2)];
    return { row: axis === 'layer' ? rest : `${axis}.*.${rest}`, layer };
  }
  const found = layerInName.exec(name);
  const row = name.replace(layerInName, '$1$2.*').replace(expertsInName, '$1$2.*');
  return { row, layer: found ? Number(found[3]) : noLayer };
}

const differingOf = (tensor) => tensor.differing + tensor.differing_in_replicas;
const nonFinite = (tensor) => tensor.non_finite_differing > 0 || tensor.non_finite_in_replicas > 0;
const largest = (tensor, measure) => Math.max(tensor[`finite_max_${measure}`] || 0, tensor[`max_${measure}_in_replicas`] || 0);

class Cell {
  constructor() {
    Object.assign(this, { tensors: [], headers: [], elements: 0, differing: 0, relative: 0, absolute: 0, strange: false });
  }

  add(tensor) {
    this.tensors.push(tensor);
    this.elements += tensor.elements;
    this.differing += differingOf(tensor);
    this.relative = Math.max(this.relative, largest(tensor, 'rel'));
    this.absolute = Math.max(this.absolute, largest(tensor, 'abs'));
    this.strange = this.strange || nonFinite(tensor);
  }

  get share() {
    return this.elements === 0 ? 0 : Math.min(1, this.differing / this.elements);
  }

  get differs() {
    return this.differing > 0 || this.headers.length > 0;
  }
}

/* Rows in the order of the model, each with its cells by layer. */
function gridOf(difference) {
  const rows = new Map();
  const cellAt = ({ row, layer }) => {
    if (!rows.has(row)) rows.set(row, { name: row, cells: new Map(), headers: [], differs: false });
    const { cells } = rows.get(row);
    if (!cells.has(layer)) cells.set(layer, new Cell());
    return [rows.get(row), cells.get(layer)];
  };
  for (const tensor of difference.tensors) {
    const [row, cell] = cellAt(placeOf(tensor.name, tensor.layer));
    cell.add(tensor);
    row.differs = row.differs || differingOf(tensor) > 0;
  }
  for (const header of difference.header_differences) {
    const place = placeOf(header.tensor);
    const [row, cell] = cellAt(place);
    cell.headers.push(header);
    if (header.parts > 1) row.headers.push(header);
    row.differs = true;
  }
  const layers = new Set([...rows.values()].flatMap((row) => [...row.cells.keys()]));
  return { rows: [...rows.values()], layers: [...layers].sort((a, b) => a - b) };
}

const headerMarks = { missing: '−', extra: '+' };
const markOf = (header) => headerMarks[header.kind] || '≠';

/* The scale of a measure, in powers of ten, and its colours. */
class Scale {
  constructor(cells, measure) {
    this.measure = measure;
    const logs = cells.map((cell) => cell[measure]).filter((value) => value > 0).map(Math.log10);
    this.empty = logs.length === 0;
    this.low = this.empty ? -1 : Math.floor(Math.min(...logs));
    this.high = this.empty ? 0 : Math.max(this.low + 1, Math.ceil(Math.max(...logs)));
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    this.stops = (dark ? ['#574012', '#e08a1e', '#ffdcb8'] : ['#fbe3a2', '#ee8a1c', '#8f1812']).map(rgbOf);
  }

  colour(value) {
    const at = clamp((Math.log10(value) - this.low) / (this.high - this.low), 0, 1) * 2;
    const [from, to] = at < 1 ? [this.stops[0], this.stops[1]] : [this.stops[1], this.stops[2]];
    const part = at < 1 ? at : at - 1;
    return from.map((channel, i) => Math.round(channel + (to[i] - channel) * part));
  }
}

const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const cssRgb = (rgb) => `rgb(${rgb.join(' ')})`;
const inkOnRgb = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? '#10131a' : '#ffffff');

class Grid {
  constructor(difference, choose) {
    Object.assign(this, gridOf(difference), { choose, measure: 'share', chosen: null, shown: [] });
    this.canvas = byId('cells');
    this.canvas.addEventListener('pointermove', (event) => this.point(event));
    this.canvas.addEventListener('pointerleave', hideTip);
    this.canvas.addEventListener('click', (event) => this.pick(this.at(event)));
    this.canvas.addEventListener('keydown', (event) => this.onKey(event));
  }

  show(query, onlyDiffering) {
    const matches = matcherOf(query);
    const found = this.rows.filter((row) => (!onlyDiffering || row.differs) && matches(row.name));
    this.shown = found.slice(0, mostGridRows);
    const rows = plural(found.length, 'row');
    byId('found').textContent = found.length > mostGridRows ? `the first ${mostGridRows} of ${rows}` : rows;
    this.draw();
  }

  draw() {
    this.scale = new Scale(this.shown.flatMap((row) => [...row.cells.values()]), this.measure);
    this.drawLegend();
    const names = this.shown.map((row) => Object.assign(el('div', 'clip mono', row.name), { title: row.name }));
    byId('names').replaceChildren(...names);
    this.height = Math.round(rootSize() * 1.45);
    this.head = Math.round(rootSize() * 1.35);
    const box = byId('gridbox');
    const many = this.layers.length * 14 > box.clientWidth * 0.4;
    byId('names').style.maxWidth = many ? '38%' : '58%';
    const room = box.clientWidth - byId('names').offsetWidth - 12;
    this.width = clamp(Math.floor(room / Math.max(1, this.layers.length)), 9, 44);
    box.lastElementChild.style.width = `${this.width * this.layers.length + 2}px`;
    const { context } = sizedContext(this.canvas, this.head + this.height * this.shown.length + 2);
    this.paint(context);
  }

  paint(context) {
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    context.font = canvasFont(0.76);
    context.fillStyle = cssValue('--muted');
    const step = Math.ceil((rootSize() * 1.6) / this.width);
    this.layers.forEach((layer, x) => {
      const text = layer === noLayer ? '·' : String(layer);
      if (layer === noLayer || layer % step === 0) context.fillText(text, (x + 0.5) * this.width, this.head / 2);
    });
    const soft = cssValue('--soft');
    const line = cssValue('--line');
    this.shown.forEach((row, y) => {
      this.layers.forEach((layer, x) => row.cells.has(layer) && this.cell(context, row.cells.get(layer), x, y, soft, line));
      if (row.headers.length > 0) this.band(context, row, y);
    });
    if (this.chosen) this.frame(context);
  }

  rect(x, y, columns = 1) {
    return [x * this.width + 1, this.head + y * this.height + 1, columns * this.width - 2, this.height - 2];
  }

  cell(context, cell, x, y, soft, line) {
    const rect = this.rect(x, y);
    const value = cell[this.measure];
    const rgb = value > 0 ? this.scale.colour(value) : null;
    context.fillStyle = rgb ? cssRgb(rgb) : soft;
    context.fillRect(...rect);
    context.strokeStyle = line;
    context.lineWidth = 1;
    if (!rgb) context.strokeRect(rect[0] + 0.5, rect[1] + 0.5, rect[2] - 1, rect[3] - 1);
    let mark = cell.headers.length > 0 ? markOf(cell.headers[0]) : cell.strange ? 'N' : '';
    if (!mark && !rgb && cell.differing > 0) mark = '≠';
    if (mark) this.mark(context, mark, rect, rgb ? inkOnRgb(rgb) : cssValue('--ink'));
  }

  mark(context, text, rect, ink) {
    context.font = canvasFont(0.86, 650);
    context.fillStyle = ink;
    context.fillText(text, rect[0] + rect[2] / 2, rect[1] + rect[3] / 2 + 1);
  }

  /* All layers of a tensor that cannot be compared. */
  band(context, row, y) {
    const first = this.layers[0] === noLayer && this.layers.length > 1 ? 1 : 0;
    const rect = this.rect(first, y, this.layers.length - first);
    context.strokeStyle = cssValue('--ink');
    context.setLineDash([4, 3]);
    context.strokeRect(rect[0] + 0.5, rect[1] + 0.5, rect[2] - 1, rect[3] - 1);
    context.setLineDash([]);
    this.mark(context, markOf(row.headers[0]), rect, cssValue('--ink'));
  }

  frame(context) {
    const y = this.shown.indexOf(this.chosen.row);
    if (y < 0) return;
    const rect = this.rect(this.layers.indexOf(this.chosen.layer), y);
    context.strokeStyle = cssValue('--accent');
    context.lineWidth = 2;
    context.strokeRect(...rect);
  }

  drawLegend() {
    const legend = byId('legend');
    const { scale } = this;
    const item = (box, text) => el('span', 'item', box, text);
    const box = (text) => el('span', 'box', text);
    const parts = [item(box(''), 'equal')];
    if (!scale.empty) {
      const bar = el('span', 'ramp');
      bar.style.background = `linear-gradient(90deg, ${scale.stops.map(cssRgb).join(', ')})`;
      const text = (power) => (this.measure === 'share' ? `${valueText(100 * 10 ** power)} %` : valueText(10 ** power));
      parts.push(el('span', 'item', text(scale.low), bar, text(scale.high)));
    }
    const cells = this.shown.flatMap((row) => [...row.cells.values()]);
    const marks = new Set(cells.flatMap((cell) => cell.headers.map(markOf)));
    if (this.layers.length > 1 && this.layers[0] === noLayer) parts.push(el('span', 'item', '·  in no layer'));
    if (marks.has('−')) parts.push(item(box('−'), 'b lacks it'));
    if (marks.has('+')) parts.push(item(box('+'), 'only b has it'));
    if (marks.has('≠') || cells.some((cell) => !cell[this.measure] && cell.differing > 0)) parts.push(item(box('≠'), 'cannot be measured'));
    if (cells.some((cell) => cell.strange)) parts.push(item(box('N'), 'NaN or infinity on one side'));
    legend.replaceChildren(...parts);
  }

  /* {row, layer} under the pointer, or null. */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / this.width);
    const y = Math.floor((event.clientY - box.top - this.head) / this.height);
    return this.placeAt(x, y);
  }

  placeAt(x, y) {
    const row = this.shown[y];
    if (!row || x < 0 || x >= this.layers.length) return null;
    if (row.cells.has(this.layers[x])) return { row, layer: this.layers[x] };
    return row.headers.length > 0 ? { row, layer: [...row.cells.keys()][0] } : null;
  }

  point(event) {
    const place = this.at(event);
    if (place) showTip(event.clientX, event.clientY, cellTip(place));
    else hideTip();
  }

  pick(place) {
    this.chosen = place;
    this.draw();
    this.choose(place);
  }

  /* To the next cell in that direction. */
  onKey(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const from = this.chosen && this.shown.includes(this.chosen.row) ? this.chosen : null;
    let [x, y] = from ? [this.layers.indexOf(from.layer), this.shown.indexOf(from.row)] : [0, -1];
    const [dx, dy] = from ? step : [0, 1];
    let place = null;
    while (!place && y + dy < this.shown.length && y + dy >= 0 && x + dx >= 0 && x + dx < this.layers.length) {
      [x, y] = [x + dx, y + dy];
      place = this.placeAt(x, y);
    }
    if (place) this.pick(place);
  }
}

const placeText = ({ row, layer }) => (layer === noLayer ? row.name : `${row.name}, layer ${layer}`);

function cellTip({ row, layer }) {
  const cell = row.cells.get(layer);
  const lines = cell.headers.slice(0, 3).map((header) => headerText(header));
  if (cell.tensors.length > 1) lines.push(plural(cell.tensors.length, 'tensor'));
  if (cell.tensors.length > 0) lines.push(cell.differing === 0 ? 'equal' : `${shareText(cell.differing, cell.elements)} differ`);
  if (cell.differing > 0 && cell.absolute > 0) lines.push(`max |a-b| ${valueText(cell.absolute)}, max rel ${valueText(cell.relative)}`);
  if (cell.strange) lines.push('NaN or infinity on one side');
  return tipPart(placeText({ row, layer }), ...lines);
}
