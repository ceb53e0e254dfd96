/* The page of two checkpoints. */
function showHead(doc) {
  const { difference } = doc;
  document.title = `${doc.title} · difference`;
  byId('title').textContent = doc.title;
  byId('made-by').textContent = `Made by ${doc.made_by}.`;
  const chips = [['a', difference.a], ['b', difference.b], ['tensors by', difference.tensors_by]];
  byId('chips').replaceChildren(...chips.map(([name, text]) => el('li', '', `${name} `, el('b', '', text))));
  const left = difference.not_compared;
  const notes = [...difference.notes];
  for (const side of ['a', 'b']) {
    if (left[side]) notes.push(`not compared in ${side}: ${left[side]}`);
    const states = left[`optimizer_tensors_only_in_${side}`];
    if (states > 0) notes.push(`not compared: ${plural(states, 'tensor')} of optimizer state that only ${side} has`);
  }
  if (difference.configs_not_compared) notes.push(`not compared: the configs: ${difference.configs_not_compared}`);
  const box = byId('notes');
  box.hidden = notes.length === 0;
  box.firstElementChild.textContent = plural(notes.length, 'note');
  box.lastElementChild.replaceChildren(...notes.map((text) => el('li', '', text)));
}

function showFigures(difference) {
  const { tensors } = difference;
  const sum = (of) => tensors.reduce((total, tensor) => total + of(tensor), 0);
  const most = (measure) => tensors.reduce((value, tensor) => Math.max(value, largest(tensor, measure)), 0);
  const headers = (kind) => difference.header_differences.filter((one) => one.kind === kind).reduce((total, one) => total + one.parts, 0);
  const figures = [['compared', bytesText(difference.bytes), plural(difference.tensors_compared, 'tensor')]];
  if (difference.tensors_differing > 0) {
    figures.push(['differ', plural(difference.tensors_differing, 'tensor'), shareText(sum(differingOf), sum((tensor) => tensor.elements))]);
    figures.push(['max |a-b|', valueText(most('abs')), '']);
    figures.push(['max rel', valueText(most('rel')), '|a-b| / max(|a|, |b|)']);
  }
  const strange = sum((tensor) => tensor.non_finite_differing || 0);
  if (strange > 0) figures.push(['NaN or infinity', integerText(strange), 'elements where only one side has it']);
  for (const kind of new Set(difference.header_differences.map((one) => one.kind))) figures.push([kindText(kind), plural(headers(kind), 'tensor'), '']);
  if (difference.config_differences.length > 0) figures.push(['other config', plural(difference.config_differences.length, 'key'), '']);
  byId('summary').textContent = difference.same ? `All ${plural(difference.tensors_compared, 'tensor')} are equal` : difference.summary;
  fillFigures(figures);
}

class DifferencePage {
  constructor(doc) {
    this.difference = doc.difference;
    showHead(doc);
    showFigures(this.difference);
    showHeaders(this.difference);
    showSizes(this.difference.histogram);
    this.grid = new Grid(this.difference, (place) => this.showPlace(place));
    byId('only-differing').checked = this.grid.rows.length > 60 && this.grid.rows.some((row) => row.differs);
    byId('grid').hidden = this.grid.rows.length === 0;
    const showRows = () => this.grid.show(byId('search').value, byId('only-differing').checked);
    byId('search').addEventListener('input', showRows);
    byId('only-differing').addEventListener('change', showRows);
    byId('measure').addEventListener('change', () => {
      this.grid.measure = byId('measure').value;
      this.grid.draw();
    });
    byId('show-all').addEventListener('click', () => this.grid.pick(null));
    document.addEventListener('keydown', (event) => this.onKey(event));
    onLookChange(() => this.grid.draw());
    showRows();
    this.showPlace(null);
  }

  onKey(event) {
    if (event.key === '/' && !event.target.matches('input, select')) {
      event.preventDefault();
      byId('search').focus();
    } else if (event.key === 'Escape') {
      byId('search').value = '';
      hideTip();
      this.grid.chosen = null;
      this.grid.show('', byId('only-differing').checked);
      this.showPlace(null);
    }
  }

  /* The tensors of a cell, or without one all that differ. */
  showPlace(place) {
    byId('show-all').hidden = place === null;
    if (place === null) {
      const differing = this.difference.tensors.filter((tensor) => differingOf(tensor) > 0).sort(worstFirst);
      byId('tensors').hidden = differing.length === 0;
      showTensors(plural(differing.length, 'tensor differs', 'tensors differ'), differing, 'The largest relative difference first.');
      return;
    }
    byId('tensors').hidden = false;
    const cell = place.row.cells.get(place.layer);
    showTensors(placeText(place), [...cell.tensors].sort(worstFirst), cell.headers.map(headerText).join('; '));
  }
}

readData().then((doc) => {
  const page = new DifferencePage(doc);
  document.documentElement.dataset.ready = String(page.difference.tensors.length);
}).catch(showFailure);
