// A matrix as a heat map: one canvas; the pointer or the arrow keys select a cell and show its number.

import { atWidth, readPalette, css, fitted, hideTooltip, mix, painted, sized, showTooltip } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { exact } from "tercet/numbers.js";

/** @typedef {import("tercet/model.js").Tensor} Tensor */
/** @typedef {import("tercet/draw.js").Palette} Palette */

/**
 * @typedef {object} HeatMap
 * @property {Tensor} values rows x columns
 * @property {string[] | null} [rows] their labels
 * @property {string[] | null} [columns]
 * @property {number} [low] value of the first color; by default 0, or for "signed" minus the range (see `span`)
 * @property {number} [high] value of the last color
 * @property {"share" | "signed"} kind "share": from 0 up; "signed": from negative through zero to positive
 * @property {string} label accessible name
 * @property {(row: number, column: number) => void} [onpick]
 * @property {(row: number, column: number) => void} [onpoint] called if the pointer or the cursor enters a cell
 * @property {[number | null, number | null] | null} [picked] the chosen cell, row or column
 * @property {(value: number, half: number) => string} [format]
 * @property {(row: number, column: number) => string[]} [lines] of the tooltip, instead of the labels and the number
 * @property {(row: number, column: number) => boolean} [masked] cells without a number, which are hatched
 * @property {(row: number, column: number) => string} [text] in the cell
 * @property {(row: number, column: number) => boolean} [marked] cells with a ring
 * @property {string} [key] `data-key` for the focus
 * @property {readonly [string, string]} [names] names of a row and a column; "row", "column" by default
 * @property {boolean} [square] cells as high as they are wide
 * @property {number} [cellHeight]
 * @property {number} [least] minimum width of a cell in pixels; a wider map scrolls in its box
 * @property {number} [most] maximum width of a cell in pixels
 * @property {boolean} [legend]
 * @property {{size: number, chosen: number}} [bands] groups of columns, such as concatenated heads, and the chosen one
 */

const LABEL = 12; // minimum pixels between two labels
const MAX_HEIGHT = 600; // pixels of a map with square cells,
const MIN_CELL = 10; // unless its cells would be smaller than this
const MIN_BORDER_CELL = 7; // minimum pixels of a cell with borders
const FONT = "12px ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace";
const SAMPLE = 4000; // numbers that are read to choose the range of colors
const EXPONENT = 0.7; // makes small shares visible; the legend uses the same colors

/** @param {HeatMap} map @returns {HTMLElement} */
export function heatMap(map) {
  const { values, kind } = map;
  const [height = 0, width = 0] = values.shape;
  const [low, high] = span(map);
  const format = map.format ?? exact;
  const [rowName, columnName] = map.names ?? ["row", "column"];
  const canvas = element("canvas", { "aria-hidden": "true" });
  const live = element("output", { class: "unseen", "aria-live": "polite" });
  const keys = map.onpick === undefined ? "arrow keys move" : "arrow keys move, Enter selects";
  const field = element(
    "div",
    {
      class: "heat-field",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": `${map.label}: ${height} ${plural(rowName)} by ${width} ${plural(columnName)}; ${keys}`,
      "data-key": map.key ?? null,
    },
    canvas,
    live,
  );
  const box = element("figure", { class: "heat" }, field, map.legend === true ? legend(kind, low, high) : null);

  let cursor = /** @type {[number, number]} */ ([map.picked?.[0] ?? 0, map.picked?.[1] ?? 0]);
  /** @type {Plot | null} */
  let plot = null;
  const focused = () => document.activeElement === field && field.matches(":focus-visible");
  const paint = () => {
    if (plot !== null) draw(canvas, map, plot, low, high, focused() ? cursor : null);
  };
  const lines = (/** @type {number} */ row, /** @type {number} */ column) => {
    if (map.lines !== undefined) return map.lines(row, column);
    const value = map.masked?.(row, column) === true ? "masked" : format(at(values, row, column), values.half);
    return [`${name(rowName, map.rows, row)}, ${name(columnName, map.columns, column)}`, value];
  };
  painted(canvas, paint);
  atWidth(field, (available) => {
    plot = arranged(map, available);
    field.classList.toggle("wide", plot.width > available);
    paint();
  });

  /** @param {PointerEvent | MouseEvent} event @returns {[number, number] | null} */
  const cellAt = (event) => {
    if (plot === null) return null;
    const bounds = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - bounds.left - plot.left) / plot.across) * width);
    const row = Math.floor(((event.clientY - bounds.top - plot.top) / plot.down) * height);
    return row >= 0 && row < height && column >= 0 && column < width ? [row, column] : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (cell === null) return hideTooltip();
    showTooltip(canvas, lines(...cell), event.clientX, event.clientY);
    map.onpoint?.(...cell);
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell === null) return;
    cursor = cell;
    if (map.onpick === undefined) showTooltip(canvas, lines(...cell), event.clientX, event.clientY);
    map.onpick?.(...cell);
  });
  field.addEventListener("focus", () => {
    paint();
    live.textContent = lines(...cursor).join("; ");
  });
  field.addEventListener("blur", () => {
    hideTooltip();
    paint();
  });
  field.addEventListener("keydown", (event) => {
    const [row, column] = cursor;
    const next = moved(event.key, row, column, height, width);
    if (next !== null) {
      event.preventDefault();
      cursor = next;
      paint();
      live.textContent = lines(...cursor).join("; ");
      map.onpoint?.(...cursor);
      if (plot !== null) {
        const bounds = canvas.getBoundingClientRect();
        const x = plot.left + ((cursor[1] + 0.5) * plot.across) / width;
        const y = plot.top + ((cursor[0] + 0.5) * plot.down) / height;
        if (field.scrollWidth > field.clientWidth) field.scrollLeft = x - field.clientWidth / 2;
        showTooltip(canvas, lines(...cursor), bounds.left + x, bounds.top + y);
      }
    } else if ((event.key === "Enter" || event.key === " ") && map.onpick !== undefined) {
      event.preventDefault();
      map.onpick(...cursor);
    }
  });
  return box;
}

