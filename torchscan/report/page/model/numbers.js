// Values of training as people read them: three significant digits, a true minus sign.

/** @param {number | null | undefined} value */
export function digits(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "−Inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-3 && size < 1e4 ? value.toPrecision(3) : value.toExponential(2);
  return toSigns(size >= 1e3 && size < 1e4 ? value.toFixed(0) : text);
}

/** A power of ten, or another round number, beside an axis. @param {number} value */
export function tick(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-2 && size < 1e4) return toSigns(Number(value.toPrecision(3)).toLocaleString("en"));
  return toSigns(value.toExponential().replace(/(\.\d{2})\d*e/, "$1e"));
}

/** The place of the last of sorted values up to a limit; -1: none. @param {number[]} values @param {number} limit */
export function lastUpTo(values, limit) {
  let low = -1;
  let high = values.length - 1;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (values[middle] <= limit) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** @param {number} value */
export function whole(value) {
  return Math.round(value).toLocaleString("en");
}

/** A share of all: 13.4 %. @param {number | null | undefined} value */
export function percent(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0 || value === 1) return `${100 * value} %`;
  return `${(100 * value).toPrecision(value >= 0.9995 ? 4 : 3)} %`;
}

/** @param {number} number @param {string} noun */
export function counted(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** @param {string} text */
function toSigns(text) {
  return text.replace("e+", "e").replaceAll("-", "−");
}
