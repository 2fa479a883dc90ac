"""The build hook of the wheel: the C extensions if they can be compiled, else the wheel without them.

A standard wheel holds them and is then for one Python and one platform; for an editable one they are compiled in place.
KVSAN_BUILD_NATIVE=0 leaves them out; with 1 it is an error that they cannot be built; otherwise it is a line of warning
(pip shows it with -v), and kvsan runs without them. `scripts/native.py` is what compiles.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))
import native

ASKED = "KVSAN_BUILD_NATIVE"


class NativeBuildHook(BuildHookInterface[Any]):
    """Compiles before the files of the wheel are gathered."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is `standard` or `editable`; hatchling reads from `build_data` what the wheel holds and is for."""
        asked = os.environ.get(ASKED, "")
        if asked not in ("", "0", "1"):
            raise ValueError(
                f"{ASKED}={asked!r}; accepted: 0 (no C extensions), 1 (an error if they cannot be built), unset"
            )
        if asked == "0":
            return
        try:
            built = self._compile(version)
        except native.BuildError as error:
            if asked == "1":
                raise RuntimeError(f"{ASKED}=1 and no C extensions: {error}\n{error.said}") from None
            self.app.display_warning(f"kvsan: no C extensions, it works without them: {error}")
            return
        if built:
            build_data["force_include"].update(built)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def _compile(self, version: str) -> dict[str, str]:
        """What a standard wheel is to hold: each file and its path in the wheel. An editable one holds none."""
        if version == "editable":
            native.build(root=Path(self.root))
            return {}
        self._folder = TemporaryDirectory(prefix="kvsan-native-")  # goes with the process, if not in finalize
        folder = Path(self._folder.name)
        return {str(path): path.relative_to(folder).as_posix() for path in native.build(folder, Path(self.root))}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