/**
 * A small picture of a map without labels, for a button.
 * @param {Pick<HeatMap, "values" | "kind" | "low" | "high" | "masked">} map
 */
export function miniature(map, width = 48, height = 48) {
  const canvas = element("canvas", { "aria-hidden": "true", class: "miniature" });
  const [low, high] = span(map);
  const paint = () => {
    const { pen, dots } = sized(canvas, width, height);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image(map, low, high, width * dots, height * dots), 0, 0, canvas.width, canvas.height);
  };
  painted(canvas, paint);
  atWidth(canvas, paint);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return canvas;
}

/**
 * each: pixels between the labels of two columns.
 * @typedef {{left: number, top: number, across: number, down: number, width: number, height: number, upright: boolean,
 *            each: number}} Plot
 */

/**
 * Positions of the cells and the labels, in CSS pixels.
 * @param {HeatMap} map @param {number} available @returns {Plot}
 */
function arranged(map, available) {
  const [height = 0, width = 0] = map.values.shape;
  const pen = element("canvas").getContext("2d");
  const measure = (/** @type {string[]} */ texts) => {
    if (pen === null) return 0;
    pen.font = FONT;
    return Math.ceil(Math.max(0, ...texts.map((text) => pen.measureText(text).width)));
  };
  const left = map.rows ? Math.min(measure(map.rows), 92, available * 0.3) + 8 : 1;
  const space = available - left - 2;
  const tall = map.square === true ? MAX_HEIGHT / height : Infinity;
  const cell = Math.max(map.least ?? 0, Math.min(space / width, map.most ?? Infinity, Math.max(tall, MIN_CELL)));
  const across = Math.max(1, Math.floor(cell * width));
  const down = map.square === true ? Math.floor((across / width) * height) : height * (map.cellHeight ?? 16);
  let top = 1;
  let upright = false;
  let each = LABEL;
  if (map.columns) {
    const widest = measure(map.columns);
    upright =
      map.least === undefined && widest > Math.max(cell - 4, LABEL) && (cell < LABEL * 2 || widest > cell * 1.6);
    top = upright ? Math.min(widest, 76) + 8 : 20;
    each = upright ? LABEL : Math.min(widest, Math.max(cell - 2, 8));
  }
  return { left, top, across, down, width: left + across + 2, height: top + down + 2, upright, each };
}

/**
 * @param {HTMLCanvasElement} canvas @param {HeatMap} map @param {Plot} plot
 * @param {number} low @param {number} high @param {[number, number] | null} cursor
 */
