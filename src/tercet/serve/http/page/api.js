// The server's answers, at once or as they are written. The key is kept here and nowhere else: not in the address, not
// in the browser's storage, not in what is shown.

/** @typedef {Record<string, any>} Body */

const GONE = "the server does not answer; is `tercet serve` still running?";
let key = "";

/** What the server said no with; `status` 401 asks for a key. */
export class Refusal extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** @param {string} text */
export function useKey(text) {
  key = text.trim();
}

export const hasKey = () => key !== "";

/** Where the server is, as a program must be told. */
export const address = () => new URL(".", location.href).href.replace(/\/$/, "");

/**
 * @param {string} path from the root of the server
 * @param {Body | null} body null asks with GET
 * @param {AbortSignal} [signal]
 * @returns {Promise<Response>}
 */
async function request(path, body, signal) {
  /** @type {Record<string, string>} */
  const headers = key === "" ? {} : { Authorization: `Bearer ${key}` };
  if (body !== null) headers["Content-Type"] = "application/json";
  const options = { method: body === null ? "GET" : "POST", headers, body: body && JSON.stringify(body), signal: signal ?? null };
  const response = await fetch(path.slice(1), options).catch((error) => {
    throw error.name === "AbortError" ? error : new Error(error instanceof TypeError ? GONE : error.message);
  });
  if (response.ok) return response;
  const reply = await response.json().catch(() => null);
  throw new Refusal(reply?.error?.message ?? `the server answered ${response.status}`, response.status);
}

/** @param {string} path @param {Body | null} [body] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function ask(path, body = null, signal) {
  const response = await request(path, body, signal);
  return response.json();
}

/**
 * Each event of an answer that is streamed, as it comes.
 * @param {string} path @param {Body} body @param {AbortSignal} signal
 * @returns {AsyncGenerator<any>}
 */
export async function* streamEvents(path, body, signal) {
  const response = await request(path, body, signal);
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let text = "";
  let isWhole = false; // read to its end, also behind the last event: else the browser takes it for broken off
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Error(GONE);
    });
    if (done && isWhole) return;
    if (done) throw new Error("the answer broke off; the server's log says why");
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop() ?? "";
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      isWhole ||= data === "[DONE]";
      if (isWhole) continue;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Error(parsed.error.message);
      yield parsed;
    }
  }
}
