// Colours for weights and heads.

const POINTS = ["440154", "3b528b", "21918c", "5ec962", "fde725"].map((hex) =>
  [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)),
);
const SCALE = Array.from({ length: 256 }, (_, level) => {
  const at = (level / 255) * (POINTS.length - 1);
  const low = Math.min(Math.floor(at), POINTS.length - 2);
  return POINTS[low].map((value, channel) => Math.round(value + (POINTS[low + 1][channel] - value) * (at - low)));
});
const PIXELS = Uint32Array.from(SCALE, ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r); // as a canvas stores them
const shade = (share) => SCALE[Math.max(0, Math.min(255, Math.round(share * 255)))];

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => (value <= 10 ? value / 3295 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Background by share, ink by whichever of black and white reads better on it (equal at luminance 0.18)
function tint(element, share) {
  const rgb = shade(share);
  element.style.background = `rgb(${rgb})`;
  element.style.color = luminance(rgb) > 0.18 ? "#000" : "#fff";
}

// How strongly a token is attended to
const glow = (token, share) => token.style.setProperty("--glow", `${Math.round(85 * share)}%`);

function legend(low, high) {
  return make("span", { class: "legend" }, make("span", {}, low), make("span", { class: "scale" }), make("span", {}, high));
}

// A head's own colour on the hue circle; the theme sets its lightness
const headColour = (head, heads) => `oklch(var(--head-lightness) 0.15 ${Math.round((360 * head) / heads + 25)})`;