function draw(canvas, map, plot, low, high, cursor) {
  const { pen, dots } = sized(canvas, plot.width, plot.height);
  const [height = 0, width = 0] = map.values.shape;
  const palette = readPalette();
  const [left, top] = [Math.round(plot.left * dots), Math.round(plot.top * dots)];
  const [across, down] = [Math.round(plot.across * dots), Math.round(plot.down * dots)];
  const x = (/** @type {number} */ column) => left + Math.round((column * across) / width);
  const y = (/** @type {number} */ row) => top + Math.round((row * down) / height);
  const cell = plot.across / width;
  const line = plot.down / height;

  if (map.masked !== undefined) hatch(pen, palette, left, top, across, down, dots);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image(map, low, high, across, down), left, top, across, down);
  if (cell >= MIN_BORDER_CELL && line >= MIN_BORDER_CELL) {
    pen.fillStyle = css(palette.panel);
    for (let column = 1; column < width; column++) pen.fillRect(x(column), top, 1, down);
    for (let row = 1; row < height; row++) pen.fillRect(left, y(row), across, 1);
  }
  pen.strokeStyle = css(palette.line);
  pen.lineWidth = 1;
  pen.strokeRect(left - 0.5, top - 0.5, across + 1, down + 1);

  pen.save();
  pen.scale(dots, dots);
  pen.font = FONT;
  pen.textBaseline = "middle";
  if (map.text !== undefined) {
    pen.textAlign = "center";
    const shade = shades(map.kind, low, high, palette);
    for (let row = 0; row < height; row++) {
      for (let column = 0; column < width; column++) {
        const text = map.text(row, column);
        if (text === "") continue;
        pen.fillStyle = css(legible(shade(at(map.values, row, column)), palette));
        const middle = plot.left + (column + 0.5) * cell;
        pen.fillText(fitted(pen, text, cell - 4), middle, plot.top + (row + 0.5) * line + 0.5);
      }
    }
  }
  write(pen, map, plot, palette, cursor);
  pen.restore();

  const ring = (/** @type {number} */ row, /** @type {number} */ column, /** @type {string} */ color, thick = 2) => {
    pen.strokeStyle = color;
    pen.lineWidth = thick * dots;
    const inset = cell >= 6 && line >= 6 ? pen.lineWidth / 2 : -pen.lineWidth / 2;
    pen.strokeRect(
      x(column) + inset,
      y(row) + inset,
      x(column + 1) - x(column) - 2 * inset,
      y(row + 1) - y(row) - 2 * inset,
    );
  };
  if (map.marked !== undefined) {
    for (let row = 0; row < height; row++) {
      for (let column = 0; column < width; column++) {
        if (map.marked(row, column)) ring(row, column, css(map.kind === "signed" ? palette.ink : palette.positive), 2);
      }
    }
  }
  const { size, chosen: band } = map.bands ?? { size: width, chosen: -1 };
  pen.fillStyle = css(palette.muted);
  for (let column = size; column < width; column += size) pen.fillRect(x(column), top, Math.max(1, dots), down);
  const [pickedRow, pickedColumn] = map.picked ?? [null, null];
  pen.strokeStyle = css(palette.accent);
  pen.lineWidth = Math.max(1, Math.round(1.5 * dots));
  if (band >= 0) pen.strokeRect(x(band * size), top, x((band + 1) * size) - x(band * size), down);
  if (pickedRow !== null && pickedRow < height)
    pen.strokeRect(left, y(pickedRow), across, y(pickedRow + 1) - y(pickedRow));
  if (pickedColumn !== null && pickedColumn < width) {
    if (pickedRow === null) pen.strokeRect(x(pickedColumn), top, x(pickedColumn + 1) - x(pickedColumn), down);
    else if (pickedRow < height) ring(pickedRow, pickedColumn, css(palette.accent), 3);
  }
  if (cursor !== null) {
    ring(cursor[0], cursor[1], css(palette.paper), 5);
    ring(cursor[0], cursor[1], css(palette.ink), 2);
  }
}

/**
 * Draw the labels that fit, and always the chosen ones.
 * @param {CanvasRenderingContext2D} pen @param {HeatMap} map @param {Plot} plot @param {Palette} palette
 * @param {[number, number] | null} cursor
 */
