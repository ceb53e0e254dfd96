/* One tensor on one side, as rectangles coloured by owner. */
const mostFacets = 1024;

/* Which dimensions are the width, the height and the facets of a picture; `whole` ones are cut nowhere and not drawn. */
function pictureOf(tensor) {
  const dims = tensor.shape.map((_, d) => d).filter((d) => tensor.shape[d] > 1);
  const [first] = dims;
  const hasFacets = dims.length >= 3 && tensor.shape[first] <= mostFacets && (tensor.axes[first] === 'expert' || isCut(tensor, first));
  const facetDim = hasFacets ? first : -1;
  const rest = dims.filter((d) => d !== facetDim);
  const cuts = rest.filter((d) => isCut(tensor, d));
  const [y, x] = planeOf(tensor, rest, cuts);
  const extra = cuts.filter((d) => d !== x && d !== y);
  const facets = facetsOf(tensor, facetDim, extra);
  return { x, y, facets, facetDim, extra, whole: rest.filter((d) => d !== x && d !== y && !extra.includes(d)) };
}

function planeOf(tensor, rest, cuts) {
  if (cuts.length >= 2) return cuts.slice(-2);
  const others = rest.filter((d) => !cuts.includes(d));
  if (cuts.length === 0) return others.length >= 2 ? others.slice(-2) : [-1, others[0] ?? -1];
  const last = others[others.length - 1] ?? -1;
  return last >= 0 && last < cuts[0] ? [last, cuts[0]] : last < 0 ? [-1, cuts[0]] : [cuts[0], last];
}

/* The index of a facet dimension, or the parts between the cuts of further ones: [{label, clip: [[dim, begin, end], …]}]. */
function facetsOf(tensor, facetDim, extra) {
  let facets = [{ label: '', clip: [] }];
  if (facetDim >= 0) facets = Array.from({ length: tensor.shape[facetDim] }, (_, i) => ({ label: String(i), clip: [[facetDim, i, i + 1]] }));
  for (const d of extra) {
    const points = cutPoints(tensor, d);
    const parts = points.slice(1).map((end, i) => [d, points[i], end]);
    if (facets.length * parts.length > mostFacets) continue;
    const label = (facet, [, begin, end]) => [facet.label, `${axisText(tensor.axes[d])} ${begin}–${end - 1}`].filter(Boolean).join(' · ');
    facets = facets.flatMap((facet) => parts.map((part) => ({ label: label(facet, part), clip: [...facet.clip, part] })));
  }
  return facets;
}

function cutPoints(tensor, d) {
  const points = new Set([0, tensor.shape[d]]);
  for (const boxes of tensor.boxes) for (const box of boxes) points.add(box[firstRange + 2 * d]).add(box[firstRange + 2 * d + 1]);
  return [...points].sort((a, b) => a - b);
}

/* How many columns of facets, and how large one is, for a picture of this width. */
function gridOf(picture, tensor, width, mostHeight) {
  const ratio = picture.y < 0 ? 8 : clamp(tensor.shape[picture.x] / tensor.shape[picture.y], 0.75, 2.6);
  const count = picture.facets.length;
  const gap = count > 200 ? 2 : count > 1 ? 5 : 0;
  let best = null;
  for (let columns = 1; columns <= count; ++columns) {
    const rows = Math.ceil(count / columns);
    const w = Math.min((width - gap * (columns - 1)) / columns, ((mostHeight - gap * (rows - 1)) / rows) * ratio);
    if (w > 1 && (!best || w > best.w + 0.01)) best = { columns, rows, w, gap };
  }
  best = best || { columns: count, rows: 1, w: width / count, gap: 0 };
  const stretched = (width - best.gap * (best.columns - 1)) / best.columns;
  const h = Math.max(count === 1 ? 56 : 4, best.w / ratio);
  return { ...best, w: stretched, h, height: best.rows * h + best.gap * (best.rows - 1) };
}

