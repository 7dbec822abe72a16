// Numbers as text.

/** As many digits as tell the number. @param {number} value */
export function number(value) {
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "∞").replace("-", "−");
  const size = Math.abs(value);
  const text =
    size !== 0 && (size < 1e-3 || size >= 1e5)
      ? value.toExponential(2)
      : value.toFixed(size < 1 ? 4 : size < 100 ? 3 : 1);
  return text.replace("-", "−");
}

/** A number and how far it may be off, where it was rounded for the way. @param {number} value @param {number} half */
export const exact = (value, half) => (half > 0 ? `${number(value)} ± ${half.toPrecision(1)}` : number(value));

/** @param {number} share */
export function percent(share) {
  const hundred = 100 * share;
  return hundred > 0 && hundred < 0.1 ? "<0.1%" : `${hundred.toFixed(hundred < 9.95 ? 1 : 0)}%`;
}
