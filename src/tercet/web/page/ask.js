// Queries to the server of a page, as JSON.

/**
 * Send a query as a POST request.
 * @param {string} path @param {string} body
 * @param {string} gone the error if the server does not respond
 * @returns {Promise<Response>}
 */
export async function post(path, body, gone) {
  const response = await fetch(path, { method: "POST", body, headers: { "Content-Type": "application/json" } }).catch(() => null);
  if (response === null) throw new Error(gone);
  return response;
}

/** The error of a response that is not ok. @param {Response} response @returns {Promise<Error>} */
export async function responseError(response) {
  const reply = await response.json().catch(() => null);
  return new Error(reply?.error ?? `the server returned ${response.status}; see its terminal`);
}
