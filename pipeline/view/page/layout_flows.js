/* What goes from which file of the source to which of the target: ribbons for few files, a matrix for many. */
const mostRibbonEnds = 40;

const svgEl = (tag, attributes, text) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

class Flows {
  constructor(doc, state) {
    Object.assign(this, { doc, state, of: 'model', as: 'ribbons', tensor: null });
    const few = doc.sides.length === 2 && doc.sides.every((side) => side.owners.length <= mostRibbonEnds);
    if (!few) this.as = 'matrix';
    byId('flows').hidden = doc.sides.length < 2;
    this.wire('of', ['model', 'tensor']);
    this.wire('as', ['ribbons', 'matrix']);
    byId('flowbox').addEventListener('pointerleave', hideTip);
  }

  wire(key, choices) {
    const buttons = choices.map((choice) => byId(`${key}-${choice}`));
    press(buttons, byId(`${key}-${this[key]}`));
    buttons.forEach((button, i) => button.addEventListener('click', () => {
      this[key] = choices[i];
      press(buttons, button);
      this.draw();
    }));
  }

  show(tensor) {
    this.tensor = tensor;
    if (this.of === 'tensor') this.draw();
  }

  draw() {
    if (this.doc.sides.length < 2) return;
    this.flows = this.of === 'model' ? this.doc.flows : tensorFlows(this.tensor);
    const bytes = this.flows.reduce((sum, flow) => sum + flow[2], 0);
    byId('flow-facts').textContent = `${bytesText(bytes)} in ${plural(this.flows.length, 'flow')}; replicas of the source are read once`;
    if (this.as === 'matrix') this.matrix();
    else this.ribbons();
  }

  /* The bars of one side: [{owner, bytes, y, h, used}], in the order of the files. */
  bars(s, height, gap) {
    const sums = new Map();
    for (const flow of this.flows) sums.set(flow[s], (sums.get(flow[s]) || 0) + flow[2]);
    const { place } = this.doc.sides[s];
    const owners = [...sums.keys()].sort((a, b) => place[a] - place[b]);
    const total = [...sums.values()].reduce((sum, value) => sum + value, 0) || 1;
    const scale = (height - gap * Math.max(0, owners.length - 1)) / total;
    const bars = new Map();
    let y = 0;
    for (const owner of owners) {
      const h = sums.get(owner) * scale;
      bars.set(owner, { owner, bytes: sums.get(owner), y, h, used: 0, scale });
      y += h + gap;
    }
    return bars;
  }

  ribbons() {
    const box = byId('flowbox');
    const width = Math.max(260, box.clientWidth);
    const most = Math.max(...[0, 1].map((s) => new Set(this.flows.map((flow) => flow[s])).size), 1);
    const letter = rootSize() * 0.46;
    const height = Math.max(most * rootSize() * 1.8, 220);
    const longest = [0, 1].map((s) => Math.max(...this.flows.map((flow) => this.doc.sides[s].owners[flow[s]].label.length), 4));
    const room = longest.map((length) => Math.min(length * letter + 14, width * 0.34));
    const size = { viewBox: `0 0 ${width} ${height + 4}`, height: height + 4 };
    const svg = svgEl('svg', { ...size, role: 'img', 'aria-label': 'flows from source files to target files' });
    const ends = [0, 1].map((s) => this.bars(s, height, 5));
    const [left, right] = [room[0], width - room[1]];
    const [from, to] = this.doc.sides.map((side) => side.place);
    const flows = [...this.flows].sort((a, b) => from[a[0]] - from[b[0]] || to[a[1]] - to[b[1]]);
    for (const flow of flows) svg.append(this.ribbon(flow, ends, left + 10, right - 10));
    ends.forEach((bars, s) => bars.forEach((bar) => svg.append(...this.bar(bar, s, s === 0 ? left : right - 10, room[s]))));
    box.replaceChildren(svg);
    this.mark();
  }

  ribbon(flow, ends, x0, x1) {
    const [from, to] = [ends[0].get(flow[0]), ends[1].get(flow[1])];
    const [h0, h1] = [flow[2] * from.scale, flow[2] * to.scale];
    const [y0, y1] = [from.y + from.used, to.y + to.used];
    from.used += h0;
    to.used += h1;
    const middle = (x0 + x1) / 2;
    const there = `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`;
    const d = `${there}V${y1 + Math.max(h1, 0.6)}C${middle} ${y1 + h1} ${middle} ${y0 + h0} ${x0} ${y0 + h0}Z`;
    const path = svgEl('path', { d, class: 'ribbon', fill: this.state.colours[0][flow[0]] });
    path.flow = flow;
    path.addEventListener('pointermove', (event) => showTip(event.clientX, event.clientY, this.tip(flow)));
    path.addEventListener('pointerleave', hideTip);
    return path;
  }

