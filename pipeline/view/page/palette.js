/* Eight colours that people with colour-vision deficiencies tell apart (Okabe and Ito's set, grey for black), each in four shades. */
const hues = ['#0072b2', '#e69f00', '#009e73', '#d55e00', '#cc79a7', '#56b4e9', '#e5d52b', '#8f959d'];
const shades = [[0, 0], [255, 0.45], [0, 0.32], [255, 0.72]];

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function shaded(hex, [towards, share]) {
  const mixed = channels(hex).map((value) => Math.round(value + (towards - value) * share));
  return '#' + mixed.map((value) => value.toString(16).padStart(2, '0')).join('');
}

const colours = shades.flatMap((shade) => hues.map((hue) => shaded(hue, shade)));
const colourAt = (hue, shade) => colours[(((shade % shades.length) * hues.length) + (hue % hues.length))];

/* The colour of entry i of a list. */
const nthColour = (i) => colours[i % colours.length];

/* Black or white, whichever is easier to read on the colour. */
function inkOn(hex) {
  const [r, g, b] = channels(hex).map((value) => (value / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? '#10131a' : '#ffffff';
}

/* One colour for each owner of a side: by one mesh axis, or a colour of its own. Ranks of a stage differ in hue, stages in shade. */
function ownerColours(side, mode) {
  const axis = side.mesh.findIndex((one) => one.name === mode);
  return side.owners.map((owner, i) => {
    if (owner.at.length === 0) return nthColour(i);
    if (axis >= 0) return nthColour(owner.at[axis]);
    const inStage = side.placeInStage[i];
    return colourAt(inStage, owner.at[1] + Math.floor(inStage / hues.length));
  });
}
