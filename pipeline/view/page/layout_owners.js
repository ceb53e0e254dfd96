/* The files of a side, by pipeline stage where there are stages. */
const mostTallCells = 16;
const mostLargeCells = 64;
const mostCells = 4096;

/* "layer 0", "layers 0 to 3"; '' where a file has none. */
function layersText(layers) {
  return layers && `${/^\d+$/.test(layers) ? 'layer' : 'layers'} ${layers}`;
}

function ownerTip(owner) {
  return tipPart(owner.label, owner.file, `${bytesText(owner.bytes)} in ${plural(owner.tensors, 'tensor')}`, layersText(owner.layers),
    owner.experts && `experts ${owner.experts}`);
}

class Owners {
  constructor(doc, state) {
    this.doc = doc;
    this.state = state;
    this.cells = doc.sides.map(() => []);
    byId('sides').replaceChildren(...doc.sides.map((side, s) => this.panel(side, s)));
  }

  panel(side, s) {
    const total = side.owners.reduce((sum, owner) => sum + owner.bytes, 0);
    const head = el('div', 'head', el('h2', '', `${roleText(side)} · ${side.format}`), el('span', 'muted', side.layout),
      el('span', 'muted', `${bytesText(total)} of tensors`));
    const path = el('p', 'muted mono clip', side.path);
    path.title = side.path;
    const panel = el('section', 'panel', head, path, this.stages(side, s));
    panel.setAttribute('aria-label', `${side.role}: files and what they hold`);
    panel.addEventListener('pointermove', (event) => this.onPoint(event, s));
    panel.addEventListener('pointerleave', hideTip);
    panel.addEventListener('click', (event) => {
      const cell = event.target.closest('.owner');
      if (cell) this.state.pickOwner({ side: s, index: Number(cell.dataset.index) });
    });
    return panel;
  }

  stages(side, s) {
    const tiny = side.owners.length > mostLargeCells;
    const size = tiny ? 'cells tiny' : side.owners.length > mostTallCells ? 'cells compact' : 'cells';
    const groups = new Map();
    side.owners.slice(0, mostCells).forEach((owner, i) => {
      const stage = owner.at.length ? owner.at[1] : -1;
      if (!groups.has(stage)) groups.set(stage, []);
      groups.get(stage).push(i);
    });
    const box = el('div', 'stages');
    const several = groups.size > 1;
    for (const stage of [...groups.keys()].sort((a, b) => a - b)) {
      const indices = groups.get(stage);
      indices.sort((a, b) => side.place[a] - side.place[b]);
      const name = (owner) => (several ? owner.label.replace(/ pp\d+/, '') : owner.label);
      const cells = el('div', size, ...indices.map((i) => this.cell({ owner: side.owners[i], s, i, name: tiny ? '' : name(side.owners[i]) })));
      if (!tiny) cells.style.setProperty('--n', columnsFor(side));
      const title = el('div', '', el('h3', '', `pp ${stage}`), el('p', '', stageLayers(indices.map((i) => side.owners[i]))));
      box.append(several ? el('div', 'stage', title, cells) : el('div', 'stage flat', cells));
    }
    if (side.owners.length > mostCells) box.append(el('p', 'muted', `and ${integerText(side.owners.length - mostCells)} more files`));
    return box;
  }

  cell({ owner, s, i, name }) {
    const cell = el('button', 'owner');
    if (name) cell.append(el('b', 'clip', name), el('span', '', bytesText(owner.bytes)));
    cell.setAttribute('aria-label', `${owner.label}, ${bytesText(owner.bytes)}`);
    cell.setAttribute('aria-pressed', 'false');
    cell.dataset.index = i;
    cell.addEventListener('focus', () => this.tipAt(cell, owner));
    cell.addEventListener('blur', hideTip);
    this.cells[s][i] = cell;
    return cell;
  }

  tipAt(cell, owner) {
    if (!cell.matches(':focus-visible')) return;
    const { left, bottom } = cell.getBoundingClientRect();
    showTip(left, bottom - 8, ownerTip(owner));
  }

  onPoint(event, s) {
    const cell = event.target.closest('.owner');
    if (!cell) return hideTip();
    showTip(event.clientX, event.clientY, ownerTip(this.doc.sides[s].owners[Number(cell.dataset.index)]));
  }

  draw() {
    this.cells.forEach((cells, s) => cells.forEach((cell, i) => {
      const on = this.state.isPicked(s, i);
      cell.style.setProperty('--c', this.state.colours[s][i]);
      cell.classList.toggle('on', on);
      cell.setAttribute('aria-pressed', String(on));
    }));
  }
}

function stageLayers(owners) {
  const texts = [...new Set(owners.map((owner) => owner.layers).filter(Boolean))];
  return texts.length === 1 ? layersText(texts[0]) : '';
}

/* So that ranks of a tensor-parallel group stand side by side, and long names have room. */
function columnsFor(side) {
  if (side.owners.some((owner) => owner.label.length > 14)) return 2;
  const tp = side.mesh.length ? side.mesh[0].size : 1;
  return [4, 3, 2, 1].find((columns) => columns % tp === 0 || tp % columns === 0);
}
