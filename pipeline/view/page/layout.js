/* The layout page: one state, parts that draw it. */
class LayoutState {
  constructor(doc) {
    this.doc = doc;
    doc.sides.forEach(orderOwners);
    this.owner = null;
    this.tensor = -1;
    this.changed = () => {};
    this.colourBy('file');
  }

  colourBy(mode) {
    this.colours = this.doc.sides.map((side) => ownerColours(side, mode));
  }

  isPicked(side, index) {
    return this.owner !== null && this.owner.side === side && this.owner.index === index;
  }

  pickedOn(side) {
    return this.owner !== null && this.owner.side === side ? this.owner.index : -1;
  }

  /* Picks an owner, or none when it is picked already. */
  pickOwner(owner) {
    this.owner = owner && this.isPicked(owner.side, owner.index) ? null : owner;
    this.changed('owner');
  }
}

function showHead(doc) {
  document.title = `${doc.title} · layout`;
  byId('title').textContent = doc.title;
  byId('made-by').textContent = `Made by ${doc.made_by}.`;
  const bytes = doc.tensors.reduce((sum, tensor) => sum + tensorBytes(tensor), 0);
  const chips = [['tensors', integerText(doc.tensors.length)], ['bytes', bytesText(bytes)]];
  if (doc.map || doc.stored_names) chips.push(doc.map ? ['map', doc.map] : ['names', 'as stored']);
  for (const side of doc.sides) chips.push([side.role, `${side.format}, ${side.layout}`]);
  byId('chips').replaceChildren(...chips.map(([name, text]) => el('li', '', `${name} `, el('b', '', text))));
  const notes = byId('notes');
  notes.hidden = doc.warnings.length === 0;
  notes.firstElementChild.textContent = plural(doc.warnings.length, 'note');
  notes.lastElementChild.replaceChildren(...doc.warnings.map((text) => el('li', '', text)));
}