  bar(bar, s, x, room) {
    const rect = svgEl('rect', { x, y: bar.y, width: 10, height: Math.max(1, bar.h), rx: 2, fill: this.state.colours[s][bar.owner] });
    const owner = this.doc.sides[s].owners[bar.owner];
    const letters = Math.max(3, Math.floor((room - 10) / (rootSize() * 0.46)));
    const label = owner.label.length > letters ? `${owner.label.slice(0, letters - 1)}…` : owner.label;
    const text = svgEl('text', { x: s === 0 ? x - 6 : x + 16, y: bar.y + bar.h / 2 + 4, 'text-anchor': s === 0 ? 'end' : 'start' }, label);
    const tip = () => tipPart(owner.label, owner.file, `${bytesText(bar.bytes)} ${s === 0 ? 'go out' : 'come in'}`);
    for (const node of [rect, text]) {
      node.addEventListener('pointermove', (event) => showTip(event.clientX, event.clientY, tip()));
      node.addEventListener('pointerleave', hideTip);
      node.addEventListener('click', () => this.state.pickOwner({ side: s, index: bar.owner }));
    }
    return [rect, text];
  }

  tip(flow) {
    const [from, to] = [0, 1].map((s) => this.doc.sides[s].owners[flow[s]]);
    return tipPart(`${from.label} → ${to.label}`, bytesText(flow[2]), `${from.file} → ${to.file}`);
  }

  /* Ribbons of the picked owner stand out. */
  mark() {
    for (const path of byId('flowbox').querySelectorAll('.ribbon')) {
      const picked = this.state.owner;
      const mine = picked && path.flow[picked.side] === picked.index;
      path.classList.toggle('on', Boolean(mine));
      path.classList.toggle('off', Boolean(picked) && !mine);
    }
  }

  matrix() {
    const box = byId('flowbox');
    const [rows, columns] = this.doc.sides.map((side) => side.owners.length);
    const head = 16;
    const cell = clamp(Math.floor((box.clientWidth - head) / columns), 3, 30);
    const holder = el('div');
    holder.style.width = `${columns * cell + head}px`;
    const canvas = el('canvas');
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', 'rows: source files, columns: target files; stronger colours mean more bytes');
    holder.append(canvas);
    box.replaceChildren(holder);
    const { context } = sizedContext(canvas, rows * cell + head);
    this.paintMatrix(context, { rows, columns, cell, head });
    const byPlace = new Map(this.flows.map((flow) => [this.placeOf(flow, 0) * columns + this.placeOf(flow, 1), flow]));
    canvas.addEventListener('pointermove', (event) => {
      const at = canvas.getBoundingClientRect();
      const [column, row] = [event.clientX - at.left, event.clientY - at.top].map((value) => Math.floor((value - head) / cell));
      const flow = row >= 0 && column >= 0 && column < columns ? byPlace.get(row * columns + column) : undefined;
      if (flow) showTip(event.clientX, event.clientY, this.tip(flow));
      else hideTip();
    });
    canvas.addEventListener('pointerleave', hideTip);
  }

  paintMatrix(context, { rows, columns, cell, head }) {
    const most = Math.max(...this.flows.map((flow) => flow[2]), 1);
    const seam = cell > 6 ? 1 : 0;
    context.fillStyle = cssValue('--soft');
    context.fillRect(head, head, columns * cell, rows * cell);
    const accent = cssValue('--accent');
    for (const flow of this.flows) {
      context.globalAlpha = 0.15 + 0.85 * Math.sqrt(flow[2] / most);
      context.fillStyle = accent;
      context.fillRect(head + this.placeOf(flow, 1) * cell, head + this.placeOf(flow, 0) * cell, cell - seam, cell - seam);
    }
    context.globalAlpha = 1;
    const [rowColours, columnColours] = this.doc.sides.map((side, s) => side.inOrder.map((owner) => this.state.colours[s][owner]));
    rowColours.forEach((colour, i) => this.square(context, colour, 0, head + i * cell, head - 4, cell - seam));
    columnColours.forEach((colour, i) => this.square(context, colour, head + i * cell, 0, cell - seam, head - 4));
  }

  placeOf(flow, s) {
    return this.doc.sides[s].place[flow[s]];
  }

  square(context, colour, x, y, w, h) {
    context.fillStyle = colour;
    context.fillRect(x, y, w, h);
  }
}
