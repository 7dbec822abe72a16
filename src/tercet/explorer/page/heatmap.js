// A matrix as colours: one canvas that is walked with the pointer or the arrow keys and tells each number.

import { atWidth, colours, css, fitted, hush, mix, painted, sized, tell } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { exact } from "tercet/numbers.js";

/** @typedef {import("tercet/model.js").Tensor} Tensor */
/** @typedef {import("tercet/draw.js").Palette} Palette */

/**
 * @typedef {object} HeatMap
 * @property {Tensor} values rows x columns
 * @property {string[] | null} [rows] their labels
 * @property {string[] | null} [columns]
 * @property {number} [low] what has the first colour; 0, or what makes zero the middle
 * @property {number} [high] what has the last colour
 * @property {"share" | "signed"} kind "share": from nothing to all; "signed": from negative over zero to positive
 * @property {string} label what it is, for those who do not see it
 * @property {(row: number, column: number) => void} [onpick]
 * @property {(row: number, column: number) => void} [onpoint] as the pointer or the cursor comes to a cell
 * @property {[number | null, number | null] | null} [picked] the chosen cell, row or column
 * @property {(value: number, half: number) => string} [format]
 * @property {(row: number, column: number) => string[]} [lines] of the tooltip, in place of the labels and the number
 * @property {(row: number, column: number) => boolean} [masked] what is no number at all: hatched
 * @property {(row: number, column: number) => string} [text] in the cell
 * @property {(row: number, column: number) => boolean} [marked] cells with a ring
 * @property {string} [key] for the focus
 * @property {readonly [string, string]} [names] what a row and a column are; "row", "column"
 * @property {boolean} [square] cells as high as they are wide
 * @property {number} [cellHeight]
 * @property {number} [least] width of a cell in pixels; a wider map scrolls in its box
 * @property {number} [most] width of a cell in pixels
 * @property {boolean} [legend]
 * @property {{size: number, chosen: number}} [bands] groups of columns, such as heads side by side, and the chosen one
 */

const LABEL = 12; // pixels between labels that can be told apart
const TALLEST = 600; // pixels of a map with square cells,
const SMALLEST = 10; // which do not get smaller than this for it
const LINES = 7; // pixels of a cell from which its borders are drawn
const FONT = "12px ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace";
const SAMPLE = 4000; // numbers that are looked at to choose the colours' range
const EASE = 0.7; // small shares are told from none; the legend shows the same colours

/** @param {HeatMap} map @returns {HTMLElement} */
export function heatMap(map) {
  const { values, kind } = map;
  const [height = 0, width = 0] = values.shape;
  const [low, high] = span(map);
  const format = map.format ?? exact;
  const [rowName, columnName] = map.names ?? ["row", "column"];
  const canvas = element("canvas", { "aria-hidden": "true" });
  const live = element("output", { class: "unseen", "aria-live": "polite" });
  const keys = map.onpick === undefined ? "arrow keys move" : "arrow keys move, Enter chooses";
  const field = element(
    "div",
    {
      class: "heat-field",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": `${map.label}: ${height} ${many(rowName)} by ${width} ${many(columnName)}; ${keys}`,
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
  const under = (event) => {
    if (plot === null) return null;
    const bounds = canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - bounds.left - plot.left) / plot.across) * width);
    const row = Math.floor(((event.clientY - bounds.top - plot.top) / plot.down) * height);
    return row >= 0 && row < height && column >= 0 && column < width ? [row, column] : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = under(event);
    if (cell === null) return hush();
    tell(canvas, lines(...cell), event.clientX, event.clientY);
    map.onpoint?.(...cell);
  });
  canvas.addEventListener("pointerleave", hush);
  canvas.addEventListener("click", (event) => {
    const cell = under(event);
    if (cell === null) return;
    cursor = cell;
    if (map.onpick === undefined) tell(canvas, lines(...cell), event.clientX, event.clientY);
    map.onpick?.(...cell);
  });
  field.addEventListener("focus", () => {
    paint();
    live.textContent = lines(...cursor).join("; ");
  });
  field.addEventListener("blur", () => {
    hush();
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
        tell(canvas, lines(...cursor), bounds.left + x, bounds.top + y);
      }
    } else if ((event.key === "Enter" || event.key === " ") && map.onpick !== undefined) {
      event.preventDefault();
      map.onpick(...cursor);
    }
  });
  return box;
}

/**
 * Colours without labels: a picture of a map, for a button.
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
 * each: pixels from one column's label to the next.
 * @typedef {{left: number, top: number, across: number, down: number, width: number, height: number, upright: boolean,
 *            each: number}} Plot
 */

