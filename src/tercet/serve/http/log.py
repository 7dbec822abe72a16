"""The log of the server: one line per request, without its content or the key; as text or JSON."""

import json
import time
from typing import Any, TextIO

from tercet.messages import print_note


class ServerLog:
    """The log of the server.

    Args:
        quiet: If True, do not log requests.
        use_json: If True, write each line as a JSON object.
        file: File to write to; None for standard error. A line that cannot be written is lost.
    """

    def __init__(self, *, quiet: bool = False, use_json: bool = False, file: TextIO | None = None) -> None:
        self._quiet, self._json, self._file = quiet, use_json, file

    def request(
        self,
        method: str,
        path: str,
        status: int,
        seconds: float,
        *,
        model: str | None,
        prompt_tokens: int,
        new_tokens: int,
    ) -> None:
        if self._quiet:
            return
        if self._json:
            line = {"method": method, "path": path, "status": status, "seconds": round(seconds, 4)}
            tokens = {} if model is None else {"model": model, "read": prompt_tokens, "wrote": new_tokens}
            self._print({**line, **tokens})
            return
        model_part = "" if model is None else f", {model}: {prompt_tokens} tokens read, {new_tokens} written"
        self._print(f"{method} {path} {status} in {seconds:.3f} s{model_part}")

    def note(self, message: str) -> None:
        """Log a message that does not belong to a request."""
        self._print({"message": message} if self._json else f"tercet: {message}")

    def _print(self, entry: str | dict[str, Any]) -> None:
        now = time.time()
        if isinstance(entry, str):
            line = f"{time.strftime('%H:%M:%S', time.localtime(now))} {entry}"
        else:
            line = json.dumps({"time": round(now, 3), **entry}, ensure_ascii=False)
        print_note(line, file=self._file)
