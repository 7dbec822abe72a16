"""A page that lists what can be asked, for who opens the address in a browser; it loads nothing from anywhere."""

import hashlib
from base64 import b64encode

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.5 ui-monospace, monospace; }
pre { background: #f3f3f3; color: #111; padding: .7rem; overflow-x: auto; }
td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
"""
ENDPOINTS = {
    "POST /v1/completions": "continue a text",
    "POST /v1/chat/completions": "answer in a conversation",
    "POST /v1/embeddings": "vectors of texts",
    "POST /translate": "translate texts",
    "POST /fill-mask": "words for [MASK]",
    "POST /classify": "labels of texts",
    "GET /v1/models": "the models",
    "GET /health": "whether the server works",
    "GET /ready": "whether questions are taken",
    "GET /metrics": "counts, for Prometheus",
    "GET /openapi.json": "every field of every question and answer",
}
EXAMPLE = """curl ADDRESS/v1/completions -H 'Content-Type: application/json' \\
  -d '{"prompt": "Once upon a time", "max_tokens": 50}'"""

_rows = "\n".join(f"<tr><td><code>{path}</code></td><td>{what}</td></tr>" for path, what in ENDPOINTS.items())
PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tercet</title><style>{STYLE}</style>
<h1>Tercet</h1>
<p>Models over HTTP. Routes under <code>/v1</code> have the shapes of OpenAI's, so its clients work here.</p>
<table>
{_rows}
</table>
<pre>{EXAMPLE}</pre>
</html>
"""
_style = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_style}'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