function write(pen, map, plot, palette, cursor) {
  const [height = 0, width = 0] = map.values.shape;
  const [cell, line] = [plot.across / width, plot.down / height];
  const chosenRow = cursor?.[0] ?? map.picked?.[0] ?? -1;
  const chosenColumn = cursor?.[1] ?? map.picked?.[1] ?? -1;
  if (map.rows) {
    pen.textAlign = "right";
    for (const [row, strong] of chosen(height, LABEL / line, chosenRow)) {
      pen.fillStyle = css(strong ? palette.accent : palette.muted);
      pen.fillText(fitted(pen, map.rows[row] ?? "", plot.left - 8), plot.left - 6, plot.top + (row + 0.5) * line + 0.5);
    }
  }
  if (!map.columns) return;
  for (const [column, strong] of chosen(width, plot.each / cell, chosenColumn)) {
    pen.fillStyle = css(strong ? palette.accent : palette.muted);
    const middle = plot.left + (column + 0.5) * cell;
    if (plot.upright) {
      pen.save();
      pen.translate(middle, plot.top - 6);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(fitted(pen, map.columns[column] ?? "", plot.top - 8), 0, 0.5);
      pen.restore();
    } else {
      pen.textAlign = "center";
      pen.fillText(fitted(pen, map.columns[column] ?? "", Math.max(cell - 2, 8)), middle, plot.top - 9);
    }
  }
}

/**
 * The indices of the labels to draw, and whether each is the chosen one.
 * @param {number} count @param {number} span cells per label @param {number} chosenOne
 * @returns {[number, boolean][]}
 */
function chosen(count, span, chosenOne) {
  const step = Math.max(1, Math.ceil(span));
  /** @type {[number, boolean][]} */
  const shown = [];
  for (let i = 0; i < count; i++) {
    const strong = i === chosenOne;
    const near = chosenOne >= 0 && Math.abs(i - chosenOne) < step;
    if (strong || (i % step === 0 && !near)) shown.push([i, strong]);
  }
  return shown;
}

/**
 * One pixel per cell. If there are more columns than device pixels, each pixel shows its value of largest magnitude.
 * @param {Pick<HeatMap, "values" | "kind" | "masked">} map
 * @param {number} low @param {number} high @param {number} across @param {number} down in device pixels
 */
function image(map, low, high, across, down) {
  const { values } = map;
  const [height = 0, width = 0] = values.shape;
  const palette = readPalette();
  const columns = Math.max(1, Math.min(width, Math.floor(across)));
  const rows = Math.max(1, Math.min(height, Math.floor(down)));
  const table = Uint32Array.from(
    ramp(map.kind, palette),
    ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0,
  );
  const picture = element("canvas", { width: columns, height: rows });
  const pen = picture.getContext("2d");
  if (pen === null) return picture;
  const dots = pen.createImageData(columns, rows);
  const bytes = new Uint32Array(dots.data.buffer);
  const last = table.length - 1;
  const scale = last / (high - low || 1);
  const whole = columns === width && rows === height;
  for (let row = 0; row < rows; row++) {
    const top = Math.floor((row * height) / rows);
    const bottom = Math.max(top + 1, Math.floor(((row + 1) * height) / rows));
    for (let column = 0; column < columns; column++) {
      let extreme = NaN;
      if (whole) {
        if (map.masked?.(row, column) !== true) extreme = values.data[row * width + column] ?? 0;
      } else {
        const from = Math.floor((column * width) / columns);
        const to = Math.max(from + 1, Math.floor(((column + 1) * width) / columns));
        for (let i = top; i < bottom; i++) {
          for (let j = from; j < to; j++) {
            if (map.masked?.(i, j) === true) continue;
            const value = values.data[i * width + j] ?? 0;
            if (!(Math.abs(value) <= Math.abs(extreme))) extreme = value;
          }
        }
      }
      if (Number.isNaN(extreme)) continue; // masked: the hatch shows through
      const shade = Math.round((extreme - low) * scale);
      bytes[row * columns + column] = table[shade < 0 ? 0 : shade > last ? last : shade] ?? 0;
    }
  }
  pen.putImageData(dots, 0, 0);
  return picture;
}

/** @type {Map<string, import("tercet/draw.js").Color[]>} */
const ramps = new Map();

/** The colors from low to high. @param {"share" | "signed"} kind @param {Palette} palette */
function ramp(kind, palette) {
  const key = `${kind} ${palette.panel} ${palette.share} ${palette.negative} ${palette.positive}`;
  const cached = ramps.get(key);
  if (cached !== undefined) return cached;
  const gradient = Array.from({ length: 256 }, (_, i) => {
    const share = i / 255;
    if (kind === "share") return mix(palette.panel, palette.share, share ** EXPONENT);
    const offset = 2 * share - 1;
    return mix(palette.panel, offset < 0 ? palette.negative : palette.positive, Math.abs(offset) ** EXPONENT);
  });
  ramps.set(key, gradient);
  return gradient;
}

