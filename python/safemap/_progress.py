"""Progress bars of long calls: tqdm where it is installed, else one line on stderr."""

from __future__ import annotations

import sys


class Bar:
    """Shows the progress of a call that it is given to. It is closed when the call lets go of it."""

    def __init__(self):
        try:
            from tqdm.auto import tqdm
        except ImportError:
            tqdm = None
        self._tqdm = tqdm
        self._bar = None
        self._line = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._tqdm is None:
            self._print(stage, done, total)
            return
        if self._bar is None:
            self._bar = self._tqdm(total=total, desc=stage, unit="B", unit_scale=True)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def _print(self, stage: str, done: int, total: int) -> None:
        line = f"{stage} {100 * done // total if total else 100}% of {total / 1e6:,.1f} MB"
        if line != self._line:
            sys.stderr.write("\r" + line)
            sys.stderr.flush()
            self._line = line

    def close(self) -> None:
        """Ends the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._line:
            sys.stderr.write("\n")
            self._line = ""

    def __del__(self):
        self.close()
