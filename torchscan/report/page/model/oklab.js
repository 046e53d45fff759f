// Tones of heat maps: five colors of the page, mixed in OKLab.

const STOPS = ["--h0", "--h1", "--h2", "--h3", "--h4"];
const NUM_TONES = 256;

/** The tones of the present theme, from low to high. @param {Element} element @returns {[number, number, number][]} */
export function tonesOf(element) {
  const style = getComputedStyle(element);
  const stops = STOPS.map((name) => toLab(style.getPropertyValue(name).trim()));
  return Array.from({ length: NUM_TONES }, (_, at) => {
    const place = (at / (NUM_TONES - 1)) * (stops.length - 1);
    const stop = Math.min(stops.length - 2, Math.floor(place));
    const part = place - stop;
    return toRgb(stops[stop].map((value, axis) => value * (1 - part) + stops[stop + 1][axis] * part));
  });
}

/** A color of the page by its name, as a canvas takes it. @param {Element} element @param {string} name */
export function colorOf(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim();
}

/** @param {string} color "#rrggbb" */
function toLab(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => toLinear(parseInt(color.slice(at, at + 2), 16) / 255));
  const long = Math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue);
  const middle = Math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue);
  const short = Math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue);
  return [
    0.2104542553 * long + 0.793617785 * middle - 0.0040720468 * short,
    1.9779984951 * long - 2.428592205 * middle + 0.4505937099 * short,
    0.0259040371 * long + 0.7827717662 * middle - 0.808675766 * short,
  ];
}

/** @param {number[]} lab @returns {[number, number, number]} */
function toRgb([light, a, b]) {
  const long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    toByte(4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short),
    toByte(-1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short),
    toByte(-0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short),
  ];
}

/** @param {number} value */
function toLinear(value) {
  return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
}

/** @param {number} value */
function toByte(value) {
  const curved = value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, curved)));
}