/**
 * Where the cells and the labels stand, in CSS pixels.
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
  const room = available - left - 2;
  const tall = map.square === true ? TALLEST / height : Infinity;
  const cell = Math.max(map.least ?? 0, Math.min(room / width, map.most ?? Infinity, Math.max(tall, SMALLEST)));
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
  const palette = colours();
  const [left, top] = [Math.round(plot.left * dots), Math.round(plot.top * dots)];
  const [across, down] = [Math.round(plot.across * dots), Math.round(plot.down * dots)];
  const x = (/** @type {number} */ column) => left + Math.round((column * across) / width);
  const y = (/** @type {number} */ row) => top + Math.round((row * down) / height);
  const cell = plot.across / width;
  const line = plot.down / height;

  if (map.masked !== undefined) hatch(pen, palette, left, top, across, down, dots);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image(map, low, high, across, down), left, top, across, down);
  if (cell >= LINES && line >= LINES) {
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

  const ring = (/** @type {number} */ row, /** @type {number} */ column, /** @type {string} */ colour, thick = 2) => {
    pen.strokeStyle = colour;
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
 * The labels that have room; the chosen ones always.
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
 * @param {number} count @param {number} room cells that a label takes @param {number} chosenOne
 * @returns {[number, boolean][]}
 */
function chosen(count, room, chosenOne) {
  const step = Math.max(1, Math.ceil(room));
  /** @type {[number, boolean][]} */
  const every = [];
  for (let i = 0; i < count; i++) {
    const strong = i === chosenOne;
    const near = chosenOne >= 0 && Math.abs(i - chosenOne) < step;
    if (strong || (i % step === 0 && !near)) every.push([i, strong]);
  }
  return every;
}

/**
 * One dot for each cell, or, where there are more columns than real pixels, one for each pixel: the largest of its own.
 * @param {Pick<HeatMap, "values" | "kind" | "masked">} map
 * @param {number} low @param {number} high @param {number} across @param {number} down in real pixels
 */
function image(map, low, high, across, down) {
  const { values } = map;
  const [height = 0, width = 0] = values.shape;
  const palette = colours();
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
      let most = NaN;
      if (whole) {
        if (map.masked?.(row, column) !== true) most = values.data[row * width + column] ?? 0;
      } else {
        const from = Math.floor((column * width) / columns);
        const to = Math.max(from + 1, Math.floor(((column + 1) * width) / columns));
        for (let i = top; i < bottom; i++) {
          for (let j = from; j < to; j++) {
            if (map.masked?.(i, j) === true) continue;
            const value = values.data[i * width + j] ?? 0;
            if (!(Math.abs(value) <= Math.abs(most))) most = value;
          }
        }
      }
      if (Number.isNaN(most)) continue; // masked: the hatch shows through
      const shade = Math.round((most - low) * scale);
      bytes[row * columns + column] = table[shade < 0 ? 0 : shade > last ? last : shade] ?? 0;
    }
  }
  pen.putImageData(dots, 0, 0);
  return picture;
}

/** @type {Map<string, import("tercet/draw.js").Colour[]>} */
const ramps = new Map();

/** The colours from low to high. @param {"share" | "signed"} kind @param {Palette} palette */
function ramp(kind, palette) {
  const key = `${kind} ${palette.panel} ${palette.share} ${palette.negative} ${palette.positive}`;
  const cached = ramps.get(key);
  if (cached !== undefined) return cached;
  const gradient = Array.from({ length: 256 }, (_, i) => {
    const share = i / 255;
    if (kind === "share") return mix(palette.panel, palette.share, share ** EASE);
    const away = 2 * share - 1;
    return mix(palette.panel, away < 0 ? palette.negative : palette.positive, Math.abs(away) ** EASE);
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

/** Ink or paper, whichever stands out. @param {import("tercet/draw.js").Colour} on @param {Palette} palette */
function legible(on, palette) {
  const light = (/** @type {import("tercet/draw.js").Colour} */ [r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b;
  const from = (/** @type {import("tercet/draw.js").Colour} */ colour) => Math.abs(light(colour) - light(on));
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
 * What has the first and the last colour. Of signed numbers the few largest do not count, or a single one would leave
 * all others without colour.
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

/** @param {string} what @param {string[] | null | undefined} texts @param {number} index */
function name(what, texts, index) {
  const text = texts?.[index];
  return text === undefined ? `${what} ${index}` : `${what} ${index} ${text}`;
}

/** @param {string} name */
const many = (name) => (/[^aeiou]y$/.test(name) ? `${name.slice(0, -1)}ies` : `${name}s`);

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