const secondsText = (seconds) => {
  if (seconds < 99.5) return `${fixed(seconds, seconds < 9.95 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

/* The expected time, by what an earlier run has measured: never by anything else. */
function timeFigure(expected) {
  const rates = [`copies ${bytesText(expected.copy_bytes_per_second)}/s`];
  if (expected.verify_seconds !== undefined) rates.push(`reads back ${bytesText(expected.verify_bytes_per_second)}/s`);
  const of = `as ${expected.measured} measured with ${plural(expected.measured_ranks, 'rank')} and ${bytesText(expected.measured_bytes)}`;
  return ['time at measured rates', secondsText(expected.copy_seconds + (expected.verify_seconds || 0)), `${rates.join(', ')}: ${of}`];
}

function linksText(job) {
  if (!job.exchanging) return 'each rank reads and writes by itself';
  if (job.hosts === null) return 'on which links is known only where the ranks are: mpirun … reshard view';
  return `${bytesText(job.sent_bytes - job.sent_between_hosts)} inside hosts, ${bytesText(job.sent_between_hosts)} between hosts`;
}

/* What people look for first in a plan. */
function showJob(job) {
  byId('job').hidden = job === undefined;
  if (!job) return;
  const { per_rank: ranks } = job;
  const figures = [
    ['reads', bytesText(job.read_bytes), `${bytesText(ranks.read_bytes.max)} by the rank that reads most`],
    ['writes', bytesText(job.written_bytes), `${plural(job.ranks, 'rank')}${job.hosts === null ? '' : ` on ${plural(job.hosts, 'host')}`}`],
  ];
  figures.push(['between ranks', job.exchanging ? bytesText(job.sent_bytes) : 'none', linksText(job)]);
  const { mean, min, max } = ranks.written_bytes;
  figures.push([`busiest: rank ${job.busiest_rank}`, `${bytesText(max)} written`, `${bytesText(mean)} is the mean, ${bytesText(min)} the least`]);
  figures.push(['memory of a rank', bytesText(ranks.staging_bytes.max + job.planned_memory_bytes),
    `at most: ${bytesText(ranks.staging_bytes.max)} staging, ${bytesText(job.planned_memory_bytes)} program and plan`]);
  if (job.expected) figures.push(timeFigure(job.expected));
  fillFigures(figures);
}

const option = (value, text) => Object.assign(el('option', '', text), { value });

function fillLayers(doc) {
  const layers = [...new Set(doc.tensors.map((tensor) => tensor.layer ?? 'none'))].sort((a, b) => (a === 'none' ? -1 : b === 'none' ? 1 : a - b));
  const layerOptions = layers.map((layer) => option(String(layer), layer === 'none' ? 'no layer' : `layer ${layer}`));
  byId('layer').replaceChildren(option('', 'all layers'), ...layerOptions);
}

function fillColours(doc) {
  const axes = new Set(doc.sides.flatMap((side) => side.mesh.filter((axis) => axis.size > 1).map((axis) => axis.name)));
  byId('colour').replaceChildren(option('file', 'rank or file'), ...[...axes].map((axis) => option(axis, `${axis} rank`)));
  byId('colour-label').hidden = axes.size === 0;
}

class LayoutPage {
  constructor(doc) {
    this.doc = doc;
    this.state = new LayoutState(doc);
    this.state.changed = () => this.ownerChanged();
    showHead(doc);
    showJob(doc.job);
    fillLayers(doc);
    fillColours(doc);
    byId('work').classList.toggle('two', doc.sides.length === 2);
    this.owners = new Owners(doc, this.state);
    this.list = new TensorList(doc, (number) => this.choose(number));
    this.pictures = doc.sides.map((_, s) => new BoxPicture(doc, this.state, s, byId('pictures')));
    this.flows = new Flows(doc, this.state);
    this.wire();
    this.owners.draw();
    this.search();
    this.choose(this.firstTensor());
    this.list.mark(this.state.tensor);
    this.flows.draw();
  }

  wire() {
    byId('search').addEventListener('input', () => this.search());
    byId('layer').addEventListener('change', () => this.search());
    byId('order').addEventListener('change', () => this.search());
    byId('only-clear').addEventListener('click', () => this.state.pickOwner(null));
    byId('colour').addEventListener('change', () => {
      this.state.colourBy(byId('colour').value);
      this.redraw();
    });
    document.addEventListener('keydown', (event) => this.onKey(event));
    addEventListener('hashchange', () => this.choose(this.firstTensor()));
    onLookChange(() => this.redraw());
  }

  onKey(event) {
    const typing = event.target.matches('input, select');
    if (event.key === '/' && !typing) {
      event.preventDefault();
      byId('search').focus();
    } else if (event.key === 'Escape') {
      byId('search').value = '';
      this.state.pickOwner(null);
      hideTip();
    } else if ((event.key === 'ArrowDown' || event.key === 'ArrowUp') && (event.target === document.body || event.target === byId('search'))) {
      byId('rows').focus();
      this.list.onKey(event);
    }
  }

  search() {
    const found = foundTensors(this.doc, { query: byId('search').value, layer: byId('layer').value, owner: this.state.owner });
    this.list.show(found, byId('order').value);
  }

  /* The tensor that the address names (#name), else a large one in many boxes. */
  firstTensor() {
    const wanted = decodeURIComponent(location.hash.slice(1));
    const named = this.doc.tensors.findIndex((tensor) => tensor.name === wanted);
    if (named >= 0) return named;
    let [best, most] = [0, -1];
    const distinct = (boxes) => boxes.filter((box) => !(box[2] & boxIs.replica)).length;
    const weight = (tensor) => tensorBytes(tensor) * tensor.boxes.reduce((sum, boxes) => sum + distinct(boxes), 0);
    this.doc.tensors.forEach((tensor, i) => {
      if (weight(tensor) > most) [best, most] = [i, weight(tensor)];
    });
    return best;
  }

  choose(number) {
    const tensor = this.doc.tensors[number];
    if (!tensor) return;
    this.state.tensor = number;
    const picture = pictureOf(tensor);
    showFacts(tensor, picture);
    for (const one of this.pictures) one.show(tensor, picture);
    showTable(this.doc, this.state, tensor);
    this.flows.show(tensor);
    if (this.list.chosen !== number) this.list.mark(number);
  }

  ownerChanged() {
    const { owner } = this.state;
    byId('only').hidden = owner === null;
    if (owner) byId('only-name').textContent = `${this.doc.sides[owner.side].role} ${this.doc.sides[owner.side].owners[owner.index].label}`;
    this.search();
    this.owners.draw();
    for (const picture of this.pictures) picture.paint();
    this.flows.mark();
  }

  redraw() {
    this.owners.draw();
    this.list.draw();
    for (const picture of this.pictures) picture.draw();
    this.flows.draw();
  }
}

readData().then((doc) => {
  const page = new LayoutPage(doc);
  document.documentElement.dataset.ready = String(page.doc.tensors.length);
}).catch(showFailure);
