// Tensors in answers: base64 numbers; rounded ones come with the largest possible rounding error.

/** @typedef {import("tercet/model.js").Tensor} Tensor */
/** @typedef {{shape: number[], type: "float32" | "uint16" | "uint8" | "bool", low?: number, step?: number,
 *             data: string}} Packed */

/**
 * Decode a tensor: value = low + step * q for the integers q of uint16 and uint8, exact to half a step.
 * @param {Packed} packed @returns {Tensor}
 */
export function decode(packed) {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  if (packed.type === "bool") return tensor(packed.shape, bytes);
  const count = packed.shape.reduce((product, size) => product * size, 1);
  const values = new Float32Array(count);
  const view = new DataView(bytes.buffer);
  const low = packed.low ?? 0;
  const step = packed.step ?? 1;
  if (packed.type === "float32") for (let i = 0; i < count; i++) values[i] = view.getFloat32(4 * i, true);
  else if (packed.type === "uint16")
    for (let i = 0; i < count; i++) values[i] = low + step * view.getUint16(2 * i, true);
  else for (let i = 0; i < count; i++) values[i] = low + step * view.getUint8(i);
  return tensor(packed.shape, values, packed.type === "float32" ? 0 : step / 2);
}

/**
 * @param {number[]} shape @param {Float32Array | Uint8Array} data row-major @param {number} [half] @returns {Tensor}
 */
export function tensor(shape, data, half = 0) {
  const strides = shape.map((_, i) => shape.slice(i + 1).reduce((product, size) => product * size, 1));
  const get = (/** @type {number[]} */ ...index) => {
    if (index.length !== shape.length) throw new Error(`${index.length} indices for the shape ${shape.join(" x ")}`);
    let at = 0;
    for (let i = 0; i < index.length; i++) at += /** @type {number} */ (index[i]) * /** @type {number} */ (strides[i]);
    const value = data[at];
    if (value === undefined) throw new Error(`no ${index.join(", ")} in the shape ${shape.join(" x ")}`);
    return value;
  };
  return { shape, data, half, get };
}

/** t[i], without copying. @param {Tensor} t @param {number} i @returns {Tensor} */
export function slice(t, i) {
  const [size = 0, ...rest] = t.shape;
  if (!(i >= 0 && i < size)) throw new Error(`no ${i} in the shape ${t.shape.join(" x ")}`);
  const length = rest.reduce((product, width) => product * width, 1);
  return tensor(rest, t.data.subarray(i * length, (i + 1) * length), t.half);
}

/** Decode all packed tensors in an answer, at any depth. @param {unknown} answer @returns {any} */
export function unpacked(answer) {
  if (answer === null || typeof answer !== "object") return answer;
  if (Array.isArray(answer)) return typeof answer[0] === "object" ? answer.map(unpacked) : answer;
  const object = /** @type {Record<string, unknown>} */ (answer);
  if (typeof object.data === "string" && Array.isArray(object.shape)) return decode(/** @type {Packed} */ (answer));
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, unpacked(value)]));
}
