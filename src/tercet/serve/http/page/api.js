// Requests to the server, with complete or streamed responses. The key is only stored in this module: not in the
// address, the browser's storage or the page.

/** @typedef {Record<string, any>} Body */

const GONE = "the server does not respond; check that `tercet serve` is running";
let key = "";

/** An error response of the server; `status` 401 means that a key is required. */
export class RequestError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** @param {string} text */
export function setKey(text) {
  key = text.trim();
}

export const hasKey = () => key !== "";

/** The address of the server for programs. */
export const address = () => new URL(".", location.href).href.replace(/\/$/, "");

/**
 * @param {string} path from the root of the server
 * @param {Body | null} body null sends a GET request
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
  throw new RequestError(reply?.error?.message ?? `the server returned status ${response.status}`, response.status);
}

/** @param {string} path @param {Body | null} [body] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function ask(path, body = null, signal) {
  const response = await request(path, body, signal);
  return response.json();
}

/**
 * Yield the events of a streamed response.
 * @param {string} path @param {Body} body @param {AbortSignal} signal
 * @returns {AsyncGenerator<any>}
 */
export async function* streamEvents(path, body, signal) {
  const response = await request(path, body, signal);
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let text = "";
  let isComplete = false; // still read to the end, otherwise the browser reports an incomplete transfer
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Error(GONE);
    });
    if (done && isComplete) return;
    if (done) throw new Error("the response is incomplete; see the server's log");
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop() ?? "";
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      isComplete ||= data === "[DONE]";
      if (isComplete) continue;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Error(parsed.error.message);
      yield parsed;
    }
  }
}
