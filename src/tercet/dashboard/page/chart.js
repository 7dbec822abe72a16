// A chart of curves on a canvas, with zooming by mouse or keyboard and a cursor that all charts share.

import { readPalette, css, hideTooltip, painted, sized, showTooltip } from "tercet/draw.js";
import { element } from "tercet/element.js";
import { duration, figure, short } from "tercet/numbers.js";
import { pixel, smoothed, ticks, valueAt } from "tercet/scale.js";
import { called, place } from "tercet/words.js";

/** @typedef {import("tercet/source.js").Curve} Curve */
/** @typedef {import("tercet/scale.js").Scale} Scale */
/** x: quantity of the axis; range: visible part of the axis; cursor: position on the axis; smoothing: 0 to 1.
 * @typedef {{x: "step" | "tokens" | "seconds", logX: boolean, logY: boolean, range: [number, number],
 *             cursor: number | null, smoothing: number}} View */
/** move: set the cursor; zoom: set the visible range, null for all. @typedef {{move: (at: number | null) => void, zoom: (range: [number, number] | null) => void}} Act */

const LEFT = 58;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 26;
const CURSOR_MARGIN = 8; // pixels beyond the end of a curve up to which the cursor shows its last value
const MAX_DOTS = 60; // maximum number of points that are marked by dots
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400]; // s
const ZOOM = 1.6; // factor per key press

/**
 * @param {{title: string, note: string, height: number, log: boolean}} about log: true if the vertical axis can be logarithmic
 * @param {Act} act
 * @param {(run: number) => {name: string, color: string, dashed: boolean}} look
 */