/** @param {"share" | "signed"} kind @param {number} low @param {number} high @param {Palette} palette */
function shades(kind, low, high, palette) {
  const table = ramp(kind, palette);
  return (/** @type {number} */ value) =>
    table[Math.max(0, Math.min(255, Math.round(((value - low) / (high - low || 1)) * 255)))] ?? palette.panel;
}

/** Ink or paper, whichever has more contrast. @param {import("tercet/draw.js").Color} on @param {Palette} palette */
function legible(on, palette) {
  const light = (/** @type {import("tercet/draw.js").Color} */ [r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b;
  const from = (/** @type {import("tercet/draw.js").Color} */ color) => Math.abs(light(color) - light(on));
  return from(palette.ink) >= from(palette.paper) ? palette.ink : palette.paper;
}

/**
 * @param {CanvasRenderingContext2D} pen @param {Palette} palette
 * @param {number} left @param {number} top @param {number} across @param {number} down @param {number} dots
 */
function hatch(pen, palette, left, top, across, down, dots) {
  const tile = element("canvas", { width: 6 * dots, height: 6 * dots });
  const strokes = tile.getContext("2d");
  if (strokes === null) return;
  strokes.strokeStyle = css(palette.line);
  strokes.lineWidth = dots;
  for (const shift of [-6, 0, 6]) {
    strokes.beginPath();
    strokes.moveTo((shift - 1) * dots, 7 * dots);
    strokes.lineTo((shift + 7) * dots, -1 * dots);
    strokes.stroke();
  }
  const pattern = pen.createPattern(tile, "repeat");
  if (pattern === null) return;
  pen.fillStyle = pattern;
  pen.fillRect(left, top, across, down);
}

/**
 * The values of the first and the last color. The largest 0.5% are ignored, because one outlier would leave all other
 * numbers without color.
 * @param {Pick<HeatMap, "values" | "kind" | "low" | "high" | "masked">} map @returns {[number, number]}
 */
function span(map) {
  if (map.low !== undefined && map.high !== undefined) return [map.low, map.high];
  const { data, shape } = map.values;
  const width = shape[1] ?? 1;
  const step = Math.max(1, Math.floor(data.length / SAMPLE));
  const sizes = [];
  for (let i = 0; i < data.length; i += step) {
    if (map.masked !== undefined && map.masked(Math.floor(i / width), i % width)) continue;
    sizes.push(Math.abs(data[i] ?? 0));
  }
  const sorted = Float64Array.from(sizes).sort();
  const largest = sorted[Math.ceil(0.995 * (sorted.length - 1))] || sorted[sorted.length - 1] || 1;
  return map.kind === "share" ? [map.low ?? 0, map.high ?? largest] : [map.low ?? -largest, map.high ?? largest];
}

/** @param {"share" | "signed"} kind @param {number} low @param {number} high */
function legend(kind, low, high) {
  const short = (/** @type {number} */ value) => String(Number(value.toPrecision(2))).replace("-", "−");
  return element(
    "figcaption",
    { class: "heat-legend" },
    element("span", {}, short(low)),
    element("span", { class: `heat-ramp ${kind}`, "aria-hidden": "true" }),
    element("span", {}, short(high)),
  );
}

/** @param {Tensor} values @param {number} row @param {number} column */
const at = (values, row, column) => values.data[row * (values.shape[1] ?? 1) + column] ?? NaN;

/** @param {string} kind @param {string[] | null | undefined} texts @param {number} index */
function name(kind, texts, index) {
  const text = texts?.[index];
  return text === undefined ? `${kind} ${index}` : `${kind} ${index} ${text}`;
}

/** @param {string} name */
const plural = (name) => (/[^aeiou]y$/.test(name) ? `${name.slice(0, -1)}ies` : `${name}s`);

/**
 * @param {string} key @param {number} row @param {number} column @param {number} height @param {number} width
 * @returns {[number, number] | null}
 */
function moved(key, row, column, height, width) {
  if (key === "ArrowLeft") return [row, Math.max(0, column - 1)];
  if (key === "ArrowRight") return [row, Math.min(width - 1, column + 1)];
  if (key === "ArrowUp") return [Math.max(0, row - 1), column];
  if (key === "ArrowDown") return [Math.min(height - 1, row + 1), column];
  if (key === "Home") return [row, 0];
  if (key === "End") return [row, width - 1];
  return null;
}
