"""The page of runs: their curves, samples and recipes, side by side, while they train and after.

It reads nothing but the runs' folders (`checkpoint.run_folder`), so that it works for a run of another process or
another machine's mounted disk, and nothing that it does can disturb training. Only `server` needs the web framework.
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.dashboard.beside import page_beside as page_beside
    from tercet.dashboard.watch import watch as watch
else:
    export_lazily(__name__)
