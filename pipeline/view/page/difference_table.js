/* Tensors and what differs in them, as tables for those who cannot see or point. */
const mostTableRows = 500;

function valueText(value) {
  if (value === null || value === undefined) return '–';
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-3 && size < 1e6) ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}

function shareText(count, all) {
  return `${integerText(count)} of ${integerText(all)} (${valueText(Math.min(100, (100 * count) / Math.max(1, all)))} %)`;
}

const kindText = (kind) => (kind === 'missing' || kind === 'extra' ? `${kind} in b` : kind);

function headerText(header) {
  const sides = [['a', header.a], ['b', header.b]].filter(([, text]) => text !== '').map(([side, text]) => `${side}: ${text}`);
  return `${kindText(header.kind)}: ${sides.join(', ')}`;
}

function tableOf(titles, rows) {
  const kind = (title) => (title.startsWith('#') ? 'n' : '');
  const head = el('tr', '', ...titles.map((title) => el('th', kind(title), title.replace('#', ''))));
  const cell = (value, i) => (value instanceof Node ? value : el('td', kind(titles[i]), value));
  const body = rows.map((row) => el('tr', '', ...row.map(cell)));
  return el('table', '', el('thead', '', head), el('tbody', '', ...body));
}

/* Of one layer. */
const shapeText = ({ shape, layer }) => (layer === undefined ? shape : shape.slice(1)).map(integerText).join(' × ') || 'one number';
const monoCell = (text) => el('td', 'mono', text);

function nonFiniteText(tensor) {
  if (!nonFinite(tensor)) return '';
  return `NaN ${integerText(tensor.nan_a)} / ${integerText(tensor.nan_b)}, infinite ${integerText(tensor.infinite_a)} / ${integerText(tensor.infinite_b)}`;
}

function mostText(tensor, measure) {
  const value = valueText(tensor[`max_${measure}`]);
  return tensor.differing_in_replicas > 0 ? `${value}; in replicas ${valueText(tensor[`max_${measure}_in_replicas`])}` : value;
}

function tensorRow(tensor) {
  const dtype = tensor.dtype_a === tensor.dtype_b ? tensor.dtype_a : `${tensor.dtype_a} / ${tensor.dtype_b}`;
  const { first } = tensor;
  const stored = (side) => (first ? `${first[side].name} in ${first[side].file}` : '');
  const differing = differingOf(tensor) === 0 ? 'none' : shareText(differingOf(tensor), tensor.elements);
  return [monoCell(tensor.name), dtype, shapeText(tensor), differing, mostText(tensor, 'abs'), mostText(tensor, 'rel'),
    valueText(tensor.mean_abs), nonFiniteText(tensor), first ? first.place : '', first ? first.a_value : '', first ? first.b_value : '',
    monoCell(stored('a')), monoCell(stored('b'))];
}

const tensorTitles = ['tensor', 'dtype', '#shape', '#differing elements', '#max |a-b|', '#max rel', '#mean |a-b|', '', 'first at', '#in a', '#in b',
  'stored in a', 'stored in b'];

/* As `reshard diff` sorts its rows. */
function worstFirst(a, b) {
  return Number(nonFinite(b)) - Number(nonFinite(a)) || largest(b, 'rel') - largest(a, 'rel');
}

function showTensors(title, tensors, note) {
  byId('tensors-title').textContent = title;
  const more = tensors.length > mostTableRows ? `The first ${mostTableRows} of ${integerText(tensors.length)}.` : '';
  byId('tensors-facts').textContent = [note, more].filter(Boolean).join(' ');
  byId('tensors-facts').hidden = byId('tensors-facts').textContent === '';
  const holder = byId('tensors').lastElementChild;
  holder.hidden = tensors.length === 0;
  holder.replaceChildren(tableOf(tensorTitles, tensors.slice(0, mostTableRows).map(tensorRow)));
}

function showHeaders(difference) {
  const rows = difference.config_differences.map((one) => ['other config', monoCell(one.key), one.a || 'missing', one.b || 'missing']);
  for (const one of difference.header_differences)
    rows.push([kindText(one.kind), monoCell(one.parts > 1 ? `${one.tensor}, in ${plural(one.parts, 'layer')}` : one.tensor), one.a, one.b]);
  byId('headers').hidden = rows.length === 0;
  const more = rows.length > mostTableRows ? ` (the first ${mostTableRows} of ${integerText(rows.length)})` : '';
  byId('headers-title').textContent = `Not the same before any value is read${more}`;
  byId('headers').lastElementChild.replaceChildren(tableOf(['', 'what', 'a', 'b'], rows.slice(0, mostTableRows)));
}

/* {"0": 12, "1e-5": 3} as bars, smallest differences first. */
function showSizes(histogram) {
  const classes = Object.entries(histogram).sort((a, b) => Number(a[0]) - Number(b[0]));
  const all = classes.reduce((sum, [, count]) => sum + count, 0);
  byId('sizes').hidden = classes.every(([name]) => name === '0');
  const rows = classes.map(([name, count]) => {
    const bar = el('span', 'bar-fill');
    bar.style.width = `${Math.max(0.3, (100 * count) / all)}%`;
    return [el('span', 'n', name === '0' ? 'equal' : `|a-b| from ${name}`), el('span', 'bar-room', bar), el('span', '', shareText(count, all))];
  });
  byId('sizes').lastElementChild.replaceChildren(...rows.flat());
}
