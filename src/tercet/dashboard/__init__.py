"""Dashboard of runs: curves, samples and recipes, side by side, during and after training.

It only reads run folders (`checkpoint.run_folder`), so it works for runs of other processes and for runs on mounted
disks of other machines, and cannot disturb training. Only `server` imports the web framework.
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.dashboard.background import background_dashboard as background_dashboard
    from tercet.dashboard.watch import watch as watch
else:
    export_lazily(__name__)