export function chart(about, act, look) {
  const canvas = element("canvas", { "aria-hidden": "true" });
  const output = element("output", { class: "unseen" });
  const field = element(
    "div",
    {
      class: "chart-field",
      role: "application",
      tabindex: 0,
      "data-key": `chart:${about.title}`,
      "aria-label": `${about.title}: left and right move the cursor, plus and minus zoom, shift with left and right scrolls, 0 shows all`,
    },
    canvas,
    output,
  );
  const legend = element("p", { class: "note legend" });
  const box = element("figure", { class: "chart" }, element("h3", {}, about.title), legend, field);
  /** @type {Curve[]} */
  let curves = [];
  /** @type {View | null} */
  let view = null;
  /** @type {[number, number] | null} */
  let dragged = null; // pixels
  /** @type {Scale} */
  let across = { low: 0, high: 1, log: false, from: LEFT, to: LEFT + 1 };
  let width = 0;

  /** @returns {Scale} */
  function verticalScale() {
    const log = about.log && view !== null && view.logY;
    let low = Infinity;
    let high = -Infinity;
    for (const { x, low: lows, high: highs } of curves) {
      for (let i = 0; i < x.length; i++) {
        const at = x[i] ?? NaN;
        if (at < across.low || at > across.high) continue;
        const bottom = lows[i] ?? NaN;
        if (!log || bottom > 0) low = Math.min(low, bottom);
        high = Math.max(high, highs[i] ?? NaN);
      }
    }
    if (!(low <= high)) [low, high] = log ? [0.1, 1] : [0, 1];
    if (low === high) [low, high] = log ? [low / 1.5, high * 1.5] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    if (log && high / low < 1.0001) high = low * 1.0001;
    const room = log ? (high / low) ** 0.04 : 0.05 * (high - low);
    [low, high] = log ? [low / room, high * room] : [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
    return { low, high, log, from: about.height - BOTTOM, to: TOP };
  }

  function paint() {
    if (view === null || !box.isConnected) return;
    width = Math.floor(field.clientWidth);
    if (width < 80) return;
    const { pen, dots } = sized(canvas, width, about.height);
    const ink = readPalette();
    pen.scale(dots, dots);
    across = { low: view.range[0], high: view.range[1], log: view.logX, from: LEFT, to: width - RIGHT };
    const up = verticalScale();
    axes(pen, up, ink);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, TOP - 4, width - LEFT - RIGHT, about.height - TOP - BOTTOM + 8);
    pen.clip();
    const parts = curves.map((curve) => prepare(up, curve));
    for (const part of parts) band(pen, up, part); // bands are drawn below all lines
    for (const part of parts) line(pen, up, part);
    pen.restore();
    if (view.cursor !== null && view.cursor >= across.low && view.cursor <= across.high) read(pen, up, view.cursor, ink);
    if (dragged !== null) {
      pen.fillStyle = css(ink.accent, 0.15);
      pen.fillRect(Math.min(...dragged), TOP, Math.abs(dragged[1] - dragged[0]), about.height - TOP - BOTTOM);
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {Scale} up @param {ReturnType<typeof readPalette>} ink */
  function axes(pen, up, ink) {
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    pen.strokeStyle = css(ink.line);
    pen.fillStyle = css(ink.muted);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of ticks(up, Math.max(2, about.height / 55))) {
      const y = Math.round(pixel(up, value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(width - RIGHT, y);
      pen.stroke();
      pen.fillText(short(value), LEFT - 7, y);
    }
    pen.textBaseline = "top";
    let free = 0;
    for (const value of ticks(across, Math.max(3, width / 90), view?.x === "seconds" ? TIMES : undefined)) {
      const x = pixel(across, value);
      const text = view?.x === "seconds" ? duration(value) : short(value);
      const half = pen.measureText(text).width / 2;
      if (x - half < free || x + half > width) continue;
      free = x + half + 10;
      pen.textAlign = "center";
      pen.fillText(text, x, about.height - BOTTOM + 8);
    }
  }

  /** The points of a curve that can be drawn on the axes, in pixels. @param {Scale} up @param {Curve} curve */
  function prepare(up, { run, metric, x, low, high, mean }) {
    const usable = mean
      .map((_, i) => i)
      .filter((i) => (!up.log || (mean[i] ?? 0) > 0) && (!across.log || (x[i] ?? 0) > 0));
    const training = !metric.startsWith("val/");
    const bottom = up.log ? up.low : -Infinity;
    return {
      ...look(run),
      metric,
      training,
      smoothing: training && metric !== "lr" && view !== null && usable.length > 2 ? view.smoothing : 0,
      xs: usable.map((i) => pixel(across, x[i] ?? 0)),
      values: usable.map((i) => mean[i] ?? 0),
      lows: usable.map((i) => pixel(up, Math.max(low[i] ?? 0, bottom))),
      highs: usable.map((i) => pixel(up, high[i] ?? 0)),
    };
  }

  /** Draw the band from the lowest to the highest value at each pixel.
   * @param {CanvasRenderingContext2D} pen @param {Scale} up @param {ReturnType<typeof prepare>} part */
  function band(pen, up, { color, training, smoothing, xs, lows, highs }) {
    if (!training) return;
    pen.fillStyle = pen.strokeStyle = color;
    pen.globalAlpha = smoothing > 0 ? 0.16 : 0.28;
    pen.lineWidth = 1;
    pen.beginPath();
    xs.forEach((x, n) => pen.lineTo(x, highs[n] ?? 0));
    for (let n = xs.length - 1; n >= 0; n--) pen.lineTo(xs[n] ?? 0, lows[n] ?? 0);
    pen.fill();
    const spans = xs.map((_, n) => (lows[n] ?? 0) - (highs[n] ?? 0));
    pen.globalAlpha = 0.6;
    pen.beginPath(); // spikes that are thinner than a pixel
    xs.forEach((x, n) => {
      if ((spans[n] ?? 0) < 12 + 2 * Math.max(spans[n - 1] ?? 0, spans[n + 1] ?? 0)) return;
      pen.moveTo(x, highs[n] ?? 0);
      pen.lineTo(x, lows[n] ?? 0);
    });
    pen.stroke();
    pen.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} pen @param {Scale} up @param {ReturnType<typeof prepare>} part */
  function line(pen, up, { color, dashed, metric, training, smoothing, xs, values }) {
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineJoin = "round";
    const drawn = smoothing > 0 ? smoothed(xs, values, 1 + 60 * smoothing ** 2) : values;
    pen.setLineDash(metric === "val/unigram_entropy" ? [2, 4] : dashed ? [7, 4] : []);
    pen.lineWidth = training ? 1.3 : 2;
    pen.globalAlpha = smoothing === 0 && metric.startsWith("train/") ? 0.75 : 1;
    pen.beginPath();
    drawn.forEach((value, n) => pen.lineTo(xs[n] ?? 0, pixel(up, value)));
    pen.stroke();
    pen.setLineDash([]);
    const visible = xs.filter((at) => at >= LEFT && at <= width).length;
    if (metric !== "val/unigram_entropy" && (xs.length === 1 || (!training && visible <= MAX_DOTS)))
      drawn.forEach((value, n) => dot(pen, xs[n] ?? 0, pixel(up, value), 2.6));
    pen.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} x @param {number} y @param {number} radius */
  function dot(pen, x, y, radius) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fill();
  }

  /** @param {CanvasRenderingContext2D} pen @param {Scale} up @param {number} at @param {ReturnType<typeof readPalette>} ink */
  function read(pen, up, at, ink) {
    const x = Math.round(pixel(across, at)) + 0.5;
    pen.strokeStyle = css(ink.muted);
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(x, TOP);
    pen.lineTo(x, about.height - BOTTOM);
    pen.stroke();
    pen.setLineDash([]);
    for (const { curve, i } of nearest(at)) {
      const value = curve.mean[i] ?? 0;
      if (up.log && value <= 0) continue;
      pen.fillStyle = look(curve.run).color;
      dot(pen, pixel(across, curve.x[i] ?? 0), pixel(up, value), 3.5);
    }
  }

  /** The point of each curve that is nearest to a position on the axis, if the curve extends to it. @param {number} at */
  function nearest(at) {
    const cursorPixel = pixel(across, at);
    return curves.flatMap((curve) => {
      const [first, last] = [curve.x[0], curve.x.at(-1)];
      if (first === undefined || last === undefined) return [];
      if (cursorPixel < pixel(across, first) - CURSOR_MARGIN || cursorPixel > pixel(across, last) + CURSOR_MARGIN) return [];
      let [from, to] = [0, curve.x.length - 1];
      while (to - from > 1) {
        const middle = (from + to) >> 1;
        if ((curve.x[middle] ?? 0) < at) from = middle;
        else to = middle;
      }
      const i = Math.abs((curve.x[from] ?? 0) - at) <= Math.abs((curve.x[to] ?? 0) - at) ? from : to;
      return [{ curve, i }];
    });
  }

  /** The values of the curves at a position, one line per curve. @param {number} at */
  function lines(at) {
    const hasSeveralRuns = new Set(curves.map((curve) => curve.run)).size > 1;
    const axis = view?.x ?? "step";
    return [
      place(axis, at),
      ...nearest(at).map(({ curve, i }) => {
        const [low = 0, mean = 0, high = 0] = [curve.low[i], curve.mean[i], curve.high[i]];
        const span = low < high ? ` (${figure(low)} to ${figure(high)})` : "";
        return `${hasSeveralRuns ? `${look(curve.run).name} ` : ""}${called(curve.metric)}: ${figure(mean)}${span}`;
      }),
    ];
  }

  const within = (/** @type {number} */ at) => Math.min(Math.max(at, LEFT), width - RIGHT);
  const at = (/** @type {PointerEvent | WheelEvent} */ event) => within(event.clientX - canvas.getBoundingClientRect().left);

  field.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    dragged = [at(event), at(event)];
    field.setPointerCapture(event.pointerId);
  });
  field.addEventListener("pointermove", (event) => {
    const here = at(event);
    if (dragged !== null) dragged[1] = here;
    const value = valueAt(across, here);
    act.move(value);
    if (event.pointerType !== "touch") showTooltip(field, lines(value), event.clientX, event.clientY);
  });
  field.addEventListener("pointerleave", () => {
    hideTooltip();
    if (dragged === null) act.move(null);
  });
  field.addEventListener("pointerup", () => {
    if (dragged === null) return;
    const [from, to] = [Math.min(...dragged), Math.max(...dragged)];
    dragged = null;
    if (to - from > 5) act.zoom([valueAt(across, from), valueAt(across, to)]);
    else paint();
  });
  field.addEventListener("pointercancel", () => (dragged = null));
  field.addEventListener("dblclick", () => act.zoom(null));
  field.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey) scaleBy(Math.exp(event.deltaY / 200), at(event));
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) moveBy(event.deltaX);
      else return; // let the page scroll
      event.preventDefault();
    },
    { passive: false },
  );

  /** @param {number} factor @param {number} around pixel that stays fixed */
  function scaleBy(factor, around) {
    const [from, to] = [LEFT - around, width - RIGHT - around];
    act.zoom([valueAt(across, around + from * factor), valueAt(across, around + to * factor)]);
  }

  /** @param {number} by pixels */
  function moveBy(by) {
    act.zoom([valueAt(across, LEFT + by), valueAt(across, width - RIGHT + by)]);
  }

  field.addEventListener("keydown", (event) => {
    if (view === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = (LEFT + width - RIGHT) / 2;
    const here = view.cursor === null ? middle : within(pixel(across, view.cursor));
    const step = (width - LEFT - RIGHT) / 100;
    const left = event.key === "ArrowLeft";
    if (left || event.key === "ArrowRight") {
      if (event.shiftKey) moveBy((left ? -1 : 1) * 10 * step);
      else to(within(here + (left ? -step : step)));
    } else if (event.key === "Home") to(LEFT);
    else if (event.key === "End") to(width - RIGHT);
    else if (event.key === "+" || event.key === "=") scaleBy(1 / ZOOM, here);
    else if (event.key === "-") scaleBy(ZOOM, here);
    else if (event.key === "0") act.zoom(null);
    else return;
    event.preventDefault();
  });

  /** Move the cursor and announce the values. @param {number} target pixel */
  function to(target) {
    const value = valueAt(across, target);
    act.move(value);
    const texts = lines(value);
    output.textContent = texts.join("; ");
    const { left, top } = canvas.getBoundingClientRect();
    showTooltip(field, texts, left + target, top + TOP);
  }
  field.addEventListener("blur", () => {
    hideTooltip();
    act.move(null);
  });

  painted(canvas, paint);
  new ResizeObserver(() => Math.floor(field.clientWidth) !== width && paint()).observe(field);

  return {
    element: box,
    paint,
    /** @param {Curve[]} newCurves @param {View} newView */
    update(newCurves, newView) {
      curves = newCurves;
      view = newView;
      paint();
    },
    /** @param {Node[]} parts */
    explain(parts) {
      legend.replaceChildren(...parts, ...(about.note === "" ? [] : [about.note]));
    },
  };
}
