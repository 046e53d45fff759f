// Numbers as people read them: three significant digits, a prefix, a thin space.

const DECIMAL = ["", "k", "M", "G", "T", "P", "E"];
const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** Of any number of values: as arguments of Math.max, some hundred thousand are too many. @param {Iterable<number>} values */
export function most(values, found = -Infinity) {
  for (const each of values) if (each > found) found = each;
  return found;
}

/** @param {Iterable<number>} values */
export function least(values) {
  let found = Infinity;
  for (const each of values) if (each < found) found = each;
  return found;
}

/** @param {number} value @param {number} base @param {string[]} names */
function scaled(value, base, names) {
  let power = 0;
  while (Math.abs(value) >= 0.9995 * base && power < names.length - 1) { value /= base; power += 1; }
  const digits = power === 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${value.toFixed(digits)} ${names[power]}`.trim();
}

/** @param {number} value */
export function count(value) { return value ? scaled(value, 1000, DECIMAL) : "–"; }

/** @param {number} value */
export function bytes(value) { return value ? scaled(value, 1024, BINARY) : "–"; }

/** @param {number} seconds */
export function duration(seconds) {
  if (!seconds) return "–";
  const [size, unit] = seconds >= 0.9995 ? [1, "s"] : seconds >= 0.9995e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  const value = seconds / size;
  return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${unit}`;
}

/** @param {number} value */
export function share(value) {
  return !value ? "–" : value < 0.005 ? "<1 %" : `${Math.round(100 * value)} %`;
}

/** FLOPs per byte. @param {number} value */
export function ratio(value) { return Number.isFinite(value) ? value.toPrecision(3) : "–"; }
