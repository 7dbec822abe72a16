// Numbers as text.

/** A number with enough digits for its size. @param {number} value */
export function number(value) {
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "∞").replace("-", "−");
  const size = Math.abs(value);
  const text =
    size !== 0 && (size < 1e-3 || size >= 1e5)
      ? value.toExponential(2)
      : value.toFixed(size < 1 ? 4 : size < 100 ? 3 : 1);
  return text.replace("-", "−");
}

/** A number, with its largest rounding error if it was rounded. @param {number} value @param {number} half */
export const exact = (value, half) => (half > 0 ? `${number(value)} ± ${half.toPrecision(1)}` : number(value));

/** @param {number} share */
export function percent(share) {
  const hundred = 100 * share;
  return hundred > 0 && hundred < 0.1 ? "<0.1%" : `${hundred.toFixed(hundred < 9.95 ? 1 : 0)}%`;
}

/** An integer with thousands separators. @param {number} value */
export const counted = (value) => Math.round(value).toLocaleString("en");

/** A duration. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 59.5) return `${Number(seconds.toFixed(seconds < 10 ? 1 : 0))} s`;
  const whole = Math.max(60, Math.floor(seconds));
  const minutes = Math.floor(whole / 60);
  const two = (/** @type {number} */ value, /** @type {string} */ unit) =>
    value === 0 ? "" : ` ${String(value).padStart(2, "0")} ${unit}`;
  if (minutes < 60) return `${minutes} min${two(whole % 60, "s")}`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h${two(minutes % 60, "min")}`;
  return `${Math.floor(hours / 24)} d${two(hours % 24, "h")}`;
}

/** A number with four significant digits. @param {number} value */
export function figure(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (size >= 1000) return counted(value);
  return String(Number(value.toPrecision(4)));
}

/** A number for an axis label. @param {number} value */
export function short(value) {
  const size = Math.abs(Number(value.toPrecision(4))); // rounded first: 999,960 is 1M, not 1000k
  for (const [unit, name] of /** @type {[number, string][]} */ ([[1e9, "G"], [1e6, "M"], [1e3, "k"]]))
    if (size >= unit) return `${Number((value / unit).toPrecision(4))}${name}`;
  if (size !== 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}