class BoxPicture {
  constructor(doc, state, s, parent) {
    Object.assign(this, { doc, state, s, items: [], at: -1 });
    this.canvas = el('canvas');
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'img');
    this.title = el('h3');
    parent.append(el('div', 'picture', this.title, el('div', '', this.canvas)));
    this.canvas.addEventListener('pointermove', (event) => this.point(this.itemAt(event), event.clientX, event.clientY));
    this.canvas.addEventListener('pointerdown', (event) => this.point(this.itemAt(event), event.clientX, event.clientY));
    this.canvas.addEventListener('pointerleave', () => this.point(-1));
    this.canvas.addEventListener('blur', () => this.point(-1));
    this.canvas.addEventListener('click', (event) => this.pick(this.itemAt(event)));
    this.canvas.addEventListener('keydown', (event) => this.onKey(event));
  }

  show(tensor, picture) {
    this.tensor = tensor;
    this.picture = picture;
    this.at = -1;
    this.draw();
  }

  /* Places the rectangles anew, then draws them. */
  draw() {
    if (!this.tensor) return;
    const { tensor, picture } = this;
    const width = Math.max(1, Math.floor(this.canvas.parentElement.clientWidth));
    this.grid = gridOf(picture, tensor, width, clamp(innerHeight * 0.5, 220, 1100));
    this.items = this.placed(this.grid);
    this.common = commonParts(tensor.boxes[this.s].map((box) => this.doc.sides[this.s].owners[box[0]].label));
    this.paint();
    const boxes = tensor.boxes[this.s];
    const owners = new Set(boxes.map((box) => box[0])).size;
    const side = this.doc.sides[this.s];
    this.title.textContent = `${roleText(side)}: ${plural(boxes.length, 'box', 'boxes')} in ${plural(owners, 'file')}`;
    this.canvas.setAttribute('aria-label', `${side.role}: ${plural(boxes.length, 'box', 'boxes')} of ${tensor.name}; the table below lists them`);
  }

  /* Rectangles with the boxes that fill them: replicas share one. */
  placed(grid) {
    const groups = new Map();
    const byFacet = this.boxesByFacet();
    this.picture.facets.forEach((facet, f) => {
      const origin = { x: (f % grid.columns) * (grid.w + grid.gap), y: Math.floor(f / grid.columns) * (grid.h + grid.gap) };
      for (const box of byFacet(f)) {
        if (!facet.clip.every(([d, begin, end]) => box[firstRange + 2 * d] < end && box[firstRange + 2 * d + 1] > begin)) continue;
        const [x0, x1] = this.span(box, this.picture.x, grid.w);
        const [y0, y1] = this.span(box, this.picture.y, grid.h);
        const key = `${f} ${x0} ${x1} ${y0} ${y1}`;
        if (!groups.has(key)) groups.set(key, { x: origin.x + x0, y: origin.y + y0, w: x1 - x0, h: y1 - y0, boxes: [], facet });
        groups.get(key).boxes.push(box);
      }
    });
    return [...groups.values()];
  }

  /* Which boxes may lie in facet f: where facets are indices, each box is filed under its own. */
  boxesByFacet() {
    const boxes = this.tensor.boxes[this.s];
    const d = this.picture.facetDim;
    if (d < 0) return () => boxes;
    const filed = Array.from({ length: this.tensor.shape[d] }, () => []);
    for (const box of boxes) for (let i = box[firstRange + 2 * d]; i < box[firstRange + 2 * d + 1]; ++i) filed[i].push(box);
    return (f) => filed[this.picture.facets[f].clip[0][1]];
  }

  span(box, d, size) {
    if (d < 0) return [0, size];
    const scale = size / this.tensor.shape[d];
    return [box[firstRange + 2 * d] * scale, box[firstRange + 2 * d + 1] * scale];
  }

  paint() {
    const { grid } = this;
    const { context } = sizedContext(this.canvas, Math.ceil(grid.height));
    const line = cssValue('--soft');
    this.picture.facets.forEach((_, f) => {
      context.fillStyle = line;
      context.fillRect((f % grid.columns) * (grid.w + grid.gap), Math.floor(f / grid.columns) * (grid.h + grid.gap), grid.w, grid.h);
    });
    const picked = this.state.pickedOn(this.s);
    this.labelled = new Set();
    this.items.forEach((item, i) => {
      const dim = picked >= 0 && !item.boxes.some((box) => box[0] === picked);
      context.globalAlpha = dim ? 0.22 : 1;
      this.paintItem(context, item);
      context.globalAlpha = 1;
      if (i === this.at) this.outline(context, item);
    });
    if (grid.w >= 24 && grid.h >= 14) this.picture.facets.forEach((facet, f) => this.tag(context, facet, grid, f));
  }

  /* The number of a facet in which no rectangle has room for it. */
  tag(context, facet, grid, f) {
    if (!facet.label || this.labelled.has(facet)) return;
    const [x, y] = [(f % grid.columns) * (grid.w + grid.gap), Math.floor(f / grid.columns) * (grid.h + grid.gap)];
    context.font = canvasFont(0.68, 600);
    const width = context.measureText(facet.label).width + 6;
    if (width > grid.w) return;
    context.fillStyle = cssValue('--panel');
    context.globalAlpha = 0.85;
    context.fillRect(x + 1, y + 1, width, rootSize() * 0.85);
    context.globalAlpha = 1;
    context.fillStyle = cssValue('--ink');
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    context.fillText(facet.label, x + 4, y + 1.5 + rootSize() * 0.425);
  }

  paintItem(context, item) {
    const seam = Math.min(item.w, item.h) > 6 ? 1 : 0;
    const owners = [...new Set(item.boxes.map((box) => box[0]))];
    const colours = owners.map((owner) => this.state.colours[this.s][owner]);
    const band = item.w / owners.length;
    if (owners.length > 1) slantedBands(context, item, seam, colours);
    else fillBox(context, colours[0], item, seam);
    owners.forEach((owner, k) => {
      const label = this.doc.sides[this.s].owners[owner].label;
      const drawn = this.label(context, this.labelForms(label, item), colours[k], { x: item.x + k * band, y: item.y, w: band, h: item.h });
      if (drawn) this.labelled.add(item.facet);
    });
  }

  /* The owner's name, in full or as far as it differs from others of this picture; in front of it the number of the facet. */
  labelForms(label, item) {
    const forms = [label, label.split(' ').filter((part) => !this.common.has(part)).join(' ')].filter(Boolean);
    if (!item.facet.label) return forms;
    return [...forms.map((text) => `${item.facet.label}: ${text}`), item.facet.label];
  }

  /* The longest form that fits; whether one does. */
  label(context, forms, colour, at) {
    context.font = canvasFont(0.75, 600);
    const fits = forms.find((form) => context.measureText(form).width + 8 < at.w);
    if (!fits || at.h < rootSize()) return false;
    context.fillStyle = inkOn(colour);
    context.textBaseline = 'middle';
    context.textAlign = 'center';
    context.fillText(fits, at.x + at.w / 2, at.y + at.h / 2);
    return true;
  }

  outline(context, item) {
    context.lineWidth = 2;
    context.strokeStyle = cssValue('--ink');
    context.strokeRect(item.x + 1, item.y + 1, Math.max(1, item.w - 3), Math.max(1, item.h - 3));
  }

  itemAt(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    return this.items.findIndex((item) => x >= item.x && x < item.x + item.w && y >= item.y && y < item.y + item.h);
  }

  point(i, x, y) {
    if (i >= 0) showTip(x, y, ...this.tip(this.items[i]));
    else hideTip();
    if (i === this.at) return;
    this.at = i;
    if (this.tensor) this.paint();
  }

  tip(item) {
    const most = 4;
    const parts = item.boxes.slice(0, most).map((box) => {
      const owner = this.doc.sides[this.s].owners[box[0]];
      return tipPart(owner.label, rangesText(this.tensor, box), `${this.tensor.dtype} · ${bytesText(boxBytes(this.tensor, box))}`,
        `as ${this.doc.stored[box[1]]}`, owner.file, flagsText(box[2]));
    });
    if (item.boxes.length > most) parts.push(tipPart(`and ${item.boxes.length - most} more files hold the same`));
    return parts;
  }

  pick(i) {
    if (i >= 0) this.state.pickOwner({ side: this.s, index: this.items[i].boxes[0][0] });
  }

  onKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === 'Enter') this.pick(this.at);
    if (!step || this.items.length === 0) return;
    event.preventDefault();
    const next = (Math.max(this.at, step > 0 ? -1 : 0) + step + this.items.length) % this.items.length;
    const { left, top } = this.canvas.getBoundingClientRect();
    const item = this.items[next];
    this.point(next, left + item.x + item.w / 2, top + item.y + item.h / 2);
  }
}

/* The words that all texts have, when there are several texts: "pp0" of ranks of one stage. */
function commonParts(texts) {
  const different = [...new Set(texts)].map((text) => new Set(text.split(' ')));
  if (different.length < 2) return new Set();
  return new Set([...different[0]].filter((part) => different.every((parts) => parts.has(part))));
}

function fillBox(context, colour, { x, y, w, h }, seam) {
  context.fillStyle = colour;
  context.fillRect(x, y, Math.max(w - seam, 0.5), Math.max(h - seam, 0.5));
}

/* A box that several files hold as a whole: slanted bands, which no cut looks like. */
function slantedBands(context, { x, y, w, h }, seam, colours) {
  const band = w / colours.length;
  const slant = Math.min(h, band * 0.7) / 2;
  context.save();
  context.beginPath();
  context.rect(x, y, w - seam, h - seam);
  context.clip();
  colours.forEach((colour, k) => {
    const left = k === 0 ? x - slant : x + k * band;
    const right = k === colours.length - 1 ? x + w + slant : x + (k + 1) * band;
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(left + slant, y);
    context.lineTo(right + slant, y);
    context.lineTo(right - slant, y + h);
    context.lineTo(left - slant, y + h);
    context.fill();
  });
  context.restore();
}
