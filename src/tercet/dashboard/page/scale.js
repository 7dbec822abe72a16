// Conversion between values and pixels, and the tick values of an axis.

/** @typedef {{low: number, high: number, log: boolean, from: number, to: number}} Scale pixels from, to */

/** @param {Scale} scale @param {number} value @returns {number} a pixel */
export function pixel({ low, high, log, from, to }, value) {
  const share = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return from + share * (to - from);
}

/** @param {Scale} scale @param {number} at a pixel @returns {number} */
export function valueAt({ low, high, log, from, to }, at) {
  const share = (at - from) / (to - from);
  return log ? low * (high / low) ** share : low + share * (high - low);
}

/**
 * Return about `wanted` round numbers between the ends.
 * @param {Scale} scale @param {number} wanted @param {number[]} [round] allowed distances between ticks, such as minutes
 */
export function ticks({ low, high, log }, wanted, round = []) {
  if (log && high / low > 8) {
    const decades = Math.log10(high / low);
    const steps = decades < wanted / 3 ? [1, 2, 5] : decades < wanted ? [1, 3] : [1];
    const interval = Math.max(1, Math.ceil(decades / wanted));
    const all = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      if (power % interval === 0) for (const step of steps) all.push(step * 10 ** power);
    return all.filter((value) => value >= low && value <= high);
  }
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = round.find((distance) => distance >= rough) ?? ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10) * power;
  const all = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) all.push(Number((i * step).toPrecision(12)));
  return all;
}

/**
 * Smooth a curve: each point becomes the mean of its neighbors with Gaussian weights.
 * @param {number[]} x pixels, ascending @param {number[]} y @param {number} width standard deviation in pixels
 */
export function smoothed(x, y, width) {
  let first = 0;
  return y.map((_, i) => {
    const here = x[i] ?? 0;
    while ((x[first] ?? 0) < here - 3 * width) first++;
    let sum = 0;
    let weights = 0;
    for (let j = first; j < x.length && (x[j] ?? 0) <= here + 3 * width; j++) {
      const weight = Math.exp(-0.5 * (((x[j] ?? 0) - here) / width) ** 2);
      sum += weight * (y[j] ?? 0);
      weights += weight;
    }
    return sum / weights;
  });
}
