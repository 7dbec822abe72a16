// A text file that is translated line by line: its lines, their ends, and the translations so far.

const MAX_BYTES = 20 * 2 ** 20;
const BATCH_LINES = 32; // lines per request, so that the progress is visible and Stop is quick
const BATCH_CHARACTERS = 8000;
const ENDS = /(\r\n|\n|\r)/;

export class TextFile {
  /** @param {string} name @param {string} text */
  constructor(name, text) {
    const parts = text.split(ENDS);
    this.name = name;
    this.lines = parts.filter((_, i) => i % 2 === 0);
    this.ends = parts.filter((_, i) => i % 2 === 1);
    /** Numbers of the lines that contain text. */
    this.pending = this.lines.flatMap((line, index) => (line.trim() === "" ? [] : [index]));
    /** Number of lines; a file that ends with the end of a line has no further one. */
    this.count = this.lines.length - (this.lines.at(-1) === "" ? 1 : 0);
    /** @type {Map<number, string>} Translations by the number of the line. */
    this.translations = new Map();
    this.truncated = 0;
    this.settings = "";
  }

  /** Forget all translations. @param {string} settings settings of the new ones */
  restart(settings) {
    this.translations.clear();
    this.truncated = 0;
    this.settings = settings;
  }

  /** @param {number} index @param {string} translation @param {boolean} isTruncated */
  keep(index, translation, isTruncated) {
    this.translations.set(index, translation.replace(/[\r\n]+/g, " ")); // one line remains one line
    this.truncated += Number(isTruncated);
  }

  /**
   * The name of the translated file: `a.txt` becomes `a.en.txt`, and so does `a.de.txt`.
   * @param {string | null} source @param {string | null} target languages
   */
  resultName(source, target) {
    const [, stem, suffix] = /^(.*?)(\.[^.]*)?$/.exec(this.name) ?? ["", this.name, ""];
    const language = target ?? "translated";
    const base = source !== null && stem?.endsWith(`.${source}`) ? stem.slice(0, -source.length - 1) : stem;
    return `${base}.${language}${suffix ?? ""}`.replace(/[\\/:*?"<>|]/g, "_");
  }
}

/**
 * Read a chosen file: UTF-8, or UTF-16 with a byte order mark.
 * @param {File} file
 */
export async function readLines(file) {
  const size = `${(file.size / 2 ** 20).toFixed(1)} MiB`;
  if (file.size > MAX_BYTES)
    throw new Error(`${file.name} has ${size}, more than 20 MiB; use \`tercet translate --input\` for it`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const mark = `${bytes[0]} ${bytes[1]}`;
  const encoding = mark === "255 254" ? "utf-16le" : mark === "254 255" ? "utf-16be" : "utf-8";
  let text;
  try {
    text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${file.name} is not UTF-8 text; save it as UTF-8, then choose it again`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file; choose a file with one sentence per line`);
  const result = new TextFile(file.name, text);
  if (result.pending.length === 0) throw new Error(`${file.name} contains no text; choose another file`);
  return result;
}

/** The numbers of the next lines to translate. @param {TextFile} file @param {number} [start] lines with text before */
export function nextBatch(file, start = file.translations.size) {
  const batch = [];
  let characters = 0;
  for (let i = start; i < file.pending.length && batch.length < BATCH_LINES; i++) {
    const index = file.pending[i] ?? 0;
    characters += file.lines[index]?.length ?? 0;
    if (batch.length > 0 && characters > BATCH_CHARACTERS) break;
    batch.push(index);
  }
  return batch;
}

/** The translated text. Each line keeps its end and the spaces around it. @param {TextFile} file */
export function joinLines(file) {
  return file.lines
    .map((line, index) => {
      const translation = file.translations.get(index);
      const translated = translation === undefined ? line : line.replace(/\S(.*\S)?/s, () => translation);
      return translated + (file.ends[index] ?? "");
    })
    .join("");
}
