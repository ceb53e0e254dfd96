/* The list of tensors: only the rows in sight are elements. */
class TensorList {
  constructor(doc, onChoose) {
    this.doc = doc;
    this.onChoose = onChoose;
    this.numbers = [];
    this.chosen = -1;
    this.box = byId('rows');
    this.space = el('div', 'space');
    this.box.append(this.space);
    this.box.addEventListener('scroll', () => this.draw());
    this.box.addEventListener('keydown', (event) => this.onKey(event));
    this.box.addEventListener('click', (event) => {
      const row = event.target.closest('.row');
      if (row) this.choose(Number(row.dataset.place));
    });
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  show(numbers, order) {
    const { tensors } = this.doc;
    this.numbers = numbers;
    if (order === 'name') this.numbers.sort((a, b) => tensors[a].name.localeCompare(tensors[b].name, 'en', { numeric: true }));
    if (order === 'size') this.numbers.sort((a, b) => tensorBytes(tensors[b]) - tensorBytes(tensors[a]));
    const all = numbers.length === tensors.length ? '' : ` of ${integerText(tensors.length)}`;
    byId('found').textContent = integerText(numbers.length) + all;
    this.box.scrollTop = 0;
    this.draw();
  }

  rowHeight() {
    return 2 * rootSize();
  }

  draw() {
    const height = this.rowHeight();
    this.space.style.height = `${this.numbers.length * height}px`;
    const first = Math.max(0, Math.floor(this.box.scrollTop / height) - 4);
    const last = Math.min(this.numbers.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / height) + 4);
    const rows = [];
    for (let place = first; place < last; ++place) rows.push(this.row(place, height));
    this.space.replaceChildren(...rows);
  }

  row(place, height) {
    const number = this.numbers[place];
    const tensor = this.doc.tensors[number];
    const name = el('span', 'mono clip', tensor.name);
    name.title = tensor.name;
    const row = el('div', 'row', el('span', 'layer', tensor.layer ?? '–'), name, el('span', 'muted', bytesText(tensorBytes(tensor))));
    row.style.top = `${place * height}px`;
    row.dataset.place = place;
    row.id = `row-${place}`;
    row.setAttribute('role', 'option');
    row.setAttribute('aria-selected', String(number === this.chosen));
    return row;
  }

  choose(place) {
    if (place < 0 || place >= this.numbers.length) return;
    this.mark(this.numbers[place]);
    this.onChoose(this.chosen);
  }

  /* Marks a tensor as chosen and brings it into sight. */
  mark(number) {
    this.chosen = number;
    const place = this.numbers.indexOf(number);
    const height = this.rowHeight();
    if (place >= 0) {
      const low = (place + 1) * height - this.box.clientHeight;
      this.box.scrollTop = clamp(this.box.scrollTop, low, place * height);
      this.box.setAttribute('aria-activedescendant', `row-${place}`);
    }
    this.draw();
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.rowHeight()) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const now = this.numbers.indexOf(this.chosen);
    this.choose(clamp(now + steps[event.key], 0, this.numbers.length - 1));
  }
}
